"""The engines that a remote can be kept on: one module each, and what all promise in ``base``."""
