"""Programs without weights: stripped IR, and the manifest that says which weights it is to be linked with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import msgspec

from cachec.errors import LinkError
from cachec.hashing import Hasher, digest_bytes
from cachec.model import WeightSpec

#: How many differences one LinkError spells out.
_SHOWN = 8


def renaming_hint(wanted: Collection[str], there: Collection[str]) -> str:
    """How to rename weights, as the end of a message, where all ``wanted`` names are ``there`` but for one prefix.

    Empty where they are not. A single name says little: the prefix must then be one that all names share.
    """
    if not wanted or not there:
        return ""
    first, names = min(wanted), set(there)
    for name in sorted(names, key=len):
        if name.endswith(first) and name != first:
            prefix = name.removesuffix(first)
            enough = len(wanted) > 1 or all(each.startswith(prefix) for each in names)
            if enough and all(prefix + each in names for each in wanted):
                return f"; did you mean weights.rename(lambda n: n.removeprefix({prefix!r}))?"
        elif first.endswith(name) and name != first:
            prefix = first.removesuffix(name)
            if len(wanted) > 1 and all(each.startswith(prefix) and each[len(prefix) :] in names for each in wanted):
                return f"; did you mean weights.rename(lambda n: {prefix!r} + n)?"
    return ""


class Manifest:
    """What an artifact expects to be linked with: weight specs by name. Immutable; decoded only when looked at.

    Stored as JSON: a list of the specs sorted by name, so equal manifests have equal digests.
    """

    __slots__ = ("_encoded", "_load", "_weights", "digest")

    def __init__(self, digest: str, load: Callable[[], bytes]) -> None:
        """A manifest whose encoded form ``load`` fetches (and has checked against ``digest``)."""
        self.digest = digest
        self._load = load
        self._encoded: bytes | None = None
        self._weights: dict[str, WeightSpec] | None = None

    @classmethod
    def of(cls, specs: Mapping[str, WeightSpec]) -> Manifest:
        """The manifest of these specs."""
        encoded = msgspec.json.encode([specs[name] for name in sorted(specs)])
        return cls(digest_bytes(encoded), lambda: encoded)

    def encoded(self) -> bytes:
        """The stored form."""
        if self._encoded is None:
            self._encoded = self._load()
        return self._encoded

    @property
    def weights(self) -> Mapping[str, WeightSpec]:
        """The specs by name. Raises LinkError where the stored form is malformed."""
        if self._weights is None:
            try:
                specs = msgspec.json.decode(self.encoded(), type=list[WeightSpec])
            except msgspec.MsgspecError as error:
                raise LinkError(f"manifest {self.digest[:12]} is malformed: {error}") from error
            self._weights = {spec.name: spec for spec in specs}
        return self._weights

    def check(self, offered: Mapping[str, WeightSpec]) -> None:
        """Raise LinkError unless ``offered`` has exactly these names with the same shape, dtype, layout and ties."""
        wanted = self.weights
        problems = [f"missing {name!r}" for name in wanted if name not in offered]
        problems += [f"extra {name!r}" for name in offered if name not in wanted]
        for name, spec in wanted.items():
            found = offered.get(name)
            if found is not None and found != spec:
                problems.append(f"{name!r}: {_difference(spec, found)}")
        if problems:
            hint = renaming_hint([name for name in wanted if name not in offered], offered)
            more = f", and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
            raise LinkError(
                f"the weight set does not fit the artifact: {'; '.join(problems[:_SHOWN])}{more}. "
                "Select, rename or tie the weights as they were when the artifact was compiled, or compile for these"
                f"{hint or '.'}"
            )

    def merged(self, other: Manifest) -> Manifest:
        """Both together. Raises LinkError where they disagree on a name."""
        if other.digest == self.digest:
            return self
        both = dict(self.weights)
        for name, spec in other.weights.items():
            if both.setdefault(name, spec) != spec:
                raise LinkError(f"two programs disagree on weight {name!r}: {_difference(both[name], spec)}")
        return Manifest.of(both)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Manifest) and other.digest == self.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Manifest({self.digest[:12]})"


def _difference(wanted: WeightSpec, found: WeightSpec) -> str:
    parts = [
        f"{field} expected {getattr(wanted, field)!r}, found {getattr(found, field)!r}"
        for field in WeightSpec.__struct_fields__
        if getattr(wanted, field) != getattr(found, field)
    ]
    return ", ".join(parts)


class Program:
    """Stripped IR and its manifest. Immutable; the IR of a stored program is fetched when first looked at.

    format: what the IR is, as ``plugin:syntax`` (``jax:stablehlo``). ir: the stripped IR. topology: 64 hexadecimal
    characters over format, IR and manifest: the program's part in a key.
    """

    __slots__ = ("_ir", "_load", "format", "ir_digest", "manifest", "topology")

    def __init__(self, ir: bytes | str, *, format: str, manifest: Manifest) -> None:
        data = ir.encode() if isinstance(ir, str) else bytes(ir)
        self._init(format, manifest, digest_bytes(data), lambda: data)

    @classmethod
    def stored(cls, *, format: str, manifest: Manifest, ir_digest: str, load: Callable[[], bytes]) -> Program:
        """A program whose IR ``load`` fetches (and has checked against ``ir_digest``)."""
        program = cls.__new__(cls)
        program._init(format, manifest, ir_digest, load)
        return program

    def _init(self, format: str, manifest: Manifest, ir_digest: str, load: Callable[[], bytes]) -> None:
        self.format = format
        self.manifest = manifest
        self.ir_digest = ir_digest
        self._load = load
        self._ir: bytes | None = None
        hasher = Hasher("program")
        hasher.part("format", format.encode())
        hasher.part("ir", ir_digest.encode())
        hasher.part("manifest", manifest.digest.encode())
        self.topology = hasher.digest()

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
