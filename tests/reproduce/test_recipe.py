"""Recipes: folders as numbers, arguments as data and back, and what is never in them."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import cachec
from cachec.errors import ReproducerError
from cachec.recording import CommandRun, FileState
from cachec.reproduce.arguments import Maker, Value, Words, describe_value
from cachec.reproduce.pack import decode_recipe
from cachec.reproduce.readme import command_line
from cachec.reproduce.recipe import RecordedCommand, Tool, _NumberedFolders
from cachec.reproduce.synthetic import synthetic, synthetic_weights

NO = "0" * 64


def maker_of(contents: dict[str, bytes], folder: Path) -> Maker:
    """A maker that gives a name back for code, and no weights."""
    return Maker(contents, folder, lambda _manifest, _path: cachec.WeightSet.from_arrays({}), lambda m, n: (m, n))


def folders(cwd: str, *files: str) -> _NumberedFolders:
    return _NumberedFolders(
        [CommandRun(("t",), "/t", cwd, {}, {}, inputs=tuple(FileState(each, NO, 0) for each in files))]
    )


@pytest.mark.parametrize(
    ("cwd", "files", "text", "expected"),
    [
        ("/w", ("/w/a",), "a", "a"),
        ("/w", ("/w/a",), "/w/a", (0, "/a")),
        ("/w", ("/w/a",), "--in=/w/a,/w/b", ("--in=", 0, "/a,", 0, "/b")),
        ("/w", ("/w/a",), "/work/a", "/work/a"),
        ("/w", ("/w/a",), "/x/w/a", "/x/w/a"),
        ("/w", ("/w/d/a",), "d/a", "d/a"),
        ("/w", ("/v/a",), "/v/a", (1, "/a")),
        ("/w/sub", ("/w/a",), "../a", (0, "/a")),
        ("/w", ("/v/a",), "--x=../v/a", ("--x=", 1, "/a")),
        ("/w", ("/w/a",), "-I/w", ("-I", 0)),
        ("/w", ("/a",), "/a", (1, "/a")),
        ("/", ("/etc/a",), "/etc/a", (0, "/a")),
    ],
)
def test_folders_become_numbers(cwd: str, files: tuple[str, ...], text: str, expected: Any) -> None:
    assert folders(cwd, *files).text(text, cwd, files) == expected


def test_a_folder_in_another_is_a_path_below_it() -> None:
    found = folders("/w/run", "/w/run/deep/a", "/v/b")
    assert found.place("/w/run/deep/a") == (found.place("/w/run/x")[0], "deep/a")
    assert found.place("/v/b")[0] != found.place("/w/run/x")[0]


@pytest.mark.parametrize(
    "value",
    [
        None, True, 1, -(1 << 80), 1.5, float("inf"), 1j, "", "x" * 5000, "\n\x1b", b"", b"\0" * 5000, (), [], {},
        (1, [2.0, {"a": (None,), "b!": []}]), {"!t": 1},
    ],
)  # fmt: skip
def test_plain_arguments_come_back(value: Any, tmp_path: Path) -> None:
    contents: dict[str, bytes] = {}
    data = msgspec.json.decode(msgspec.json.encode(describe_value(value, contents)), type=Value)
    again = Maker(contents, tmp_path, lambda _m, _p: cachec.WeightSet.from_arrays({}), lambda _m, _n: None).make(
        data, "x"
    )
    assert again == value
    assert type(again) is type(value)


def test_a_huge_argument_is_words(tmp_path: Path) -> None:
    assert isinstance(describe_value(list(range(20_000)), {}), Words)
    found = describe_value([list(range(4_000))] * 10, {})
    assert len(msgspec.json.encode(found)) < 1_500_000
    assert isinstance(describe_value("x" * (5 << 20), {}), Words)


def test_files_and_code_come_back(tmp_path: Path) -> None:
    contents: dict[str, bytes] = {}
    (tmp_path / "a.txt").write_text("text")
    manifest = cachec.Manifest.of({})
    file = cachec.File(tmp_path / "a.txt", kind="k:x", manifest=manifest)
    (tmp_path / "made").mkdir()
    maker = maker_of(contents, tmp_path / "made")
    again = maker.make(describe_value(file, contents), "x")
    assert (again.kind, again.manifest, again.read_bytes()) == ("k:x", manifest, b"text")
    assert maker.make(describe_value(tmp_path / "a.txt", contents), "x").read_bytes() == b"text"
    assert maker.make(describe_value(test_files_and_code_come_back, contents), "x") == (
        __name__,
        "test_files_and_code_come_back",
    )


def test_weights_come_back_in_their_tree(tmp_path: Path) -> None:
    contents: dict[str, bytes] = {}
    arrays = {"layers": [{"it's": np.ones(2, "f4")}, (np.ones(3, "f4"), None)]}
    data = describe_value(cachec.WeightSet.from_tree(arrays), contents)
    flat = cachec.WeightSet.from_tree(arrays).rename(str)
    again = Maker(contents, tmp_path, lambda manifest, _path: synthetic_weights(manifest.weights, 0), lambda *_: None)
    names = again.make(msgspec.json.decode(msgspec.json.encode(data), type=Value), "x").unflatten(lambda w: w.name)
    assert names == flat.unflatten(lambda weight: weight.name)
    assert type(names["layers"][1]) is tuple
    with pytest.raises(ReproducerError, match="malformed"):
        again.make(msgspec.structs.replace(data, tree="open('x')"), "x")
    pair = collections.namedtuple("pair", "a")
    assert isinstance(describe_value(cachec.WeightSet.from_tree(pair(np.ones(2))), {}), Words)


def test_what_can_t_be_kept_is_words(tmp_path: Path) -> None:
    contents: dict[str, bytes] = {}
    (tmp_path / "w.safetensors").write_bytes(b"weights!")
    for value in (np.zeros(3), object(), {1: 2}, lambda: 1, tmp_path, tmp_path / "none", tmp_path / "w.safetensors"):
        assert isinstance(describe_value(value, contents), Words), value
    assert not contents
    with pytest.raises(ReproducerError, match="argument x was array float64"):
        maker_of({}, tmp_path).make(describe_value(np.zeros(3), {}), "x")


def test_names_that_are_no_utf8_are_kept_readable(cache: cachec.Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ODD", "a\udcffb")

    @cache.stage(env=["ODD"])
    def stage(x: str) -> bytes:
        return b"x"

    _, outcome = stage.call("plain")
    assert outcome.stored
    entry = cache.store.lookup(outcome.key)
    assert entry is not None
    recipe = cache.store.recipe(entry)
    assert recipe is not None
    assert decode_recipe(recipe, "it").environ == {"ODD": "a\\udcffb"}


def test_a_hit_does_not_read_the_recipe(cache: cachec.Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    @cache.stage
    def stage(x: int) -> bytes:
        return b"x"

    stage(1)
    monkeypatch.setattr("cachec.store.store.Store.recipe", None)
    monkeypatch.setattr("cachec.reproduce.recipe.recipe_of", None)
    assert stage.call(1)[1].hit


# --- commands


def test_a_command_line_is_quoted_for_a_shell() -> None:
    command = RecordedCommand(
        tool=Tool("a tool"), args=("it's", ("--x=", 1, "/b c"), "$(x)"), cwd=(0,), environ={"A": "1 2", "B": None}
    )
    assert command_line(command) == """cd "$R"/work && A='1 2' 'a tool' 'it'"'"'s' --x="$R"/work-1'/b c' '$(x)'"""


# --- synthetic weights


def test_the_generator_is_what_its_documentation_says() -> None:
    """Element by element from the text above ``synthetic``; a change of these bytes needs a new generator number."""
    from blake3 import blake3

    spec = cachec.WeightSpec(name="a", dtype="float32", shape=(2, 3), nbytes=24)
    words = np.frombuffer(blake3(b"cachec synthetic 1\0" + (5).to_bytes(8, "little") + b"a").digest(24), "<u4")
    expected = [np.float32((int(u) - 2**31) / 2**31 / 2) for u in words]  # the other dimension is 3: two bits, k = 1
    assert np.frombuffer(synthetic(spec, 5), "f4").tolist() == expected
    assert synthetic(spec).hex()[:32] == GOLDEN
    assert synthetic(spec, 1) != synthetic(spec, 2)


GOLDEN = "9a99553e7f4755be02577ebd9694cebe"


@pytest.mark.parametrize(
    "dtype",
    ["float64", "float32", "float16", "bfloat16", "float8_e5m2", "float8_e4m3fn", "float8_e8m0fnu", "int64", "int8",
     "uint8", "bool", "complex64"],
)  # fmt: skip
def test_every_type_is_finite_and_of_its_size(dtype: str) -> None:
    from cachec.weights.dtypes import numpy_dtype, size_of

    spec = cachec.WeightSpec(name="x", dtype=dtype, shape=(300, 40), nbytes=12000 * size_of(dtype))
    data = synthetic(spec)
    assert data.nbytes == spec.nbytes
    found = np.frombuffer(data, numpy_dtype(dtype))
    assert np.isfinite(found.astype("complex128")).all()
    assert len(set(found.tobytes())) > 1
    if dtype.startswith("float") and dtype != "float8_e8m0fnu":
        assert abs(found.astype("f8")).max() <= 0.125
        assert abs(found.astype("f8").mean()) < 0.01
    scalar = cachec.WeightSpec(name="x", dtype=dtype, shape=(), nbytes=size_of(dtype))
    assert synthetic(scalar).nbytes == scalar.nbytes
    none = cachec.WeightSpec(name="x", dtype=dtype, shape=(0, 3), nbytes=0)
    assert synthetic(none).nbytes == 0


def test_a_large_weight_is_made_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = cachec.WeightSpec(name="x", dtype="complex64", shape=(1000,), nbytes=8000)
    whole = bytes(synthetic(spec))
    monkeypatch.setattr("cachec.reproduce.synthetic._STEP", 77)
    assert bytes(synthetic(spec)) == whole


def test_tied_weights_stay_tied() -> None:
    spec = cachec.WeightSpec
    specs = {
        "a": spec(name="a", dtype="float32", shape=(3,), nbytes=12, alias="a"),
        "b": spec(name="b", dtype="float32", shape=(3,), nbytes=12, alias="a"),
        "c": spec(name="c", dtype="float32", shape=(3,), nbytes=12),
    }
    found = synthetic_weights(specs)
    assert dict(found.specs) == specs
    assert found["a"].read().tolist() == found["b"].read().tolist() != found["c"].read().tolist()
