"""Whether what is stored is what it should be: artifacts by their digests, rows against files, results made again."""
