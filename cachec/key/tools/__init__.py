"""What a run is made with: distributions, executables, platform, environment."""
