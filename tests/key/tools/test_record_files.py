"""What is kept of a RECORD: a new process that goes by it gets the key that RECORD itself makes, after any edit."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cachec.base.distributions import Distributions
from cachec.base.hashing import FileDigests
from cachec.key.tools import record_files
from cachec.key.tools.toolchain import ToolKeys
from cachec.model import Part
from tests.key.tools.test_own_checkout import Rows

NAME = "comp"
FILES = {f"comp/part_{number}/module.py": f"x = {number}\n" for number in range(4)} | {
    'comp/odd, "quoted".txt': "text\n",
    "comp/empty.py": "",
    "../bin/comp-tool": "#!/some/python\nrun()\n",
    "../bin/comp-native": "\x7fELF native",
    "../bin/comp": "#!/some/python\n# the installer's\n",
    "../share/comp/data.json": "{}\n",
}


class Installed:
    def __init__(self, folder: Path) -> None:
        self.site, self.info, self.rows = folder / "lib/site", folder / "lib/site/comp-1.0.dist-info", Rows()
        self.info.mkdir(parents=True)
        for path, text in FILES.items():
            self.file(path).parent.mkdir(parents=True, exist_ok=True)
            self.file(path).write_text(text)
        (self.info / "entry_points.txt").write_text("[console_scripts]\ncomp = comp:main\n")
        self.record({path: row(path, text) for path, text in FILES.items()})

    def file(self, path: str) -> Path:
        return Path(os.path.normpath(self.site / path))

    def record(self, rows: dict[str, str]) -> None:
        unhashed = ["comp/__pycache__/x.pyc,,", f"{self.info.name}/RECORD,,"]
        (self.info / "RECORD").write_text("\n".join([*rows.values(), *unhashed, ""]))

    def part(self, rows: Rows | None = None) -> Part:
        """As a new process has it."""
        return ToolKeys(FileDigests(self.rows if rows is None else rows), self.found()).distribution(NAME)

    def found(self) -> Distributions:
        return Distributions([str(self.site)])


def row(path: str, text: str) -> str:
    quoted = '"' + path.replace('"', '""') + '"' if "," in path else path
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
    return f"{quoted},sha256={digest},{len(text)}"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installed:
    monkeypatch.setattr(record_files, "MAX_CACHED_BYTES", 0)
    return Installed(tmp_path)


def kept(installed: Installed) -> list[str]:
    return [name for name in installed.rows if name.startswith("digest:record:")]


def test_a_second_process_parses_no_record(installed: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    first = installed.part()
    assert len(kept(installed)) == 1
    monkeypatch.setattr(record_files, "parse_record", None)
    assert installed.part() == first


def longer(file: Path) -> None:
    file.write_text(file.read_text() + "y = 2\n")


EDITS: dict[str, Callable[[Path], object]] = {"edited": longer, "removed": Path.unlink}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("path", [path for path in FILES if path != "../bin/comp"])
def test_each_edit_of_a_file_is_seen_with_what_was_kept(installed: Installed, path: str, edit: str) -> None:
    before = installed.part()
    EDITS[edit](installed.file(path))
    after = installed.part()
    assert after != before
    assert after == installed.part(Rows())
    assert len(kept(installed)) == 1


def test_what_the_installer_wrote_does_not_count(installed: Installed) -> None:
    before = installed.part()
    longer(installed.file("../bin/comp"))
    assert installed.part() == before


RECORDS: dict[str, Callable[[dict[str, str]], object]] = {
    "another hash": lambda rows: rows.update({"comp/part_3/module.py": row("comp/part_3/module.py", "x = 7\n")}),
    "without a hash": lambda rows: rows.update({"comp/part_3/module.py": "comp/part_3/module.py,,"}),
    "one less": lambda rows: rows.pop("comp/part_3/module.py"),
    "one more": lambda rows: rows.update({"comp/new.py": "comp/new.py,,"}),
}


@pytest.mark.parametrize("change", RECORDS)
def test_each_change_of_the_record_is_seen(installed: Installed, change: str) -> None:
    before = installed.part()
    rows = {path: row(path, text) for path, text in FILES.items()}
    RECORDS[change](rows)
    installed.record(rows)
    after = installed.part()
    assert after != before
    assert after == installed.part(Rows())
    assert len(kept(installed)) == 2


def test_entry_points_say_which_scripts_are_the_installers(installed: Installed) -> None:
    before = installed.part()
    (installed.info / "entry_points.txt").write_text("")
    after = installed.part()
    assert after != before
    assert after == installed.part(Rows())


def test_damaged_rows_are_made_again(installed: Installed) -> None:
    before = installed.part()
    (name,) = kept(installed)
    for damaged in (b"", b"x", installed.rows[name][:-1], installed.rows[name].replace(b"part_3", b"part_4")):
        installed.rows[name] = damaged
        assert installed.part() == before


def test_the_place_is_in_no_key(installed: Installed, tmp_path: Path) -> None:
    other = Installed(tmp_path / "other")
    assert other.part() == installed.part()
    assert kept(other) == kept(installed)
    shutil.rmtree(installed.site)  # what the one kept leads nowhere else
    assert other.part(installed.rows) == other.part()
