"""PyTorch's zip checkpoints, through ``torch.load(mmap=True, weights_only=True)`` and nothing else.

What comes back are tensors over a map of the file, because the archive stores their bytes as they are, each storage as
a member ``<folder>/data/<key>``. So every tensor is a range of the file: its address within torch's map gives the
offset. That range is kept, and torch's tensors go; later reads need no torch, which is imported here alone.

Nested dicts and lists are flattened with dots; leaves that are no tensors (an epoch, a name) are no weights. Storages
that several tensors share are just the same range: ties are stated by the user, never inferred. Refused, with the way
out: strides that are not row-major, sparse and quantized tensors, big-endian archives, pickles of before PyTorch 1.6.
"""

from __future__ import annotations

import bisect
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from cachec.errors import CheckpointError, clip
from cachec.weights.dtypes import SIZES
from cachec.weights.formats.base import CheckpointFile, Contents, Opener, size_in_bytes
from cachec.weights.formats.zip_directory import Member, members, stated_checksums
from cachec.weights.tensor import Tensor

_MAX_PICKLE = 1 << 27
#: Bytes without white space. Torch looks for advice in what it says of a file by ``(\S+) must be ...``, which
#: takes the square of the longest word: 10 s for 40,000 bytes. Names and strides make words of a hundred.
_MAX_WORD = 8192
_MAX_NODES = 1_000_000
_MAX_DEPTH = 64
_ADVICE = re.compile("weights_only|safe_globals|trust|documentation", re.IGNORECASE)
_AGAIN = "save it again with torch.save"


