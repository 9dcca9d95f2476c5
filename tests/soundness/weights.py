"""Stages that look at weights, and artifacts that have weights folded in, against swaps of the weights.

A reader is what a stage does with a set of weights (``w`` and ``b`` are [2, 4], ``c`` [4], ``scale`` a number); a swap
is how the weights that it is given next differ. The oracle of a hit is the stage without a cache; that of a link is the
same module, compiled and linked with nothing but these weights.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

import cachec
from cachec import LinkError, Program, WeightSet
from cachec.errors import CachecError
from cachec.testing.fakes import ToyPlugin, compile_toy, to_toy
from tests.soundness.runner import Report, judge

Arrays = dict[str, np.ndarray[Any, Any]]


class Reader(NamedTuple):
    """reads: names of the weights whose bytes it looks at, None for all."""

    name: str
    look: Callable[[WeightSet], Any]
    reads: tuple[str, ...] | None = None


class Swap(NamedTuple):
    """bytes_of: of which weights it changes the bytes and nothing else that a program may see; None where it changes
    more. tied: names that share one weight."""

    name: str
    change: Callable[[Arrays, random.Random], Arrays]
    bytes_of: tuple[str, ...] | None = None
    tied: tuple[tuple[str, str], ...] = ()


def _held(weight: Any) -> Any:
    array = np.asarray(weight)
    return weight.name, str(array.dtype), array.shape, array.tobytes().hex()


def _streamed(weights: WeightSet, read_ahead: int = 1) -> Any:
    return [_held(weight) for weight in weights.stream(read_ahead)]


def _first_of_stream(weights: WeightSet) -> Any:
    return _held(next(iter(weights.stream())))


def _largest(weights: WeightSet) -> str:
    return max(weights, key=lambda name: float(np.abs(weights[name].read()).max()))


READERS = [
    Reader("all", lambda weights: [_held(weight) for weight in weights.values()]),
    Reader("one", lambda weights: weights["w"].read().tobytes().hex(), ("w",)),
    Reader("one element", lambda weights: float(weights["b"].read()[1, 2]), ("b",)),
    Reader("by another's value", lambda weights: weights[_name(weights["scale"].read())].read().tobytes().hex()),
    Reader("none", lambda weights: sorted(weights), ()),
    Reader("names in order", lambda weights: list(weights), ()),
    Reader("specifications", lambda weights: [(each.shape, each.dtype, each.nbytes) for each in weights.values()], ()),
    Reader("private copy", lambda weights: weights["c"].private().sum().item(), ("c",)),
    Reader("raw", lambda weights: bytes(weights["c"].raw()).hex(), ("c",)),
    Reader("buffer", lambda weights: memoryview(weights["c"].read()).tobytes().hex(), ("c",)),
    Reader("digest", lambda weights: weights["b"].digest(), ("b",)),
    Reader("stream", _streamed),
    Reader("stream without a thread", lambda weights: _streamed(weights, 0)),
    Reader("order of a stream", lambda weights: [weight.name for weight in weights.stream()]),
    Reader("first of a stream", _first_of_stream),
    Reader("place", lambda weights: [str(weight.place()) for weight in weights.values()]),
    Reader("extent", lambda weights: [str(weight.extent()) for weight in weights.values()]),
    Reader("ties", lambda weights: [sorted(map(str, group)) for group in weights.manifest.ties], ()),
    Reader("selected", lambda weights: [_held(each) for each in weights.select(["w", "s*"]).values()], ("w", "scale")),
    Reader("renamed", lambda weights: _held(weights.rename({"w": "x"})["x"]), ("w",)),
    Reader("overlaid", lambda weights: _held(weights.overlay({"b": np.ones((2, 4), "f4")})["b"]), ()),
    Reader("derived", lambda weights: _held(weights.derive({"b": lambda each: each.read() + 1})["b"]), ("b",)),
    Reader("sharded", lambda weights: _held(weights.shard({"w": 0}, 1, 2)["w"]), ("w",)),
    Reader("composed", lambda weights: _held(WeightSet.from_weights({"y": weights["b"]})["y"]), ("b",)),
    Reader("largest", _largest),
    Reader("saved", lambda weights: _saved(weights)),
]


def _name(value: np.ndarray[Any, Any]) -> str:
    return "wbc"[int(abs(float(value))) % 3]


def _saved(weights: WeightSet) -> Any:
    with cachec.scratch() as folder:
        weights.save(folder / "s.safetensors")
        return (folder / "s.safetensors").read_bytes().hex()


def _with(name: str, value: Callable[[np.ndarray[Any, Any]], Any]) -> Callable[[Arrays, random.Random], Arrays]:
    return lambda arrays, _: arrays | {name: np.asarray(value(arrays[name]), arrays[name].dtype)}


def _random_bytes(name: str) -> Callable[[Arrays, random.Random], Arrays]:
    def change(arrays: Arrays, rng: random.Random) -> Arrays:
        old = arrays[name]
        return arrays | {name: np.frombuffer(rng.randbytes(old.nbytes), old.dtype).reshape(old.shape)}

    return change


SWAPS = [
    Swap("none", lambda arrays, _: dict(arrays), ()),
    *(Swap(f"other {name}", _with(name, lambda array: array + 1), (name,)) for name in ("w", "b", "c", "scale")),
    *(Swap(f"any bytes for {name}", _random_bytes(name), (name,)) for name in ("w", "b", "c")),
    Swap("one bit of w", _with("w", lambda array: np.nextafter(array, np.float32(np.inf))), ("w",)),
    Swap("sign of a zero", _with("c", lambda array: np.copysign(array, -1)), ("c",)),
    Swap("w and b exchanged", lambda arrays, _: arrays | {"w": arrays["b"], "b": arrays["w"]}, ("w", "b")),
    Swap("order in the file", lambda arrays, _: dict(reversed(arrays.items())), ()),
    Swap("order by chance", lambda arrays, rng: dict(rng.sample([*arrays.items()], len(arrays))), ()),
    Swap("another dtype", lambda arrays, _: arrays | {"b": arrays["b"].view("i4")}),
    Swap("another shape", lambda arrays, _: arrays | {"b": arrays["b"].reshape(4, 2)}),
    Swap("one more", lambda arrays, _: arrays | {"more": arrays["w"]}),
    Swap("one less", lambda arrays, _: {name: each for name, each in arrays.items() if name != "b"}),
    Swap("another name", lambda arrays, _: {{"c": "d"}.get(name, name): each for name, each in arrays.items()}),
    Swap("b equal to w", lambda arrays, _: arrays | {"b": arrays["w"].copy()}, ("b",)),
    Swap("b tied to w", lambda arrays, _: arrays | {"b": arrays["w"]}, None, (("w", "b"),)),
]


def _written(path: Path, arrays: Mapping[str, np.ndarray[Any, Any]], padding: int) -> Path:
    """A safetensors file with the tensors in this order, one after another."""
    header: dict[str, Any] = {}
    at = 0
    for name, array in arrays.items():
        dtype = {"float32": "F32", "int32": "I32"}[str(array.dtype)]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8 + 8 * padding)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(each.tobytes() for each in arrays.values()))
    return path


def _source(swap: Swap, arrays: Arrays, folder: Path, rng: random.Random) -> tuple[str, WeightSet]:
    """The weights, from one of the places that they may come from: none of these is part of a key."""
    number = len(list(folder.iterdir()))
    how = rng.choice(("memory", "mmap", "read", "two files"))
    if how == "memory":
        return how, WeightSet.from_arrays(arrays, tied=swap.tied)
    if how == "two files":
        names = list(arrays)
        half = rng.randrange(1, len(names))
        parts = [
            _written(folder / f"{number}-{part}.safetensors", {name: arrays[name] for name in chosen}, 0)
            for part, chosen in enumerate((names[:half], names[half:]))
        ]
        return how, cachec.open_weights(parts, tied=swap.tied)
    path = _written(folder / f"{number}.safetensors", arrays, rng.randrange(3))
    return how, cachec.open_weights(path, access=how, tied=swap.tied)


def _arrays(rng: random.Random) -> Arrays:
    numbers = np.random.default_rng(rng.randrange(10**6))
    arrays = {name: numbers.normal(size=shape).astype("f4") for name, shape in (("w", (2, 4)), ("b", (2, 4)))}
    arrays["c"] = np.zeros(4, "f4") if rng.random() < 0.5 else numbers.normal(size=4).astype("f4")
    return arrays | {"scale": np.array(rng.randrange(1, 4), "f4")}


def run_weights(seed: int, folder: Path) -> Iterator[Report]:
    """Reports without end, one for each set of weights with all its swaps: of a reader, then of an artifact."""
    rng = random.Random(seed)
    number = 0
    while True:
        for reader in rng.sample(READERS, len(READERS)):
            number += 1
            own = folder / f"weights-{number}"
            own.mkdir()
            yield _read(reader, rng, own)
            with mock.patch("cachec.programs.linker.installed_plugins", _Toys):
                yield _linked(rng, own)
            shutil.rmtree(own)


def _read(reader: Reader, rng: random.Random, folder: Path) -> Report:
    report = Report(projects=1)
    with _cache(folder / "store", "on") as cache, _cache(folder / "oracle", "refresh") as bare:
        # Where weights lie is told outside of stages only, so the oracle is a stage, too: one that never hits.
        cached, oracle = (each.stage(ignore=["reader"])(_looked) for each in (cache, bare))
        arrays = _arrays(rng)
        for place, swap in enumerate([SWAPS[0], *rng.sample(SWAPS, len(SWAPS))]):
            how, weights = _source(swap, swap.change(arrays, rng), folder, rng)
            answer: dict[str, Any] = {}
            try:
                value, outcome = cached.call(weights, reader)
                answer = {"value": value, "reason": outcome.reason.value, "detail": outcome.detail}
            except Exception as error:  # what it looks for is not there
                answer = {"value": repr(error), "reason": "raised", "detail": ""}
            try:
                answer["truth"] = oracle(weights, reader)
            except Exception as error:
                answer["truth"] = repr(error)
            name = f"{reader.name} / {swap.name} / {how}"
            judge(report, name, answer)
            report.cases += place > 0
            reads = set(arrays) if reader.reads is None else set(reader.reads)
            if place and swap.bytes_of is not None and reads.isdisjoint(swap.bytes_of) and answer["reason"] != "raised":
                report.neutral += 1
                if answer["reason"] != "hit":
                    report.needless.append(f"{name}: {answer['reason']} {answer['detail']}")
    return report


def _looked(weights: WeightSet, reader: Reader) -> str:
    return json.dumps(reader.look(weights))


def _cache(folder: Path, mode: str) -> closing[cachec.Cache]:
    return closing(cachec.Cache(folder, log="off", mode=mode))


class _Toys:
    """In place of the installed plugins: the toy alone."""

    def find(self, name: str) -> ToyPlugin:
        assert name == "toy"
        return ToyPlugin()


#: What a stage folds into its program, as a number.
FOLDS: dict[str, Callable[[WeightSet], float]] = {
    "scale": lambda weights: float(weights["scale"].read()),
    "sign of a weight": lambda weights: 1.0 if float(weights["scale"].read()) > 2 else -1.0,
    "one element": lambda weights: float(weights["b"].read()[0, 1]),
    "of a stream": lambda weights: sum(float(weight.read().sum()) for weight in weights.stream()),
    "by another's value": lambda weights: float(weights[_name(weights["scale"].read())].read().sum()),
    "by another name": lambda weights: float(weights.rename({"b": "x"})["x"].read().sum()),
    "of what is needed too": lambda weights: float(weights["w"].read().max()),
    "nothing": lambda weights: 2.0,
    "of a shape": lambda weights: float(weights["w"].shape[0]),
}


def _linked(rng: random.Random, folder: Path) -> Report:
    """An artifact of one set of weights, linked with each swap of these, and what the cache has for the swap."""
    report = Report(projects=1)
    name, fold = rng.choice([*FOLDS.items()])
    x = np.arange(4, dtype="f4") + 1
    with _cache(folder / "linked", "on") as cache:

        @cache.stage(ignore=["fold"])
        def lower(weights: WeightSet, fold: Callable[[WeightSet], float]) -> Program:
            return to_toy(weights.select(["w"]), fold(weights))

        @cache.stage
        def build(program: Program) -> cachec.File:
            with cachec.scratch() as scratch:
                return compile_toy(program, scratch / "m")

        arrays = _arrays(rng)
        earlier = build(lower(_source(SWAPS[0], arrays, folder, rng)[1], fold))
        for swap in SWAPS:
            changed = swap.change(arrays, rng)
            how, weights = _source(swap, changed, folder, rng)
            report.cases += 1
            said = f"link, {name} folded / {swap.name} / {how}"
            try:
                truth = fold(weights) * (0 + weights["w"].read() @ x)
            except (CachecError, IndexError, ValueError):
                continue  # what it needs is not there
            if "more" not in changed and "d" not in changed:
                own = cachec.link(*_offered(build(lower(weights, fold)), weights, arrays))(x)
                judge(report, f"{said}, its own", {"reason": "hit", "detail": "", **_told(own, truth)})
            module, offered = _offered(earlier, weights, arrays)
            if not offered.keys() >= module.manifest.folded.keys():
                continue  # what is not offered can't be compared
            try:
                found = cachec.link(module, offered)(x)
            except LinkError as error:
                other = {each for each in arrays if each in changed and _differs(arrays[each], changed[each])}
                other |= changed.keys() ^ arrays.keys() | {each for group in swap.tied for each in group}
                if not other:
                    report.needless.append(f"{said}: {error}")
                elif not any(repr(each) in str(error) for each in other):
                    report.failed.append(f"{said}: refused, and it names none of {other}: {error}")
            else:
                judge(report, said, {"reason": "hit", "detail": "", **_told(found, truth)})
            report.neutral += swap.bytes_of == ()
    return report


def _offered(module: cachec.File, weights: WeightSet, before: Arrays) -> tuple[cachec.File, WeightSet]:
    """A module, and the weights that it gets: those that are in it by name or by value, and new ones."""
    assert module.manifest is not None
    needed = {*module.manifest.weights, *module.manifest.folded}
    return module, weights.select([name for name in weights if name in needed or name not in before])


def _told(found: Any, truth: Any) -> dict[str, str]:
    """Both in hexadecimal. All NaN are one: the toy's program is JSON, which keeps no bits of theirs."""
    one, other = (np.where(np.isnan(each), np.nan, each) for each in map(np.asarray, (found, truth)))
    return {"value": one.tobytes().hex(), "truth": other.tobytes().hex()}


def _differs(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    return (one.dtype, one.shape, one.tobytes()) != (other.dtype, other.shape, other.tobytes())
