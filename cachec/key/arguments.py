"""The key parts of a stage's arguments, and the weight sets in them.

The one rule: weights by name (their specs), programs by topology, files by content, everything else by value.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from types import WrapperDescriptorType
from typing import TYPE_CHECKING, Any

import msgspec

from cachec.base import fsio
from cachec.base.display_text import module_of
from cachec.base.hashing import FileDigests, Hasher, digest_bytes, frame
from cachec.base.instances import attribute, class_attribute, function_of
from cachec.base.lazy import later
from cachec.errors import CachecError, PluginError, StoreFault, UnkeyableArgument, UnreadableArgument, UnresolvedCode
from cachec.key import option_encoding
from cachec.key.argument_info import ArgumentInfo
from cachec.key.code.fingerprint import CodeKeys
from cachec.key.describe import describe, literal_text, name_of_class, words_of
from cachec.key.external_data import Companions
from cachec.key.tools.process_queries import PACKAGES
from cachec.model import Part, PartKind
from cachec.programs.artifact import Dir, File
from cachec.programs.program import Program
from cachec.programs.registry import Plugins
from cachec.weights import Weight, WeightSet
from cachec.weights.manifest import Manifest

if TYPE_CHECKING:  # not of most hits
    from cachec.key import path_digests
    from cachec.key.flatten import Leaves
    from cachec.programs import supported_versions
else:
    path_digests, supported_versions = later("cachec.key.path_digests"), later("cachec.programs.supported_versions")

#: From this size the plain arrays of an argument get a warning: they are hashed at every call.
LARGE_ARRAYS = 1 << 20


class Annotation(msgspec.Struct, frozen=True):
    """What a part says beside its digest; see ``Part``."""

    detail: str
    refs: tuple[str, ...] = ()
    version: str = ""
    value: str = ""
    subject: str = ""
    leaves: Leaves = ()


class Payload(msgspec.Struct, frozen=True, eq=False):
    """One part of a key before it is hashed. ``annotate`` is only called when the part is to be kept."""

    kind: PartKind
    name: str
    data: bytes
    annotate: Callable[[], Annotation]

    def part(self) -> Part:
        """The part as it is kept."""
        return Part(self.kind, self.name, digest_bytes(self.data), *msgspec.structs.astuple(self.annotate()))


class ArgumentKeys:
    """Turns arguments into payloads of a key."""

    def __init__(self, digests: FileDigests, code: CodeKeys, plugins: Plugins) -> None:
        self._services = (digests, Companions(digests), code, plugins)

    def payloads(self, arguments: Mapping[str, Any], *, per_rank: bool, inventory: ArgumentInfo) -> list[Payload]:
        """One payload or more an argument, in order; fills ``inventory``.

        Raises UnkeyableArgument that names the argument, and UnresolvedCode where code of the argument raises."""
        payloads: list[Payload] = []
        name = ""
        try:
            for name, value in arguments.items():
                scalar = option_encoding.SCALARS.get(type(value))  # keyed by plain value, and nothing in it to look for
                if scalar is not None:
                    payloads.append(Payload(PartKind.ARGUMENT, name, scalar(value), _annotator(value, name)))
                    continue
                if type(value) is WeightSet:
                    payloads += self._weights(value, name, inventory, per_rank=per_rank)
                    continue
                collector = self._collector(per_rank, inventory)
                data = option_encoding.encode(value, collector.special, name)
                if sum(collector.arrays) > LARGE_ARRAYS:
                    inventory.large[name] = (len(collector.arrays), sum(collector.arrays))
                if not (len(collector.payloads) == 1 and collector.paths == [name]):
                    payloads.append(Payload(PartKind.ARGUMENT, name, data, _annotator(value, name)))
                payloads += collector.payloads
        except (CachecError, OSError):
            raise
        except Exception as error:
            raise UnresolvedCode(
                f"argument {name} ({name_of_class(arguments[name])}) raised {words_of(error)} while its key was made; "
                "pass plain values, or leave it out with ignore=[...]"
            ) from error
        if inventory.callers:
            inventory.check_callers()
        return payloads

    def _collector(self, per_rank: bool, inventory: ArgumentInfo) -> ArgumentCollector:
        return ArgumentCollector(*self._services, per_rank, inventory)

    def _weights(self, value: WeightSet, name: str, inventory: ArgumentInfo, *, per_rank: bool) -> list[Payload]:
        collector = self._collector(per_rank, inventory)
        return [collector.weights(value, name), *collector.payloads]


def _annotator(value: object, name: str) -> Callable[[], Annotation]:
    def annotate() -> Annotation:
        from cachec.key.flatten import leaves  # where a part is kept

        return Annotation(describe(value, name=name), value=literal_text(value, name), leaves=leaves(value, name))

    return annotate


class ArgumentCollector:
    """Answers for the values inside one argument that are not keyed by plain value; each becomes a payload itself."""

    __slots__ = (
        "_code",
        "_companions",
        "_digests",
        "_inventory",
        "_per_rank",
        "_plugins",
        "arrays",
        "paths",
        "payloads",
    )

    def __init__(
        self,
        digests: FileDigests,
        companions: Companions,
        code: CodeKeys,
        plugins: Plugins,
        per_rank: bool,
        inventory: ArgumentInfo,
    ) -> None:
        self._digests = digests
        self._companions = companions
        self._code = code
        self._plugins = plugins
        self._per_rank = per_rank
        self._inventory = inventory
        self.arrays: list[int] = []
        self.payloads: list[Payload] = []
        self.paths: list[str] = []

    def special(self, value: object, path: str) -> bytes | None:
        """The bytes that stand for ``value`` in its container, or None where it is keyed by plain value."""
        payload = self._payload(value, path)
        if payload is None:
            return None
        self.paths.append(path)
        self.payloads.append(payload)
        return payload.data

    def _payload(self, value: Any, path: str) -> Payload | None:
        if isinstance(value, WeightSet):
            return self.weights(value, path)
        if isinstance(value, Program):
            self._inventory.programs[path] = value
            self._collect_manifest(value.manifest, path)
            return Payload(PartKind.PROGRAM, path, value.topology.encode(), lambda: _of_program(value))
        if isinstance(value, File | Dir | PurePath):
            return self._file(value, path)
        if isinstance(value, Weight):
            raise UnkeyableArgument(
                f"argument {path} is the single weight {value.name!r}; pass the set, narrowed by "
                f"weights.select([{value.name!r}]), so that a read of it is recorded"
            )
        state = PACKAGES.get(module_of(type(value)))
        if state is not None:
            self._inventory.states.add(state)
        if _is_callable(value):
            return self._callable(value, path)
        if _is_array(value):
            return self._array(value, path)
        if _is_tensor(value):
            digest, description = tensor_digest(value, path), f"tensor {value.dtype}{list(value.shape)}"
            self.arrays.append(value.nbytes)
            inside = _array_leaves(path, str(value.dtype), tuple(value.shape), digest)
            annotation = Annotation(f"{description} {digest[:12]}", leaves=inside)
            return Payload(PartKind.ARGUMENT, path, digest.encode(), lambda: annotation)
        if module_of(type(value)) == "builtins" or option_encoding.plain(value):
            return None
        plugin = self._plugins.for_type(type(value))
        if plugin is None:
            return None
        self._inventory.plugins.add(plugin.name)
        with supported_versions.Asking(plugin):
            found = plugin.fingerprint(value)
        if found.nbytes:
            self.arrays.append(found.nbytes)
        annotation = Annotation(found.detail, value=found.detail)
        return Payload(PartKind.ARGUMENT, path, found.digest.encode(), lambda: annotation)

    def weights(self, value: WeightSet, path: str) -> Payload:
        """Names, types and ties; the containers that they hang in, with what those hold beside them."""
        self._inventory.weights[path] = value
        data, description = value.spec_digest.encode(), ""
        if value.layout.nesting is not None:
            tree = option_encoding.encode(value.layout.nesting.form, self.special, path)
            data, description = data + frame("tree", tree), f", tree {digest_bytes(tree)[:12]}"
        if self._per_rank:
            data += b" rank %d" % (-1 if value.rank is None else value.rank)
        rank = f", rank {value.rank}" if self._per_rank else ""

        def annotate() -> Annotation:
            return Annotation(f"{len(value)} weights{description}{rank}", (value.manifest.digest,))

        return Payload(PartKind.WEIGHTS, path, data, annotate)

    def _file(self, value: File | Dir | PurePath, path: str) -> Payload:
        place = os.fspath(value)
        self._inventory.paths.append(place)
        try:
            digest = path_digests.path_digest(place, self._digests)
            external = self._companions.of(place, digest)
        except OSError as error:
            if fsio.is_exhausted(error):
                raise
            raise UnreadableArgument(
                f"argument {path} is a path and keyed by the content of {place!r}, which can't be read: "
                f"{error.strerror}. Pass a str to key a path by its text, or leave it out with ignore=[...]"
            ) from error
        aspects, words = _name_properties(value, place)
        for name, content in external:
            aspects += frame("beside", os.fsencode(name)) + frame("content", content.encode())
            words += f", {name} {content[:12] or 'absent'}"
        base = os.path.basename(place)
        if isinstance(value, File | Dir) and value.manifest is not None:
            self._collect_manifest(value.manifest, path)
        self._inventory.files[digest] = place
        annotation = Annotation(f"{base} {digest[:12]}{words}", (digest,), value=base, subject=base)
        return Payload(PartKind.FILE, path, digest.encode() + aspects, lambda: annotation)

    def _collect_manifest(self, manifest: Manifest, path: str) -> None:
        self._inventory.manifests[path] = manifest
        for name, there in manifest.callers.items():
            self._inventory.callers.setdefault(name, there)

    def _callable(self, value: Any, path: str) -> Payload:
        code = self._code.of(value)
        self._inventory.stages += code.stages
        self._inventory.memos += code.memos
        self._inventory.unfilled += code.unfilled
        self._inventory.distributions |= code.distributions
        self._inventory.code += code.parts
        self._inventory.callables.append(code)
        function = function_of(value)
        qualname = attribute(function, "__qualname__") or type(value).__qualname__
        name = f"{attribute(function, '__module__') or ''}.{qualname}"
        # A class may be no more than that of a value which is given, and a function within a value is a part of it.
        subject = name if path.isidentifier() and not isinstance(value, type) else ""
        annotation = Annotation(f"{name} {code.digest[:12]}", value=name, subject=subject)
        return Payload(PartKind.ARGUMENT, path, code.digest.encode(), lambda: annotation)

    def _array(self, value: Any, path: str) -> Payload:
        _refuse_objects(value, path)
        self.arrays.append(value.nbytes)
        digest, shape, dtype = array_digest(value), value.shape, str(value.dtype)

        def annotate() -> Annotation:
            words = f"array {dtype}{list(shape)} {digest[:12]}"
            return Annotation(words, value=words, leaves=_array_leaves(path, dtype, shape, digest))

        return Payload(PartKind.ARGUMENT, path, digest.encode() + self.layout(value), annotate)

    def layout(self, array: Any) -> bytes:
        """What counts of an array beside its digest."""
        del array
        return b""


def _array_leaves(path: str, dtype: str, shape: Sequence[int], digest: str) -> Leaves:
    return (f"{path}.dtype", dtype), (f"{path}.shape", str(list(shape))), (f"{path} content", digest[:12])


def _of_program(program: Program) -> Annotation:
    from cachec.programs import ir  # where a part is kept

    refs = (program.ir_digest, program.manifest.digest)
    try:
        name = ir.title(program.format, program.ir)
    except (PluginError, StoreFault):
        name = ""  # then it is not found again by its name; whoever needs the IR is told
    return Annotation(program.format, refs, version=program.format, subject=name)


def _name_properties(value: File | Dir | PurePath, place: str) -> tuple[bytes, str]:
    """What counts of a path beside content, for the key and in words: the suffix, by which compilers choose a language,
    and of a File or Dir its kind and manifest. Neither folder nor name: a project that was moved still hits.
    """
    parts = {"suffix": os.path.splitext(place)[1]}
    if isinstance(value, File | Dir):
        parts["kind"] = value.kind
        parts["manifest"] = value.manifest.digest if value.manifest is not None else ""
    data = b"".join(frame(name, os.fsencode(text)) for name, text in parts.items() if text)
    return data, "".join(f", {name} {text[:12]}" for name, text in parts.items() if text)


def _is_callable(value: object) -> bool:
    return callable(value) and (
        type(value).__name__ in {"function", "method", "partial", "builtin_function_or_method"}
        or isinstance(value, type)
        or attribute(value, "__cachec_stage__") is True
        # What a library made of a function: compiled objects show nothing of what they hold, others too much.
        or type(class_attribute(type(value), "__call__")) is WrapperDescriptorType
        or "__wrapped__" in (attribute(value, "__dict__") or ())
    )


def _is_array(value: object) -> bool:
    return module_of(type(value)) == "numpy" and type(value).__qualname__ in {"ndarray", "memmap"}


def _refuse_objects(value: Any, path: str) -> None:
    if value.dtype.hasobject:
        raise UnkeyableArgument(f"argument {path} is an array of Python objects, which have no stable bytes")


def _is_tensor(value: Any) -> bool:
    kind = type(value)
    return module_of(kind) in {"torch", "torch.nn.parameter"} and kind.__qualname__ in {"Tensor", "Parameter"}


def tensor_digest(value: Any, path: str) -> str:
    """The digest of a torch tensor: class, dtype, shape, strides, device, whether it takes part in gradients, and its
    elements in row-major order. Raises UnkeyableArgument for what is not strided, or has no data.
    """
    import torch  # it is imported where such a value is

    if value.layout is not torch.strided or value.is_meta or value.is_quantized:
        raise UnkeyableArgument(
            f"argument {path} is a torch tensor of layout {value.layout} on {value.device}, whose bytes can't be read; "
            "pass a dense one, or leave it out with ignore=[...]"
        )
    plain = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
    hasher = Hasher("tensor")
    properties = (type(value).__qualname__, str(value.dtype), tuple(value.shape), value.stride(), str(value.device))
    hasher.part("told", repr((*properties, value.requires_grad)).encode())
    hasher.part("data", memoryview(plain.reshape(-1).view(torch.uint8).numpy()))
    if value.is_leaf and value.grad is not None:
        hasher.part("gradient", tensor_digest(value.grad, path).encode())
    return hasher.digest()


def array_digest(value: Any) -> str:
    """The digest of a numpy array: dtype, shape, elements in row-major order, and strides where it lies otherwise:
    a program can see them, and ``ravel(order="K")`` goes by them."""
    hasher = Hasher("array")
    hasher.part("dtype", f"{value.dtype.str}{value.dtype.char}{value.dtype!r}".encode())
    if value.dtype.metadata or value.dtype.names or value.dtype.subdtype:
        hasher.part("told", option_encoding.encode(value.dtype, lambda each, path: None, "dtype"))
    hasher.part("shape", repr(value.shape).encode())
    hasher.part("data", memoryview(value.reshape(-1).view("u1")) if value.flags.c_contiguous else value.tobytes())
    if not value.flags.c_contiguous:
        hasher.part("strides", repr(value.strides).encode())
    return hasher.digest()


class GlobalKeys:
    """The bytes of values that a stage reaches without being given them: globals, closures, defaults.

    As arguments, but a plain path counts by its text: such a path says where a project is, and what a stage opens there
    it has to say with ``cachec.depends``.
    """

    def __init__(self, digests: FileDigests, plugins: Plugins) -> None:
        self._digests = digests
        self._companions = Companions(digests)
        self._plugins = plugins

    def encode(self, value: object, path: str) -> bytes:
        """Raises UnkeyableArgument for a value without a stable form."""
        return option_encoding.encode(value, self._special, path)

    def _special(self, value: object, path: str) -> bytes | None:
        if isinstance(value, File | Dir):
            place = os.fspath(value)
            digest = self._companions.whole(place, path_digests.path_digest(place, self._digests))
            return digest.encode() + _name_properties(value, place)[0]
        if isinstance(value, PurePath):
            return b"path " + os.fsencode(value)
        if isinstance(value, Program):
            return value.topology.encode()
        if _is_array(value):
            _refuse_objects(value, path)
            return array_digest(value).encode()
        if _is_tensor(value):
            return tensor_digest(value, path).encode()
        if isinstance(value, type) or option_encoding.plain(value):
            return None
        plugin = self._plugins.for_type(type(value))
        if plugin is None:
            return None
        with supported_versions.Asking(plugin):
            return plugin.fingerprint(value).digest.encode()


def path_like_text(arguments: Mapping[str, Any]) -> list[str]:
    """The ``str`` arguments that name an existing file: keyed by their text, perhaps not what their author meant."""
    return [name for name, value in arguments.items() if isinstance(value, str) and value and _exists(value)]


def _exists(text: str) -> bool:
    return "\0" not in text and len(text) < 4096 and ("/" in text or "." in text) and os.path.exists(text)
