"""Live modules of MLIR's bindings: written to where their resources can be used in place, stored, and read back.

MLIR writes bytecode to a file and maps what it reads from one, so no byte of a resource passes through Python.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec

from cachec.base.display_text import shown_pair
from cachec.base.hashing import Hasher
from cachec.errors import CachecError, CheckpointError, LinkError, PluginError, StoreFault, UnstorableResult, UsageError
from cachec.model import Fault
from cachec.programs.plugin import ArtifactWriter, Fingerprint
from cachec.programs.program import Program
from cachec.weights import Weight, WeightSet
from cachec_mlir.blobs import ALIGNMENT, BUFFER_ALIGNMENT, PAGE_ALIGNMENT, Blob, Resource
from cachec_mlir.bytecode.reader import Bytecode, is_bytecode
from cachec_mlir.bytecode.rewriter import rename_bytecode, strip_bytecode
from cachec_mlir.file_writer import write
from cachec_mlir.live.bindings import Bindings, bindings_of, generic, write_bytecode
from cachec_mlir.live.resource_attachment import attach, placeholders, views_in_place
from cachec_mlir.module_input import open_input
from cachec_mlir.strip_and_link import link
from cachec_mlir.weight_binding import check_specs, match_weights

_NAME = "module.mlirbc"


class BytecodeFile:
    """A live module as bytecode in a file that is gone when this is closed; what is open of it stays readable."""

    def __init__(self, module: Any) -> None:
        """The file is made in the system's temporary folder and has the size of the resources. Raises OSError,
        PluginError."""
        import tempfile  # slow to import, and not needed to strip

        self._folder = tempfile.TemporaryDirectory(prefix="cachec-mlir-")
        self.path = os.path.join(self._folder.name, _NAME)
        try:
            write_bytecode(module, self.path)
            self.bytecode = Bytecode(self.path)
        except BaseException:
            self._folder.cleanup()
            raise

    def __enter__(self) -> BytecodeFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def keep_for(self, weights: WeightSet) -> None:
        """Keep the file for as long as a set over the bytes of ``weights`` is used, instead of closing this."""
        weakref.finalize(weights.source, self._folder.cleanup)


def load(
    program: Program,
    weights: Mapping[str, Weight] | None = None,
    *,
    bindings: str,
    names: Mapping[str, str] | None = None,
    alignment: int = ALIGNMENT,
) -> Any:
    """The live module of a program of format ``mlir:text`` or ``mlir:bytecode``, in a context of its own.

    bindings: ``iree`` or ``jax``. Text works with any LLVM version, bytecode only with its own. weights: bytes for its
    resources, which must not change while the module is used; without weights they have no bytes. Aligned ones in files
    are mapped in place; otherwise the kernel copies all to a temporary file. names: name in the program -> name in
    ``weights``, for those that differ; by default the program's own record.

    Raises UsageError for another format, or an alignment that is no power of two; LinkError where the weights do not
    fit the manifest, or an alignment is larger than 4096; CheckpointError where these bindings can't read it;
    PluginError where they are not installed.
    """
    if program.format not in {"mlir:text", "mlir:bytecode"}:
        raise UsageError(f"load takes a program of format 'mlir:text' or 'mlir:bytecode', found {program.format!r}")
    with_bindings = Bindings(bindings)
    module = with_bindings.parse(program.ir, repr(program))
    if weights is None or not program.manifest.weights:
        return module
    names = {**program.manifest.callers, **(names or {})}
    _check(program, weights, names)
    ir = program.ir
    if not is_bytecode(ir):
        with BytecodeFile(module) as written:
            ir = written.bytecode.input.at(0, written.bytecode.input.size, "the module")
    wanted = set(Bytecode(ir).names_without_bytes)
    return _link_live(
        with_bindings, ir, weights, {name: there for name, there in names.items() if name in wanted}, alignment
    )


def _check(program: Program, weights: Mapping[str, Weight], names: Mapping[str, str]) -> None:
    wanted = program.manifest.weights
    missing = sorted(name for name in wanted if names.get(name, name) not in weights)
    if missing:
        raise LinkError(f"{program!r} has no bytes for {missing[0]!r} ({len(missing)} missing)")
    given = {name: weights[names.get(name, name)] for name in wanted}
    check_specs(
        program.manifest, {name: (names.get(name, name), each.spec, each.nbytes) for name, each in given.items()}
    )


def parse_stripped(bindings: Bindings, module: Bytecode) -> Any:
    """A live module without the bytes of the resources that ``module`` has. Raises CheckpointError."""
    ir = strip_bytecode(module).ir
    if all(section.alignment <= BUFFER_ALIGNMENT for section in Bytecode(ir).sections):
        return bindings.parse(ir, module.input.label)
    return _load_mapped(bindings, lambda path: write(path, [ir]))


def _link_live(
    bindings: Bindings,
    ir: bytes,
    weights: Mapping[str, Weight] | Mapping[str, Resource],
    names: Mapping[str, str],
    alignment: int | None = None,
) -> Any:
    """Load bytecode with these bytes, in place, or in a copy that the kernel makes and MLIR maps."""
    module = Bytecode(ir)
    bound = match_weights(weights, dict.fromkeys(module.names_without_bytes, ()), names, alignment)
    views = views_in_place(bound) if _all_of_builtin(module) else None
    if views is not None:
        other = placeholders(bound)
        live = parse_stripped(bindings, Bytecode(rename_bytecode(module, other)))
        if attach(bindings.resource, live, other, bound, views):
            return live

    return _load_mapped(bindings, lambda path: link(module, weights, path, names=names, alignment=alignment).nbytes)


def _all_of_builtin(module: Bytecode) -> bool:
    """Whether ``module`` has no bytes yet, and its resources are of the dialect that the bindings can make them of."""
    return not module.resources and all(module.strings[group.key] == "builtin" for _, group, _ in module.named)


def _load_mapped(bindings: Bindings, write_to: Callable[[str], int]) -> Any:
    """The module that ``write_to`` writes, mapped. The file is gone when this returns, its pages are not."""
    import tempfile  # slow to import, and not needed to strip

    with tempfile.TemporaryDirectory(prefix="cachec-mlir-") as folder:
        path = os.path.join(folder, _NAME)
        write_to(path)
        return bindings.parse_file(path)


# --- as argument and result of a stage


def fingerprint(module: Any) -> Fingerprint:
    """A live module by its operations in generic notation, without locations, and by the bytes of its resources.

    Never by identity: ``PassManager.run`` changes a module in place. The bytes count because the stage can read them;
    ``program(module)`` is what is keyed without.
    """
    text = generic(module)
    hasher = Hasher("mlir-module")
    hasher.part("bindings", str(bindings_of(module)).encode())
    hasher.part("operations", text)
    count = nbytes = 0
    with BytecodeFile(module) as written:
        for name, resource in sorted(written.bytecode.resources.items()):
            hasher.part(f"resource {name}", f"{resource.alignment} {resource.blob.digest()}".encode())
            count, nbytes = count + 1, nbytes + resource.nbytes
        for name in sorted(written.bytecode.names_without_bytes):
            hasher.part(f"declared {name}", b"")
    return Fingerprint(hasher.digest(), f"ir.Module, {len(text)} characters, {count} resources of {nbytes} bytes")


class _StoredResource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    alignment: Annotated[int, msgspec.Meta(ge=1, le=PAGE_ALIGNMENT)]


class _ModuleMeta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The meta data of a stored module: its bindings, and its resources in the order of the artifacts after the IR."""

    bindings: str
    resources: list[_StoredResource]


