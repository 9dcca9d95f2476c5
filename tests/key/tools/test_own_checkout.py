"""cachec in a checkout: one tool, of which every file counts; anybody else's editable install is a project."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cachec.base import distributions, fsio
from cachec.base.distributions import Distributions
from cachec.base.hashing import FileDigests
from cachec.base.mounts import Mounts
from cachec.key.tools import own_checkout
from cachec.key.tools.toolchain import ToolKeys
from cachec.model import Part

FILES = {
    "cachec/__init__.py": "version = 1\n",
    "cachec/base/core.py": "x = 1\n",
    "cachec/py.typed": "",
    "plugins/cachec_toy/__init__.py": "x = 1\n",
    "plugins/cachec_toy/deep/er/part.py": "x = 1\n",
    "plugins/cachec_toy/table.json": "{}\n",
    "tests/test_it.py": "x = 1\n",
}
COUNTING = [name for name in FILES if not name.startswith("tests")]


def editable(site: Path, name: str, folders: list[Path], group: str, target: str, url: Path) -> None:
    folder = site / f"{name}-1.0.dist-info"
    folder.mkdir(parents=True)
    (site / f"_editable_{name}.pth").write_text("\n".join(map(str, folders)))
    (folder / "direct_url.json").write_text(f'{{"dir_info": {{"editable": true}}, "url": "file://{url}"}}')
    (folder / "entry_points.txt").write_text(f"[{group}]\nit = {target}\n")
    (folder / "RECORD").write_text(f"_editable_{name}.pth,,\n{folder.name}/RECORD,,\n")


class Rows(dict[str, bytes]):
    """What is remembered between processes."""

    recall = dict.get

    def remember(self, name: str, value: bytes) -> None:
        self[name] = value


class Place:
    """A checkout that cachec is installed from, and processes that look at it."""

    def __init__(self, folder: Path) -> None:
        self.site, self.folder, self.rows = folder / "site", folder / "checkout", Rows()
        for name, text in FILES.items():
            self.file(name).parent.mkdir(parents=True, exist_ok=True)
            self.file(name).write_text(text)
        places = [self.folder, self.folder / "plugins", self.folder / "plugins"]
        editable(self.site, "cachec", places, "cachec.plugins", "cachec_toy:plugin", self.folder)

    def file(self, name: str) -> Path:
        return self.folder / name

    def distributions(self) -> Distributions:
        return Distributions([str(self.site), str(self.folder), str(self.folder / "plugins")])

    def tools(self) -> ToolKeys:
        """Those of a new process."""
        return ToolKeys(FileDigests(self.rows, Marking()), self.distributions())

    def part(self) -> Part:
        return self.tools().distribution("cachec")


class Marking(Mounts):
    """Every file system marks each write."""

    def kind_of_device(self, dev: int, path: object = None) -> str:
        return "ext4"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    made = Place(tmp_path)
    monkeypatch.setattr(distributions, "OWN_FOLDER", str(made.file("cachec")) + os.sep)
    monkeypatch.setattr(own_checkout, "process_start", lambda: 4e9)  # nothing was edited since
    monkeypatch.setattr(fsio, "SETTLE_SECONDS", -1.0)
    return made


def test_its_packages_are_a_tool_and_nothing_beside_them(place: Place) -> None:
    found = place.distributions()
    owners = {name: found.owner(place.file(name)) for name in FILES}
    assert {name for name, owner in owners.items() if owner is not None} == set(COUNTING)
    assert {owner.name for owner in owners.values() if owner is not None} == {"cachec"}
    assert place.part().detail == f"cachec 1.0, editable, {len(COUNTING)} files"


def test_of_another_cachec_nothing_is(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributions, "OWN_FOLDER", "/elsewhere/cachec/")
    assert all(place.distributions().owner(place.file(name)) is None for name in FILES)


def test_a_plugin_of_somebody_else_is_project_code(place: Place, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs/cachec_other/__init__.py"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("x = 1\n")
    editable(
        place.site, "cachec_other", [theirs.parents[1]], "cachec.plugins", "cachec_other:plugin", theirs.parents[1]
    )
    found = Distributions([str(place.site), str(theirs.parents[1])])
    assert found.plugin_entry_points("cachec.plugins")["it"]
    assert found.owner(theirs) is None
    assert found.find("cachec-other").packages == ()  # type: ignore[union-attr]


def test_the_folder_of_the_checkout_is_in_no_key(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = place.part()
    other = Place(tmp_path / "other")
    monkeypatch.setattr(distributions, "OWN_FOLDER", str(other.file("cachec")) + os.sep)
    assert other.part() == before


def same_size(file: Path) -> None:
    state = file.stat()
    file.write_bytes(file.read_bytes().replace(b"1", b"2").replace(b"{}", b"[]"))
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))


EDITS: dict[str, Callable[[Path], object]] = {
    "another text": lambda file: file.write_text("y = 2\n"),
    "another text of that size and age": same_size,
    "removed": Path.unlink,
    "renamed": lambda file: file.rename(file.with_name("other" + file.suffix)),
    "one more": lambda file: file.with_name("more.py").write_text(""),
    "one more in a folder of its own": lambda file: (
        (file.parent / "new").mkdir() or (file.parent / "new/it.so").write_bytes(b"")
    ),
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("name", [name for name in COUNTING if FILES[name]])
def test_every_edit_makes_another_key(place: Place, name: str, edit: str) -> None:
    living = place.tools()
    before = living.distribution("cachec")
    assert place.part() == before  # by what was remembered
    assert any(row.startswith("digest:all:") for row in place.rows)
    EDITS[edit](place.file(name))
    assert place.part() != before
    assert living.distribution("cachec", fresh=True) == place.part()


def test_what_python_compiled_does_not_count(place: Place) -> None:
    before = place.part()
    kept = place.file("cachec/__pycache__/core.cpython-311.pyc")
    kept.parent.mkdir()
    kept.write_bytes(b"x")
    place.file("cachec/old.pyc").write_bytes(b"x")
    place.file("tests/test_it.py").write_text("y = 1\n")
    assert place.part() == before


def test_a_digest_that_may_not_be_kept_is_taken_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of files that were changed just now, a later write might not show."""
    monkeypatch.setattr(fsio, "SETTLE_SECONDS", 1e9)
    before = place.part()
    assert not place.rows
    monkeypatch.setattr(fsio, "SETTLE_SECONDS", -1.0)
    assert place.part() == before


