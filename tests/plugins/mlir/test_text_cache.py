"""What a cache remembers of texts: another process does not parse again what any has parsed, and gets the same."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cachec
from cachec.base.hashing import FileDigests
from cachec.store.store import Store
from cachec_mlir import program, programs, text_cache, topology, topology_hash
from cachec_mlir.programs import MlirProgram
from tests.plugins.mlir.conftest import program as text_program

#: Without weights; one refers to weights that it has no bytes of.
DECLARED = text_program(0).partition("{-#")[0].rstrip() + "\n"
PLAIN = 'module {\n  "op"() : () -> () // a comment\n}\n'


class Counted:
    """How often a text was parsed, for its weights and for its topology."""

    def __init__(self) -> None:
        self.stripped = self.hashed = 0

    def __call__(self) -> tuple[int, int]:
        counts, self.stripped, self.hashed = (self.stripped, self.hashed), 0, 0
        return counts


@pytest.fixture(autouse=True)
def _package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same wherever the files lie: two answers of one test may fall into one slot otherwise, where one is kept."""
    for module in (programs, topology_hash, text_cache):
        monkeypatch.setattr(module, "PACKAGE", "1" * 64)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Counted:
    counted = Counted()
    strip_text, of_text = programs.strip_text, topology_hash.topology

    def stripped(*args: Any, **kwargs: Any) -> Any:
        counted.stripped += 1
        return strip_text(*args, **kwargs)

    def hashed(*args: Any, **kwargs: Any) -> Any:
        counted.hashed += 1
        return of_text(*args, **kwargs)

    monkeypatch.setattr(programs, "strip_text", stripped)
    monkeypatch.setattr(topology_hash, "topology", hashed)
    return counted


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[FileDigests]:
    """The digests of one store, as one process after another opens it."""

    def opened() -> Iterator[FileDigests]:
        while True:
            store = Store(tmp_path / "store")
            store.prepare()
            yield store.digests
            store.close()

    return opened()


def same(one: MlirProgram, other: MlirProgram) -> bool:
    mine, theirs = ((p.program.ir, p.program.format, p.program.canonical, p.program.manifest) for p in (one, other))
    return mine == theirs and mine[3].weights == theirs[3].weights and one.lifted == other.lifted


@pytest.mark.parametrize("text", [DECLARED, PLAIN])
@pytest.mark.parametrize("locations", [False, True])
def test_another_process_parses_no_text_that_any_has_parsed(text, locations, tmp_path, processes, parsed):
    path = tmp_path / "m.mlir"
    path.write_text(text)
    plain = program(path, locations=locations)
    parsed()
    first = program(path, locations=locations, digests=next(processes))
    assert parsed() == (1, not locations)
    for source in (path, text.encode(), memoryview(text.encode())):
        again = program(source, locations=locations, digests=next(processes))
        assert parsed() == (0, 0)
        assert same(again, first)
        assert same(again, plain)
        assert dict(again.weights) == {}
        assert again.program.topology == plain.program.topology


def test_options_text_and_package_are_what_an_answer_is_about(tmp_path, processes, parsed, monkeypatch):
    path = tmp_path / "m.mlir"
    path.write_text(DECLARED)
    calls: list[dict[str, Any]] = [
        {},
        {"to": "parameter"},
        {"to": "parameter", "scope": "other"},
        {"minimum": 1 << 20},
        {"locations": True},
        {"locations": True, "to": "parameter"},
    ]
    for options in calls:
        program(path, digests=next(processes), **options)
        assert parsed()[0] == 1, options
    for options in calls:
        plain = program(path, **options)
        parsed()
        assert same(program(path, digests=next(processes), **options), plain)
        is_as_it_was = plain.program.ir == DECLARED.encode()  # to="parameter" makes another text of it
        assert parsed() == (0 if is_as_it_was else 1, 0), options
    path.write_text(DECLARED.replace("tanh", "sinh"))
    assert same(program(path, digests=next(processes)), program(path))
    assert parsed()[0] == 2
    path.write_text(DECLARED)
    for module in (programs, topology_hash):
        monkeypatch.setattr(module, "PACKAGE", "0" * 64)
    program(path, digests=next(processes))
    assert parsed() == (1, 1)


