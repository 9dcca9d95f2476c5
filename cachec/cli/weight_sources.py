"""What ``cachec weights`` takes for weights: a name in the store, the first digits of a revision, a path, a URL."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from cachec.base import display_text, fsio
from cachec.base.hashing import digest_by
from cachec.cli.meter import throughput
from cachec.cli.session import Session, print_wrapped
from cachec.errors import UsageError, WeightError, WeightsChanged
from cachec.model import WeightSpec

if TYPE_CHECKING:
    from cachec.cli.meter import Meter
    from cachec.weights import WeightSet
    from cachec.weights.library.checksums import ChecksumReport, Damage
    from cachec.weights.library.stored_weights import Revision, WeightStore

#: Digits of a revision in a table.
SHOWN_REVISION = 12

_EXPECTED = re.compile(r"(?:(?P<algorithm>sha256|blake3):)?(?P<digest>[0-9a-fA-F]{64})")
#: Stems that every checkpoint has, so that its folder says more.
_COMMON = frozenset({"model", "tensor-cache", "ndarray-cache", "pytorch_model", "adapter_model", "weights"})


class LocatedWeights(msgspec.Struct, frozen=True):
    """Weights that are there: either ``revision``, in the store, or ``path``."""

    #: As the user named them.
    text: str
    revision: Revision | None = None
    path: str = ""

    def open(self, store: WeightStore, *, rank: int | None = None, world_size: int | None = None) -> WeightSet:
        """The weights. Raises CachecError, OSError."""
        if self.revision is None:
            from cachec.weights import open_weights

            return open_weights(self.path, rank=rank, world_size=world_size)
        if rank is not None or world_size is not None:
            raise UsageError(f"{self.text!r} is a name in the store; --rank and --world-size go with a path")
        return store.open(self.revision.id)


def weight_store(session: Session) -> WeightStore:
    """The store of weights under the cache's folder; one that is not there is an empty one, and is not made."""
    from cachec.weights.library.stored_weights import WeightStore

    return WeightStore(session.store)


def find_revision(session: Session, store: WeightStore, text: str) -> Revision:
    """Return the revision of a name, or of the first digits of a revision. Exits with 1 for an unknown one."""
    revision = store.find(text)
    if revision is None:
        _not_found(session, store, text, "")
    return revision


def locate_weights(session: Session, store: WeightStore, text: str) -> LocatedWeights:
    """A name in the store, else a path; what begins with ``.`` or ``/`` is a path. Exits with 1 where it is neither."""
    if not text.startswith((".", os.sep)):
        revision = store.find(text)
        if revision is not None:
            return LocatedWeights(text, revision)
    if not os.path.exists(text) and not display_text.is_url(text):  # of which opening says how
        _not_found(session, store, text, ", and there is no such file")
    return LocatedWeights(text, None, text)


def _not_found(session: Session, store: WeightStore, text: str, more: str) -> NoReturn:
    near = display_text.nearest(text, (revision.name for revision in store.revisions()))
    hint = f"; did you mean {near!r}?" if near else f"; `{display_text.to_type('weights ls')}` lists what is"
    session.fail(f"no weights are named {text!r}{more}{hint}")


# --- adding


def default_name(source: str) -> str:
    """A name for weights that were given none: after the file, or its folder where the file has a common name.

    Raises UsageError where nothing of that can be a name.
    """
    from cachec.weights.formats import CHECKPOINT_SUFFIXES

    is_url = display_text.is_url(source)
    path = PurePosixPath(source.partition("#")[0].partition("?")[0] if is_url else os.path.abspath(source))
    for suffix in CHECKPOINT_SUFFIXES:
        if path.name.endswith(suffix):
            stem = path.name.removesuffix(suffix)
            break
    else:
        stem = path.name
    if stem in _COMMON and not is_url:
        stem = path.parent.name
    name = re.sub(r"[^A-Za-z0-9._+@=-]+", "-", stem).lstrip("._+@=-")[:100]
    if not name:
        raise UsageError(
            f"no name follows from {source!r}; give one: {display_text.to_type('weights add SOURCE NAME')}"
        )
    return name


def expected_digest(text: str) -> tuple[str, str]:
    """(algorithm, digest) of ``--expect``. Raises UsageError."""
    match = _EXPECTED.fullmatch(text)
    if match is None:
        raise UsageError(f"--expect: expected sha256:<64 hex digits> or blake3:<64 hex digits>, found {text!r}")
    return match["algorithm"] or "sha256", match["digest"].lower()


def identifier(source: str, expect: str | None) -> str:
    """A URL with the digest that must come out, as the resolver takes it. Raises UsageError where it has none."""
    if expect is None:
        if not re.search(r"[#&](sha256|blake3)=", source):
            raise UsageError(
                f"{source}: a URL says nothing about content; add --expect sha256:<64 hex digits>, as the publisher "
                "states it"
            )
        return source
    if "#" in source:
        raise UsageError("--expect: the URL states a digest or a size already, after its #; give one of the two")
    algorithm, digest = expected_digest(expect)
    return f"{source}#{algorithm}={digest}"


