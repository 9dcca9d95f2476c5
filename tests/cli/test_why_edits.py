"""``why`` beside thousands of other entries: for each kind of edit the right entry, the right part, the right words."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

import cachec
from cachec.base.hashing import digest_bytes
from cachec.cli import main
from cachec.model import Inline, Outcome, Part, Trace
from cachec.store.store import Store

#: The module whose stage is called.
SOURCE = """
import math
from dataclasses import dataclass, field

SEED = 1
TABLE = {"a": [1, 2, 3]}

@dataclass
class Block:
    act: str = "gelu"
    width: int = 4

@dataclass
class Config:
    blocks: tuple
    options: dict = field(default_factory=dict)
    rate: float = 0.5

def helper(x):
    return x + SEED

def scaled(x, by=2):
    return x * by + len(TABLE)

def stage(source, program, cfg, n, flag, names, arrays, weights, fn):
    return scaled(helper(n))
"""


def module(folder: Path, text: str) -> ModuleType:
    """The text as the module ``edited``, of a file of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "edited.py").write_text(text)
    spec = importlib.util.spec_from_file_location("edited", folder / "edited.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules["edited"] = made
    spec.loader.exec_module(made)
    return made


class Scene:
    """A call of a stage, which an edit changes."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.monkeypatch = monkeypatch
        self.text = SOURCE
        self.options: dict[str, Any] = {"env": ["LEVEL"], "version": "1"}
        self.given: dict[str, Callable[[ModuleType], Any]] = {
            "source": lambda _: self.file("model.txt", "one\ntwo\nthree\n"),
            "program": lambda _: program("jit_net", "add"),
            "cfg": lambda m: m.Config((m.Block(), m.Block()), {"opt": {"level": 2}}),
            "n": lambda _: 1,
            "flag": lambda _: False,
            "names": lambda _: ["x", "y"],
            "arrays": lambda _: {"w": np.zeros((2, 3), "f4"), "b": np.zeros(3, "f4")},
            "weights": lambda _: cachec.WeightSet.from_arrays({"w": np.zeros((2, 2), "f4")}),
            "fn": lambda m: m.helper,
        }

    def file(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def give(self, **values: Any) -> None:
        """Other arguments: what a function of the module returns, or what is given."""
        for name, value in values.items():
            self.given[name] = value if callable(value) else lambda _, value=value: value

    def call(self, cache: cachec.Cache) -> Outcome:
        made = module(self.folder / digest_bytes(self.text.encode())[:8], self.text)
        stage = cache.stage(name="stage", **self.options)(made.stage)
        return cache.call(stage, **{name: give(made) for name, give in self.given.items()})[1]


def program(name: str, operation: str) -> cachec.Program:
    text = f"module @{name} {{\n  %0 = stablehlo.{operation} %1, %2 : tensor<3xf32>\n}}\n"
    return cachec.Program(text, format="jax:stablehlo", manifest=cachec.WeightSet.from_arrays({}).manifest)


@dataclass
class Edit:
    """reason, part: of the first difference. words: in the detail of the outcome."""

    change: Callable[[Scene], object]
    reason: str
    part: str = ""
    words: Sequence[str] = field(default_factory=tuple)


def edited(old: str, new: str) -> Callable[[Scene], object]:
    def change(scene: Scene) -> None:
        assert old in scene.text
        scene.text = scene.text.replace(old, new)

    return change


def both(*changes: Callable[[Scene], object]) -> Callable[[Scene], object]:
    return lambda scene: [change(scene) for change in changes]


def give(**values: Any) -> Callable[[Scene], object]:
    return lambda scene: scene.give(**values)


def options(**values: Any) -> Callable[[Scene], object]:
    return lambda scene: scene.options.update(values)


def renamed(scene: Scene) -> None:
    scene.give(source=lambda _: scene.file("other.txt", "one\ntwo\nthree\n"))


def moved(scene: Scene) -> None:
    scene.give(source=lambda _: scene.file("elsewhere/model.txt", "one\ntwo\nthree\n"))


def rewritten(scene: Scene) -> None:
    scene.give(source=lambda _: scene.file("model.txt", "one\n2\nthree\n"))


def new(scene: Scene) -> None:
    scene.give(source=lambda _: scene.file("new.txt", "new\n"), n=7)


EDITS = {
    "a number": Edit(give(n=2), "option-changed", "arg/n", ["n: 1 -> 2"]),
    "another type": Edit(give(n=1.0), "option-changed", "arg/n", ["n: 1 -> 1.0"]),
    "a bool": Edit(give(flag=True), "option-changed", "arg/flag", ["flag: False -> True"]),
    "an item of a list": Edit(give(names=["x", "z"]), "option-changed", "arg/names", ["names[1]: 'y' -> 'z'"]),
    "an item more": Edit(give(names=["x", "y", "z"]), "option-changed", "arg/names", ["names[2] added: 'z'"]),
    "a field in a sequence": Edit(
        give(cfg=lambda m: m.Config((m.Block(), m.Block(act="relu")), {"opt": {"level": 2}})),
        "option-changed",
        "arg/cfg",
        ["cfg.blocks[1].act: 'gelu' -> 'relu'"],
    ),
    "a key of a dict in a dict": Edit(
        give(cfg=lambda m: m.Config((m.Block(), m.Block()), {"opt": {"level": 3}})),
        "option-changed",
        "arg/cfg",
        ["cfg.options['opt']['level']: 2 -> 3"],
    ),
    "an array's content": Edit(
        give(arrays={"w": np.zeros((2, 3), "f4"), "b": np.ones(3, "f4")}), "option-changed", "arg/arrays['b']", ["'b'"]
    ),
    "an array's shape": Edit(
        give(arrays={"w": np.zeros((3, 2), "f4"), "b": np.zeros(3, "f4")}),
        "option-changed",
        "arg/arrays['w']",
        ["arrays['w'].shape: [2, 3] -> [3, 2]"],
    ),
    "a file's content": Edit(rewritten, "file-changed", "file/source", ["file source: line 2: 'two' -> '2'"]),
    "a file's name": Edit(renamed, "hit"),
    "a file's folder": Edit(moved, "hit"),
    "a new file, another option": Edit(new, "new-input", "", ["new.txt was never compiled"]),
    "an operation": Edit(
        give(program=lambda _: program("jit_net", "multiply")),
        "topology-changed",
        "program/program",
        ["stablehlo.multiply"],
    ),
    "a new program": Edit(
        give(program=lambda _: program("jit_eval", "add")), "new-input", "", ["jit_eval was never compiled"]
    ),
    "a weight's shape": Edit(
        give(weights=lambda _: cachec.WeightSet.from_arrays({"w": np.zeros((4, 2), "f4")})),
        "weight-spec-changed",
        "weights/weights",
        ["'w'", "(2, 2)", "(4, 2)"],
    ),
    "a weight more": Edit(
        give(weights=lambda _: cachec.WeightSet.from_arrays({"w": np.zeros((2, 2), "f4"), "v": np.zeros(1, "f4")})),
        "weight-spec-changed",
        "weights/weights",
        ["1 added: 'v'"],
    ),
    "a helper": Edit(
        edited("return x + SEED", "return x - SEED"),
        "code-changed",
        "code/edited.helper",
        ["helper edited.helper changed (edited.py:19): line 20: '    return x + SEED' -> '    return x - SEED'"],
    ),
    "the stage": Edit(edited("scaled(helper(n))", "scaled(n)"), "code-changed", "code/edited.stage", ["edited.stage"]),
    "a default": Edit(edited("by=2", "by=3"), "code-changed", "code/edited.scaled", ["scaled"]),
    "a global": Edit(edited("SEED = 1", "SEED = 2"), "code-changed", "code/edited.SEED", ["SEED: 1 -> 2"]),
    "a global's item": Edit(
        edited("[1, 2, 3]", "[1, 5, 3]"), "code-changed", "code/edited.TABLE", ["TABLE['a'][1]: 2 -> 5"]
    ),
    "a comment": Edit(edited("return x + SEED", "return x + SEED  # seed"), "hit"),
    "the version": Edit(options(version="2"), "stage-changed", "stage/stage", ["1 -> 2"]),
    "a variable": Edit(
        lambda scene: scene.monkeypatch.setenv("LEVEL", "3"),
        "environment-changed",
        "env/LEVEL",
        ["LEVEL: not set -> '3'"],
    ),
    "another variable's name": Edit(options(env=["OTHER"]), "environment-changed", "env/OTHER", ["OTHER added"]),
    "portable": Edit(options(portable=True), "platform-changed", "platform", ["platform"]),
    "a tool more": Edit(options(tools=["numpy"]), "tool-changed", "distribution/numpy", ["tool numpy added"]),
    "an option and a helper": Edit(
        both(give(n=3), edited("return x + SEED", "return SEED - x")), "code-changed", "code/edited.helper", ["helper"]
    ),
    "the file and an option": Edit(both(rewritten, give(flag=True)), "option-changed", "arg/flag", ["flag"]),
    "another callable": Edit(
        give(fn=lambda m: m.scaled), "code-changed", "code/edited.TABLE", ["value edited.TABLE added"]
    ),
}


def fill(cache: cachec.Cache, key: str, count: int) -> None:
    """Entries like that of a key, each of another input and with another option, newer than it."""
    store = cache.store
    entry = store.lookup(key)
    assert entry is not None
    parts = store.parts(entry)
    trace = Trace(reads=(), value=Inline("int", "1"), seconds=1.0, created=1.0)

    def other(part: Part, number: int) -> Part:
        replace = msgspec.structs.replace
        digest = digest_bytes(f"{part.label} {number}".encode())
        if part.subject:
            return replace(part, subject=f"other-{number}", value=f"other-{number}", digest=digest)
        return replace(part, digest=digest, detail=str(number)) if part.label in {"arg/n", "arg/names"} else part

    def publish() -> None:
        for number in range(count):
            said = [other(part, number) for part in parts]
            described = store.objects.add_bytes(msgspec.json.encode(said))
            name = digest_bytes(f"{key} {number}".encode())
            store.publish(name, entry.stage, (), described, trace, search_parts=said)

    store.index.atomically(publish)


def why(folder: Path, *args: str) -> Any:
    """What ``cachec why`` says, as JSON."""
    result = CliRunner().invoke(main, ["--dir", str(folder), "why", *args, "--json"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return json.loads(result.stdout) if result.stdout else None


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("why")


@pytest.mark.parametrize("others", [20, pytest.param(600, marks=pytest.mark.long)])
def test_each_edit_of_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: int) -> None:
    monkeypatch.delenv("LEVEL", raising=False)
    monkeypatch.delenv("OTHER", raising=False)
    monkeypatch.setitem(sys.modules, "edited", ModuleType("edited"))
    cache = cachec.Cache(tmp_path / "store", log="off")
    base = Scene(tmp_path / "base", monkeypatch).call(cache).key
    fill(cache, base, others)
    wrong = {}
    for name, edit in EDITS.items():
        with monkeypatch.context() as patch:
            scene = Scene(tmp_path / "base", patch)
            edit.change(scene)
            outcome = scene.call(cache)
        found: dict[str, Any] = {"reason": outcome.reason.value.removeprefix("miss:"), "detail": outcome.detail}
        expected: dict[str, Any] = {"reason": edit.reason, "detail": outcome.detail}
        found["words"] = [word for word in edit.words if word in outcome.detail]
        expected["words"] = list(edit.words)
        if edit.part:
            told = why(cache.dir, outcome.key)
            found |= {"other": told["other"]["key"], "part": told["differences"][0]["part"]}
            expected |= {"other": base, "part": edit.part}
        if not outcome.hit:
            cache.store.invalidate(outcome.key)
            forget(cache.store, outcome.key)
        if found != expected:
            wrong[name] = (found, expected)
    assert not wrong, "\n".join(f"{name}: {pair}" for name, pair in wrong.items())


def forget(store: Store, key: str) -> None:
    """Take a key out of the rows that others are compared with, so that each edit is one of the first call."""
    from cachec.store.nearest_keys import Recent
    from cachec.store.row_codec import pack, unpack

    for prefix in ("near:", "recent:"):
        for name, row in list(store.index.rows(prefix)):
            record = unpack(row or b"", Recent, name)
            left = tuple(near for near in record.near if near.key != key)
            if len(left) != len(record.near):
                store.index.write(name, pack(msgspec.structs.replace(record, near=left)), record.stage)