def test_the_package_is_each_of_its_files(tmp_path, monkeypatch):
    (tmp_path / "text").mkdir()
    files = [tmp_path / "a.py", tmp_path / "text" / "b.py"]
    for file in files:
        file.write_text("1")
    monkeypatch.setattr(text_cache, "__file__", str(files[0]))
    seen = {text_cache._package()}
    for file, text in itertools.product(files, ("23", "45")):
        file.write_text(text)
        seen.add(text_cache._package())
    files[0].rename(tmp_path / "c.py")
    seen.add(text_cache._package())
    assert len(seen) == 6
    (tmp_path / "text" / "b.pyc").write_text("bytecode")
    assert text_cache._package() in seen


def test_weights_stay_where_they_are_and_what_is_left_is_not_hashed_again(tmp_path, processes, parsed):
    path = tmp_path / "m.mlir"
    path.write_text(text_program(0))
    for options in ({}, {"to": "parameter"}, {"symbols": "alpha"}):
        plain = program(path, **options)
        program(path, digests=next(processes), **options)
        parsed()
        again = program(path, digests=next(processes), **options)
        assert parsed() == (1, 0)
        assert same(again, plain)
        assert {name: bytes(again.weights[name].read()) for name in again.weights} == {
            name: bytes(plain.weights[name].read()) for name in plain.weights
        }


def test_what_a_damaged_store_says_is_found_out_again(tmp_path, parsed):
    path = tmp_path / "m.mlir"
    path.write_text(DECLARED)
    store = Store(tmp_path / "store")
    store.prepare()
    plain = program(path, digests=store.digests)
    about = text_cache.PACKAGE, cachec.base.hashing.digest_bytes(DECLARED.encode()), "resource", "model", "256", "False"
    known = text_cache.weightless_texts(store.digests)
    kept = known.recall(*about)
    assert kept is not None
    weight = kept.weights[0]
    damages = (
        text_cache.WeightlessText(None, kept.weights),  # as if every byte counted
        text_cache.WeightlessText(kept.topology, (*kept.weights, weight)),
        text_cache.WeightlessText(kept.topology, (text_cache._Weight("w", "float33", (1,)),)),
        text_cache.WeightlessText(kept.topology, (text_cache._Weight("w", "float32", (-1,)),)),
        text_cache.WeightlessText(kept.topology, (text_cache._Weight("w", "float32", (1 << 62,)),)),
        text_cache.WeightlessText("0" * 63, kept.weights),
        text_cache.WeightlessText("0" * 64 + "\n", kept.weights),
    )
    parsed()
    for damage in damages:
        known.keep(damage, *about)
        assert same(program(path, digests=store.digests), plain), damage
        assert parsed()[0] == 1, damage
    assert known.recall(*about) == kept


def test_a_stage_is_given_what_another_process_knows_and_records_the_same(tmp_path, monkeypatch):
    path = tmp_path / "m.mlir"
    path.write_text(DECLARED)

    def read(name: str) -> tuple[Any, ...]:
        cache = cachec.Cache(tmp_path / "cache", log="off", mode="on")

        @cache.stage(name=name)
        def stripped(place: Path) -> cachec.Program:
            return program(place).program

        made, outcome = cache.call(stripped, path)
        assert not outcome.hit
        entry = cache.store.lookup(outcome.key)  # none while a file of the plugin was changed a moment ago
        cache.close()
        return made.topology, entry.traces[0].reads if entry is not None else ()

    alone = read("one")
    with monkeypatch.context() as patched:
        patched.delattr(programs, "_of_text")
        assert read("other") == alone
        path.write_text(PLAIN)
        with pytest.raises(NameError, match="_of_text"):
            read("other")
    assert read("other")[0] == program(path).program.topology != alone[0]


def test_what_the_command_learned_a_program_knows(tmp_path, processes, parsed):
    path = tmp_path / "m.mlir"
    path.write_text(DECLARED)
    assert topology_hash.Topologies(next(processes)).of(path) == topology(path)
    parsed()
    program(path, digests=next(processes))
    assert parsed() == (1, 0)
