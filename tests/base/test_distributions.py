"""Installed distributions are found, and own their files, without importing anything."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from cachec.base.distributions import Distributions, RecordedFile, normalise, parse_entry_points, parse_record


def install(site: Path, name: str, version: str, files: dict[str, str], entry_points: str = "") -> Path:
    folder = site / f"{name}-{version}.dist-info"
    folder.mkdir(parents=True)
    rows = []
    for path, text in files.items():
        place = site / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        rows.append(f"{path},,{len(text)}")
    if entry_points:
        (folder / "entry_points.txt").write_text(entry_points)
    rows.append(f"{folder.name}/RECORD,,")
    (folder / "RECORD").write_text("\n".join(rows) + "\n")
    return folder


def age(path: Path, seconds: float = 100) -> None:
    """Make the folder's listing old enough to be kept."""
    when = path.stat().st_mtime - seconds
    os.utime(path, (when, when))


@pytest.mark.parametrize("name", ["iree-base-compiler", "iree_base_compiler", "IREE.Base--Compiler"])
def test_names_are_normalised_as_pep_503_says(name: str) -> None:
    assert normalise(name) == "iree-base-compiler"


def test_find_agrees_with_importlib_metadata() -> None:
    found = {d.name: d.version for d in Distributions()}
    expected = {normalise(d.name): d.version for d in importlib.metadata.distributions() if d.read_text("METADATA")}
    assert {name: version for name, version in found.items() if name in expected} == expected
    assert "msgspec" in found


def test_find_by_any_spelling_and_none_when_not_installed(tmp_path: Path) -> None:
    install(tmp_path, "My_Compiler", "1.2", {"my_compiler.py": ""})
    dists = Distributions([str(tmp_path)])
    found = dists.find("my.compiler")
    assert found is not None
    assert (found.name, found.version) == ("my-compiler", "1.2")
    assert dists.find("other") is None


def test_the_first_on_the_path_wins(tmp_path: Path) -> None:
    install(tmp_path / "a", "tool", "1", {"tool.py": ""}, "[g]\nx = a:f\n")
    install(tmp_path / "b", "tool", "2", {"tool.py": ""}, "[g]\nx = b:f\ny = b:f\n")
    dists = Distributions([str(tmp_path / "a"), str(tmp_path / "b")])
    assert dists.find("tool").version == "1"  # type: ignore[union-attr]
    assert dists.plugin_entry_points("g") == {"x": "a:f"}


def test_owner_of_real_files() -> None:
    dists = Distributions()
    assert dists.owner(msgspec.__file__).name == "msgspec"  # type: ignore[union-attr]
    assert dists.owner(os.__file__) is None
    assert dists.owner(__file__) is None
    assert dists.owner(str(Path(sys.prefix) / "bin" / "pytest")).name == "pytest"  # type: ignore[union-attr]


def test_owner_tells_distributions_that_share_a_top_level_folder(tmp_path: Path) -> None:
    install(tmp_path, "one", "1", {"shared/a.py": ""})
    install(tmp_path, "two", "1", {"shared/b.py": ""})
    dists = Distributions([str(tmp_path)])
    assert dists.owner(tmp_path / "shared/a.py").name == "one"  # type: ignore[union-attr]
    assert dists.owner(tmp_path / "shared/b.py").name == "two"  # type: ignore[union-attr]
    assert dists.owner(tmp_path / "shared/c.py") is None
    assert dists.owner(tmp_path / "shared/a.py2") is None


def test_owner_by_link_and_by_what_a_link_leads_to(tmp_path: Path) -> None:
    site = tmp_path / "site"
    install(site, "one", "1", {"one/a.py": ""})
    (tmp_path / "link").symlink_to(site)
    cached = tmp_path / "cached.py"
    cached.write_text("x = 1")
    (site / "one/a.py").unlink()
    (site / "one/a.py").symlink_to(cached)  # as uv installs with --link-mode=symlink
    dists = Distributions([str(site)])
    assert dists.owner(site / "one/a.py").name == "one"  # type: ignore[union-attr]
    assert Distributions([str(tmp_path / "link")]).owner(site / "one/a.py").name == "one"  # type: ignore[union-attr]


