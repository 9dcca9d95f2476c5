"""What everything stands on: raw files, hashing, logs, installed wheels."""

#: The version of cachec: here, where every room can have it; ``cachec.__version__`` is this one.
__version__ = "0.1.0"
