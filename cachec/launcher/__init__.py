"""``cachec exec -- COMMAND...``: a command as a stage. Adapters (``cachec/adapters``) tell what its arguments mean.

``direct`` answers a repeated command from a memo, and imports next to nothing; ``full`` is the whole road.
"""
