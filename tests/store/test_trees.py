"""Stored folders: put together from objects, checked at each use, and never a way out of the store."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cachec.base.hashing import FileDigests
from cachec.errors import StoreFault
from cachec.model import ArtifactRef, Fault
from cachec.store.leases import collecting
from cachec.store.objects import Objects


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return Objects(tmp_path / "objects", tmp_path / "tmp", FileDigests())


@pytest.fixture
def tree(objects: Objects) -> Callable[[], Path]:
    files = {
        "a.txt": (objects.add_bytes(b"a"), False),
        "bin/tool": (objects.add_bytes(b"#!/bin/sh\n"), True),
        "deep/er/b.txt": (objects.add_bytes(b"b"), False),
        "copy.txt": (objects.add_bytes(b"a"), False),
    }
    links = {"link": "deep/er", "deep/up": "../a.txt", "deep/er/dangling": "../../nothing"}
    return lambda: objects.tree(files, links, ["empty/inside"])


def test_a_tree_holds_what_it_was_told(objects: Objects, tree: Callable[[], Path], tmp_path: Path) -> None:
    path = tree()
    assert path.parent == tmp_path / "trees"
    found = {str(entry.relative_to(path)) for entry in path.rglob("*")}
    assert found == {
        *("a.txt", "bin", "bin/tool", "deep", "deep/er", "deep/er/b.txt", "copy.txt"),
        *("link", "deep/up", "deep/er/dangling", "empty", "empty/inside"),
    }
    assert (path / "a.txt").read_bytes() == (path / "copy.txt").read_bytes() == (path / "deep/up").read_bytes() == b"a"
    assert (path / "link" / "b.txt").read_bytes() == b"b"
    assert os.readlink(path / "deep/er/dangling") == "../../nothing"
    modes = {name: stat.S_IMODE((path / name).stat().st_mode) for name in (".", "deep/er", "a.txt", "bin/tool")}
    assert modes == {".": 0o555, "deep/er": 0o555, "a.txt": 0o444, "bin/tool": 0o555}
    assert (path / "a.txt").samefile(objects.path(objects.add_bytes(b"a")))  # no second copy
    assert list((tmp_path / "tmp").iterdir()) == []


def test_every_tree_that_is_handed_out_is_leased(objects: Objects, tree: Callable[[], Path], tmp_path: Path) -> None:
    """The first of a store, another one, and one that was there already."""
    paths = [tree(), objects.tree({"a.txt": (objects.add_bytes(b"a"), False)})]
    objects.leases.release()
    paths.append(objects.tree({"b.txt": (objects.add_bytes(b"b"), False)}))
    assert [objects.leases.holds(path.name) for path in paths] == [False, False, True]
    assert tree() == paths[0]
    with collecting(tmp_path / "leases") as held:
        held.refresh()
        assert {bytes.fromhex(path.name) in held.digests for path in (paths[0], paths[2])} == {True}


def test_the_same_tree_is_made_once(tree: Callable[[], Path]) -> None:
    first = tree()
    inode = first.stat().st_ino
    assert tree() == first
    assert first.stat().st_ino == inode


def test_everything_in_a_tree_is_in_its_name(objects: Objects) -> None:
    a, b = objects.add_bytes(b"a"), objects.add_bytes(b"b")
    different = [
        objects.tree({}),
        objects.tree({"x": (a, False)}),
        objects.tree({"x": (a, True)}),
        objects.tree({"x": (b, False)}),
        objects.tree({"y": (a, False)}),
        objects.tree({"x": (a, False)}, {"l": "x"}),
        objects.tree({"x": (a, False)}, {"l": "y"}),
        objects.tree({"x": (a, False)}, {"m": "x"}),
        objects.tree({"x": (a, False)}, {}, ["d"]),
        objects.tree({"d/x": (a, False)}),
    ]
    assert len(set(different)) == len(different)
    assert objects.tree({"x": (a, False), "y": (b, False)}) == objects.tree({"y": (b, False), "x": (a, False)})
    assert objects.tree({"d/x": (a, False)}) == objects.tree({"d/x": (a, False)}, {}, ["d"])


def writable(folder: Path) -> Path:
    folder.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    "meddle",
    [
        lambda path: (writable(path) / "a.txt").unlink(),
        lambda path: (writable(path) / "more").touch(),
        lambda path: (writable(path / "deep") / "more").mkdir(),
        lambda path: (writable(path / "empty") / "inside").rmdir(),
        lambda path: (path / "bin" / "tool").chmod(0o444),
        lambda path: (path / "bin" / "tool").write_bytes(b"#!/bin/false\n"),
        lambda path: ((writable(path) / "a.txt").unlink(), (path / "a.txt").write_bytes(b"A")),
        lambda path: ((writable(path) / "a.txt").unlink(), (path / "a.txt").symlink_to("/etc/hostname")),
        lambda path: ((writable(path) / "a.txt").unlink(), (path / "a.txt").symlink_to("copy.txt")),
        lambda path: ((writable(path) / "a.txt").unlink(), (path / "a.txt").mkdir()),
        lambda path: (
            (writable(path / "empty") / "inside").rmdir(),
            (path / "empty" / "inside").symlink_to("../deep/er"),
        ),
        lambda path: ((writable(path) / "link").unlink(), (path / "link").symlink_to("/etc")),
        lambda path: path.parent.rename(path.parent.with_name("gone")),
        lambda path: (
            (writable(path / "bin") / "tool").rename(path.parent.with_name("tool")),
            (path / "bin" / "tool").symlink_to(path.parent.with_name("tool")),
        ),
    ],
)
def test_a_tree_that_was_meddled_with_is_made_again(
    tree: Callable[[], Path], tmp_path: Path, meddle: Callable[[Path], object]
) -> None:
    path = tree()
    meddle(path)
    assert tree() == path
    assert not any((path / name).is_symlink() for name in ("a.txt", "bin/tool", "empty/inside"))
    assert (path / "a.txt").read_bytes() == b"a"
    assert (path / "bin" / "tool").read_bytes() == b"#!/bin/sh\n"
    assert os.readlink(path / "link") == "deep/er"
    assert (path / "empty" / "inside").is_dir()
    assert len(list(path.rglob("*"))) == 12
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_file_in_the_place_of_a_tree_gives_way(tree: Callable[[], Path]) -> None:
    path = tree()
    path.rename(path.with_name("gone"))
    path.write_bytes(b"x")
    assert (tree() / "a.txt").read_bytes() == b"a"


def test_a_damaged_object_is_noticed_through_a_tree(objects: Objects) -> None:
    """The file of the tree is the object's: both heal."""
    ref = objects.add_bytes(b"content")
    path = objects.tree({"x": (ref, False)}) / "x"
    path.chmod(0o644)
    path.write_bytes(b"CONTENT")
    with pytest.raises(StoreFault) as raised:
        objects.tree({"x": (ref, False)})
    assert raised.value.fault is Fault.ARTIFACT_CORRUPT
    objects.add_bytes(b"content")
    assert (objects.tree({"x": (ref, False)}) / "x").read_bytes() == b"content"


