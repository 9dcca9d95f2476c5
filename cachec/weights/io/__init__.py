"""Bytes of weights on their way: copied, written, staged, streamed."""
