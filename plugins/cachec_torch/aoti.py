"""Programs to shared libraries by AOTInductor, with the weights outside by name. Imports torch."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import torch
from torch._dynamo import debug_utils
from torch._inductor import compile_fx, exc
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.utils import _pytree as pytree

from cachec.errors import PluginError, UsageError
from cachec.programs.artifact import File
from cachec.programs.program import Program
from cachec_mlir.compilers import file_in_new_folder
from cachec_torch.calls import InputForm
from cachec_torch.describing import described_call, dtype_name, written_names
from cachec_torch.libraries import ALIGNMENT, LibraryForm, PlacedForm, write
from cachec_torch.plugin import KIND
from cachec_torch.programs import LoadedProgram
from cachec_torch.seams import known_options
from cachec_torch.shim import BINDING, ModelContainer, torch_version
from cachec_torch.toolchain import recorded_compiler, replaced

#: Options that say whether weights stay outside, by name, all of them; and that nothing but this program is used.
REQUIRED: Mapping[str, Any] = MappingProxyType(
    {
        "aot_inductor.package_constants_in_so": False,
        # Else tensors without axes, and vectors of up to eight elements, are taken by value.
        "always_keep_tensor_constants": True,
        # Else what is computed of single elements alone is (the exponential of a scale).
        "joint_graph_constant_folding": False,
        "force_disable_caches": True,
        # The header is in a folder that others share.
        "aot_inductor.precompile_headers": False,
    }
)

#: Else a source is called by a digest of its text, which names the folder; its name is in the library's symbols.
_NAMING = {"aot_inductor.model_name_for_generated_files": "model"}


def compiled(program: Program, options: Mapping[str, Any]) -> File:
    """See ``cachec_torch.compile_aoti``."""
    clash = sorted(name for name in options if name in REQUIRED or name.startswith("aot_inductor.output_path"))
    if clash:
        raise UsageError(f"option {clash[0]!r} can't be given: weights stay outside of the library, by name")
    loaded = LoadedProgram(program)
    form, constants = _describe_library(loaded)
    output = file_in_new_folder("model.so", kind=KIND, manifest=program.manifest)
    try:
        library, extern = _compile_library(loaded, options, output.path.parent)
    except exc.InductorError:
        _check_untouched(loaded, options)  # Inductor wraps what is raised in it
        raise
    _check_untouched(loaded, options)
    if extern:
        form = _for_loader(form, loaded.exported.call_spec, "it calls operations that torch has no C function for")
        form = msgspec.structs.replace(form, extern=extern)
    if BINDING.encode() not in library and not form.by_torch:
        reason = f"torch {torch.__version__} has no C function that takes weights in place"
        form = _for_loader(form, loaded.exported.call_spec, reason)
    with open(output.path, "wb") as out:
        write(out, library, constants, form)
    _check_complete(output.path, form)
    return output


def _compile_library(loaded: LoadedProgram, options: Mapping[str, Any], folder: Path) -> tuple[bytes, str]:
    """The library, and what torch's loader reads beside it. Raises PluginError as ``_check_untouched`` does, before the
    C++ compiler takes its time."""
    unread = recorded_compiler(folder, lambda: _check_untouched(loaded, options))
    with unread, _values_unread(loaded), torch.inference_mode(False), torch.no_grad():
        package = torch._inductor.aoti_compile_and_package(
            loaded.exported,
            package_path=str(folder / "model.pt2"),
            inductor_configs={**known_options({**_NAMING, **REQUIRED}), **options},
        )
    with zipfile.ZipFile(package) as archive:
        libraries = [name for name in archive.namelist() if name.endswith(".so")]
        if len(libraries) != 1:
            raise PluginError(f"AOTInductor made {libraries or archive.namelist()}, expected one shared library")
        extern_name = libraries[0].removesuffix(".so") + ".json"
        extern = archive.read(extern_name).decode() if extern_name in archive.namelist() else ""
        return archive.read(libraries[0]), extern


def _check_untouched(loaded: LoadedProgram, options: Mapping[str, Any]) -> None:
    touched = loaded.touched()
    if touched:
        raise PluginError(
            f"Inductor looked at the value of weight {touched[0]!r} ({len(touched)} such), so its result may hold it; "
            f"leave out the option that asks for that ({', '.join(sorted(options)) or 'none was given'})"
        )


@contextmanager
def _values_unread(loaded: LoadedProgram) -> Iterator[None]:
    """What Inductor looks at without need is not to be looked at of weights: it copies buffers for the library, prints
    small ones to a log, and computes what depends on weights of one element alone, while it works out shapes."""
    copy, get_attr = compile_fx.clone_preserve_strides, FakeTensorProp.get_attr

    def copy_unless_weight(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if loaded.holds(tensor) else copy(tensor)

    def fake_weight(self: FakeTensorProp, *arguments: Any) -> Any:
        value = get_attr(self, *arguments)
        is_weight = isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor) and loaded.holds(value)
        return self._mode.from_tensor(value, static_shapes=True) if is_weight else value

    limit = sys.getrecursionlimit()
    with (
        replaced(compile_fx, "clone_preserve_strides", copy_unless_weight),
        replaced(debug_utils, "MAX_CONSTANT_NUMEL_INLINE", -1),
        replaced(FakeTensorProp, "get_attr", fake_weight),
    ):
        try:
            yield
        finally:
            sys.setrecursionlimit(limit)  # which Inductor raises


def _describe_library(loaded: LoadedProgram) -> tuple[LibraryForm, bytes]:
    """What a caller has to know, but for what Inductor asks torch's loader for; the constants."""
    exported = loaded.exported
    placed, blob = _place_constants(exported.constants)
    call, odd = described_call(exported)
    form = LibraryForm(
        torch=torch_version(),
        names=loaded.names,
        mutated=written_names(exported),
        constants=placed,
        **msgspec.structs.asdict(call),
    )
    return (_for_loader(form, exported.call_spec, odd) if odd else form), blob


def _for_loader(form: LibraryForm, call: Any, reason: str) -> LibraryForm:
    specs = (pytree.treespec_dumps(call.in_spec), pytree.treespec_dumps(call.out_spec))
    return msgspec.structs.replace(form, by_torch=reason, specs=specs)


def _place_constants(constants: Mapping[str, torch.Tensor]) -> tuple[dict[str, PlacedForm], bytes]:
    """The constants as they lie in memory, with all that is between their elements."""
    forms, blob = {}, bytearray()
    for name, tensor in sorted(constants.items()):
        blob += bytes(-len(blob) % ALIGNMENT)
        span = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
        flat = tensor.as_strided((span if tensor.numel() else 0,), (1,))
        data = flat.view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        dtype = dtype_name(tensor.dtype, f"constant {name!r}")
        forms[name] = PlacedForm(dtype, tuple(tensor.shape), tuple(tensor.stride()), len(blob), len(data))
        blob += data
    return forms, bytes(blob) + bytes(-len(blob) % ALIGNMENT)


def _check_complete(path: Path, form: LibraryForm) -> None:
    """Raise PluginError where the library wants what nobody here knows: a constant of Inductor's own."""
    container = ModelContainer(path)
    unknown = [each for each in container.constants() if each.fqn not in form.names and each.fqn not in form.constants]
    tensors = sum(isinstance(each, InputForm) for each in form.inputs)
    if unknown or container.inputs != tensors or container.outputs != len(form.outputs):
        raise PluginError(
            f"AOTInductor made a library of {container.inputs} inputs, {container.outputs} outputs and unknown "
            f"constants {[each.fqn for each in unknown]}; expected {tensors}, {len(form.outputs)} and none"
        )
