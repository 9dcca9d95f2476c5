"""What a message says to a caller of a function, it says of options to who typed a command."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cachec.base.display_text import is_url, naming_options, number_of, to_type
from cachec.errors import CachecError, LinkError, UsageError
from cachec.store.store import Store
from cachec.weights import WeightSet, open_weights
from cachec.weights.library.stored_weights import WeightStore
from cachec_mlir.weight_binding import match_weights

WEIGHTS = WeightSet.from_arrays({"layer.bias": np.ones(3, np.float32)})


def _taken(folder: Path) -> None:
    store = WeightStore(Store(folder / "store"))
    for value in range(2):
        store.add(WeightSet.from_arrays({"a": np.full(3, value)}), "base")


def _packed(folder: Path) -> None:
    WeightSet.from_arrays({"a": np.ones(2, np.complex128)}).save(folder / "o.safetensors")


def _unmapped(names: dict[str, str]) -> None:
    match_weights(WEIGHTS, {"layer.bia"}, names, 64)


MESSAGES: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "replace": (_taken, "or pass replace=True", "or say --replace"),
    "pad": (
        lambda folder: WEIGHTS.save_shards(folder / "shards", {"*": 0}, 2),
        "or pass pad=True to have",
        "or say --pad to have",
    ),
    "format": (lambda folder: WEIGHTS.save(folder / "o.bin"), "or say which: format=", "or say which: --format"),
    "type": (_packed, "use format='irpa'", "use --format irpa"),
    "near name": (lambda _: _unmapped({}), "say names={'layer.bia': 'layer.bias'}", "say --name layer.bia=layer.bias"),
    "strange name": (lambda _: _unmapped({"x": "y"}), "names= maps 'x'", "--name maps 'x'"),
    "url": (lambda _: open_weights("https://host/m.pt"), 'weights("NAME")` opens it', "it goes by NAME"),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_how_it_is_said(name: str, tmp_path: Path) -> None:
    act, argument, option = MESSAGES[name]
    with pytest.raises(CachecError, match=re.escape(argument)):
        act(tmp_path / "called")
    with naming_options(), pytest.raises(CachecError, match=re.escape(option)) as raised:
        act(tmp_path / "typed")
    assert argument not in str(raised.value)


@pytest.mark.parametrize("url", ["https://host/a.safetensors", "hf://a/b", Path("https://host/m.npz"), "s3://b/c.pt"])
def test_a_url_is_never_looked_for_as_a_file(url: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"cachec weights add \S+ NAME --expect sha256:<64 hex digits>"):
        open_weights(url)
    with pytest.raises(UsageError, match="is no path"):
        open_weights([url])


def test_a_url_that_states_its_digest_needs_no_other() -> None:
    with pytest.raises(UsageError, match="NAME`; then"):
        open_weights(f"https://host/m.npz#sha256={'0' * 64}")


@pytest.mark.parametrize("path", ["a/b.npz", "/a:/b", "a:b", "./https:", "C:/x", "weights.d/x"])
def test_what_is_a_path(path: str) -> None:
    assert not is_url(path)


def test_a_name_that_is_missing_is_a_link_error() -> None:
    with pytest.raises(LinkError, match="no bytes for 1 resources"):
        _unmapped({})


@pytest.mark.parametrize(("folder", "begin"), [(None, "cachec"), ("a store", "cachec --dir 'a store'")])
def test_a_command_that_is_named_is_of_the_store_that_was_given(folder: str | None, begin: str) -> None:
    """As it is pasted: without ``--dir`` it would be of another one."""
    assert to_type("why KEY") == "cachec why KEY"
    with naming_options(folder), pytest.raises(UsageError, match=f"{begin} weights add "):
        open_weights("https://host/m.pt")


@pytest.mark.parametrize(
    ("count", "what", "words"),
    [
        (1, "miss", "1 miss"),
        (0, "miss", "0 misses"),
        (2, "entry", "2 entries"),
        (3, "key", "3 keys"),
        (1, "more process", "1 more process"),
        (1234, "more process", "1,234 more processes"),
    ],
)
def test_a_count_in_words(count: int, what: str, words: str) -> None:
    assert number_of(count, what) == words
