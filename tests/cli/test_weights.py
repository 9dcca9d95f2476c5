"""``cachec weights``: every command with its options, what it prints, its JSON, its exit codes and its errors."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file, save_file

import cachec
from cachec.base.hashing import digest_bytes
from cachec.store.store import Store
from cachec.weights.io import staging
from cachec.weights.io.copying import Copier
from cachec.weights.library.stored_weights import WeightStore
from tests.weights.server import Site, serving

from .conftest import Shell

MIB = 1 << 20
COMMANDS = ["add", "ls", "show", "diff", "verify", "export", "shard", "push", "pull", "rm"]
HEX = re.compile(r"[0-9a-f]{64}")


def tensors(**changes: np.ndarray) -> dict[str, np.ndarray]:
    """Three small tensors; ``changes`` replaces or adds some."""
    found = {
        "a.weight": np.arange(32, dtype=np.float32).reshape(8, 4),
        "b.weight": np.arange(16, dtype=np.float32).reshape(4, 4) + 100,
        "bias": np.arange(8, dtype=np.int64),
    }
    return found | changes


def write(name: str, arrays: Mapping[str, np.ndarray]) -> Path:
    """A checkpoint in the folder of the test."""
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(dict(arrays), path)
    return path


@pytest.fixture
def base(shell: Shell) -> dict[str, np.ndarray]:
    """``base.safetensors`` and ``tuned.safetensors``, in which ``b.weight`` differs."""
    write("base.safetensors", tensors())
    write("tuned.safetensors", tensors(**{"b.weight": tensors()["b.weight"] + 1}))
    return tensors()


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as found:
        yield found


def store(shell: Shell) -> WeightStore:
    return WeightStore(Store(shell.dir))


def stored(shell: Shell) -> list[Path]:
    return sorted(path for path in (shell.dir / "objects").rglob("*") if path.is_file())


def fails(shell: Shell, code: int, words: str, *args: str) -> None:
    """The command ends with this code, and one line on stderr that has these words; nothing is on stdout."""
    result = shell.run("weights", *args)
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    assert words in result.stderr, result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("cachec: ")


# --- the group


def test_commands_are_listed(shell: Shell) -> None:
    listed = shell.run("weights", "--help").output.split("Commands:")[1]
    assert [line.split()[0] for line in listed.splitlines() if line.startswith("  ") and line[2] != " "] == COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_has_an_example_and_the_json_fields(shell: Shell, name: str) -> None:
    result = shell.run("weights", name, "--help")
    assert result.exit_code == 0
    assert f"cachec weights {name}" in result.output.split("Examples:")[1]
    assert "JSON" in result.output
    assert "--json" in result.output


def test_an_empty_store_is_not_made(shell: Shell) -> None:
    assert shell.run("weights", "ls").output == f"no weights in {shell.dir / 'weights'}: there is no store yet\n"
    assert shell.json("weights", "ls") == {"dir": str(shell.dir / "weights"), "weights": []}
    for command in (("show", "m"), ("export", "m", "o.safetensors"), ("verify", "m"), ("diff", "m", "n")):
        fails(shell, 1, "no weights are named 'm', and there is no such file", *command)
    fails(shell, 1, f"no weights are named 'm'; `cachec --dir {shell.dir} weights ls` lists what is", "rm", "m")
    assert not shell.dir.exists()


# --- add


@pytest.mark.parametrize("own", [False, True])
def test_add(shell: Shell, base: Any, own: bool) -> None:
    document = shell.json("weights", "add", "base.safetensors", "m", *(["--own"] if own else []))
    seconds = document.pop("seconds")
    created = document.pop("created")
    revision = document.pop("revision")
    assert 0 < seconds < 60 < created
    assert HEX.fullmatch(revision)
    source = os.path.abspath("base.safetensors")
    assert document == {"name": "m", "owned": own, "weights": 3, "size": 256, "source": source}
    assert len(stored(shell)) == (3 if own else 0)
    # Again: the same revision, and nothing else.
    assert shell.json("weights", "add", "base.safetensors", "m", *(["--own"] if own else []))["revision"] == revision


def test_add_says_what_it_did(shell: Shell, base: Any) -> None:
    result = shell.run("weights", "add", "base.safetensors")
    assert re.fullmatch(r"added base: 3 weights, 256 B, in place, revision [0-9a-f]{12}\n", result.stdout)
    assert result.stderr == ""
    result = shell.run("weights", "add", "tuned.safetensors", "--own")
    assert re.fullmatch(r"added tuned: 3 weights, 256 B, owned, \S+ \S+/s, revision [0-9a-f]{12}\n", result.stdout)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("llama/model.safetensors", "llama"),
        ("my model!.safetensors", "my-model-"),
        ("x/y.safetensors", "y"),
        ("_.hidden.safetensors", "hidden"),
    ],
)
def test_names_by_default(shell: Shell, path: str, name: str) -> None:
    write(path, tensors())
    assert shell.json("weights", "add", path)["name"] == name


def test_a_folder_with_an_index(shell: Shell) -> None:
    weights = cachec.WeightSet.from_arrays(tensors())
    Path("llama").mkdir()
    weights.save("llama/model.safetensors", shard_size=128)
    document = shell.json("weights", "add", "llama")
    assert (document["name"], document["weights"]) == ("llama", 3)
    files = shell.json("weights", "show", "llama")["files"]
    assert [Path(file).name for file in files] == [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]


def test_add_refuses(shell: Shell, base: Any) -> None:
    fails(shell, 1, "there is no file or folder 'none.safetensors'", "add", "none.safetensors")
    Path("empty").mkdir()
    fails(shell, 2, "expected model.safetensors, model.safetensors.index.json or", "add", "empty")
    Path("text.safetensors").write_text("this is no checkpoint, whatever its name may say")
    fails(shell, 2, "text.safetensors: header length expected at most", "add", "text.safetensors")
    Path("cut.safetensors").write_bytes(Path("base.safetensors").read_bytes()[:-1])
    fails(shell, 2, "cut.safetensors: ", "add", "cut.safetensors", "--own")
    fails(shell, 2, "a name of weights expected letters, digits", "add", "base.safetensors", "../up")
    fails(shell, 2, "--expect: expected sha256:<64 hex digits>", "add", "base.safetensors", "--expect", "md5:ab")
    fails(shell, 2, "--expect goes with one file", "add", "empty", "--expect", "0" * 64)
    fails(shell, 2, "a URL says nothing about content", "add", "http://localhost/m.safetensors", "m")
    fails(shell, 2, "no resolver for 'ftp'", "add", f"ftp://h/m.safetensors#sha256={'0' * 64}", "m")
    assert shell.json("weights", "ls")["weights"] == []


def test_a_name_that_is_taken(shell: Shell, base: Any) -> None:
    first = shell.json("weights", "add", "base.safetensors", "m")["revision"]
    fails(shell, 2, "'m' is the name of other weights", "add", "tuned.safetensors", "m")
    fails(shell, 2, "choose another name, or say --replace", "add", "tuned.safetensors", "m")
    fails(shell, 2, "'m' is the name of other weights", "add", "tuned.safetensors", "m", "--own")
    assert shell.json("weights", "show", "m")["revision"] == first
    assert shell.json("weights", "add", "tuned.safetensors", "m", "--replace")["revision"] != first
    assert len(shell.json("weights", "ls")["weights"]) == 1


@pytest.mark.parametrize("algorithm", ["sha256", "blake3"])
def test_what_is_expected_of_a_file(shell: Shell, base: Any, algorithm: str) -> None:
    data = Path("base.safetensors").read_bytes()
    right = hashlib.sha256(data).hexdigest() if algorithm == "sha256" else digest_bytes(data)
    fails(
        shell, 2, f"expected {algorithm} {'0' * 64}, found {right}; nothing was added",
        "add", "base.safetensors", "m", "--expect", f"{algorithm}:{'0' * 64}",
    )  # fmt: skip
    shell.json("weights", "add", "base.safetensors", "m", "--expect", f"{algorithm}:{right.upper()}")


def test_a_tensor_that_is_shared_is_there_once(shell: Shell, base: Any) -> None:
    for name in ("base", "tuned"):
        shell.json("weights", "add", f"{name}.safetensors", "--own")
    assert len(stored(shell)) == 4
    assert {path.stat().st_mode & 0o777 for path in stored(shell)} == {0o444}
    assert {path.parent.stat().st_mode & 0o777 for path in stored(shell)} == {0o700}


# Kills this process when the meter has seen so many bytes, in the n-th count.
KILLED = """
import os, signal, sys
from cachec.base import fsio
from cachec.cli import main, meter
from cachec.weights.io import staging
staging._UNIT, fsio.SETTLE_SECONDS = 1 << 20, -1.0
limit, real = int(sys.argv[1]), meter.Meter.__call__
def told(self, done, total):
    real(self, done, total)
    if done >= limit:
        os.kill(os.getpid(), signal.SIGKILL)
