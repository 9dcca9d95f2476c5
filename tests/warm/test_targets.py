"""Targets in a configuration file: what is read, and what every mistake says."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from cachec import warm
from cachec.errors import ConfigError


def load(folder: Path, text: str, name: str = "cachec.toml") -> warm.Declared:
    (folder / name).write_text(textwrap.dedent(text).lstrip("\n"))
    return warm.load(folder)


def test_no_file_and_no_table_declare_nothing(tmp_path: Path) -> None:
    assert warm.load(tmp_path).rows == ()
    assert load(tmp_path, 'mode = "on"').rows == ()
    assert load(tmp_path, "[warm]\njobs = 3").jobs == 3


def test_a_target_has_all_that_it_says(tmp_path: Path) -> None:
    declared = load(
        tmp_path,
        """
        [tool.cachec.warm]
        jobs = 2
        timeout = 7

        [tool.cachec.warm.targets.one]
        call = "pkg.stages:Model.lower"
        path = ["src", "/absolute"]
        matrix = { model = ["a", "b"], batch = [1, 8], fast = [true] }
        exclude = [{ model = "b", batch = 8 }]
        arguments = { checkpoint = "models/{model}.safetensors", deep = ["{model}"], keep = "{{model}}" }
        env = { WHICH = "{model}" }
        files = ["models/**"]
        isolated = true

        [tool.cachec.warm.targets.two]
        command = ["tool", "-o", "{model}.out"]
        options = ["--strip"]
        matrix.model = ["a"]
        timeout = 3.5
        """,
        "pyproject.toml",
    )
    assert (declared.path, declared.jobs) == (str(tmp_path / "pyproject.toml"), 2)
    rows = {row.id: row for row in declared.rows}
    assert list(rows) == [
        "one[model=a,batch=1,fast=true]",
        "one[model=a,batch=8,fast=true]",
        "one[model=b,batch=1,fast=true]",
        "two[model=a]",
    ]
    one, two = rows["one[model=b,batch=1,fast=true]"], rows["two[model=a]"]
    assert one.arguments == {
        "model": "b",
        "batch": 1,
        "fast": True,
        "checkpoint": "models/b.safetensors",
        "deep": ["b"],
        "keep": "{model}",
    }
    assert one.path == (str(tmp_path / "src"), "/absolute")
    assert (one.folder, one.env, one.files, one.isolated) == (str(tmp_path), {"WHICH": "b"}, ("models/**",), True)
    assert (one.timeout, two.timeout) == (7, 3.5)
    assert (two.command, two.options) == (("tool", "-o", "a.out"), ("--strip",))


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("[warm]\nwork = 2\n", 2, "'work' is no key of warm; they are jobs, timeout, targets"),
        ("[warm]\njobs = 0\n", 2, "jobs = 0 is not accepted; it is a number of workers, 1 or more"),
        ("[warm]\njobs = true\n", 2, "jobs = True is not accepted"),
        ("[warm]\ntimeout = -1\n", 2, "timeout = -1 is not accepted; it is a number of seconds above 0"),
        ("[warm]\ntimeout = inf\n", 2, "a number of seconds above 0"),
        ("[warm]\n\ntargets = 3\n", 3, "a table of targets"),
        ("[warm.targets]\na = 3\n", 2, "targets.a = 3 is not accepted; it is a table"),
        ('[warm.targets."a b"]\ncall = "m:f"\n', 1, "'a b' can't name a target"),
        ('[warm.targets.a]\ncal = "m:f"\n', 2, "'cal' is no key of target 'a' (did you mean call?)"),
        ("[warm.targets.a]\npath = []\n", 1, "target 'a' has neither call nor command"),
        ('[warm.targets.a]\ncall = "m:f"\ncommand = ["x"]\n', 1, "target 'a' has both call and command"),
        ('[warm.targets.a]\ncall = "m"\n', 2, "module:function"),
        ('[warm.targets.a]\ncall = "m:f()"\n', 2, "module:function"),
        ('[warm.targets.a]\ncommand = "tool x"\n', 2, "a list of words"),
        ("[warm.targets.a]\ncommand = []\n", 2, "a list of words"),
        ('[warm.targets.a]\ncall = "m:f"\noptions = ["--strip"]\n', 3, "only a target with a command has them"),
        ('[warm.targets.a]\ncall = "m:f"\n\nmatrix = { x = 1 }\n', 4, "a table of lists"),
        ('[warm.targets.a]\ncall = "m:f"\nmatrix = { x = [1], y = [] }\n', 3, "axis 'y' has no values"),
        ('[warm.targets.a]\ncall = "m:f"\nmatrix = { x = [1, 1] }\n', 3, "gives a[x=1] twice"),
        (
            '[warm.targets.a]\ncall = "m:f"\nmatrix = { x = [1] }\nexclude = [{x = 1}]\n',
            3,
            "every row of the matrix is",
        ),
        ('[warm.targets.a]\ncall = "m:f"\nmatrix = { x = [1] }\nexclude = [{z = 1}]\n', 3, "names z, which is no axis"),
        ('[warm.targets.a]\ncall = "m:f"\nmatrix = { x = [2020-01-01] }\n', 3, "a table of lists"),
        ('[warm.targets.a]\ncall = "m:f"\narguments = { x = 10:00:00 }\n', 3, "a table of texts, numbers"),
        ('[warm.targets.a]\ncall = "m:f"\narguments = { x = "{y}" }\n', 1, "{y} in '{y}' is no axis of the matrix"),
        ('[warm.targets.a]\ncall = "m:f"\nenv = { X = 1 }\n', 3, "a table of texts"),
        ('[warm.targets.a]\ncall = "m:f"\nisolated = 1\n', 3, "true or false"),
        ('[warm.targets.a]\ncall = "m:f"\nafter = ["b"]\n', 3, "comes after 'b', which is no target"),
        (
            '[warm.targets.a]\ncall = "m:f"\nafter = ["b"]\n[warm.targets.b]\ncall = "m:f"\nafter = ["a"]\n',
            3,
            "targets wait for each other: a -> b -> a",
        ),
        ('[warm.targets.a]\ncall = "m:f"\nafter = ["a"]\n', 3, "targets wait for each other: a -> a"),
    ],
)
def test_a_mistake_names_its_line(tmp_path: Path, text: str, line: int, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path}/cachec.toml:{line}: ")
    assert words in str(caught.value)


def test_warm_has_to_be_a_table(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cachec.toml:1: warm is \[1\]; it has to be a table"):
        load(tmp_path, "warm = [1]")
