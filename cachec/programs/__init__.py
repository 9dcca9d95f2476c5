"""Programs, artifacts and plugins: what a compiler makes, and who links it."""
