"""The plugin object: what cachec asks of torch. Nothing here imports torch before a value of torch's turns up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cachec.errors import PluginError
from cachec.programs.artifact import File
from cachec.programs.plugin import ArtifactWriter, Fingerprint, Plugin
from cachec.programs.program import Program
from cachec.programs.random_generator import Generator
from cachec.weights import WeightSet
from cachec_torch.versions import TRIED_RELEASES

#: Of the files that ``compile_aoti`` makes.
KIND = "torch:aoti"


class TorchPlugin(Plugin):
    """Tensors, dtypes, devices and sizes as arguments and results; the libraries that AOTInductor makes of programs."""

    name = "torch"
    distributions = ("torch",)
    programs = ("torch._inductor",)
    tried_releases = TRIED_RELEASES
    self_test = "cachec_torch.self_test:self_test"
    types = ("torch.Tensor", "torch.nn.parameter.Parameter", "torch.dtype", "torch.device", "torch.Size")
    reduced = ("torch.storage.TypedStorage",)

    def ambient(self) -> Mapping[str, str]:
        """Every setting of torch and its compilers that is not at its default; the same before and after the import."""
        from cachec_torch.ambient import settings

        return settings()

    def ambient_values(self) -> Mapping[str, Any]:
        """Switches, autocast, options of the compilers and threads that are not at their defaults."""
        from cachec_torch.settings import read

        return read()

    def set_ambient(self, values: Mapping[str, Any]) -> None:
        """The same of this process; gradients, inference mode, autocast and the default device of this thread."""
        from cachec_torch.settings import write

        write(values)

    def describe(self, value: Any) -> Any:
        """What ``torch.compile`` has wrapped: what is inside, and the backend with its options."""
        from cachec_torch.described import describe

        return describe(value)

    def generators(self) -> Sequence[Generator]:
        """That of the CPU."""
        from cachec_torch.generator import CpuGenerator

        return (CpuGenerator(),)

    def watch_generators(self) -> Callable[[], Sequence[str]]:
        """The generators of CUDA's devices, once it is in use."""
        from cachec_torch.settings import watch_generators

        return watch_generators()

    def reduce(self, value: Any) -> Any:
        """The storage of a tensor, by the bytes that it lies in."""
        from cachec_torch import storages

        return storages.reduced(value)

    def fingerprint(self, value: Any) -> Fingerprint:
        """Content, class, dtype, shape, strides and whether it takes part in gradients; of all else its text."""
        from cachec_torch import values

        return values.fingerprint(value)

    def encode(self, value: Any, out: ArtifactWriter) -> dict[str, Any]:
        """A tensor's bytes in row-major order, and what it is. Raises PluginError for one that is not dense, not on the
        CPU, of a subclass, or computed with gradients."""
        from cachec_torch import values

        return values.encode(value, out)

    def decode(self, meta: Mapping[str, Any], artifacts: Sequence[Path]) -> Any:
        """The value; of a tensor a copy, with its strides. Raises PluginError where ``meta`` and bytes do not agree."""
        from cachec_torch import values

        return values.decode(meta, artifacts)

    def link(self, artifact: File | Program, weights: WeightSet) -> Any:
        """A ``cachec_torch.runtime.LinkedLibrary`` over the mapped weights. Loads torch's libraries, not torch.

        Raises PluginError for a program, LinkError for a library that does not fit the weights, or this torch.
        """
        if not isinstance(artifact, File) or artifact.kind != KIND:
            raise PluginError(f"{artifact!r} is not of kind {KIND!r}; cachec_torch.compile_aoti makes such files")
        from cachec_torch.runtime import linked

        return linked(artifact, weights)

    def compare(self, fresh: Any, stored: Any) -> str | None:
        """None where two libraries are equal byte for byte, else where they begin to differ, in words; of tensors, None
        where their numbers are equal within single precision."""
        if not isinstance(fresh, File) or not isinstance(stored, File):
            from cachec_torch import values

            return values.compare(fresh, stored)
        from cachec_torch.libraries import same_library

        return same_library(fresh.read_bytes(), stored.read_bytes())