def encode(module: Any, out: ArtifactWriter) -> dict[str, Any]:
    """A live module as stripped bytecode, and an artifact for each resource: equal ones of other modules are shared."""
    name = bindings_of(module)
    if name is None:
        raise PluginError(f"a {type(module).__qualname__} is no ir.Module of known bindings")
    with BytecodeFile(module) as written:
        stripped = strip_bytecode(written.bytecode)
        for resource in stripped.resources.values():
            if resource.alignment > PAGE_ALIGNMENT:
                raise UnstorableResult(
                    f"resource {resource.name!r} of an ir.Module is aligned to {resource.alignment} bytes, and MLIR "
                    f"reads a stored module with at most {PAGE_ALIGNMENT}; align it to fewer, or return a text"
                )
        out.write(stripped.ir)
        weights = stripped.resources.weights()
        for key in stripped.resources:
            out.write(weights[key].raw())
        resources = [_StoredResource(key, resource.alignment) for key, resource in stripped.resources.items()]
        meta: dict[str, Any] = msgspec.to_builtins(_ModuleMeta(name, resources))
        return meta


def decode(meta: Mapping[str, Any], artifacts: Sequence[Path]) -> Any:
    """The module back, in a context of its own, over mapped bytes. Raises PluginError, StoreFault."""
    stored = msgspec.convert(meta, _ModuleMeta)
    if len(artifacts) != 1 + len(stored.resources):
        raise PluginError(f"a stored ir.Module of {len(stored.resources)} resources has {len(artifacts)} artifacts")
    with _faults():
        ir = artifacts[0].read_bytes()
        resources = {
            each.name: _resource(each, path) for each, path in zip(stored.resources, artifacts[1:], strict=True)
        }
        if len(resources) != len(stored.resources):
            raise PluginError("a stored ir.Module names a resource twice")
        bindings = Bindings(stored.bindings)
        return _link_live(bindings, ir, resources, {}) if resources else bindings.parse(ir, "a stored ir.Module")


@contextmanager
def _faults() -> Iterator[None]:
    try:
        yield
    except (CheckpointError, LinkError, UsageError) as error:
        raise PluginError(f"a stored ir.Module can't be read: {error}") from error
    except CachecError:
        raise
    except OSError as error:  # no room for the linked file, or an artifact that went: the stage runs instead
        raise StoreFault(Fault.IO_ERROR, f"a stored ir.Module: {error}") from error


def _resource(lifted: _StoredResource, path: Path) -> Resource:
    if lifted.alignment & (lifted.alignment - 1):
        raise PluginError(f"resource {lifted.name!r}: an alignment expected that is a power of two, found another")
    opened = open_input(path)
    return Resource(
        lifted.name, "builtin", lifted.name, lifted.alignment, Blob(opened.range(0, opened.size), where=str(path))
    )


def compare(fresh: Any, stored: Any) -> str | None:
    """None where two live modules have the same fingerprint, else the first line that differs, or the resources."""
    if fingerprint(fresh).digest == fingerprint(stored).digest:
        return None
    one, other = (generic(each).decode("utf-8", "backslashreplace").splitlines() for each in (fresh, stored))
    for number, (old, new) in enumerate(zip(other, one, strict=False), 1):
        if old != new:
            return f"operation {number}: {' -> '.join(shown_pair(old.strip(), new.strip()))}"
    if len(one) != len(other):
        return f"{len(other)} against {len(one)} lines of operations"
    return "the bytes of a resource differ"
