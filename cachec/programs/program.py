"""Programs without weights: stripped IR and its manifest."""

from __future__ import annotations

from collections.abc import Callable

from cachec.base.hashing import Hasher, digest_bytes
from cachec.weights.manifest import Manifest


class Program:
    """Stripped IR and its manifest. Immutable; the first use of a stored program's IR fetches it.

    format: what the IR is, as ``plugin:syntax`` (``jax:stablehlo``). ir: the stripped IR.

    canonical: what counts instead of the IR's bytes, where a plugin knows a hash that is equal only for IR from which
    a compiler makes the same (MLIR: without names of values and locations); 64 hexadecimal characters.
    """

    __slots__ = ("_ir", "_load", "_topology", "canonical", "format", "ir_digest", "manifest")

    def __init__(self, ir: bytes | str, *, format: str, manifest: Manifest, canonical: str | None = None) -> None:
        data = ir.encode() if isinstance(ir, str) else bytes(ir)
        self._init(format, manifest, digest_bytes(data), canonical, lambda: data)

    @classmethod
    def stored(
        cls,
        *,
        format: str,
        manifest: Manifest,
        ir_digest: str,
        load: Callable[[], bytes],
        canonical: str | None = None,
    ) -> Program:
        """Return a program with an IR that ``load`` fetches, and checks against ``ir_digest``."""
        program = cls.__new__(cls)
        program._init(format, manifest, ir_digest, canonical, load)
        return program

    def _init(
        self, format: str, manifest: Manifest, ir_digest: str, canonical: str | None, load: Callable[[], bytes]
    ) -> None:
        self.format = format
        self.manifest = manifest
        self.ir_digest = ir_digest
        self.canonical = canonical
        self._load = load
        self._ir: bytes | None = None
        self._topology = ""

    def linked_as(self, manifest: Manifest) -> Program:
        """The same program with an equal manifest, which may say other names of the caller's."""
        return Program.stored(
            format=self.format,
            manifest=manifest,
            ir_digest=self.ir_digest,
            load=lambda: self.ir,
            canonical=self.canonical,
        )

    @property
    def topology(self) -> str:
        """The program's part in a key: 64 hexadecimal characters over format, IR and manifest. Made when first asked
        for: what a hit returns is often not keyed by again."""
        if not self._topology:
            hasher = Hasher("program")
            hasher.part("format", self.format.encode())
            if self.canonical is None:
                hasher.part("ir", self.ir_digest.encode())
            else:
                hasher.part("canonical", self.canonical.encode())
            hasher.part("manifest", self.manifest.digest.encode())
            self._topology = hasher.digest()
        return self._topology

    @property
    def ir(self) -> bytes:
        """The stripped IR."""
        if self._ir is None:
            self._ir = self._load()
        return self._ir

    @property
    def text(self) -> str:
        """The stripped IR as text. Raises UnicodeDecodeError for a binary format."""
        return self.ir.decode()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Program) and other.topology == self.topology

    def __hash__(self) -> int:
        return hash(self.topology)

    def __repr__(self) -> str:
        return f"Program({self.format}, topology {self.topology[:12]})"
