"""Adapters: the shipped ones are sound, a user's win, and what is wrong with one is named by file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachec.errors import ConfigError
from cachec.launcher import adapters
from tests.launcher.conftest import Launcher, write

_GOOD = 'match = ["mycc"]\nflags = [\n  { names = ["-o"], takes = ["next"], is = "output" },\n]\n'


def test_every_shipped_adapter_is_sound() -> None:
    found = [adapters.read(path) for path in adapters.SHIPPED.glob("*.toml")]
    assert len(found) == 9
    for adapter in found:
        assert any(flag.means == "output" for flag in adapter.flags)
        assert all(name for flag in adapter.flags for name in flag.names)
        for pattern in adapter.match:  # by its file it is found
            name = pattern.replace("[0-9]*", "9")
            assert adapters.find(f"/nowhere/{name}", name) == adapter


@pytest.mark.parametrize(
    ("name", "adapter"),
    [
        ("clang", "clang"),
        ("clang-19", "clang"),
        ("clang++", "clang"),
        ("clang++-19", "clang"),
        ("clang-format", None),
        ("clang-tidy-19", None),
        ("mlir-opt-19", "mlir-opt"),
        ("opt-19", "opt"),
        ("iree-compile", "iree-compile"),
        ("iree-run-module", None),
        ("python3", None),
        ("x86_64-linux-gnu-gcc-12", "gcc"),
    ],
)
def test_which_executables_an_adapter_is_for(launcher: Launcher, name: str, adapter: str | None) -> None:
    found = adapters.find(f"/nowhere/{name}", name)
    assert (None if found is None else found.name) == adapter


def test_an_adapter_is_found_through_a_link(launcher: Launcher, tmp_path: Path) -> None:
    (tmp_path / "mycc").symlink_to(tmp_path / "bin" / "fakecc")
    found = adapters.find(str(tmp_path / "mycc"), "mycc")
    assert found is not None
    assert found.name == "fakecc"


def test_a_users_adapter_wins(launcher: Launcher, tmp_path: Path) -> None:
    (tmp_path / "cachec.toml").write_text('[adapters.my-clang]\nmatch = ["clang*"]\n')
    found = adapters.find("/usr/bin/clang-19", "clang-19")
    assert found is not None
    assert found.name == "my-clang"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ('match = ["x"]\n\nmatches = 1\n', 3, "unknown field `matches`"),
        ('match = ["x"]\nrelatve = true\n', 2, "did you mean 'relative'?"),
        ('match = ["x"]\nstrip = "yes"\n', 2, "Expected `bool`"),
        ("match = []\n", 1, "match is empty"),
        ('match = "x"\n', 1, "give a list, as in match = ['...']"),
        ('match = ["x"]\n[environment]\nkeyed = "X"\n', 3, "give a list, as in keyed = ['...']"),
        ("strip = true\n", 1, "adapter 'bad': Object missing required field `match`"),
        ('match = ["x"]\ndashes = "both"\n', 2, "dashes is one of 'exact', 'either'"),
        ('match = ["x"]\nflags = [\n  { names = ["-o"], is = "out" },\n]\n', 3, "is is one of 'value', 'out"),
        (
            'match = ["x"]\nflags = [\n  { names = ["-o"], takes = ["after"], is = "output" },\n]\n',
            *(3, "takes is one of 'next', 'joined', 'equals'"),
        ),
        ('name = "x"\nmatch = ["a/b"]\n', 2, "bad pattern 'a/b'"),
        ('match = ["clang-[0-9"]\n', 1, "bad pattern 'clang-[0-9'"),
        ('match = ["x"]\nflags = [\n  { names = ["-p"], is = "value" },\n  { names = ["-x"], is = 1 },\n]\n', 4, "str"),
        ('match = ["x"]\nflags = [\n\n  { names = ["-o"], means = "output" },\n]\n', 4, "unknown field `means`"),
        ('match = ["x"]\nflags = [\n  { names = ["-o"], is = "output" },\n]\n', 3, "needs names and takes"),
        ('match = ["x"]\nflags = [\n  { names = ["out"], is = "value" },\n]\n', 3, "bad flag 'out'"),
        ('match = ["x"]\nflags = [\n  { names = ["-a*b"], is = "value" },\n]\n', 3, "bad flag '-a*b'"),
        ('match = ["x"]\nflags = 3\n', 2, "Expected `array`"),
        ("match = [\n\n", 3, "not valid TOML"),
        ('match = ["x"]\nsingle = true\n', 2, "commands are traced now, so leave it out"),
        ('match = ["x"]\n[environment]\nsearch = ["X"]\n', 3, "name these variables in 'keyed'"),
        ('match = ["x"]\nflags = [\n  { names = ["-v"], is = "side-effect" },\n]\n', 3, "so write 'plain'"),
        ('match = ["x"]\nflags = [\n  { names = ["-I"], is = "search" },\n]\n', 3, "so write 'value'"),
        ('match = ["x"]\nflags = [\n  { names = ["-g"], is = "sees-cwd" },\n]\n', 3, "the current folder always"),
        ('match = ["x"]\nplain = true\n', 2, "all arguments count"),
        ('match = ["x"]\nflags = [\n  { names = ["-x*"], takes = ["joined"], is = "output" },\n]\n', 3, "out '*'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_by_file_and_line(tmp_path: Path, text: str, line: int, words: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        adapters.read(path)
    assert f"{path}:{line}: " in str(caught.value)
    assert words in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml: can't be read"):
        adapters.read(tmp_path / "nowhere.toml")


@pytest.mark.parametrize(
    ("means", "needs_value"),
    [
        *((name, True) for name in ("output", "extra-output", "depfile", "weights")),
        *((name, False) for name in ("value", "plain")),
    ],
)
def test_what_a_flag_means_says_whether_it_takes_a_value(tmp_path: Path, means: str, needs_value: bool) -> None:
    path = tmp_path / "a.toml"
    path.write_text(f'match = ["x"]\nflags = [\n  {{ names = ["-x"], is = "{means}" }},\n]\n')
    if not needs_value:
        assert adapters.read(path).flags[0].means == means
        return
    with pytest.raises(ConfigError, match="needs names and takes"):
        adapters.read(path)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("[adapters]\nfiles = 3\n", "cachec.toml:2: files = 3"),
        ("[adapters]\nmycc = 3\n", "cachec.toml:2: adapters.mycc is 3"),
        (
            '[adapters.mycc]\nmatch = ["a"]\nflag = 3\n',
            "cachec.toml:3: adapter 'mycc': Object contains unknown field `flag`",
        ),
    ],
)
def test_a_bad_table_in_the_configuration(launcher: Launcher, tmp_path: Path, table: str, words: str) -> None:
    (tmp_path / "cachec.toml").write_text(table)
    ran = launcher.run("fakecc", "a", "-o", "b")
    assert ran.code == 2
    assert words in ran.stderr


def test_the_digest_is_of_what_the_adapter_says(tmp_path: Path) -> None:
    one, other = tmp_path / "a.toml", tmp_path / "sub" / "a.toml"
    write(str(one), _GOOD)
    write(str(other), "# a comment\n" + _GOOD)
    assert adapters.read(one).digest() == adapters.read(other).digest()
    write(str(other), _GOOD + "relative = true\n")
    assert adapters.read(one).digest() != adapters.read(other).digest()