@pytest.mark.parametrize(
    "name", ["", "/", "/etc/x", "..", "../x", "a/../x", "a/..", ".", "./x", "a/./x", "a//x", "a/", "a\0b", "a/b\0/c"]
)
def test_a_name_that_leads_elsewhere_is_refused(objects: Objects, tmp_path: Path, name: str) -> None:
    ref = objects.add_bytes(b"a")
    calls: list[Callable[[], Any]] = [
        lambda: objects.tree({name: (ref, False)}),
        lambda: objects.tree({}, {name: "x"}),
        lambda: objects.tree({}, {}, [name]),
    ]
    for call in calls:
        with pytest.raises(StoreFault) as raised:
            call()
        assert raised.value.fault is Fault.ROW_CORRUPT
    assert not (tmp_path / "trees").exists()


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("l", "/etc"), ("l", ".."), ("l", "../x"), ("d/l", "../../x"), ("l", "x/../../y"), ("l", "x/.."), ("l", ""),
        ("l", "."), ("l", "x//y"), ("l", "x/"), ("l", "a\0b"), ("d/l", "./../../x"),
    ],
)  # fmt: skip
def test_a_link_that_leads_out_is_refused(objects: Objects, name: str, target: str) -> None:
    with pytest.raises(StoreFault, match="may lead out of the tree"):
        objects.tree({}, {name: target})


@pytest.mark.parametrize(
    ("files", "links", "folders"),
    [
        (["a", "a/b"], {}, []),
        (["l/x"], {"l": "d"}, ["d"]),
        (["a"], {"a": "b"}, []),
        (["a"], {}, ["a"]),
        ([], {"a": "b"}, ["a"]),
        (["a/b/c"], {"a": "x"}, []),
    ],
)
def test_nothing_lies_below_a_file_or_a_link(
    objects: Objects, files: list[str], links: dict[str, str], folders: list[str]
) -> None:
    ref = objects.add_bytes(b"a")
    with pytest.raises(StoreFault, match=r"is there twice|which is no folder"):
        objects.tree(dict.fromkeys(files, (ref, False)), links, folders)


def test_a_missing_artifact_leaves_no_half_tree(objects: Objects, tmp_path: Path) -> None:
    with pytest.raises(StoreFault) as raised:
        objects.tree({"x": (objects.add_bytes(b"a"), False), "y": (ArtifactRef("0" * 64, 1), False)})
    assert raised.value.fault is Fault.ARTIFACT_MISSING
    assert list((tmp_path / "trees").iterdir()) == []
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_file_system_without_hard_links(
    objects: Objects, tree: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object, **_more: object) -> None:
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    path = tree()
    assert (path / "a.txt").read_bytes() == b"a"
    assert stat.S_IMODE((path / "a.txt").stat().st_mode) == 0o444


def test_threads_that_want_the_same_tree_get_it(tree: Callable[[], Path], tmp_path: Path) -> None:
    found: list[bytes] = []
    barrier = threading.Barrier(6)

    def work() -> None:
        barrier.wait()
        found.extend((tree() / "deep" / "up").read_bytes() for _ in range(5))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [b"a"] * 30
    assert list((tmp_path / "tmp").iterdir()) == []


def test_trees_are_listed_and_removed(objects: Objects, tree: Callable[[], Path]) -> None:
    assert list(objects.trees.iterate()) == []
    path = tree()
    assert [name for name, _ in objects.trees.iterate()] == [path.name]
    assert objects.trees.remove(path.name)
    assert not objects.trees.remove(path.name)
    assert not path.exists()
    for name in ("", ".", "..", "../objects"):
        with pytest.raises(ValueError, match="no name of a tree"):
            objects.trees.remove(name)
