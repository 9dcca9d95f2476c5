"""Results of stages as stored nodes and artifacts, and back. No pickle anywhere."""

from cachec.codecs.decoder import decode
from cachec.model import Node, artifacts

__all__ = ["Node", "artifacts", "decode"]