meter.Meter.__call__ = told
main(sys.argv[2:])
"""


def killed(shell: Shell, nbytes: int, *args: str) -> None:
    command = [sys.executable, "-c", KILLED, str(nbytes), "--dir", str(shell.dir), "weights", *args]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL


@pytest.mark.parametrize("size", [MIB // 4, 2 * MIB], ids=["small tensors", "large tensors"])
def test_add_goes_on_after_a_kill(shell: Shell, size: int) -> None:
    rng = np.random.default_rng(0)
    arrays = {f"w{i}": rng.integers(0, 256, size, np.uint8) for i in range(6)}
    write("m.safetensors", arrays)
    killed(shell, 3 * size, "add", "m.safetensors", "m", "--own")
    before = {path: path.stat().st_ino for path in stored(shell)}
    assert len(before) in {2, 3}
    assert shell.json("weights", "ls")["weights"] == []
    shell.json("weights", "add", "m.safetensors", "m", "--own")
    after = {path: path.stat().st_ino for path in stored(shell)}
    assert before.items() <= after.items(), "what was done is not done again"
    assert len(after) == 6
    assert len(os.listdir(shell.dir / "tmp")) <= 1  # what it was about, which goes with a later gc
    assert shell.json("weights", "verify", "m")["damaged"] == []


def test_a_url_is_owned(shell: Shell, site: Site, base: Any) -> None:
    site.data = Path("base.safetensors").read_bytes()
    document = shell.json("weights", "add", site.identifier, "m")
    assert (document["owned"], document["weights"], document["source"]) == (True, 3, site.identifier)
    assert len(stored(shell)) == 3
    asked = len(site.requests)
    # It is there: nothing is fetched, under that name or another.
    shell.json("weights", "add", site.identifier, "m")
    assert shell.json("weights", "add", site.identifier, "again")["revision"] == document["revision"]
    assert len(site.requests) == asked
    fails(shell, 2, "--replace goes with a path", "add", site.identifier, "m", "--replace")
    fails(shell, 2, "after its #; give one of the two", "add", site.identifier, "x", "--expect", "0" * 64)


def test_a_url_with_other_bytes(shell: Shell, site: Site, base: Any) -> None:
    site.data = Path("base.safetensors").read_bytes()
    fails(shell, 2, f"expected sha256 {'0' * 64}, found", "add", site.url, "m", "--expect", "0" * 64)
    assert stored(shell) == []
    assert list((shell.dir / "weights" / "fetched").iterdir()) == []
    site.statuses = [404]
    fails(shell, 2, "expected the file, found HTTP 404", "add", site.identifier, "m")
    right = hashlib.sha256(site.data).hexdigest()
    assert shell.json("weights", "add", site.url, "--expect", right)["name"] == "m"


def test_a_url_goes_on_after_a_kill(shell: Shell, site: Site) -> None:
    path = write("m.safetensors", {"w": np.random.default_rng(0).integers(0, 256, 8 * MIB, np.uint8)})
    site.data = path.read_bytes()
    killed(shell, 3 * MIB, "add", site.identifier, "m")
    [part] = (shell.dir / "weights" / "fetched").rglob("part")
    have = part.stat().st_size
    assert 3 * MIB <= have < len(site.data)
    shell.json("weights", "add", site.identifier, "m")
    assert site.asked == [None, f"bytes={have}-"]
    assert list((shell.dir / "weights" / "fetched").iterdir()) == []
    with store(shell).open("m") as weights:
        assert weights["w"].digest() == digest_bytes(load_file(path)["w"].tobytes())


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
from cachec.cli import main
main(sys.argv[2:])
"""


