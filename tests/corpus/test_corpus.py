"""The corpus itself: each program loads, its edits apply, and the harness tells right from wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.corpus.harness import check
from tests.corpus.program import InvalidProgram, Program, load, load_all

PROGRAMS = load_all()

_SAMPLE = ("argparse_registry", "env_settings", "notebook_analysis", "pytest_fixtures", "weights_reader")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_edits_of_a_program_apply(program: Program, tmp_path: Path) -> None:
    assert set(program.idioms)
    checkout = tmp_path / program.name
    program.copy_to(checkout)
    before = {path: path.read_bytes() for path in checkout.rglob("*") if path.is_file()}
    for edit in (*program.neutral, *program.semantic):
        edit.apply(checkout)
        edit.revert(checkout, program)
    assert {path: path.read_bytes() for path in checkout.rglob("*") if path.is_file()} == before


@pytest.mark.long
@pytest.mark.parametrize("name", _SAMPLE)
def test_harness_end_to_end(name: str) -> None:
    program = next(each for each in PROGRAMS if each.name == name)
    report = check(program, {"CACHEC_MODE": "on"})
    assert not report.unsound
    assert [step.kind for step in report.steps] == [
        "first",
        "again",
        *("neutral" for _ in program.neutral),
        *("semantic" for _ in program.semantic),
        "moved",
    ]
    assert not report.wrong()


#: Each has something of its own to be sent to a worker.
_ISOLATED = (
    *("int_keys_result", "jinja_kernel", "numpy_arguments", "result_changed_in_place"),
    *("yaml_constructors", "yaml_logging"),
)


@pytest.mark.long
@pytest.mark.parametrize("name", _ISOLATED)
def test_isolated_stages_of_a_program_are_stored(name: str) -> None:
    program = next(each for each in PROGRAMS if each.name == name)
    report = check(program, {"CACHEC_MODE": "on", "CACHEC_ISOLATED": "1"})
    assert not report.wrong()
    assert (report.never_stored(), report.missed_again()) == ({}, {})
    assert not any(report.needless(step) for step in report.of("moved"))


_UNSEEN = """\
import cachec

cache = cachec.Cache(record="off")

@cache.stage(version="1")
def scale(x: int) -> int:
    return x * read()

def read() -> int:
    with open("factor.txt") as file:
        return int(file.read())

print("RESULT", scale(3))
"""


def make_program(folder: Path, main: str, semantic: str) -> Program:
    """A program whose stage depends on factor.txt."""
    folder.mkdir()
    (folder / "main.py").write_text(main)
    (folder / "factor.txt").write_text("2\n")
    (folder / "program.toml").write_text(
        'about = "x"\nrun = ["python", "main.py"]\nneeds = []\nidioms = ["x"]\nordinary = false\n'
        '[[neutral]]\nfile = "notes.txt"\ncontent = "x"\n' + semantic
    )
    return load(folder)


_EDITS = """
[[semantic]]
file = "factor.txt"
find = "2"
replace = "5"
[[semantic]]
file = "main.py"
find = "x * read()"
replace = "x + read()"
"""


def test_wrong_hit_is_found(tmp_path: Path) -> None:
    """A stage that takes charge of its reads by version= returns a stale value."""
    report = check(make_program(tmp_path / "unseen", _UNSEEN, _EDITS), {"CACHEC_MODE": "on"})
    assert not report.unsound
    assert [(step.about, step.is_wrong_hit) for step in report.wrong()] == [("factor.txt: '2' -> '5'", True)]


def test_unsound_program_is_found(tmp_path: Path) -> None:
    main = _UNSEEN.replace("scale(3)", "scale(3), id(cache)")
    report = check(make_program(tmp_path / "unsound", main, _EDITS), {"CACHEC_MODE": "on"}, plain=True)
    assert any("two plain runs differ" in reason for reason in report.unsound)


def test_edit_without_effect_is_found(tmp_path: Path) -> None:
    edits = _EDITS.replace('replace = "5"', 'replace = "2 "')
    report = check(make_program(tmp_path / "idle", _UNSEEN, edits), {"CACHEC_MODE": "on"}, plain=True)
    assert [reason.partition(":")[0] for reason in report.unsound] == ["semantic edit factor.txt"]


def test_edit_whose_text_is_not_there_once(tmp_path: Path) -> None:
    program = make_program(tmp_path / "thrice", _UNSEEN, _EDITS.replace('find = "x * read()"', 'find = "read()"'))
    checkout = tmp_path / "checkout"
    program.copy_to(checkout)
    with pytest.raises(InvalidProgram, match=r"once in main\.py, found it 3 times"):
        program.semantic[1].apply(checkout)


def test_unknown_field_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidProgram, match="semantics"):
        make_program(tmp_path / "unknown", _UNSEEN, _EDITS + "semantics = 1\n")
