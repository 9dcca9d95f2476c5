"""Files, folders, programs and plugin values."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from cachec import codecs
from cachec.codecs.encoder import encode
from cachec.errors import StoreFault, UnstorableResult
from cachec.model import Fault, Leaf, WeightSpec
from cachec.programs.artifact import Dir, File
from cachec.programs.plugin import ArtifactWriter, Plugin
from cachec.programs.program import Program
from cachec.weights.manifest import Manifest

SPEC = WeightSpec(name="w", dtype="float32", shape=(2,), nbytes=8)
MANIFEST = Manifest.of({"w": SPEC})


def hostile(bench: Any, leaf: Leaf) -> None:
    with pytest.raises(StoreFault) as caught:
        bench.decode(leaf)
    assert caught.value.fault is Fault.ROW_CORRUPT


# --- File


def test_a_file_is_copied_in_and_comes_back_in_the_store(bench: Any, tmp_path: Path) -> None:
    made = tmp_path / "out.vmfb"
    made.write_bytes(b"code")
    node = bench.encode(File(made, "iree:vmfb", MANIFEST))
    made.write_bytes(b"changed afterwards")
    made.unlink()
    back = bench.decode(node)
    assert type(back) is File
    assert back.read_bytes() == b"code"
    assert (back.kind, back.name, back.manifest) == ("iree:vmfb", "out.vmfb", MANIFEST)
    assert back.path.parent == bench.store.root


def test_a_file_inherits_the_manifest_of_the_stage_unless_it_has_one(bench: Any, tmp_path: Path) -> None:
    made = tmp_path / "f"
    made.write_bytes(b"")
    other = Manifest.of({"x": WeightSpec(name="x", dtype="int8", shape=(), nbytes=1)})
    own, bare = bench.encode(File(made, manifest=MANIFEST)), bench.encode(File(made))
    assert bench.decode(bare).manifest is None
    bench.manifest = bench.store.add_bytes(other.encode())
    assert bench.decode(bare).manifest.weights == other.weights
    assert bench.decode(own).manifest.weights == MANIFEST.weights


def test_the_manifest_of_a_file_is_read_when_looked_at(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "f"
    made.write_bytes(b"x")
    bench.manifest = bench.store.add_bytes(MANIFEST.encode())
    node = bench.encode([File(made), File(made)])
    opened = watch_opens(monkeypatch)
    one, other = bench.decode(node)
    assert one.manifest.digest == MANIFEST.digest
    assert opened == []
    assert one.manifest.weights == MANIFEST.weights
    assert one.manifest is other.manifest
    assert len(opened) == 1


@pytest.mark.parametrize("name", ["missing", "folder", "closed/f"])
def test_a_file_that_cannot_be_read_is_refused(bench: Any, tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(UnstorableResult, match=r"^result\['out'\] is .*(exist|Dir)"):
        bench.encode({"out": File(tmp_path / name)})


def test_a_fault_of_the_store_is_no_fault_of_the_file(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "f"
    made.write_bytes(b"x")

    def full(_: object) -> None:
        raise StoreFault(Fault.STORE_FULL, "no room")

    monkeypatch.setattr(bench.store, "add_file", full)
    with pytest.raises(StoreFault):
        bench.encode(File(made))


# --- Dir


def tree(top: Path) -> dict[str, object]:
    """Everything in a folder: content and executable bit, link target, or None for a folder."""
    found: dict[str, object] = {}
    for path in sorted(top.rglob("*")):
        name = str(path.relative_to(top))
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_dir():
            found[name] = None
        else:
            found[name] = (path.read_bytes(), os.access(path, os.X_OK) and bool(path.stat().st_mode & 0o100))
    return found


def make_tree(top: Path) -> Path:
    (top / "a/b").mkdir(parents=True)
    (top / "empty").mkdir()
    (top / "a/one").write_bytes(b"1")
    (top / "a/b/two").write_bytes(b"2" * 5000)
    (top / "a/b/same").write_bytes(b"1")
    (top / "run.sh").write_bytes(b"#!")
    (top / "run.sh").chmod(0o755)
    (top / "a/b/up").symlink_to("../../run.sh")
    (top / "broken").symlink_to("a/nothing")
    return top


def test_a_folder_comes_back_with_everything_in_it(bench: Any, tmp_path: Path) -> None:
    top = make_tree(tmp_path / "out")
    before = tree(top)
    node = bench.encode(Dir(top, "x:y", MANIFEST))
    back = bench.decode(node)
    assert type(back) is Dir
    assert tree(back.path) == before
    assert len(before) == 9
    assert (back.name, back.kind, back.manifest) == ("out", "x:y", MANIFEST)
    assert tree(bench.round_trip(Dir(tmp_path / "out/empty")).path) == {}


def test_files_and_folders_through_the_real_store(bench: Any, tmp_path: Path) -> None:
    from cachec.base.hashing import FileDigests
    from cachec.store.objects import Objects

    store = Objects(tmp_path / "cache/objects", tmp_path / "cache/tmp", FileDigests())
    top = make_tree(tmp_path / "out")
    value = {
        "dir": Dir(top),
        "file": File(top / "run.sh"),
        "bytes": b"b" * 5000,
        "program": Program("ir", format="a:b", manifest=MANIFEST),
    }
    node = encode(value, store, bench.plugin_for)
    back = codecs.decode(node, store, bench.plugin_named, bench.callers.__getitem__, None)
    assert tree(back["dir"].path) == tree(top)
    assert back["file"].read_bytes() == b"#!"
    assert back["file"].path.stat().st_mode & 0o777 == 0o444
    assert back["bytes"] == value["bytes"]
    assert back["program"] == value["program"]
    assert back["program"].ir == b"ir"


@pytest.mark.parametrize("target", ["/etc/passwd", "../x", "../../x", "a/../../x", "a/../one", ".."])
def test_a_link_that_leads_out_is_refused(bench: Any, tmp_path: Path, target: str) -> None:
    top = tmp_path / "out"
    top.mkdir()
    (top / "link").symlink_to(target)
    with pytest.raises(UnstorableResult, match="the link 'link' leads to"):
        bench.encode(Dir(top))


def test_other_things_in_a_folder_are_refused(bench: Any, tmp_path: Path) -> None:
    top = tmp_path / "out"
    top.mkdir()
    os.mkfifo(top / "pipe")
    with pytest.raises(UnstorableResult, match="'pipe' is no file, folder or link"):
        bench.encode(Dir(top))
    (top / "pipe").unlink()
    Path(os.fsdecode(os.fsencode(top) + b"/\xff")).write_bytes(b"")
    with pytest.raises(UnstorableResult, match="Unicode"):
        bench.encode(Dir(top))
    for missing in (tmp_path / "missing", top / "file"):
        with pytest.raises(UnstorableResult, match="no folder"):
            bench.encode(Dir(missing))


# --- Program


def watch_opens(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    from cachec.base import fsio

    opened: list[str] = []
    real = fsio.open_read

    def noting(path: Any) -> int:
        opened.append(Path(path).name)
        return real(path)

    monkeypatch.setattr(fsio, "open_read", noting)
    return opened


def test_a_program_comes_back_and_is_read_when_looked_at(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program("module {}", format="jax:stablehlo", manifest=MANIFEST)
    node = bench.encode(program)
    opened = watch_opens(monkeypatch)
    back = bench.decode(node)
    assert back == program
    assert back.topology == program.topology
    assert back.manifest.digest == MANIFEST.digest
    assert opened == []
    assert {program.ir_digest, MANIFEST.digest} <= set(bench.store.asked), "but known to be there"
    assert back.text == "module {}"
    assert back.ir is back.ir
    assert opened == [program.ir_digest]
    assert back.manifest.weights == {"w": SPEC}


def test_a_program_whose_ir_is_gone_is_a_miss_and_no_late_surprise(bench: Any) -> None:
    program = Program("module {}", format="jax:stablehlo", manifest=MANIFEST)
    node = bench.encode(program)
    (bench.store.root / program.ir_digest).unlink()
    with pytest.raises(StoreFault) as caught:
        bench.decode(node)
    assert caught.value.fault is Fault.ARTIFACT_MISSING


def test_an_ir_that_is_altered_after_the_hit_is_never_handed_out(bench: Any) -> None:
    program = Program("module {}", format="jax:stablehlo", manifest=MANIFEST)
    back = bench.round_trip(program)
    path = bench.store.root / program.ir_digest
    path.chmod(0o644)
    path.write_bytes(b"module []")
    with pytest.raises(StoreFault, match="altered"):
        _ = back.ir


def test_a_hit_imports_no_numpy(bench: Any, tmp_path: Path) -> None:
    code = (
        "import sys, msgspec\n"
        "from cachec import codecs\nfrom cachec.codecs.encoder import encode\n"
        "from cachec.base.hashing import FileDigests\n"
        "from cachec.store.objects import Objects\n"
        "from cachec.programs.artifact import File\n"
        "from cachec.weights.manifest import Manifest\n"
        "from cachec.programs.program import Program\n"
        f"s = Objects({str(tmp_path / 'o')!r}, {str(tmp_path / 't')!r}, FileDigests())\n"
        "p = Program('ir', format='a:b', manifest=Manifest.of({}))\n"
        f"v = [p, File({__file__!r}), b'x' * 9999, (1, {{'a': 2}})]\n"
        "n = encode(v, s, lambda c: None)\n"
        "back = codecs.decode(n, s, None, None, None)\n"
        "assert back[0].ir == b'ir' and back[2:] == v[2:]\n"
        "bad = {'numpy', 'ml_dtypes', 'click', 'rich', 'diskcache', 'subprocess', 'logging', 'importlib.metadata'}\n"
        "assert not bad & set(sys.modules), bad & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=Path(__file__).parents[2])


# --- hostile rows


def test_metas_that_do_not_fit_are_corrupt(bench: Any) -> None:
    ref = bench.store.add_bytes(b"x")
    for leaf in (
        Leaf("file", (), {"name": "a"}),
        Leaf("file", (ref, ref, ref), {"name": "a"}),
        Leaf("file", (ref,), {}),
        Leaf("file", (ref,), {"name": 1}),
        Leaf("file", (ref,), {"name": "a", "path": "/etc/passwd"}),
        Leaf("dir", (), {"name": "a", "files": {"f": True}}),
        Leaf("dir", (ref, ref, ref), {"name": "a", "files": {"f": True}}),
        Leaf("dir", (ref,), {"name": "a", "files": ["f"]}),
        Leaf("program", (ref,), {"format": "a:b"}),
        Leaf("program", (ref, ref), {}),
        Leaf("bytes", (ref, ref), {}),
        Leaf("bytes", (ref,), {"a": 1}),
        Leaf("text", (ref,), {"a": 1}),
        Leaf("text", (bench.store.add_bytes(b"\xff"),), {}),
    ):
        hostile(bench, leaf)


@pytest.mark.parametrize(
    "meta",
    [
        {"files": {"../f": False}},
        {"files": {"/f": False}},
        {"files": {"a/f": False}, "links": {"a": ".."}},
        {"files": {"f": False}, "links": {"l": "../x"}},
        {"files": {"f": False}, "folders": [".."]},
    ],
)
def test_a_stored_folder_cannot_reach_out_of_the_store(bench: Any, tmp_path: Path, meta: dict[str, Any]) -> None:
    from cachec.base.hashing import FileDigests
    from cachec.store.objects import Objects

    store = Objects(tmp_path / "cache/objects", tmp_path / "cache/tmp", FileDigests())
    leaf = Leaf("dir", (store.add_bytes(b"x"),), {"name": "d", **meta})
    with pytest.raises(StoreFault) as caught:
        codecs.decode(leaf, store, bench.plugin_named, bench.callers.__getitem__, None)
    assert caught.value.fault is Fault.ROW_CORRUPT


# --- plugins


class Module:
    def __init__(self, text: str, tags: list[str]) -> None:
        self.text = text
        self.tags = tags


class Special(Module):
    pass


class ModulePlugin(Plugin):
    name = "mod"
    types = (f"{Module.__module__}.Module",)
    odd: object = None

    def encode(self, value: Any, out: ArtifactWriter) -> dict[str, Any]:
        out.write(value.text.encode())
        out.write(b"second")
        return {"tags": value.tags, "odd": self.odd}

    def decode(self, meta: Mapping[str, Any], artifacts: Sequence[Path]) -> Module:
        if artifacts[1].read_bytes() != b"second":
            raise ValueError("not mine")
        return Module(artifacts[0].read_text(), meta["tags"])


def test_a_plugin_stores_its_types_and_their_subclasses(bench: Any) -> None:
    bench.plugins["mod"] = ModulePlugin()
    node = bench.encode([Special("a", ["t"])])
    (leaf,) = node.items
    assert leaf.codec == "plugin:mod"
    assert len(list(codecs.artifacts(node))) == 2
    (one,), (other,) = bench.decode(node), bench.decode(node)
    assert (one.text, one.tags) == ("a", ["t"])
    one.tags.append("more")
    assert other.tags == ["t"]
    assert bench.decode(node)[0].tags == ["t"], "a meta is not shared between hits"


@pytest.mark.parametrize(
    "odd", [(1,), {1: 2}, b"x", float("nan"), object()], ids=["tuple", "key", "bytes", "nan", "object"]
)
def test_a_meta_that_json_does_not_give_back_is_the_plugins_fault(bench: Any, odd: object) -> None:
    plugin = bench.plugins["mod"] = ModulePlugin()
    plugin.odd = odd
    with pytest.raises(UnstorableResult, match=r"'mod'.*meta"):
        bench.encode(Module("a", []))


def test_a_row_that_a_plugin_cannot_decode_is_corrupt(bench: Any) -> None:
    bench.plugins["mod"] = ModulePlugin()
    ref = bench.store.add_bytes(b"x")
    hostile(bench, Leaf("plugin:mod", (ref, ref), {"tags": []}))
    hostile(bench, Leaf("plugin:mod", (ref,), {"tags": []}))
    hostile(bench, Leaf("plugin:gone", (ref,), {}))
    bench.plugins["base"] = Plugin()
    hostile(bench, Leaf("plugin:base", (), {}))
