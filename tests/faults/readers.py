"""Every reader of foreign bytes, with real files to begin with: one that raises anything but its errors is broken."""

from __future__ import annotations

import functools
import io
import json
import os
import shutil
import socket
import sysconfig
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import msgspec
import numpy as np

import cachec
from cachec import bundle, config, report, warm
from cachec.base import distributions, elf
from cachec.base.hashing import FileDigests, digest_bytes
from cachec.bundle.format import TABLE, BundledRecord, BundleTable
from cachec.cli.selectors import keys_from
from cachec.codecs import decode
from cachec.errors import CachecError
from cachec.events import read_outcomes
from cachec.key.code.compile_cache import CompileCache
from cachec.key.code.module_sources import Sources
from cachec.key.tools import elf_dependencies
from cachec.key.tools.elf_dependencies import read_cache
from cachec.key.tools.executables import Finder
from cachec.launcher import adapters, direct
from cachec.launcher.adapters import find
from cachec.launcher.arguments import describe
from cachec.launcher.command import Options, PassThrough
from cachec.maintain import pins, snapshot
from cachec.model import MALFORMED_JSON, Entry
from cachec.reproduce import archive, pack, reader
from cachec.store import derived_cache, nearest_keys, row_codec, search_index, store_size
from cachec.store.store import QuarantinedRow, Store
from cachec.warm.history import History
from cachec.weights import from_arrays, open_weights
from cachec.weights.library.http_ranges import HttpResolver
from cachec.weights.library.identifier import Identifier
from cachec.weights.library.stored_weights import WeightStore
from cachec.weights.manifest import Manifest
from cachec_mlir import programs, strip, topology
from cachec_mlir.linking.renames import Renames
from cachec_native.elf import Library
from cachec_native.linker import needs_of
from cachec_native.llvm_globals import external_weights
from tests.bundle.packing import packed
from tests.faults import own
from tests.faults.mutations import Seed, seed_of_json
from tests.faults.scene import Scene
from tests.hostile import make_formats
from tests.needs import Later
from tests.plugins.mlir.conftest import BLOBS, SETTINGS, Builder, inline_program, program
from tests.strace import Calls

torch: Any = Later("torch")
Read = Callable[[bytes], object]
_HOSTILE = Path(__file__).parents[1] / "hostile"


class Family(NamedTuple):
    """make: in an empty folder, the seeds and the reader. refusals: what that may raise, as its docstring says."""

    name: str
    make: Callable[[Path], tuple[list[Seed], Read]]
    refusals: tuple[type[Exception], ...] = (CachecError,)


def in_file(path: Path, read: Callable[[Path], object]) -> Read:
    """A reader of bytes, of one that reads a file."""

    def from_bytes(data: bytes) -> object:
        path.write_bytes(data)
        return read(path)

    return from_bytes


def plain(*files: bytes) -> list[Seed]:
    """Seeds without a structure that is known."""
    return [Seed(data) for data in files]


def of_zip(data: bytes) -> list[Seed]:
    """A zip archive, and each of its members inside: checksums and lengths then fit what was changed."""
    with zipfile.ZipFile(io.BytesIO(data)) as given:
        members = {name: given.read(name) for name in given.namelist()}

    def wrapped(name: str, content: bytes) -> bytes:
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            for each, kept in members.items():
                archive.writestr(each, content if each == name else kept)
        return out.getvalue()

    return [
        Seed(data, None, functools.partial(wrapped, name), content)
        for name, content in members.items()
        if len(content) > 8
    ]


# --- checkpoints


def _looked_at(path: Path) -> None:
    with open_weights(path) as weights:
        for name in list(weights)[:3]:
            weights[name].read()


def _arrays() -> dict[str, np.ndarray]:
    return {"a": np.arange(6, dtype="f4").reshape(2, 3), "h": np.ones((2, 2), "f2"), "i": np.arange(3, dtype="i4")}


