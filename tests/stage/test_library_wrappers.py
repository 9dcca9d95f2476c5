"""Code and values that libraries make of the project's: another process hits; what no text shows is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Program

_MAIN = """import cachec
{top}
cache = cachec.Cache()
@cache.stage
def stage(x):
{inside}
    return {value}
"""
_ASK = "import proj\nvalue, outcome = proj.stage.call(1)\nprint(value, outcome.reason.value)\n"

_ATTRS = """import attr, attrs
LEVEL = 1
def conv(x): return x
def other(x): return x * 10
def check(instance, attribute, value): pass
@attrs.define
class Plain:
    level: int = 1
@attr.s(frozen=True, slots=True, cache_hash=True, auto_attribs=True)
class Hashed:
    level: int = 1
@attrs.frozen
class M:
    level: int = attrs.field(default=LEVEL, converter=conv, validator=[attrs.validators.instance_of(int), check])
    made: list = attrs.field(factory=list)
    late: int = attrs.field()
    @late.default
    def _late(self): return 3
"""
_ATTRS_VALUE = "(M().level, M().made, M().late, Plain(x) == Plain(1), len({Hashed(1), Hashed(x)}), repr(Plain(x)))"


def _write(folder: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def _project(program: Program, folder: Path, text: str, names: str, value: str, *, inside: bool) -> None:
    line = f"from conf import {names}"
    main = _MAIN.format(top="" if inside else line, inside=f"    {line}" if inside else "", value=value)
    _write(folder, {"pyproject.toml": "", "proj.py": main, "conf.py": text})
    _run(program, folder, "print()")  # the files are older than the processes that count


def _run(program: Program, folder: Path, text: str) -> str:
    """What the last line of a new process says."""
    _write(folder, {"main.py": text})
    return program(folder / "main.py", CACHEC_DIR=str(folder / "store")).rpartition("\n")[2]


@pytest.mark.parametrize("inside", [False, True])
def test_classes_of_attrs_hit_and_are_told_apart(inside: bool, tmp_path: Path, program: Program) -> None:
    pytest.importorskip("attrs")
    _project(program, tmp_path, _ATTRS, "Hashed, M, Plain", _ATTRS_VALUE, inside=inside)
    told = "(1, [], 3, True, 1, 'Plain(level=1)')"
    assert _run(program, tmp_path, _ASK) == f"{told} miss:first-run"
    assert _run(program, tmp_path, _ASK) == f"{told} hit"
    # What its methods hold is of the time when they were made: no key of this process is one of the text of later.
    for change in ("conf.LEVEL = 2\n", "conf.conv = conf.other\n"):
        assert _run(program, tmp_path, f"import conf\n{change}{_ASK}") == f"{told} miss:code-changed"
    _write(tmp_path, {"conf.py": _ATTRS.replace("LEVEL = 1\n", "LEVEL = 2\n")})
    assert _run(program, tmp_path, _ASK) == f"{told.replace('1', '2', 1)} miss:code-changed"
    _write(tmp_path, {"conf.py": _ATTRS.replace("def conv(x): return x\n", "def conv(x): return x * 10\n")})
    assert _run(program, tmp_path, _ASK) == f"{told.replace('1', '10', 1)} miss:code-changed"


_MODELS = """from pydantic import BaseModel, Field, field_validator
LEVEL = 1
class Inner(BaseModel):
    n: int = 4
class M(BaseModel):
    level: int = LEVEL
    other: int = 5
    inner: Inner = Inner()
    made: list = Field(default_factory=list)
    @field_validator("other")
    @classmethod
    def check(cls, value): return value
"""


@pytest.mark.parametrize("inside", [False, True])
def test_models_of_pydantic_hit_and_are_told_apart(inside: bool, tmp_path: Path, program: Program) -> None:
    pytest.importorskip("pydantic")
    _project(
        program,
        tmp_path,
        _MODELS,
        "M",
        "(M().level, M().other, M(other=x).other, M().inner.n, M().made)",
        inside=inside,
    )
    told = "(1, 5, 1, 4, [])"
    assert _run(program, tmp_path, _ASK) == f"{told} miss:first-run"
    assert _run(program, tmp_path, _ASK) == f"{told} hit"
    changed = "conf.M.model_fields['other'].default = 7\nconf.M.model_rebuild(force=True)\n"
    assert _run(program, tmp_path, f"import conf\n{changed}{_ASK}").startswith("(1, 7, 1, 4, []) miss:")
    assert _run(program, tmp_path, f"import conf\nconf.LEVEL = 2\n{_ASK}").startswith(f"{told} miss:")
    assert _run(program, tmp_path, f"import conf\n{_ASK}").startswith(told)
    _write(tmp_path, {"conf.py": _MODELS.replace("LEVEL = 1\n", "LEVEL = 2\n")})
    assert _run(program, tmp_path, _ASK) == "(2, 5, 1, 4, []) miss:code-changed"
    assert _run(program, tmp_path, _ASK) == "(2, 5, 1, 4, []) hit"
    _write(tmp_path, {"conf.py": _MODELS.replace("return value", "return value + 1")})
    assert _run(program, tmp_path, _ASK) == "(1, 5, 2, 4, []) miss:code-changed"
