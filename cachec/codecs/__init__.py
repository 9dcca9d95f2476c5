"""Results of stages as stored nodes and artifacts, and back. No pickle anywhere."""

from cachec.codecs.arrays import Provenance
from cachec.codecs.base import Sink, Source
from cachec.codecs.decoder import Decoder, decode
from cachec.codecs.encoder import Encoder, encode
from cachec.model import Node, artifacts

__all__ = ["Decoder", "Encoder", "Node", "Provenance", "Sink", "Source", "artifacts", "decode", "encode"]
