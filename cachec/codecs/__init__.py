"""Results of stages as stored nodes and artifacts, and back. No pickle anywhere."""

from cachec.codecs.base import ArtifactSink, ArtifactSource
from cachec.codecs.decoder import decode
from cachec.codecs.encoder import encode
from cachec.model import Node, artifacts

__all__ = ["ArtifactSink", "ArtifactSource", "Node", "artifacts", "decode", "encode"]
