"""Makes the folder of the project importable."""