def opened_as_expected(path: str, expect: str | None, meter: Meter) -> WeightSet:
    """Open the weights of a path; with ``expect`` it is one file, which is hashed. Raises WeightError for others."""
    from cachec.weights import open_weights

    if expect is None:
        return open_weights(path)
    algorithm, wanted = expected_digest(expect)
    if os.path.isdir(path):
        raise UsageError(f"--expect goes with one file; {path} is a folder")
    with fsio.closing(fsio.open_read(path)) as fd:
        before = fsio.identity(fd)
        digest = digest_by(algorithm, fd, before.size, lambda done: meter(done, before.size))
    if digest != wanted:
        raise WeightError(f"{path}: expected {algorithm} {wanted}, found {digest}; nothing was added")
    weights = open_weights(path)
    extents = filter(None, (weight.extent() for weight in weights.values()))
    other = next((each.file.path for each in extents if each.file.identity[:2] != before[:2]), None)
    if other is not None:
        raise UsageError(f"--expect goes with one file that holds all weights; {path} has some in {other}")
    if fsio.identity(path) != before:  # what was opened is checked from here on by the set itself
        raise WeightsChanged(f"{path}: changed while it was hashed; nothing was added")
    return weights


def parse_axes(specs: tuple[str, ...]) -> dict[str, int | None]:
    """``PATTERN=AXIS`` as ``WeightSet.save_shards`` takes them, ``none`` for whole. Raises UsageError."""
    axes: dict[str, int | None] = {}
    for spec in specs:
        pattern, _, axis = spec.rpartition("=")
        if not pattern or not (axis == "none" or re.fullmatch(r"-?\d{1,3}", axis)):
            raise UsageError(f"--spec: expected PATTERN=AXIS, such as '*.q_proj.weight=0', found {spec!r}")
        if pattern in axes:
            raise UsageError(f"--spec: {pattern!r} is given twice")
        axes[pattern] = None if axis == "none" else int(axis)
    return axes


def say(text: str) -> None:
    """Print a line, without control characters."""
    print_wrapped(text, indent=0)


# --- reports, as plain data


def summary(revision: Revision) -> dict[str, Any]:
    return {
        "name": revision.name,
        "revision": revision.id,
        "owned": revision.owned,
        "weights": revision.count,
        "size": revision.nbytes,
        "created": revision.created,
        "source": revision.source,
    }


def _owner_of(source: LocatedWeights) -> dict[str, Any]:
    revision = source.revision
    return {
        "name": revision.name if revision else None,
        "path": os.path.abspath(source.path) if source.path else None,
        "revision": revision.id if revision else None,
        "owned": revision is not None and revision.owned,
    }


def verify_weights(source: LocatedWeights, store: WeightStore, meter: Meter) -> ChecksumReport:
    """What ``verify`` finds out. Raises CachecError, OSError."""
    from cachec.weights.library.checksums import ChecksumReport, verify

    revision = source.revision
    if revision is not None:
        return ChecksumReport(revision.checksums, store.verify(revision.id, progress=meter))
    with source.open(store) as weights:
        return verify(weights, meter)


def verdict(source: LocatedWeights, result: ChecksumReport, seconds: float) -> dict[str, Any]:
    """What ``verify`` says, as JSON."""
    return {
        **_owner_of(source),
        "checksums": result.checksums,
        "seconds": seconds,
        "damaged": [{"path": d.path, "weights": d.names, "words": d.detail} for d in result.damages],
    }


def verdict_lines(source: LocatedWeights, result: ChecksumReport, seconds: float) -> list[str]:
    """What ``verify`` says, as lines."""
    if result.damages:
        return [f"damaged: {_some_names(damage.names)}: {_describe_damage(damage)}" for damage in result.damages]
    revision = source.revision
    if revision is not None and revision.owned:
        count = display_text.number_of(revision.count, "weight")
        return [f"{revision.name} is whole: {count}, {throughput(revision.nbytes, seconds)}"]
    number = result.checksums
    stated = (
        f"{display_text.number_of(number, 'stated checksum')} {'agrees' if number == 1 else 'agree'}"
        if number
        else "no checksums are stated"
    )
    if revision is not None:
        return [f"{revision.name}: all files are as they were added; {stated}"]
    return [f"{source.text}: its structure is valid; {stated}"]


def _describe_damage(damage: Damage) -> str:
    """What is wrong, and where; the words may name that themselves."""
    return damage.detail if damage.path in damage.detail else f"{damage.path}: {damage.detail}"


def _some_names(names: tuple[str, ...]) -> str:
    return ", ".join(map(repr, names[:8])) + (" and more" if len(names) > 8 else "") if names else "no weight"


def details(source: LocatedWeights, specs: Mapping[str, WeightSpec], digests: Mapping[str, str]) -> dict[str, Any]:
    """What ``show`` says. digests: those that are known."""
    revision = source.revision
    owned = revision is not None and revision.owned
    stored = {digests[name]: spec.nbytes for name, spec in specs.items()} if owned else {}
    return {
        **_owner_of(source),
        "source": revision.source if revision else "",
        "files": list(revision.files) if revision else [],
        "size": sum(spec.nbytes for spec in specs.values()),
        "stored": sum(stored.values()),
        "weights": [
            {
                "name": name,
                "dtype": spec.dtype,
                "shape": list(spec.shape),
                "size": spec.nbytes,
                "layout": spec.layout,
                "alias": spec.alias,
                "shard": list(spec.shard) if spec.shard else None,
                "digest": digests.get(name),
            }
            for name, spec in specs.items()
        ],
    }


def shape_text(weight: Mapping[str, Any]) -> str:
    """Shape, layout, shard and tie of one weight of ``details``, for a table."""
    text = f"[{', '.join(map(str, weight['shape']))}]"
    if weight["layout"] != "row-major":
        text += f" {weight['layout']}"
    if weight["shard"]:
        text += f", one of {weight['shard'][1]} on axis {weight['shard'][0]}"
    if weight["alias"] and weight["alias"] != weight["name"]:
        text += f", tied to {weight['alias']}"
    return text
