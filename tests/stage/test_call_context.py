"""A path, a variable or a state of the process has the meaning that it has where the call is made."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import cachec
from cachec import Reason

from .conftest import Program


@pytest.fixture
def cache(tmp_path: Path) -> cachec.Cache:
    return cachec.Cache(tmp_path / "store", log="off", mode="on")


def filled(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_a_relative_path_is_of_the_current_folder(
    cache: cachec.Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("one", "1"), ("two", "2"), ("same", "1")):
        filled(tmp_path / name, {"t.txt": text})

    @cache.stage
    def stage() -> str:
        with open("t.txt") as file:
            return file.read()

    monkeypatch.chdir(tmp_path / "one")
    assert stage() == "1"
    monkeypatch.chdir(tmp_path / "two")
    assert stage.call()[1].reason is Reason.DEPENDENCY_CHANGED
    monkeypatch.chdir(tmp_path / "same")
    assert stage.call()[1].reason is Reason.HIT


@pytest.mark.parametrize("relative", [True, False])
def test_what_lies_beside_an_argument_is_looked_for_there(
    cache: cachec.Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, relative: bool
) -> None:
    for name, weights in (("one", "1"), ("two", "2"), ("same", "1")):
        filled(tmp_path / name, {"deep/model.txt": "m", "deep/w.bin": weights, "config.txt": weights})
    monkeypatch.chdir(tmp_path)

    @cache.stage
    def stage(model: Path) -> str:
        return model.with_name("w.bin").read_text() + (model.parent.parent / "config.txt").read_text()

    def call(name: str) -> tuple[str, Reason]:
        result, outcome = stage.call(Path("" if relative else tmp_path, name, "deep", "model.txt"))
        return result, outcome.reason

    assert call("one")[0] == "11"
    assert call("two") == ("22", Reason.DEPENDENCY_CHANGED)
    assert call("one") == ("11", Reason.HIT)
    assert call("two") == ("22", Reason.HIT)
    (tmp_path / "same" / "config.txt").write_text("3")
    assert call("same")[0] == "13"


LOOKS: dict[str, tuple[Callable[[Path], object], Callable[[Path], object], Callable[[Path], object]]] = {
    "a file that is there": (
        lambda folder: os.path.exists(folder / "t"),
        lambda folder: (folder / "t").unlink(),
        lambda folder: (folder / "t").write_text("other"),
    ),
    "a folder that is there": (
        lambda folder: (folder / "d").is_dir(),
        lambda folder: ((folder / "d").rename(folder / "e"), (folder / "d").touch()),
        lambda folder: (folder / "d" / "new").touch(),
    ),
    "a file that is not there": (
        lambda folder: (folder / "new").is_file(),
        lambda folder: (folder / "new").touch(),
        lambda folder: (folder / "newer").touch(),
    ),
    "a file that can not be opened": (
        lambda folder: [each.read_text() for each in (folder / "new", folder / "t") if each.exists()],
        lambda folder: (folder / "new").write_text("x"),
        lambda folder: (folder / "d" / "x").write_text("other"),
    ),
    "a list": (
        lambda folder: sorted(os.listdir(folder / "d")),
        lambda folder: (folder / "d" / "new").touch(),
        lambda folder: (folder / "d" / "x").write_text("other"),
    ),
    "a size": (
        lambda folder: os.path.getsize(folder / "t"),
        lambda folder: (folder / "t").write_text("longer"),
        lambda folder: (folder / "d" / "x").write_text("other"),
    ),
    "a text": (
        lambda folder: (folder / "t").read_text(),
        lambda folder: (folder / "t").write_text("y"),
        lambda folder: (folder / "t").write_text("x"),
    ),
}


@pytest.mark.parametrize("name", LOOKS)
def test_what_a_stage_looks_at(cache: cachec.Cache, tmp_path: Path, name: str) -> None:
    """A change of it misses, and one beside it hits."""
    look, change, neighbour = LOOKS[name]
    folder = filled(tmp_path / "p", {"t": "x", "d/x": "y"})

    @cache.stage
    def stage() -> object:
        return look(folder)

    before = stage()
    assert stage.call()[1].reason is Reason.HIT
    neighbour(folder)
    assert stage.call()[1].reason is Reason.HIT
    change(folder)
    after, outcome = stage.call()
    assert outcome.reason is Reason.DEPENDENCY_CHANGED
    assert after != before


#: Ways to have the current folder, or a part of it, as a value.
CURRENT: dict[str, Callable[[], object]] = {
    "getcwd": lambda: os.getcwd(),
    "getcwdb": lambda: os.getcwdb(),
    "Path.cwd": lambda: str(Path.cwd()),
    "its name": lambda: Path.cwd().name,
    "its length": lambda: len(os.getcwd()),
    "abspath": lambda: os.path.abspath("x"),
    "realpath": lambda: os.path.realpath("."),
    "relpath": lambda: os.path.relpath("/"),
    "Path.absolute": lambda: str(Path("x").absolute()),
    "Path.resolve": lambda: str(Path("x").resolve()),
}


@pytest.mark.parametrize("form", CURRENT)
def test_the_current_folder_taken_for_a_value(
    cache: cachec.Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    stage = cache.stage(lambda form: CURRENT[form](), name="stage")
    own = os.getcwd
    for name in ("one", "three", "a/b"):
        (tmp_path / name).mkdir(parents=True)
        monkeypatch.chdir(tmp_path / name)
        assert stage(form) == stage.uncached(form)
        assert stage.call(form)[1].reason is Reason.HIT
    assert os.getcwd is own


#: In a module of a checkout: ways to have where it is, or the environment, as a value.
VALUES = {
    "Path.cwd": "str(Path.cwd())",
    "its name": "Path.cwd().name",
    "its length": "len(os.path.abspath('x'))",
    "realpath": "os.path.realpath('.')",
    "a relative path": "str(Path('x').resolve())",
    "__file__": "__file__",
    "beside __file__": "[str(Path(__file__).parent / 'table.txt')]",
    "of a module": "{helper.__file__: 1}",
    "getfile": "inspect.getfile(helper)",
    "code": "(lambda: 0).__code__.co_filename",
    "origin": "importlib.util.find_spec('helper').origin",
    "sys.prefix": "len(sys.prefix)",
    "sys.executable": "sys.executable",
    "sysconfig": "sorted(sysconfig.get_paths().items())",
    "site": "site.getsitepackages()",
    "of a library": "len(numpy.__file__)",
    "__path__": "list(numpy.__path__)",
    "origin of a library": "len(importlib.util.find_spec('numpy').origin)",
    "getfile of a library": "len(inspect.getfile(numpy))",
}
#: What leads to files counts from its anchor.
LEADS = {
    "read beside": "Path(__file__).with_name('table.txt').read_text()",
    "read in the current folder": "open('table.txt').read()",
    "read by __file__ of a module": "open(os.path.join(os.path.dirname(__file__), 'table.txt')).read()",
    "whether it is there": "importlib.util.find_spec('numpy') is not None",
}
_CHECKOUT = """
import importlib.util, inspect, json, os, site, sys, sysconfig, warnings
from pathlib import Path
import numpy
import helper
import cachec
cache = cachec.Cache(log="off", mode="on")
warnings.simplefilter("ignore")
"""


def _in_checkouts(
    folder: Path, program: Program, ways: dict[str, str], prefixes: tuple[str, str]
) -> dict[str, list[str]]:
    """What each way gives in the first checkout, again, and in another one at another length of path: the reasons of
    the calls, of which each gave what its function gives. prefixes: what the two processes have for ``sys.prefix``."""
    body = "".join(
        f"@cache.stage(name={name!r})\ndef way{n}(): return {text}\nWAYS.append(way{n})\n"
        for n, (name, text) in enumerate(ways.items())
    )
    tail = (
        "said = []\nfor way in WAYS:\n    value, outcome = way.call()\n"
        "    assert value == way.__wrapped__(), (value, way.__wrapped__(), outcome)\n"
        "    said.append(outcome.reason.value)\nprint(json.dumps(said))\n"
    )
    found: list[list[str]] = []
    for name, prefix in (("one", prefixes[0]), ("one", prefixes[0]), ("another", prefixes[1])):
        checkout = folder / name
        checkout.mkdir(exist_ok=True)
        set_prefix = f"import sys\nsys.prefix = sys.exec_prefix = {prefix!r}\n" if prefix else ""
        (checkout / "main.py").write_text(f"WAYS = []\n{_CHECKOUT}{body}")
        (checkout / "run.py").write_text(f"{set_prefix}from main import *\n{tail}")
        (checkout / "helper.py").write_text("")
        (checkout / "table.txt").write_text("1")
        (checkout / "cachec.toml").write_text("")
        found.append(json.loads(program(checkout / "run.py", checkout, CACHEC_DIR=str(folder / "store"))))
    return {name: list(said) for name, *said in zip(ways, *found, strict=True)}


def test_where_a_checkout_is_counts_where_it_is_asked_for_as_a_value(tmp_path: Path, program: Program) -> None:
    """Whatever ``way`` gives is right in each; what only leads to files hits in the other one."""
    said = _in_checkouts(tmp_path, program, {**VALUES, **LEADS}, ("", ""))
    kept_out = {name: reasons for name, reasons in said.items() if reasons[:2] != ["miss:first-run", "hit"]}
    assert kept_out == {}
    assert {name: said[name][2] for name in LEADS} == dict.fromkeys(LEADS, "hit")


def test_where_an_environment_is_counts_where_it_is_asked_for_as_a_value(tmp_path: Path, program: Program) -> None:
    ways = {name: text for name, text in VALUES.items() if "numpy" in text or text.startswith("s")}
    said = _in_checkouts(tmp_path, program, {**ways, **LEADS}, ("", "/elsewhere"))
    missed = {name for name, reasons in said.items() if reasons[2] != "hit"}
    assert missed == ways.keys()


def test_the_whole_environment_is_a_look_at_each_variable(cache: cachec.Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    @cache.stage
    def stage(bytes_too: bool) -> object:
        if bytes_too:
            return os.environb.get(b"PLACES_TWO")
        return sorted(each for each in dict(os.environ).items() if each[0].startswith("PLACES_"))

    monkeypatch.setenv("PLACES_ONE", "1")
    assert stage(False) == [("PLACES_ONE", "1")]
    assert stage.call(False)[1].reason is Reason.HIT
    monkeypatch.setenv("PLACES_TWO", "2")
    assert stage.call(False)[1].reason is Reason.ENVIRONMENT_CHANGED
    assert stage(True) == b"2"
    monkeypatch.setenv("PLACES_TWO", "3")
    assert stage.call(True)[1].reason is Reason.ENVIRONMENT_CHANGED


def test_where_a_process_runs_counts_only_by_name_or_in_the_result(tmp_path: Path, program: Program) -> None:
    """The whole environment is taken; what changes is a variable of the table in docs/reference/settings.md."""
    said = tmp_path / "site-packages" / "asks-1.dist-info"
    said.mkdir(parents=True)
    (said / "METADATA").write_text("Metadata-Version: 2.1\nName: asks\nVersion: 1\n")
    (said / "RECORD").write_text("asks.py,,\nlate.py,,\nasks-1.dist-info/METADATA,,\nasks-1.dist-info/RECORD,,\n")
    (tmp_path / "site-packages" / "asks.py").write_text(
        "import os\ndef one(name): return os.environ.get(name)\ndef every(): return {**os.environ}\n"
        "def own(): return os.environ.get('LIBRARY')\n"
    )
    (tmp_path / "site-packages" / "late.py").write_text("import os\nOWN = {k for k in os.environ if k[:4] == 'LATE'}\n")
    (tmp_path / "main.py").write_text(
        "import os, sys, cachec\nsys.path.append(os.path.abspath('site-packages'))\nimport asks\n"
        "cache = cachec.Cache('store')\n"
        "@cache.stage\ndef prefix(n: int) -> list: return [k for k in os.environ if k.startswith('PLACES_')]\n"
        "@cache.stage\ndef named(n: int) -> int: return len(dict(os.environ)['TERM'])\n"
        "@cache.stage\ndef held(n: int) -> list: return [v for v in os.environ.values() if v.endswith('erminal')]\n"
        "@cache.stage\ndef library(n: int) -> int: return len(asks.every().get('PLACES', ''))\n"
        "@cache.stage\ndef asked(n: int) -> str: return asks.one('PLACES')\n"
        "@cache.stage\ndef own(n: int) -> str: return asks.own()\n"
        "@cache.stage\ndef imported(n: int) -> str:\n    import late\n    return late.__name__\n"
        "for stage in (prefix, named, held, library, asked, own, imported):\n"
        "    value, outcome = stage.call(1)\n    print(stage.__name__, outcome.hit, value, outcome.detail)\n"
    )

    def missed(**variables: str) -> dict[str, str]:
        lines = program(tmp_path / "main.py", **variables).splitlines()
        return {line.partition(" ")[0]: line for line in lines if " False " in line}

    assert len(missed(TERM="a terminal")) == 7
    assert not missed(TERM="a terminal", SHLVL="9", SSH_TTY="x")
    assert missed(TERM="b").keys() == {"named", "held"}
    changed = missed(TERM="a terminal", PLACES="12", LIBRARY="3")
    assert changed.keys() == {"prefix", "named", "held", "library", "asked"}
    assert changed["library"] == "library False 2 variables now set: LIBRARY, PLACES"


def test_the_arguments_of_the_process(cache: cachec.Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    @cache.stage
    def stage() -> list[str]:
        return sys.argv[1:]

    monkeypatch.setattr(sys, "argv", ["main.py", "a"])
    assert stage() == ["a"]
    assert stage.call()[1].reason is Reason.HIT
    monkeypatch.setattr(sys, "argv", ["main.py", "b"])
    assert stage.call()[0] == ["b"]


def test_functions_that_raise_no_event_are_seen_and_put_back(cache: cachec.Cache, tmp_path: Path) -> None:
    own = (os.stat, os.access, os.readlink)
    file = filled(tmp_path, {"t.txt": "1"}) / "t.txt"

    @cache.stage
    def stage(path: str) -> tuple[int, bool]:
        return os.stat(path).st_size, os.access(path + ".more", os.R_OK)

    assert stage(str(file)) == (1, False)
    assert stage.call(str(file))[1].reason is Reason.HIT
    file.write_text("22")
    assert stage.call(str(file))[0] == (2, False)
    (tmp_path / "t.txt.more").write_text("")
    assert stage.call(str(file))[0] == (2, True)
    assert (os.stat, os.access, os.readlink) == own


@pytest.mark.parametrize("how", ["opened", "asked", "declared", "file", "path", "beside", "command"])
def test_a_path_that_goes_back_over_a_link(
    cache: cachec.Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """``link/../t.txt`` lies beside what the link leads to, and not beside the link."""
    filled(tmp_path, {"there/deep/other.txt": "m", "there/t.txt": "1", "t.txt": "beside the link"})
    (tmp_path / "link").symlink_to("there/deep")
    monkeypatch.chdir(tmp_path)
    path = os.path.join("link", "..", "t.txt")

    @cache.stage
    def stage(given: object) -> str:
        if how == "asked":
            return str(os.path.getsize(path))
        if how == "declared":
            path_there = cachec.depends(path)
            return Path(path_there).read_text()
        if how == "beside":
            return Path(given).with_name("t.txt").read_text()  # type: ignore[arg-type]
        if how == "command":
            return cachec.run(["cat", path], inputs=[path]).stdout.decode()
        return Path(path if how == "opened" else given).read_text()  # type: ignore[arg-type]

    forms = {"file": cachec.File(path), "path": Path(path), "beside": Path("link", "..", "deep/../t.txt")}
    given = forms.get(how)
    for text in ("1", "two", "three "):
        Path(path).write_text(text)
        assert stage(given) == (str(len(text)) if how == "asked" else text)
        assert stage.call(given)[1].reason is Reason.HIT
    (tmp_path / "t.txt").write_text("another")
    assert stage.call(given)[1].reason is Reason.HIT


def test_what_is_looked_for_to_be_removed_is_no_read(cache: cachec.Cache, tmp_path: Path) -> None:
    @cache.stage
    def stage() -> int:
        shutil.rmtree(tmp_path / "old", ignore_errors=True)
        return 1

    filled(tmp_path, {"old/deep/t.txt": "1"})
    assert stage() == 1
    assert stage.call()[1].reason is Reason.HIT


def test_a_file_that_runpy_runs_counts_from_the_project(tmp_path: Path, program: Program) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".git").mkdir()
        (tmp_path / name / "settings.py").write_text("OUT = 7\n")
        (tmp_path / name / "main.py").write_text(
            "import runpy, cachec\ncache = cachec.Cache('../store')\n@cache.stage\ndef stage(n: int) -> int:\n"
            "    return runpy.run_path('settings.py')['OUT']\nvalue, outcome = stage.call(1)\n"
            "print(value, outcome.hit)\n"
        )
    assert program(tmp_path / "one" / "main.py") == "7 False"
    assert program(tmp_path / "two" / "main.py") == "7 True"
    (tmp_path / "two" / "settings.py").write_text("OUT = 8\n")
    assert program(tmp_path / "two" / "main.py") == "8 False"
