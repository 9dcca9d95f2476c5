"""Commands: run, watched and recorded."""