def _and_hostile(real: list[Seed], pattern: str) -> list[Seed]:
    """Real files by half, and hostile ones."""
    hostile = plain(*(path.read_bytes() for path in sorted(_HOSTILE.glob(pattern)) if path.stat().st_size < 1 << 16))
    return real * -(-len(hostile) // len(real)) + hostile


def _with_header(text: bytes, data: bytes) -> bytes:
    return len(text).to_bytes(8, "little") + text + data


def _safetensors(folder: Path) -> tuple[list[Seed], Read]:
    from_arrays(_arrays()).save(folder / "s.safetensors")
    data = (folder / "s.safetensors").read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header, rest = data[8:end], data[end:]
    seeds = [seed_of_json(header, lambda text: _with_header(text, rest)), *plain(own.safetensors(_arrays()))]
    return _and_hostile(seeds, "*.safetensors"), in_file(folder / "w.safetensors", _looked_at)


def _sharded(folder: Path) -> tuple[list[Seed], Read]:
    from_arrays(_arrays()).save(folder / "m.safetensors", shard_size=16)
    [index] = folder.glob("*.index.json")
    return [seed_of_json(index.read_bytes())], in_file(index, _looked_at)


def _ranks(folder: Path) -> tuple[list[Seed], Read]:
    arrays = {"a": np.arange(8, dtype="f4").reshape(4, 2), "b": np.ones(3)}
    from_arrays(arrays).save_shards(folder / "ranks", {"a": 0}, 2)
    [described] = (folder / "ranks").glob("*.json")

    def read(path: Path) -> None:
        with suppress(CachecError):
            open_weights(path.parent)
        with open_weights(path.parent, rank=0, world_size=2) as weights:
            list(weights)

    return [seed_of_json(described.read_bytes())], in_file(described, read)


def _rank_metadata(folder: Path) -> tuple[list[Seed], Read]:
    arrays = {"a": np.arange(8, dtype="f4").reshape(4, 2), "b": np.ones(3)}
    from_arrays(arrays).save_shards(folder / "ranks", {"a": 0}, 2)
    first = sorted((folder / "ranks").glob("*.safetensors"))[0]
    data = first.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    inner = {key: value for key, value in header["__metadata__"].items() if value[:1] in "[{"}

    def wrapped(text: bytes) -> bytes:
        try:
            values = {key: json.dumps(value) for key, value in json.loads(text).items()}
        except (ValueError, AttributeError, RecursionError):
            values = {"cachec.whole": text.decode(errors="replace"), "cachec.shards": text.decode(errors="replace")}
        metadata = {**header["__metadata__"], **values}
        return _with_header(json.dumps({**header, "__metadata__": metadata}).encode(), data[end:])

    seeds = [seed_of_json(json.dumps({key: json.loads(value) for key, value in inner.items()}), wrapped)]

    def read(path: Path) -> None:
        with open_weights(path.parent, rank=0, world_size=2) as weights:
            list(weights)

    return seeds, in_file(first, read)


def _gguf(folder: Path) -> tuple[list[Seed], Read]:
    data = make_formats.gguf(
        make_formats.entry(b"k", 8, make_formats.text(b"value")),
        make_formats.entry(b"n", 9, make_formats.U32.pack(4) + make_formats.U64.pack(3) + bytes(12)),
        make_formats.info(b"a", [4, 2], 0, 0),
        make_formats.info(b"b", [4], 1, 32),
        tensors=2,
        entries=2,
    )
    return _and_hostile(plain(data, own.gguf(folder)), "formats/*.gguf"), in_file(folder / "w.gguf", _looked_at)


def _irpa(folder: Path) -> tuple[list[Seed], Read]:
    from_arrays(_arrays()).save(folder / "s.irpa", format="irpa")
    seeds = plain((folder / "s.irpa").read_bytes(), own.irpa(folder))
    return _and_hostile(seeds, "formats/*.irpa"), in_file(folder / "w.irpa", _looked_at)


def _npy(folder: Path) -> tuple[list[Seed], Read]:
    files = []
    for array in _arrays().values():
        for version in ((1, 0), (2, 0), (3, 0)):
            out = io.BytesIO()
            np.lib.format.write_array(out, array, version)
            files.append(out.getvalue())
    files += own.shipped("numpy", "lib/tests/data/*.npy")
    return _and_hostile(plain(*files), "formats/*.npy"), in_file(folder / "w.npy", _looked_at)


def _npz(folder: Path) -> tuple[list[Seed], Read]:
    out = io.BytesIO()
    np.savez(out, **_arrays())
    seeds = of_zip(out.getvalue()) + plain(*own.shipped("numpy", "lib/tests/data/*.npz"))
    return _and_hostile(seeds, "formats/*.npz"), in_file(folder / "w.npz", _looked_at)


def _onnx(folder: Path) -> tuple[list[Seed], Read]:
    import onnx
    from onnx import helper, numpy_helper

    tensors = [numpy_helper.from_array(array, name) for name, array in _arrays().items()]
    tensors.append(helper.make_tensor("f", onnx.TensorProto.FLOAT, [3], [1.0, 2.0, 3.0]))
    outside = numpy_helper.from_array(np.ones(4, "f4"), "o")
    onnx.external_data_helper.set_external_data(outside, "w.bin", 0, 16)
    outside.ClearField("raw_data")
    outside.data_location = onnx.TensorProto.EXTERNAL
    (folder / "w.bin").write_bytes(bytes(16))
    files = []
    for chosen in (tensors, [*tensors, outside]):
        graph = helper.make_graph([], "g", [], [], initializer=chosen)
        files.append(helper.make_model(graph).SerializeToString())
    files += own.shipped("onnx", "backend/test/data/*/*/model.onnx")
    return _and_hostile(plain(*files), "formats/*.onnx"), in_file(folder / "w.onnx", _looked_at)


def _torch(folder: Path) -> tuple[list[Seed], Read]:
    tensors = {"w": torch.randn(3, 4), "b": torch.zeros(2, dtype=torch.bfloat16), "i": torch.arange(3)}
    seeds = []
    for how in ({}, {"_use_new_zipfile_serialization": False}):
        torch.save(tensors, folder / "s.pt", **how)
        data = (folder / "s.pt").read_bytes()
        seeds += plain(data) if how else of_zip(data)
    return _and_hostile(seeds, "formats/*.pt"), in_file(folder / "w.pt", _looked_at)


def _tvm(folder: Path) -> tuple[list[Seed], Read]:
    (folder / "params_shard_0.bin").write_bytes(bytes(32))
    record = {"format": "raw", "nbytes": 24, "byteOffset": 0, "name": "a", "shape": [2, 3], "dtype": "float32"}
    half = {"format": "raw", "nbytes": 8, "byteOffset": 24, "name": "b", "shape": [4], "dtype": "float16"}
    shard = {"dataPath": "params_shard_0.bin", "format": "raw-shard", "nbytes": 32, "records": [record, half]}
    seeds = [seed_of_json(json.dumps({"metadata": {"ParamSize": 2}, "records": [shard]}))]
    return _and_hostile(seeds, "formats/*.json"), in_file(folder / "tensor-cache.json", _looked_at)


# --- modules

#: What bytecode keeps apart from the operations.
_RESOURCE = """module {
  "t.u"() {a = dense<[1.0, 2.0]> : tensor<2xf32>, r = dense_resource<blob> : tensor<4xi8>} : () -> () loc("a":1:2)
}
{-# dialect_resources: { builtin: { blob: "0x0400000001020304" } } #-}
"""


def _both(data: bytes) -> None:
    with suppress(CachecError):
        topology(data)
    for resource in strip(data).resources.values():
        for _ in resource.blob.pieces():
            pass


def _bytecode(_folder: Path) -> tuple[list[Seed], Read]:
    files = [Builder(wide=wide).finish(BLOBS, SETTINGS) for wide in (False, True)]
    files += [own.bytecode(_RESOURCE)]
    return _and_hostile(plain(*files), "mlir/*.mlirbc"), _both


def _mlir(_folder: Path) -> tuple[list[Seed], Read]:
    files = [program(0).encode(), inline_program(0).encode(), _RESOURCE.encode()]
    return _and_hostile(plain(*files), "mlir/*.mlir"), _both


def _renames(_folder: Path) -> tuple[list[Seed], Read]:
    return [seed_of_json(Renames({"a": "b", "c": "d"}, ("e",)).encode())], Renames.decode


def _library(_folder: Path) -> tuple[list[Seed], Read]:
    def read(data: bytes) -> None:
        library = Library(data, "here")
        needs_of(library, "here")

    return plain(*filter(_is_library, _objects())), read


def _is_library(data: bytes) -> bool:
    try:
        Library(data, "here")
    except CachecError:
        return False
    return True


def _llvm(_folder: Path) -> tuple[list[Seed], Read]:
    text = b'@a = external global [6 x float], align 64\n@"b\\20c" = external constant [4 x i32]\n'
    weights = from_arrays({"a": np.zeros(6, "f4"), "b c": np.zeros(4, "i4")})
    return plain(text), lambda data: external_weights(data.decode("utf-8", "replace"), weights.specs)


# --- executables and packages


def _objects() -> list[bytes]:
    """Small shared objects and programs of this machine."""
    found: list[bytes] = []
    for folder, names in (
        ("/usr/lib/x86_64-linux-gnu", "*.so.*"),
        (sysconfig.get_path("platstdlib"), "lib-dynload/*.so"),
    ):
        for path in sorted(Path(folder).glob(names)) if Path(folder).is_dir() else ():
            if path.is_file() and path.stat().st_size < 25_000 and path.open("rb").read(4) == b"\x7fELF":
                found.append(path.read_bytes())
            if len(found) >= 6:
                return found
    return found


def _elf(folder: Path) -> tuple[list[Seed], Read]:
    path = folder / "tool"
    path.write_bytes(b"")
    path.chmod(0o755)
    finder = Finder(distributions.Distributions([]))
    elf_dependencies.read_cache = functools.cache(
        elf_dependencies.read_cache
    )  # of the machine: it has a family of its own
    files = [*_objects(), b"#!/bin/sh\nexec /bin/true\n", b"#!/usr/bin/env -S python3 -c x\n"]
    return plain(*files), in_file(path, lambda path: finder.program(str(path), {}))


def _library_cache(_folder: Path) -> tuple[list[Seed], Read]:
    data = Path("/etc/ld.so.cache").read_bytes() if os.path.exists("/etc/ld.so.cache") else b""
    start = data.find(b"glibc-ld.so.cache1.1")
    return plain(data, data[start : start + 3000]), read_cache


def _installed(name: str) -> Callable[[Path], tuple[list[Seed], Read]]:
    text = {
        "RECORD": b'a.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\n"b,c.py",,\na-1.0.dist-info/RECORD,,\n',
        "entry_points.txt": b"[console_scripts]\na = a:main\n\n[cachec.plugins]\nb = a.b:plugin [extra]\n",
        "direct_url.json": b'{"url": "file:///a", "dir_info": {"editable": true}}',
    }[name]

    def make(folder: Path) -> tuple[list[Seed], Read]:
        info = folder / "a-1.0.dist-info"
        info.mkdir()
        (info / "RECORD").write_bytes(b"a.py,,\n")

        def read(_path: Path) -> None:
            for found in distributions.Distributions([str(folder)]):
                found.record()
                found.entry_points("cachec.plugins")
                _ = found.editable
            distributions.Distributions([str(folder)]).plugin_entry_points("cachec.plugins")
            distributions.Distributions([str(folder)]).owner(str(folder / "a.py"))

        seeds = [seed_of_json(text)] if name.endswith(".json") else plain(text)
        return seeds, in_file(info / name, read)

    return make


# --- what a store holds


def _opened(folder: Path) -> tuple[Scene, Store]:
    scene = Scene(folder / "scene").make()
    return scene, Store(scene.store)


def _rows(folder: Path) -> tuple[list[Seed], Read]:
    _, store = _opened(folder)
    kinds = {
        "entry": Entry,
        "recent": nearest_keys.Recent,
        "near": nearest_keys.Recent,
        "summary": search_index.CallSummary,
        "facts": search_index.Facts,
        "usage": store_size.Usage,
        "pin": pins.Pin,
        "quarantine": QuarantinedRow,
    }
    seeds = []
    for name, row in store.index.rows(""):
        if row is not None and name.partition(":")[0] in kinds:
            text = bytes(row_codec.body(row, name))
            seeds += [seed_of_json(text, lambda text: _checked(text)), Seed(row)]
    store.close()
    weights = from_arrays(_arrays())

    def read(data: bytes) -> None:
        for kind in kinds.values():
            try:
                record: Any = row_codec.unpack(data, kind, "name")
            except CachecError:
                continue
            for trace in record.traces if kind is Entry else ():
                with suppress(CachecError):
                    decode(trace.value, store.objects, _no_plugin, lambda _: weights, trace.manifest)

    return seeds, read


def _no_plugin(name: str) -> Any:
    raise cachec.PluginError(f"no plugin {name}")


def _checked(text: bytes) -> bytes:
    """A row with this text, whose checksum fits."""
    return row_codec.pack(msgspec.Raw(text))  # type: ignore[arg-type]


class _Remembered:
    """A memory that has these bytes under every name."""

    data = b""

    def recall(self, _name: str) -> bytes:
        return self.data

    def remember(self, _name: str, value: bytes) -> None:
        """Have these bytes, if there are none."""
        self.data = self.data or value


def _digests(folder: Path) -> tuple[list[Seed], Read]:
    path = folder / "file"
    path.write_bytes(b"content")
    os.utime(path, (1, 1))
    memory = _Remembered()

    def read(data: bytes) -> None:
        memory.data = data
        FileDigests(memory).of_path(path)

    s = path.stat()
    text = json.dumps([[s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns], "0" * 64])
    return [seed_of_json(text)], read


def _conclusions(_folder: Path) -> tuple[list[Seed], Read]:
    """What a cache remembers of texts: each row where it is asked for."""
    texts = [
        b"module {}\n",
        *(b'"op"() {v = dense_resource<w> : tensor<%sxf32>} : () -> ()\n' % n for n in (b"4", b"2x3")),
    ]

    class Rows:
        def __init__(self) -> None:
            self.table: dict[str, bytes] = {}
            self.data: bytes | None = None

        def recall(self, name: str) -> bytes | None:
            return self.table.get(name) if self.data is None else self.data

        def remember(self, name: str, value: bytes) -> None:
            self.table[name] = value

        def rows(self, prefix: str) -> Iterator[tuple[str, bytes | None]]:
            yield prefix, self.data

    rows = Rows()
    digests = FileDigests(rows)
    for text in texts:
        programs.program(text, digests=digests)
    seeds = []
    for name, row in rows.table.items():
        seeds += [seed_of_json(bytes(row_codec.body(row, name)), lambda text: _checked(text)), Seed(row)]

    def read(data: bytes) -> None:
        rows.data = data
        for text in texts:
            found = programs.program(text, digests=digests).program
            assert len(found.topology) == 64
            assert found.ir == text
            assert len(found.manifest.weights) <= 1 + len(data)
        list(derived_cache.forgotten(rows, 0.0))  # type: ignore[arg-type]  # only its rows are asked for

    return seeds, read


def _compiled(folder: Path) -> tuple[list[Seed], Read]:
    """What is kept of a file with two functions: whatever it says, the code of another text is none of its own."""
    path, memory = folder / "module.py", _Remembered()
    path.write_text("def f(x):\n    return [x, lambda: 3]\ndef g(x): return x\n")
    f, g, *_ = compile(path.read_bytes(), str(path), "exec", dont_inherit=True).co_consts
    other, *_ = compile(path.read_text().replace("3", "4"), str(path), "exec", dont_inherit=True).co_consts

    def read(data: bytes) -> None:
        for code, is_own in ((f, True), (g, True), (other, False)):
            memory.data = data
            source = Sources(memory).load(str(path))
            assert source is not None
            assert isinstance(code, CodeType)
            assert (source.match(code) is not None) is is_own

    read(b"")
    row = memory.data
    return [Seed(row), Seed(row, None, lambda body: _summed(path, body), row[32:])], read


def _summed(path: Path, body: bytes) -> bytes:
    """A row with these digests, whose checksum fits."""
    compiled = CompileCache(str(path), path.read_bytes(), _Remembered())
    return compiled._checksum(body) + body


def _artifacts(folder: Path) -> tuple[list[Seed], Read]:
    """Lists of parts and manifests, as the store and ``why`` read them."""
    _, store = _opened(folder)
    seeds = []
    for ref, _ in store.objects.iterate():
        data = store.objects.read(ref)
        if data[:1] in {b"[", b"{"}:
            seeds.append(seed_of_json(data))

    def read(data: bytes) -> None:
        for kept in (True, False):
            with suppress(CachecError):
                ref = store.objects.add_bytes(data)
                try:
                    if kept:
                        store.parts_of(ref)
                    else:
                        _ = Manifest(ref.digest, lambda: data).weights
                finally:
                    store.objects.path(ref, lease=False).unlink()
        with suppress(*MALFORMED_JSON):  # as it says; ``maintain`` tells, and goes on
            snapshot.names_in(data)

    return seeds, read


def _memo(folder: Path) -> tuple[list[Seed], Read]:
    scene, _ = _opened(folder)
    [path] = (path for path in (scene.store / "direct").rglob("*") if path.is_file())
    scene.enter()
    args = ["--input=in.txt", "--output=out.txt", "--", "/bin/cp", "-v", "in.txt", "out.txt"]
    quiet = os.open(os.devnull, os.O_WRONLY)
    data = path.read_bytes()

    def checked(rest: bytes) -> bytes:
        from blake3 import blake3

        return direct.MAGIC + blake3(rest).digest() + rest

    def read(data: bytes) -> None:
        path.write_bytes(data)
        path.chmod(0o600)
        kept = os.dup(1), os.dup(2)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        try:
            direct.answer(args)
        finally:
            for number, fd in enumerate(kept, 1):
                os.dup2(fd, number)
                os.close(fd)

    seeds = [Seed(data), Seed(checked(data[48:]))]

    def both(found: bytes) -> None:
        read(found)
        read(checked(found[48:]))

    return seeds, both


def _revisions(folder: Path) -> tuple[list[Seed], Read]:
    scene, store = _opened(folder)
    names = sorted((scene.store / "weights" / "names").iterdir())
    weights = WeightStore(store)

    def read(data: bytes) -> None:
        for path in names:
            path.write_bytes(data)
        for look in (weights.revisions, lambda: weights.open("base"), lambda: weights.open("placed")):
            with suppress(CachecError):
                look()

    return [seed_of_json(path.read_bytes()) for path in names], read


def _records(folder: Path) -> tuple[list[Seed], Read]:
    from blake3 import blake3

    scene, store = _opened(folder)
    place = scene.store / "weights" / "revisions"
    pointer = scene.store / "weights" / "names" / "base.json"
    seeds = [seed_of_json(path.read_bytes()) for path in sorted(place.iterdir())]
    known = json.loads(pointer.read_text())

    def read(data: bytes) -> None:
        """A record that its name fits."""
        digest = blake3(data).hexdigest()
        path = place / f"{digest}.json"
        path.write_bytes(data)
        pointer.write_text(json.dumps({**known, "revision": digest}))
        weights = WeightStore(store)
        try:
            for look in (lambda: weights.open("base"), lambda: weights.verify("base")):
                with suppress(CachecError):
                    look()
            weights.list_needed(lambda _: None)
        finally:
            path.unlink()

    return seeds, read


def _leases(folder: Path) -> tuple[list[Seed], Read]:
    from cachec.store.leases import collecting

    scene, store = _opened(folder)
    for ref, _ in store.objects.iterate():
        store.objects.path(ref)
    taken = [*(scene.store / "leases").iterdir()]
    data = b"".join(each.read_bytes() for each in taken)
    assert data
    pid = os.getpid()
    for path in taken:
        path.unlink()

    def read(found: bytes) -> None:
        (scene.store / "leases" / f"{pid}-0000000000000001").write_bytes(found)
        with collecting(scene.store / "leases") as held:
            held.drop_dead(remove=False)
            held.refresh()
            assert "0" * 64 not in held or b"\0" * 32 in found

    return plain(data), read


def _log(folder: Path) -> tuple[list[Seed], Read]:
    scene, _ = _opened(folder)
    [path] = (scene.store / "log").iterdir()
    lines = path.read_bytes()
    fault = b'{"fault":"io-error","detail":"x","time":1.5}\n'
    seeds = [
        Seed(lines + fault),
        *(seed_of_json(line, lambda text: lines + text + b"\n") for line in (*lines.splitlines(), fault)),
    ]

    def read(path: Path) -> None:
        log = read_outcomes(path)
        report.statistics(log)

    return seeds, in_file(folder / "log.jsonl", read)


def _history(folder: Path) -> tuple[list[Seed], Read]:
    store = folder / "store"
    (store / "warm").mkdir(parents=True)
    first = History(store, "config")
    path = first._path
    text = json.dumps({"version": 1, "config": "config", "seconds": {"a": 1.5, "b": 2}})
    return [seed_of_json(text)], in_file(path, lambda _: History(store, "config"))


# --- what is named on a command line, or found


def _config(folder: Path) -> tuple[list[Seed], Read]:
    text = b'max_size = "20GiB"\nlog = "misses"\nlock_timeout = 5\nfsync = true\nmode = "on"\n[warm]\njobs = 2\n'
    toml = folder / "cachec.toml"
    project = b'[project]\nname = "a"\n[tool.cachec]\n' + text.replace(b"[warm]", b"[tool.cachec.warm]")

    def read(data: bytes) -> None:
        for path, other in ((toml, folder / "pyproject.toml"), (folder / "pyproject.toml", toml)):
            other.unlink(missing_ok=True)
            path.write_bytes(data)
            with suppress(CachecError):
                config.load(cwd=folder)

    return plain(text, project), read


def _targets(folder: Path) -> tuple[list[Seed], Read]:
    text = (
        b'[warm]\njobs = 2\ntimeout = 60.5\n[warm.targets.a]\ncall = "m:f"\narguments = { s = "x" }\nafter = ["b"]\n'
        b'matrix = { n = [1, 2], m = ["a", true] }\nexclude = [{ n = 1, m = "a" }]\nisolated = true\n'
        b'[warm.targets.b]\ncommand = ["cc", "-c", "a.c"]\nenv = { A = "b" }\nfiles = ["*.c"]\n'
    )

    def read(path: Path) -> None:
        warm.load(path.parent)

    return plain(text), in_file(folder / "cachec.toml", read)


def _adapter(folder: Path) -> tuple[list[Seed], Read]:
    shipped = sorted(Path(adapters.__file__).with_name("adapters").glob("*.toml")) or sorted(
        Path(cachec.__file__).parent.rglob("adapters/*.toml")
    )
    text = b'match = ["fakecc"]\nflags = [\n  { names = ["-o"], takes = ["next"], is = "output" },\n]\n'
    return plain(text, *(path.read_bytes() for path in shipped)), in_file(folder / "a.toml", adapters.read)


def _response(folder: Path) -> tuple[list[Seed], Read]:
    (folder / "a.c").write_text("int a;\n")
    shutil.copy("/usr/bin/true", folder / "clang")
    program = str(folder / "clang")
    adapter = find(program, "clang")

    def read(_path: Path) -> None:
        describe(("clang", "@args"), program, str(folder), adapter, Options(), {"PATH": str(folder)})

    text = b"-c a.c -o a.o -I inc '-DA=\"b c\"' -DB=\\\\ \n-O2\n"
    return plain(text), lambda data: _in(folder, lambda: in_file(folder / "args", read)(data))


def _in(folder: Path, body: Callable[[], object]) -> object:
    before = os.getcwd()
    os.chdir(folder)
    try:
        return body()
    finally:
        os.chdir(before)


def _keys(_folder: Path) -> tuple[list[Seed], Read]:
    text = json.dumps({"dir": "/a", "entries": [{"key": "0" * 64, "stage": "s"}, {"key": "1" * 64}]})
    seeds = [seed_of_json(text), seed_of_json('["' + "0" * 64 + '"]'), Seed(b"0" * 64 + b" stage\n" + b"1" * 64)]
    return seeds, lambda data: keys_from(data.decode("utf-8", "surrogateescape"))


def _strace(_folder: Path) -> tuple[list[Seed], Read]:
    text = (
        b'1 openat(AT_FDCWD</w>, "a\\303\\251\\n", O_RDONLY|O_CLOEXEC) = 3</w/a>\n2 vfork() = 9\n'
        b'1 read(3</w/a>, "x"..., 4096 <unfinished ...>\n2 execve("/bin/sh", ["sh", "-c"], 0x7f /* 2 vars */) = 0\n'
        b"1 <... read resumed>) = 1\n1 --- SIGCHLD {si_signo=SIGCHLD} ---\n1 +++ exited with 0 +++\n"
    )
    return plain(text), lambda data: list(Calls(data.decode("utf-8", "surrogateescape").splitlines()))


def _reproducer(folder: Path) -> tuple[list[Seed], Read]:
    members = {
        pack.ABOUT: _about(json.dumps(_RECIPE).encode()),
        pack.RECIPE: json.dumps(_RECIPE).encode(),
        "files/a": b"x" * 300,
    }
    data = archive.write_archive(members)
    stored = io.BytesIO()
    with zipfile.ZipFile(stored, "w") as out:
        for name, content in members.items():
            out.writestr(name, content)
    return [*plain(data), *of_zip(stored.getvalue())], in_file(folder / "r.zip", reader.load)


_FILE = {"folder": 0, "path": "a", "digest": "0" * 64, "nbytes": 3}
_COMMAND = {
    "tool": {"name": "cc", "version": "1"},
    "args": ["-o", ["--out=", 0, "/a"]],
    "cwd": [0],
    "environ": {"A": "b", "B": None},
    "hidden": ["TOKEN"],
    "inputs": [_FILE],
    "outputs": [_FILE],
    "weights": [{"folder": 0, "path": "w", "rule": "content", "manifest": "1" * 64}],
    "returncode": 1,
}
_RECIPE = {
    "version": 2,
    "stage": "s",
    "entry": "m:f",
    "arguments": {},
    "environ": {"A": "b"},
    "folders": 1,
    "commands": [_COMMAND],
}


def _about(recipe: bytes) -> bytes:
    about = {"version": 2, "key": "0" * 64, "stage": "s", "mode": "command", "recipe": digest_bytes(recipe)}
    return json.dumps(about).encode()


def _recipe(folder: Path) -> tuple[list[Seed], Read]:
    """A reproducer that is whole, about a recipe that is none."""

    def read(data: bytes) -> None:
        with suppress(CachecError):
            pack.decode_recipe(data, "recipe")
        archive.write(folder / "r.zip", archive.write_archive({pack.ABOUT: _about(data), pack.RECIPE: data}))
        reader.load(folder / "r.zip")

    return [seed_of_json(json.dumps(_RECIPE))], read


def _bundle(folder: Path) -> tuple[list[Seed], Read]:
    """A bundle, and its entries inside: digests, lengths and the order of its bytes then fit what was changed."""
    _, store = _opened(folder)
    path = folder / "a.cachec"
    bundle.create(store, [entry.key for entry in store.entries()][:2], path)
    with tarfile.open(path) as given:
        members = {each.name: given.extractfile(each).read() for each in given}  # type: ignore[union-attr]
    records = [name for name in members if name.startswith("entries/")]
    seeds = [seed_of_json(members[name], partial(_bundled, members, name)) for name in records]
    into = Store(folder / "into")
    return [*plain(path.read_bytes()), *seeds], in_file(folder / "b.cachec", lambda path: bundle.add(into, path))


def _bundled(members: dict[str, bytes], name: str, record: bytes) -> bytes:
    with suppress(msgspec.DecodeError, UnicodeDecodeError):
        record = msgspec.json.encode(msgspec.json.decode(record))  # nothing else is the JSON of a bundle
    table = msgspec.json.decode(members[TABLE], type=BundleTable)
    rows = [
        BundledRecord(each.name, digest_bytes(record), len(record)) if each.name in name else each
        for each in table.entries
    ]
    contents = {each: data for each, data in {**members, name: record}.items() if each != TABLE}
    return packed(msgspec.structs.replace(table, entries=tuple(rows)), contents)


# --- what a server answers


class _Server(threading.Thread):
    """Gives each client the same bytes."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.answer = b""
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]

    def run(self) -> None:
        while True:
            client, _ = self._listening.accept()
            with client, suppress(OSError):
                client.recv(4096)
                client.sendall(self.answer)


def _http(folder: Path) -> tuple[list[Seed], Read]:
    server: list[_Server] = []
    body = b"\r\n\r\n" + b"0123456789"
    files = (
        b'HTTP/1.1 200 OK\r\nContent-Length: 10\r\nETag: "x"\r\nConnection: close' + body,
        b'HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 5-9/10\r\nETag: "x"\r\nContent-Length: 5' + body,
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/x\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n01234\r\n5\r\n56789\r\n0\r\n\r\n",
        b"HTTP/1.1 416 Range Not Satisfiable\r\nContent-Range: bytes */10\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n",
    )
    state = folder / "state.json"

    def read(data: bytes) -> None:
        if not server:  # after the fork: a thread would not be carried across
            server.append(_Server())
            server[0].start()
        server[0].answer = data
        url = f"http://127.0.0.1:{server[0].port}/w.safetensors"
        wanted = Identifier.parse(url + "#blake3=" + "0" * 64)
        state.write_text(json.dumps({"url": wanted.url, "validator": '"x"'}))
        fd = os.open(folder / "part", os.O_RDWR | os.O_CREAT)
        try:
            os.ftruncate(fd, 5 if len(data) % 2 else 0)
            HttpResolver(timeout=0.2, sleep=lambda _: None).fetch(wanted, fd, state, None)
        finally:
            os.close(fd)

    return plain(*files), read


def _http_state(folder: Path) -> tuple[list[Seed], Read]:
    from cachec.weights.library import http_ranges

    wanted = Identifier.parse("http://127.0.0.1:1/w.safetensors#blake3=" + "0" * 64)
    fd = os.open(folder / "part", os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 5)

    def read(path: Path) -> None:
        http_ranges._beginning(wanted, fd, path)

    return [seed_of_json(json.dumps({"url": wanted.url, "validator": '"x"'}))], in_file(folder / "state.json", read)


FAMILIES: tuple[Family, ...] = (
    Family("safetensors", _safetensors),
    Family("index of shards", _sharded),
    Family("shards of workers", _ranks),
    Family("metadata of shards", _rank_metadata),
    Family("gguf", _gguf),
    Family("irpa", _irpa),
    Family("npy", _npy),
    Family("npz", _npz),
    Family("onnx", _onnx),
    Family("torch", _torch),
    Family("tvm", _tvm),
    Family("mlir bytecode", _bytecode),
    Family("mlir text", _mlir),
    Family("renames", _renames),
    Family("native library", _library),
    Family("llvm ir", _llvm),
    Family("executable", _elf),
    Family("library cache", _library_cache, (elf.ElfError,)),
    *(Family(name, _installed(name)) for name in ("RECORD", "entry_points.txt", "direct_url.json")),
    Family("rows", _rows),
    Family("remembered digest", _digests),
    Family("remembered text", _conclusions),
    Family("code of a file", _compiled, ()),
    Family("parts and manifests", _artifacts),
    Family("memo", _memo),
    Family("names of weights", _revisions),
    Family("records of weights", _records),
    Family("leases", _leases),
    Family("event log", _log),
    Family("history of warming", _history),
    Family("configuration", _config),
    Family("targets", _targets),
    Family("adapter", _adapter),
    Family("response file", _response, (CachecError, PassThrough)),
    Family("keys on stdin", _keys),
    Family("output of strace", _strace),
    Family("reproducer", _reproducer),
    Family("recipe", _recipe),
    Family("bundle", _bundle),
    Family("answers over HTTP", _http),
    Family("state of a download", _http_state),
)
