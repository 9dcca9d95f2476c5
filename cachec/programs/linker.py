"""Binds an artifact to weights: the only way to a runtime, and the place where the manifest is checked."""

from __future__ import annotations

from typing import Any

from cachec.base.hashing import FileDigests
from cachec.errors import LinkError
from cachec.programs.artifact import File
from cachec.programs.program import Program
from cachec.programs.registry import installed_plugins
from cachec.weights import WeightSet
from cachec.weights.manifest import Folded, Manifest


def link(artifact: File | Program, weights: WeightSet) -> Any:
    """Something runnable: ``artifact`` bound to ``weights`` by name; what it is, its plugin says.

    Weights that were folded on the way to the artifact (``Manifest.folded``) have to be the same still; those that it
    does not need any more may be in the set, or not.

    Raises LinkError where the weight set does not have exactly the names, shapes, dtypes and ties that the artifact was
    compiled for, where a folded weight has other bytes, shape or dtype, or where no plugin made the artifact;
    WeightsChanged where a file of weights is no longer the one that was opened.
    """
    if not isinstance(artifact, File | Program):
        raise LinkError(f"link takes a cachec.File or cachec.Program, not a {type(artifact).__qualname__}")
    if not isinstance(weights, WeightSet):
        raise LinkError(
            f"link takes a cachec.WeightSet, not a {type(weights).__qualname__}; cachec.open_weights(path) gives one, "
            "and cachec.WeightSet.from_arrays(dict)"
        )
    kind = artifact.kind if isinstance(artifact, File) else artifact.format
    plugin, separator, _ = kind.partition(":")
    if not separator:
        raise LinkError(
            f"{artifact!r} has no kind, so no plugin is known that can link it; return cachec.File(path, kind='<plugin>"
            ":<format>') from the stage that makes it"
        )
    manifest = artifact.manifest if artifact.manifest is not None else Manifest.of({})
    offered = weights
    if manifest.folded:
        needed = {manifest.callers.get(name, name) for name in manifest.weights}
        weights = weights.select(exclude=[name for name in manifest.folded if name in weights and name not in needed])
    if manifest.callers:
        weights = _weights_by_artifact_name(manifest, weights)
    # Equal digests mean equal specs: the names are compared only if the digests differ.
    if manifest.digest != weights.manifest.digest:
        manifest.check(weights.specs)
    _check_folded(manifest.folded, offered, artifact.digests if isinstance(artifact, File) else None)
    return installed_plugins().find(plugin).link(artifact, weights)


def _check_folded(folded: Folded, offered: WeightSet, digests: FileDigests | None) -> None:
    """Raise LinkError unless what the artifact holds of the weights offered is their content.

    digests: where digests of files are remembered.
    """
    for name, fitting in folded.items():
        if name not in offered:
            continue
        if not fitting:
            raise LinkError(
                f"weight {name!r} was read with different contents in the stages that made the artifact, so no weight "
                "fits; give the stages one set of weights, or names of their own to weights that differ "
                "(weights.rename(lambda n: 'teacher.' + n))"
            )
        content = offered[name].content(digests)
        if content not in fitting:
            raise LinkError(
                f"weight {name!r} was read by a stage that made the artifact, which may hold its bytes (expected "
                f"{_in_short(fitting[-1])}, found {_in_short(content)}); call the stages again with these weights: "
                f"what read {name!r} is compiled anew. A stage that gives {name!r} new bytes returns the weights with "
                "the program"
            )


def _in_short(content: str) -> str:
    digest, _, kind = content.partition(" ")
    return f"{digest[:12]} {kind}"


def _weights_by_artifact_name(manifest: Manifest, weights: WeightSet) -> WeightSet:
    """The caller's weights by the names that the artifact has for them. Raises LinkError."""
    names = {there: name for name, there in manifest.callers.items() if name in manifest.weights}
    missing = sorted(names.keys() - weights.keys())
    if missing:
        raise LinkError(f"the weight set does not fit the artifact: missing {missing[0]!r} ({len(missing)} missing)")
    clash = sorted(name for name in names.values() if name in weights and name not in names)
    if clash:
        raise LinkError(
            f"the weight set has a weight {clash[0]!r}, which is the artifact's name for another; "
            f"leave it out with weights.select(exclude=[{clash[0]!r}])"
        )
    return weights.rename(names)
