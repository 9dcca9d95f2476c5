"""Artifacts and index, as one unit."""
