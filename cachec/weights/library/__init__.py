"""Weights that the cache owns or fetches: revisions, side files, resolvers."""