@pytest.mark.parametrize("size", [MIB // 2, 2 * MIB], ids=["small tensors", "large tensors"])
def test_no_room(shell: Shell, size: int) -> None:
    write("m.safetensors", {"a": np.zeros(size // 4, np.uint8), "b": np.ones(size, np.uint8)})
    command = [sys.executable, "-c", LIMITED, str(size // 2), "--dir", str(shell.dir), "weights"]
    for args, way in (
        (["add", "m.safetensors", "--own"], "what is copied so far stays: make room, and add the same again"),
        (["export", "m.safetensors", "o.safetensors"], "nothing is left of it: make room, and save again"),
    ):
        done = subprocess.run([*command, *args], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        place = shell.dir if "--own" in args else os.path.abspath("o.safetensors")
        assert done.stderr == f"cachec: error: '{place}': File too large; {way}\n"
    assert len(stored(shell)) == 1
    assert os.listdir(shell.dir / "tmp") == []
    assert sorted(os.listdir()) == ["m.safetensors", "store"]


# --- ls and show


def test_ls(shell: Shell, base: Any) -> None:
    own = shell.json("weights", "add", "tuned.safetensors", "t", "--own")
    place = shell.json("weights", "add", "base.safetensors", "b")
    for each in (own, place):
        del each["seconds"]
    assert shell.json("weights", "ls") == {"dir": str(shell.dir / "weights"), "weights": [place, own]}
    lines = shell.run("weights", "ls").output.splitlines()
    assert lines[0].split() == ["name", "revision", "bytes", "weights", "size", "added", "source"]
    assert lines[1].startswith(f"b     {place['revision'][:12]}  in place        3  256 B")
    assert lines[2].split()[:3] == ["t", own["revision"][:12], "owned"]


def test_show_in_place(shell: Shell, base: Any) -> None:
    added = shell.json("weights", "add", "base.safetensors", "m")
    path = os.path.abspath("base.safetensors")
    document = shell.json("weights", "show", "m")
    weights = document.pop("weights")
    assert document == {
        "name": "m", "path": None, "revision": added["revision"], "owned": False, "source": path, "files": [path],
        "size": 256, "stored": 0,
    }  # fmt: skip
    assert weights[0] == {
        "name": "a.weight", "dtype": "float32", "shape": [8, 4], "size": 128, "layout": "row-major", "alias": None,
        "shard": None, "digest": None,
    }  # fmt: skip
    digests = [each["digest"] for each in shell.json("weights", "show", "m", "--digests")["weights"]]
    assert digests == [digest_bytes(base[name].tobytes()) for name in sorted(base)]
    assert shell.json("weights", "show", added["revision"][:6])["name"] == "m"


def test_show_owned(shell: Shell, base: Any) -> None:
    write("twice.safetensors", tensors(copy=tensors()["a.weight"]))
    shell.json("weights", "add", "twice.safetensors", "m", "--own")
    document = shell.json("weights", "show", "m")
    assert (document["size"], document["stored"], document["files"]) == (384, 256, [])
    text = shell.run("weights", "show", "m").output
    assert "384 B in 4 weights, 256 B in the store" in text
    assert re.search(r"a\.weight +float32 +\[8, 4\] +128 B +" + digest_bytes(base["a.weight"].tobytes())[:8], text)


def test_show_of_a_path_and_of_a_rank(shell: Shell, base: Any) -> None:
    document = shell.json("weights", "show", "base.safetensors")
    assert (document["name"], document["revision"]) == (None, None)
    assert document["path"] == os.path.abspath("base.safetensors")
    shell.json("weights", "shard", "base.safetensors", "cut", "--spec", "a.weight=0", "--world-size", "2")
    ranks = ("--rank", "1", "--world-size", "2")
    found = shell.json("weights", "show", "cut", *ranks)["weights"][0]
    assert (found["shape"], found["shard"]) == ([4, 4], [0, 2])
    assert "[4, 4], one of 2 on axis 0" in shell.run("weights", "show", "cut", *ranks).output
    fails(shell, 2, "weights cut up for world_size=2; open them with rank= and world_size=", "show", "cut")
    fails(shell, 2, "found shards for world_size=2", "show", "cut", "--rank", "0", "--world-size", "3")
    fails(shell, 2, "with 0 <= rank < world_size; found 2 of 2", "show", "cut", "--rank", "2", "--world-size", "2")
    shell.json("weights", "add", "base.safetensors", "m")
    fails(shell, 2, "'m' is a name in the store; --rank and --world-size go with a path", "show", "m", *ranks)


def test_what_is_not_there(shell: Shell, base: Any) -> None:
    shell.json("weights", "add", "base.safetensors", "base")
    fails(shell, 1, "no weights are named 'bse', and there is no such file; did you mean 'base'?", "show", "bse")
    fails(shell, 1, "no weights are named '0123abcd'", "show", "0123abcd")
    # What begins with . or / is a path, even where a name would fit.
    fails(shell, 1, "no weights are named './base', and there is no such file", "show", "./base")


def test_a_name_wins_over_a_file_of_that_name(shell: Shell, base: Any) -> None:
    shell.json("weights", "add", "tuned.safetensors", "base.safetensors")
    assert shell.json("weights", "show", "base.safetensors")["name"] == "base.safetensors"
    assert shell.json("weights", "show", "./base.safetensors")["name"] is None


def test_the_beginning_of_two_revisions(shell: Shell, base: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cachec.weights.library.stored_weights._DIGITS", re.compile("[0-9a-f]{0,64}"))
    for name in ("base", "tuned"):
        shell.json("weights", "add", f"{name}.safetensors")
    fails(shell, 2, "is the beginning of 2 revisions: ", "show", "")


def test_a_changed_file_in_place(shell: Shell, base: Any) -> None:
    shell.json("weights", "add", "base.safetensors", "m")
    write("base.safetensors", tensors(bias=np.ones(8, np.int64)))
    fails(shell, 2, "base.safetensors: changed after its weights were added in place; add them again", "show", "m")
    Path("base.safetensors").unlink()
    fails(shell, 2, "base.safetensors: expected as it was added, found none", "export", "m", "out.safetensors")
    assert not Path("out.safetensors").exists()
    assert len(shell.json("weights", "ls")["weights"]) == 1, "it is still listed, and can be removed"
    assert shell.json("weights", "rm", "m")["name"] == "m"


def test_names_of_tensors_do_not_reach_the_terminal_as_they_are(shell: Shell) -> None:
    write("m.safetensors", {"\x1b[31mred": np.zeros(2, np.float32)})
    assert "\x1b" not in shell.run("weights", "show", "m.safetensors").output
    assert shell.json("weights", "show", "m.safetensors")["weights"][0]["name"] == "\x1b[31mred"


# --- diff


def test_diff_by_digest(shell: Shell, base: Any) -> None:
    for name in ("base", "tuned"):
        shell.json("weights", "add", f"{name}.safetensors", "--own")
    assert shell.json("weights", "diff", "base", "base") == {
        "a": "base", "b": "base", "by": "digest", "added": [], "removed": [], "changed": [], "same": 3,
    }  # fmt: skip
    document = shell.json("weights", "diff", "base", "tuned", code=1)
    assert document["by"] == "digest"
    assert document["changed"] == [{"name": "b.weight", "fields": {}}]
    assert document["same"] == 2
    result = shell.run("weights", "diff", "base", "tuned")
    assert result.exit_code == 1
    expected = ["base -> tuned, by digest: 1 changed, 0 added, 0 removed, 2 same", "  ~ b.weight: content"]
    assert result.output.splitlines() == expected


def test_diff_by_specification(shell: Shell, base: Any) -> None:
    shell.json("weights", "add", "base.safetensors", "base", "--own")
    changed = tensors(**{"b.weight": np.zeros((4, 8), np.float64), "new": np.zeros(1, np.int8)})
    del changed["bias"]
    write("other.safetensors", changed)
    document = shell.json("weights", "diff", "base", "other.safetensors", code=1)
    assert document == {
        "a": "base", "b": "other.safetensors", "by": "specification", "added": ["new"], "removed": ["bias"],
        "changed": [
            {"name": "b.weight", "fields": {"dtype": ["float32", "float64"], "shape": [[4, 4], [4, 8]],
                                            "nbytes": [64, 256]}}
        ],
        "same": 1,
    }  # fmt: skip
    lines = shell.run("weights", "diff", "base", "other.safetensors").output.splitlines()
    assert lines[1:4] == [
        "  - bias", "  + new", "  ~ b.weight: dtype float32 -> float64, shape [4, 4] -> [4, 8], nbytes 64 -> 256",
    ]  # fmt: skip
    # Equal specifications are equal, whatever the values are; and that is said.
    result = shell.run("weights", "diff", "base.safetensors", "tuned.safetensors")
    assert result.exit_code == 0
    assert result.output.splitlines()[-1] == "their values were not compared; --values does"


def test_diff_of_values(shell: Shell, base: Any) -> None:
    more = tensors(**{"a.weight": base["a.weight"].copy(), "bias": base["bias"] - 3})
    more["a.weight"][0, :2] += (0.5, -2.0)
    more["a.weight"][1, 0] = np.nan
    write("more.safetensors", more)
    for name in ("base", "more"):
        shell.json("weights", "add", f"{name}.safetensors", "--own")
    for a, b in (("base.safetensors", "more.safetensors"), ("base", "more"), ("base", "more.safetensors")):
        document = shell.json("weights", "diff", a, b, "--values", code=1)
        assert document["values"] == [
            {"name": "a.weight", "differing": 3, "largest": 2.0, "unordered": 1},
            {"name": "bias", "differing": 8, "largest": 3.0, "unordered": 0},
        ]
    assert shell.json("weights", "diff", "base", "base.safetensors", "--values")["values"] == []
    text = shell.run("weights", "diff", "base", "more", "--values").output
    assert "a.weight: 3 elements differ by at most 2, 1 of them not a number on one side" in text


def test_diff_fit(shell: Shell, base: Any) -> None:
    shell.json("weights", "add", "base.safetensors", "base")
    document = shell.json("weights", "diff", "--fit", "base", "tuned.safetensors")
    assert document == {"a": "base", "b": "tuned.safetensors", "fits": True, "words": None}
    assert (
        "tuned.safetensors fits what was compiled for base"
        in shell.run("weights", "diff", "--fit", "base", "tuned.safetensors").output
    )
    shapes = {**base, "b.weight": np.zeros((4, 5), np.float32)}
    missing = {name: base[name] for name in ("a.weight", "bias")}
    for arrays, words in (
        (shapes, "'b.weight'"),
        (missing, "missing 'b.weight'"),
        ({**base, "more": np.zeros(1)}, "'more'"),
        ({f"base_model.model.{name}": value for name, value in base.items()}, "base_model.model."),
    ):
        write("other.safetensors", arrays)
        document = shell.json("weights", "diff", "--fit", "base", "other.safetensors", code=1)
        assert document["fits"] is False
        assert words in document["words"]
        result = shell.run("weights", "diff", "--fit", "base", "other.safetensors")
        assert (result.exit_code, words in result.stdout) == (1, True)
    fails(shell, 2, "--fit compares no values; leave --values out", "diff", "--fit", "--values", "base", "base")


# --- verify


def onnx_model(folder: str, checksum: str | None) -> Path:
    """A model with external data; ``checksum`` is what it states of its data, None for nothing."""
    place = Path(folder)
    place.mkdir()
    tensor = numpy_helper.from_array(np.arange(16, dtype=np.float32), "w")
    (place / "w.bin").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entries = {"location": "w.bin", "offset": "0", "length": "64"} | ({"checksum": checksum} if checksum else {})
    for key, value in entries.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    out = helper.make_tensor_value_info("w", TensorProto.FLOAT, [16])
    model = helper.make_model(helper.make_graph([], "g", [], [out], [tensor]))
    (place / "m.onnx").write_bytes(onnx.ModelProto.SerializeToString(model))
    return place / "m.onnx"


def test_verify_owned(shell: Shell, base: Any) -> None:
    added = shell.json("weights", "add", "base.safetensors", "m", "--own")
    document = shell.json("weights", "verify", "m")
    assert document.pop("seconds") > 0
    assert document == {
        "name": "m", "path": None, "revision": added["revision"], "owned": True, "checksums": 0, "damaged": [],
    }  # fmt: skip
    assert re.fullmatch(r"m is whole: 3 weights, \S+ \S+/s\n", shell.run("weights", "verify", "m").output)
    digest = digest_bytes(base["bias"].tobytes())
    [side] = [path for path in stored(shell) if path.name == digest]
    side.chmod(0o600)
    side.write_bytes(b"\xff" * 64)
    [damage] = shell.json("weights", "verify", "m", code=1)["damaged"]
    assert (damage["path"], damage["weights"]) == (str(side), ["bias"])
    assert damage["words"].startswith("its bytes have the digest ")
    assert not side.exists()
    result = shell.run("weights", "verify", "m")
    assert result.exit_code == 1
    assert result.stdout == f"damaged: 'bias': {side}: it is gone\n"
    assert result.stderr == "cachec: m: 1 file not as it should be; add the weights again\n"
    fails(shell, 2, "'bias': object ", "export", "m", "out.safetensors")
    # The same weights again repair it.
    assert shell.json("weights", "add", "base.safetensors", "m", "--own")["revision"] == added["revision"]
    assert shell.json("weights", "verify", "m")["damaged"] == []


@pytest.mark.parametrize("size", [8, MIB], ids=["small", "large"])
@pytest.mark.parametrize("damage", ["gone", "cut", "longer", "a folder"])
def test_any_damage_is_repaired_by_adding_again(shell: Shell, size: int, damage: str) -> None:
    write("m.safetensors", {"w": np.arange(size, dtype=np.int64), "v": np.ones(size, np.int64)})
    added = shell.json("weights", "add", "m.safetensors", "m", "--own")
    [side] = [path for path in stored(shell) if path.name == digest_bytes(np.ones(size, np.int64).tobytes())]
    data = side.read_bytes()
    side.unlink()
    if damage in {"cut", "longer"}:
        side.write_bytes(data[:-1] if damage == "cut" else data + b"x")
    elif damage == "a folder":
        side.mkdir()
    found = shell.json("weights", "verify", "m", code=1)["damaged"]
    assert [(each["path"], each["weights"]) for each in found] == [(str(side), ["v"])]
    if damage == "a folder":
        side.rmdir()
    assert shell.json("weights", "add", "m.safetensors", "m", "--own")["revision"] == added["revision"]
    assert shell.json("weights", "verify", "m")["damaged"] == []
    assert side.stat().st_mode & 0o777 == 0o444


def test_verify_in_place(shell: Shell, base: Any) -> None:
    shell.json("weights", "add", "base.safetensors", "m")
    assert shell.run("weights", "verify", "m").output == (
        "m: all files are as they were added; no checksums are stated\n"
    )
    os.utime("base.safetensors", ns=(1, 1))
    [damage] = shell.json("weights", "verify", "m", code=1)["damaged"]
    assert damage["path"] == os.path.abspath("base.safetensors")
    assert damage["weights"] == sorted(base)
    assert shell.run("weights", "verify", "m").stdout.count("base.safetensors") == 1


@pytest.mark.parametrize("in_place", [False, True])
def test_verify_computes_what_a_checkpoint_states(shell: Shell, in_place: bool) -> None:
    right = hashlib.sha1(np.arange(16, dtype=np.float32).tobytes()).hexdigest()
    for folder, checksum in (("right", right.upper()), ("wrong", "0" * 40), ("absent", None), ("odd", "ü")):
        path = str(onnx_model(folder, checksum))
        if in_place:
            shell.json("weights", "add", path, folder)
        what = folder if in_place else path
        code = 0 if folder in {"right", "absent"} else 1
        document = shell.json("weights", "verify", what, code=code)
        assert document["checksums"] == (0 if folder == "absent" else 1)
        assert (document["name"] is None, document["path"] is None) == (not in_place, in_place)
        words = [(each["weights"], each["words"]) for each in document["damaged"]]
        assert words == ([] if code == 0 else [(["w"], f"sha1 expected {checksum}, found {right}")])
    result = shell.run("weights", "verify", "absent/m.onnx")
    assert result.output == "absent/m.onnx: its structure is valid; no checksums are stated\n"
    result = shell.run("weights", "verify", "right/m.onnx")
    assert result.output == "right/m.onnx: its structure is valid; 1 stated checksum agrees\n"
    result = shell.run("weights", "verify", "wrong/m.onnx")
    assert result.stderr == "cachec: wrong/m.onnx: 1 file not as it should be\n"


@pytest.mark.parametrize("in_place", [False, True])
def test_verify_computes_the_checksums_of_members(shell: Shell, base: Any, in_place: bool) -> None:
    np.savez("m.npz", **base)
    what = "m" if in_place else "m.npz"

    def add() -> None:
        if in_place:
            shell.json("weights", "add", "m.npz", "m", "--replace")

    add()
    assert shell.json("weights", "verify", what)["checksums"] == 1
    place = cachec.open_weights("m.npz")["b.weight"].place()
    assert place is not None
    data = bytearray(Path("m.npz").read_bytes())
    data[place.offset + 5] ^= 4
    Path("m.npz").write_bytes(data)
    add()
    document = shell.json("weights", "verify", what, code=1)
    [damage] = document["damaged"]
    assert (document["checksums"], damage["weights"]) == (1, ["b.weight"])
    assert damage["words"].startswith("member 'b.weight.npy': crc32 expected ")


def test_verify_of_a_malformed_file(shell: Shell) -> None:
    Path("m.onnx").write_bytes(b"\xff" * 20)
    fails(shell, 2, "m.onnx: ", "verify", "m.onnx")


# --- export


@pytest.mark.parametrize(
    ("out", "options", "kind"),
    [
        ("o.safetensors", [], "safetensors"),
        ("o.irpa", [], "irpa"),
        ("o.bin", ["--format", "irpa"], "irpa"),
        ("o.irpa", ["--format", "safetensors"], "safetensors"),
    ],
)
def test_export(shell: Shell, base: Any, out: str, options: list[str], kind: str) -> None:
    document = shell.json("weights", "export", "base.safetensors", out, *options)
    assert document.pop("seconds") > 0
    assert document == {"path": out, "format": kind, "weights": 3, "size": 256}
    data = Path(out).read_bytes()
    assert data.startswith(b"IRPA") == (kind == "irpa")
    shell.json("weights", "add", "base.safetensors", "m", "--own")
    shell.json("weights", "export", "m", "again", "--format", kind)
    assert Path("again").read_bytes() == data, "equal weights give equal bytes"
    specs = cachec.open_weights("base.safetensors").specs
    os.rename(out, f"typed.{kind}")
    for name, weight in cachec.open_weights(f"typed.{kind}", specs=specs).items():
        np.testing.assert_array_equal(weight.read(), base[name])


def test_export_in_shards(shell: Shell, base: Any) -> None:
    Path("out").mkdir()
    shell.json("weights", "export", "base.safetensors", "out/model.safetensors", "--shard-size", "150B")
    assert len(list(Path("out").glob("model-*-of-*.safetensors"))) == 2
    for name, weight in cachec.open_weights("out").items():
        np.testing.assert_array_equal(weight.read(), base[name])
    text = shell.run("weights", "export", "base.safetensors", "o.safetensors").output
    assert re.fullmatch(r"wrote o\.safetensors: 3 weights, 256 B, \S+ \S+/s\n", text)


def test_export_refuses(shell: Shell, base: Any) -> None:
    out = "o.safetensors"
    fails(shell, 1, "no weights are named 'nothing'", "export", "nothing", out)
    fails(shell, 2, "--shard-size: expected a size such as 5GB or 500MiB, found 'much'",
          "export", "base.safetensors", out, "--shard-size", "much")  # fmt: skip
    fails(shell, 2, "irpa has no index of shards", "export", "base.safetensors", "o.irpa", "--shard-size", "1")
    fails(shell, 2, "No such file or directory", "export", "base.safetensors", "nowhere/o.safetensors")
    Path("folder").mkdir()
    fails(shell, 2, "expected to be a file or nothing, found a folder", "export", "base.safetensors", "folder")
    assert shell.run("weights", "export", "base.safetensors", out, "--format", "gguf").exit_code == 2
    assert sorted(os.listdir()) == ["base.safetensors", "folder", "tuned.safetensors"]


def test_export_over_its_own_source(shell: Shell, base: Any) -> None:
    with cachec.open_weights("base.safetensors") as mapped:
        kept = mapped["bias"].read()
        shell.json("weights", "export", "base.safetensors", "base.safetensors")
        np.testing.assert_array_equal(kept, base["bias"])
    np.testing.assert_array_equal(load_file("base.safetensors")["a.weight"], base["a.weight"])


@pytest.mark.parametrize("own", [[], ["--own"]], ids=["in place", "owned"])
@pytest.mark.parametrize("command", ["export", "shard"])
def test_writing_goes_on_after_a_kill(
    shell: Shell, own: list[str], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    write("m.safetensors", {f"w{i}": rng.integers(0, 256, (2, MIB // 2), np.uint8) for i in range(6)})
    shell.json("weights", "add", "m.safetensors", "m", *own)
    options = [] if command == "export" else ["--spec", "*=0", "--world-size", "2"]
    shell.json("weights", command, "m", "wanted", *options)
    killed(shell, 5 * MIB, command, "m", "out", *options)
    assert not Path("out").is_file()
    monkeypatch.setattr(staging, "_UNIT", MIB)
    count, real = [0], Copier._copy

    def copying(self: Copier, source: Any, *args: Any) -> None:
        count[0] += source.nbytes
        real(self, source, *args)

    monkeypatch.setattr(Copier, "_copy", copying)
    shell.json("weights", command, "m", "out", *options)
    assert 0 < count[0] <= 2 * MIB
    for wanted in [Path("wanted")] if command == "export" else sorted(Path("wanted").iterdir()):
        assert wanted.read_bytes() == Path("out", *wanted.parts[1:]).read_bytes()
    assert not [name for name in os.listdir() if "partial" in name]
    assert command == "export" or len(os.listdir("out")) == 3


# --- shard


def test_shard(shell: Shell, base: Any) -> None:
    specs = ("--spec", "a.*=0", "--spec", "b.*=-1", "--spec", "bias=none")
    document = shell.json("weights", "shard", "base.safetensors", "cut", *specs, "--world-size", "2")
    assert document.pop("seconds") > 0
    cut = {"a.weight": 0, "b.weight": 1}
    assert document == {"path": "cut", "world_size": 2, "cut": cut, "weights": 3, "size": 320}
    assert sorted(os.listdir("cut")) == [
        "cachec-shards.json", "rank-1-of-2.safetensors", "rank-2-of-2.safetensors",
    ]  # fmt: skip
    for rank in range(2):
        mine = cachec.open_weights("cut", rank=rank, world_size=2)
        np.testing.assert_array_equal(mine["a.weight"].read(), base["a.weight"][4 * rank : 4 * rank + 4])
        np.testing.assert_array_equal(mine["b.weight"].read(), base["b.weight"][:, 2 * rank : 2 * rank + 2])
        np.testing.assert_array_equal(mine["bias"].read(), base["bias"])
    text = shell.run("weights", "shard", "base.safetensors", "more", "--spec", "a.*=0", "--world-size", "2").output
    assert text.startswith("wrote more: 1 of 3 weights cut for 2 workers, ")


def test_shard_refuses(shell: Shell, base: Any) -> None:
    def refused(words: str, *options: str, size: str = "2", out: str = "cut") -> None:
        fails(shell, 2, words, "shard", "base.safetensors", out, *options, "--world-size", size)
        assert not Path("cut").exists() or os.listdir("cut") == []

    refused("--spec: expected PATTERN=AXIS, such as '*.q_proj.weight=0', found 'bias'", "--spec", "bias")
    refused("found 'bias=x'", "--spec", "bias=x")
    refused("--spec: 'bias' is given twice", "--spec", "bias=0", "--spec", "bias=none")
    refused("no weight among 3 matches 'c.*'", "--spec", "c.*=0")
    refused("'bias' has 1 dimensions [8], expected an axis below that, found 1", "--spec", "bias=1")
    refused("axis 0 expected a multiple of 3 (world_size), found 8", "--spec", "bias=0", size="3")
    refused("choose another axis, or say --pad to have", "--spec", "bias=0", size="3")
    Path("full").mkdir()
    Path("full/note.txt").write_text("mine")
    refused("full expected to be empty, found 'note.txt'", "--spec", "bias=0", out="full")
    for size in ("0", "-1", "many"):
        result = shell.run("weights", "shard", "base.safetensors", "cut", "--spec", "bias=0", "--world-size", size)
        assert result.exit_code == 2
    shell.json("weights", "shard", "base.safetensors", "cut", "--spec", "bias=0", "--world-size", "3", "--pad")
    last = cachec.open_weights("cut", rank=2, world_size=3)["bias"].read()
    np.testing.assert_array_equal(last, [6, 7, 0])


# --- rm


def test_rm_keeps_what_others_use(shell: Shell, base: Any) -> None:
    for name in ("base", "tuned"):
        shell.json("weights", "add", f"{name}.safetensors", "--own")
    fails(shell, 1, "no weights are named 'tune'; did you mean 'tuned'?", "rm", "tune")
    revision = shell.json("weights", "show", "tuned")["revision"]
    fails(shell, 2, f"'{revision[:8]}' is a revision; rm takes its name, 'tuned'", "rm", revision[:8])
    document = shell.json("weights", "rm", "tuned")
    assert document == {
        "name": "tuned", "revision": revision, "freed": 4096, "files": 1, "in_use": [], "postponed": False,
    }  # fmt: skip
    assert shell.json("weights", "verify", "base")["damaged"] == []
    assert shell.run("weights", "rm", "base").output == "removed base: freed 12.0 KiB in 3 files\n"
    assert stored(shell) == []


def test_rm_of_one_of_two_names(shell: Shell, base: Any) -> None:
    for name in ("one", "two"):
        shell.json("weights", "add", "base.safetensors", name, "--own")
    assert shell.json("weights", "rm", "one")["files"] == 0
    assert len(stored(shell)) == 3
    assert shell.json("weights", "verify", "two")["damaged"] == []


def test_rm_in_place_leaves_the_files(shell: Shell, base: Any) -> None:
    shell.json("weights", "add", "base.safetensors", "m")
    lines = shell.run("weights", "rm", "m").output.splitlines()
    assert lines == ["removed m: freed 0 B in 0 files", "its files were in place, and are untouched"]
    assert Path("base.safetensors").exists()


def test_rm_waits_for_who_uses_it(shell: Shell, base: Any) -> None:
    shell.json("weights", "add", "base.safetensors", "m", "--own")
    shell.json("weights", "add", "tuned.safetensors", "t", "--own")
    with store(shell).open("m") as weights:
        revision = shell.json("weights", "show", "m")["revision"]
        result = shell.run("weights", "rm", "m")
        assert "an open process uses it; its bytes go with a later rm or gc" in result.output
        np.testing.assert_array_equal(weights["b.weight"].read(), base["b.weight"])
        assert shell.json("weights", "ls")["weights"][0]["name"] == "t"
    assert len(stored(shell)) == 4
    shell.json("weights", "rm", "t")
    assert stored(shell) == []
    assert not (shell.dir / "weights" / "revisions" / f"{revision}.json").exists()


ADDING = """
import sys
from cachec.weights import from_arrays
from cachec.store.store import Store
from cachec.weights.library.stored_weights import WeightStore
def told(done, total):
    print("adding", flush=True)
    sys.stdin.readline()
import numpy
WeightStore(Store(sys.argv[1])).add(from_arrays({"x": numpy.ones(3)}), "x", progress=told)
"""


def test_rm_while_somebody_adds(shell: Shell, base: Any) -> None:
    shell.json("weights", "add", "base.safetensors", "m", "--own")
    command = [sys.executable, "-c", ADDING, str(shell.dir)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as adder:
        assert adder.stdout is not None
        assert adder.stdout.readline() == "adding\n"
        assert shell.json("weights", "rm", "m")["files"] == 3
        [stays] = stored(shell)
        adder.communicate("\n")
    assert shell.json("weights", "verify", "x")["damaged"] == []
    assert stored(shell) == [stays]
    assert shell.json("weights", "rm", "x")["files"] == 1


def test_rm_while_somebody_cleans(shell: Shell, base: Any) -> None:
    shell.json("weights", "add", "base.safetensors", "m", "--own")
    lock = Store(shell.dir).locks.of("gc")
    assert lock.try_acquire()
    assert f"process {os.getpid()} is cleaning the store" in shell.run("weights", "rm", "m").output
    assert len(stored(shell)) == 3
    lock.release()
    assert shell.json("gc")["swept"] == {"revisions": 1}
    assert stored(shell) == []


# --- progress


def test_a_bar_on_a_terminal_and_nothing_in_a_pipe(shell: Shell, base: Any) -> None:
    command = [sys.executable, "-c", "from cachec.cli import main; main()", "--dir", str(shell.dir), "weights", "add"]
    done = subprocess.run([*command, "base.safetensors", "b", "--own"], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*command, "tuned.safetensors", "t", "--own", "--json"],
        stdout=subprocess.PIPE, stderr=theirs, env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
    ) as process:  # fmt: skip
        os.close(theirs)
        assert process.stdout is not None
        document = json.loads(process.stdout.read())
        shown = b""
        while piece := _read(ours):
            shown += piece
    os.close(ours)
    assert document["name"] == "t"
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    assert "add t" in text
    assert re.search(r"256/256 bytes|256\.0/256\.0 bytes|/s", text), text


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 65536)
    except OSError:  # a terminal without its other end
        return b""