def read(path: str, opener: Opener) -> Contents:
    """The tensors of a checkpoint. Raises CheckpointError (also for what ``weights_only`` refuses), ImportError."""
    file = opener.main
    if not file.at(0, min(4, file.size), "the archive").startswith(b"PK"):
        raise file.error(f"expected PyTorch's zip format (1.6 or later), found another; load it there and {_AGAIN}")
    stored = members(file)
    pickles = [name for name in stored if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise file.error(f"expected one <folder>/data.pkl, found {len(pickles)}: no checkpoint of PyTorch")
    folder = pickles[0].removesuffix("data.pkl")
    pickle = stored[pickles[0]]
    if pickle.nbytes > _MAX_PICKLE:
        raise file.error(f"{pickle.name} expected of at most {_MAX_PICKLE} bytes, found {pickle.nbytes}")
    names = file.at(pickle.offset, pickle.nbytes, pickle.name)  # and shapes: part of what was looked at
    if max(map(len, names.split()), default=0) > _MAX_WORD:
        raise file.error(f"{pickle.name} expected of words of at most {_MAX_WORD} bytes, found a longer one")
    order = stored.get(f"{folder}byteorder")
    if order is not None and file.at(order.offset, min(order.nbytes, 16), order.name) != b"little":
        raise file.error(f"expected little-endian values, found a big-endian archive; load it and {_AGAIN}")
    storages = _Storages([member for name, member in stored.items() if name.startswith(f"{folder}data/")])
    loaded = _load(file)
    if not isinstance(loaded, Mapping):
        raise file.error(f"expected a dict of tensors (a state dict), found {type(loaded).__name__}")
    maps = _maps(file)
    tensors: dict[str, Tensor] = {}
    for name, leaf in _leaves(file, loaded):
        if name in tensors:
            raise file.error(f"tensor {name!r} twice, once by nesting; rename one and {_AGAIN}")
        tensors[name] = _tensor(file, name, leaf, maps, storages)
    return Contents(tensors, checksums=stated_checksums(file, stored))


def _load(file: CheckpointFile) -> Any:
    import torch

    try:
        # By descriptor, so that it is the file that was validated; torch maps only what it opens by a name.
        return torch.load(f"/proc/self/fd/{file.fd}", map_location="cpu", mmap=True, weights_only=True)
    except Exception as error:  # whatever the unpickler of a hostile file raises is the file's fault
        raise CheckpointError(
            f"{file.path}: torch.load(mmap=True, weights_only=True) refused it: {_words(error)}; what is read are "
            f"tensors in dicts and lists, and nothing that runs code"
        ) from error


def _words(error: Exception) -> str:
    """What torch has against a file. Not its advice, which is to load the file without protection."""
    lines = [line.partition("WeightsUnpickler error: ")[2] or line for line in str(error).splitlines()]
    own = [line.partition(". Please ")[0] for line in lines if line.strip() and not _ADVICE.search(line)]
    return clip(own[0].strip() if own else type(error).__name__)


class _Map(NamedTuple):
    """One map of the file in this process: addresses ``[start, end)`` show the file from ``offset``."""

    start: int
    end: int
    offset: int


def _maps(file: CheckpointFile) -> list[_Map]:
    """Where the file is mapped in this process, from ``/proc/self/maps`` (proc(5)).

    By device and inode, or by name: an overlay reports those of another layer.
    """
    maps: list[_Map] = []
    real = os.path.realpath(f"/proc/self/fd/{file.fd}")
    device = f"{os.major(file.identity.dev):02x}:{os.minor(file.identity.dev):02x}"
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            parts = line.split(None, 5)
            same = len(parts) == 6 and parts[5].rstrip("\n") == real
            if same or (parts[3] == device and parts[4] == str(file.identity.ino)):
                start, _, end = parts[0].partition("-")
                maps.append(_Map(int(start, 16), int(end, 16), int(parts[2], 16)))
    return maps


class _Storages:
    """The members that hold tensor bytes, by offset."""

    def __init__(self, stored: list[Member]) -> None:
        self._stored = sorted(stored, key=lambda member: member.offset)
        self._offsets = [member.offset for member in self._stored]

    def hold(self, offset: int, nbytes: int) -> bool:
        """Whether a range is within one of them."""
        number = bisect.bisect_right(self._offsets, offset) - 1
        return number >= 0 and offset + nbytes <= self._stored[number].offset + self._stored[number].nbytes


def _tensor(file: CheckpointFile, name: str, value: Any, maps: list[_Map], storages: _Storages) -> Tensor:
    import torch

    dtype = str(value.dtype).removeprefix("torch.")
    if dtype not in SIZES or value.layout is not torch.strided or value.is_quantized:
        raise file.bad(name, f"a dense tensor of {', '.join(sorted(SIZES))}", f"{dtype}, {value.layout}")
    if value.device.type != "cpu" or value.is_conj() or value.is_neg():
        raise file.bad(name, "plain values", f"a lazy view or one on {value.device}; {_AGAIN}")
    shape = tuple(value.shape)
    nbytes = size_in_bytes(file, name, dtype, shape)
    if nbytes == 0:
        return Tensor(dtype, shape, 0, 0)
    if not value.is_contiguous():
        raise file.bad(name, "row-major strides", f"{tuple(value.stride())} for {shape}; save tensor.contiguous()")
    address = value.data_ptr()
    for place in maps:
        if place.start <= address and address + nbytes <= place.end:
            offset = address - place.start + place.offset
            if storages.hold(offset, nbytes):
                return Tensor(dtype, shape, nbytes, offset)
    raise file.bad(
        name, f"its {nbytes} bytes in a storage of the archive", "them elsewhere: it is truncated, or malformed"
    )


def _leaves(file: CheckpointFile, loaded: Any) -> Iterator[tuple[str, Any]]:
    """The tensors of nested dicts, lists and tuples under dotted names."""
    import torch

    nodes = 0
    stack: list[tuple[str, Any, int]] = [("", loaded, 0)]
    while stack:
        name, value, depth = stack.pop()
        nodes += 1
        if nodes > _MAX_NODES or depth > _MAX_DEPTH:  # also ends what contains itself
            raise file.error(
                f"expected at most {_MAX_NODES} values nested {_MAX_DEPTH} deep, found more at {name[:80]!r}"
            )
        if isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(value, Mapping):
            for key, inner in value.items():
                if not isinstance(key, str | int):
                    raise file.error(f"expected names, found the key {key!r} at {name!r}")
                stack.append((f"{name}.{key}" if name else str(key), inner, depth + 1))
        elif isinstance(value, list | tuple):
            stack += [
                (f"{name}.{number}" if name else str(number), inner, depth + 1) for number, inner in enumerate(value)
            ]