def test_editable_installs_own_no_modules(tmp_path: Path) -> None:
    site, project = tmp_path / "site", tmp_path / "project"
    project.mkdir()
    (project / "mod.py").write_text("")
    folder = install(site, "proj", "1", {"_proj.pth": str(project)})
    (folder / "direct_url.json").write_text('{"url": "file:///x", "dir_info": {"editable": true}}')
    dists = Distributions([str(site), str(project)])
    assert dists.owner(project / "mod.py") is None
    assert dists.find("proj").editable  # type: ignore[union-attr]
    assert not Distributions().find("msgspec").editable  # type: ignore[union-attr]


def test_installs_and_removals_are_noticed(tmp_path: Path) -> None:
    first = install(tmp_path, "one", "1", {"one.py": ""}, "[g]\na = one:f\n")
    age(tmp_path)
    dists = Distributions([str(tmp_path)])
    assert dists.plugin_entry_points("g") == {"a": "one:f"}
    assert dists.owner(tmp_path / "two.py") is None
    install(tmp_path, "two", "1", {"two.py": ""}, "[g]\nb = two:f\n")
    assert dists.plugin_entry_points("g") == {"a": "one:f", "b": "two:f"}
    assert dists.owner(tmp_path / "two.py").name == "two"  # type: ignore[union-attr]
    for file in first.iterdir():
        file.unlink()
    first.rmdir()
    assert dists.find("one") is None
    assert dists.owner(tmp_path / "one.py") is None


def test_a_second_change_in_the_same_tick_is_noticed(tmp_path: Path) -> None:
    dists = Distributions([str(tmp_path)])
    for number in range(20):
        install(tmp_path, f"d{number}", "1", {})
        assert dists.find(f"d{number}") is not None


def test_entry_points_are_read_as_specified() -> None:
    text = "# c\n[other]\nx = no:f\n\n[ cachec.plugins ]\njax = cachec_jax:plugin\niree=cachec_iree:plugin [x]\n; c\n"
    assert parse_entry_points(text, "cachec.plugins") == {"jax": "cachec_jax:plugin", "iree": "cachec_iree:plugin"}
    assert parse_entry_points(text, "absent") == {}


def test_record_rows_with_quotes_and_without_sizes() -> None:
    text = 'a.py,sha256=xyz,12\n"b,""c"".py",sha256=q,3\nRECORD,,\n'
    assert parse_record(text) == (
        RecordedFile("a.py", "sha256=xyz", 12),
        RecordedFile('b,"c".py', "sha256=q", 3),
        RecordedFile("RECORD", "", -1),
    )
    assert parse_record("a.py,sha256=xyz,12\r\n") == (RecordedFile("a.py", "sha256=xyz", 12),)


def test_a_quoted_path_has_its_owner(tmp_path: Path) -> None:
    folder = install(tmp_path, "odd", "1", {})
    (tmp_path / "b,c.py").write_text("")
    (folder / "RECORD").write_text('"b,c.py",,0\r\n')
    assert Distributions([str(tmp_path)]).owner(tmp_path / "b,c.py").name == "odd"  # type: ignore[union-attr]


def test_a_folder_that_is_missing_or_a_zip_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(b"PK")
    dists = Distributions([str(tmp_path / "none"), str(tmp_path / "x.zip")])
    assert list(dists) == []


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys; from cachec.base.distributions import Distributions as D; d = D(); d.plugin_entry_points('x'); "
        "d.find('msgspec'); d.owner(sys.executable); "
        "print([m for m in ('importlib.metadata', 'csv', 'email', 'zipfile') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