def test_a_row_that_is_damaged_is_taken_for_none(place: Place) -> None:
    before = place.part()
    for row in place.rows:
        place.rows[row] = b"\xff" * 64
    assert place.part() == before


def test_what_was_imported_before_an_edit_counts_for_this_process_alone(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(place.file("plugins")))
    try:
        module = importlib.import_module("cachec_toy")
        first = place.part()
        file = place.file("plugins/cachec_toy/__init__.py")
        monkeypatch.setattr(own_checkout, "process_start", lambda: file.stat().st_mtime - 9)
        file.write_text("x = 2  # edited\n")
        living = place.tools()
        mixed = living.distribution("cachec", fresh=True)
        assert "edited since they were imported: cachec_toy" in mixed.detail
        assert mixed == living.distribution("cachec", fresh=True)  # a hit for this process
        importlib.invalidate_caches()
        importlib.reload(module)
        again = living.distribution("cachec", fresh=True)
        del sys.modules["cachec_toy"]
        fresh = place.part()  # as a process has it that begins now
        assert len({first.digest, mixed.digest, again.digest, fresh.digest}) == 4
    finally:
        sys.modules.pop("cachec_toy", None)


def test_the_checkout_that_runs_these_tests() -> None:
    found = Distributions()
    own = found.find("cachec")
    if own is None or not own.packages:
        pytest.skip("cachec is not installed from a checkout")
    import cachec_mlir

    assert found.owner(str(cachec_mlir.__file__)) is own
    assert found.owner(__file__) is None


def test_another_install_is_seen_by_who_lives_on(place: Place, tmp_path: Path) -> None:
    found = place.distributions()
    own = found.find("cachec")
    assert own is not None
    assert own.packages
    info = place.site / "cachec-1.0.dist-info"
    (info / "direct_url.json").unlink()  # a wheel now
    (info / "RECORD").write_text("cachec/__init__.py,,\ncachec-1.0.dist-info/RECORD,,\n")
    assert own.packages == ()
