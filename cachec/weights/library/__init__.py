"""Weights that the cache owns or fetches: revisions, their intake into the store, resolvers."""
