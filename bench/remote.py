"""Remotes on the loopback, each engine in the same run: what a miss pays for asking, and what a hit there costs.

Redis, nginx, moto and buildbox-casd are those of the tests; a server that is not installed has no rows.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import cachec
from bench import remote_build
from bench.harness import Row, interleaved
from cachec.model import Outcome
from cachec.remote.engines import engine_of
from cachec.remote.urls import parse
from tests.remote import casd_server
from tests.remote.moto_server import BUCKET, running_moto
from tests.remote.nginx_server import running_nginx
from tests.remote.redis_server import running_redis
from tests.remote.server import listening

#: Milliseconds that a miss may cost more where a remote has nothing.
_ASKED = {"folder": 2.0, "http": 2.0, "redis": 2.0, "s3": 6.0, "reapi": 6.0}
_HIT, _SENT = 10.0, 1.0

#: Calls of a build whose remote is gone, and the seconds that it may take longer.
_BUILD, _GONE = 200, 5.0

#: Bytes of the large artifact; how much longer than by the plain client, and how much memory, in MiB.
_LARGE, _SLOWER, _MEMORY = 100 << 20, 1.2, 32.0

_DOWNLOAD = Path(__file__).with_name("remote_download.py")

Call = Callable[[int], tuple[bytes, Outcome]]


def run(folder: Path, *, scale: float = 1.0) -> list[Row]:
    """scale: share of the rounds, calls and bytes."""
    numbers = itertools.count()
    with _environment(AWS_ACCESS_KEY_ID="me", AWS_SECRET_ACCESS_KEY="secret"), _servers(folder) as urls:
        return [
            *_misses(folder, urls, numbers, max(3, int(200 * scale))),
            *_hits(folder, urls, numbers, max(3, int(60 * scale))),
            *_downloads(folder, urls, max(1 << 20, int(_LARGE * scale)), max(1, round(5 * scale))),
            *_gone(folder, urls, numbers, max(5, int(_BUILD * scale))),
            *remote_build.rows(folder / "build", urls, _trips(urls), max(4, int(_BUILD * scale))),
        ]


@contextlib.contextmanager
def _environment(**variables: str) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _servers(folder: Path) -> Iterator[dict[str, str]]:
    """The URL of each engine's remote."""
    with contextlib.ExitStack() as stack:
        (folder / "shared").mkdir(exist_ok=True)
        urls = {"folder": f"file://{folder}/shared"}
        if shutil.which("nginx"):
            urls["http"] = stack.enter_context(running_nginx(folder / "nginx"))
        if shutil.which("redis-server"):
            urls["redis"] = stack.enter_context(running_redis(folder / "redis")).url
        if casd_server.find_program():
            urls["reapi"] = stack.enter_context(casd_server.running_casd(folder / "casd")).url
        endpoint = stack.enter_context(running_moto())
        urls["s3"] = f"s3://{BUCKET}/cachec?endpoint={endpoint}&region=us-east-1"
        yield urls


def _with(url: str, option: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{option}"


def _made(number: int) -> bytes:
    return number.to_bytes(8, "little") * 512  # 4 KiB


def _call(store: Path, url: str, spent: list[float] | None = None) -> Call:
    """A stage with a store of its own, and one remote or none. spent: gets the seconds of each call of the remotes."""
    with _environment(CACHEC_REMOTE=url):
        if not url:
            del os.environ["CACHEC_REMOTE"]
        cache = cachec.Cache(store, log="off", mode="on", fsync=False)
    if spent is not None:
        remotes = cache._opened.remotes
        assert remotes is not None
        for name in ("fetch", "offer"):
            setattr(remotes, name, _timed(getattr(remotes, name), spent))
    call: Call = cache.stage(name="made")(_made).call
    return call


def _timed(call: Callable[..., object], spent: list[float]) -> Callable[..., object]:
    def timed(*args: object) -> object:
        started = time.perf_counter()
        try:
            return call(*args)
        finally:
            spent.append(time.perf_counter() - started)

    return timed


def _misses(folder: Path, urls: Mapping[str, str], numbers: Iterator[int], rounds: int) -> list[Row]:
    """What the caller of a miss waits for where remotes are asked, and offered its result; the rest is as without."""
    tasks: dict[str, Callable[[], object]] = {}
    spent: dict[str, list[float]] = {}
    for name, url in urls.items():
        for mode in ("read", "write"):
            call = _call(folder / f"{mode}-{name}", _with(url, f"mode={mode}"), spent.setdefault(f"{name} {mode}", []))
            tasks[f"{name} {mode}"] = _next(call, numbers, False)
        tasks[f"{name} row"] = _question(url)
    with _environment(CACHEC_SERVER="off"):  # what sends beside it would share the processors
        times = interleaved(tasks, rounds, warmup=3)
    rows = []
    for name in urls:
        asked, sent = (_each_miss(spent[f"{name} {mode}"]) * 1e3 for mode in ("read", "write"))
        most, peer = _ASKED[name], f"one question {times[f'{name} row'] * 1e3:.1f} ms"
        rows.append(Row(f"miss, {name} asked and has nothing: more", asked, "ms", f"<= {most:g}", asked <= most, peer))
        rows.append(Row(f"miss, kept to be sent to {name}: more", sent, "ms", f"<= {_SENT:g}", sent <= _SENT))
    return rows


def _each_miss(spent: list[float]) -> float:
    """The median of a miss: of two figures each, of asking and of offering, after three of warming up."""
    return statistics.median(map(sum, zip(spent[6::2], spent[7::2], strict=True)))


def _question(url: str) -> Callable[[], object]:
    """Asks the engine alone for what is not there."""
    engine = engine_of(parse(_with(url, "timeout=60"), "main", os.environ))
    return lambda: engine.get_row(os.urandom(32).hex(), time.monotonic() + 60)


def _trips(urls: Mapping[str, str]) -> dict[str, float]:
    """The seconds of a round trip to each: a question on a connection that is there."""
    return interleaved({name: _question(url) for name, url in urls.items()}, 50, warmup=3)


def _next(call: Call, numbers: Iterator[int], is_hit: bool) -> Callable[[], None]:
    def task() -> None:
        assert call(next(numbers))[1].hit is is_hit

    return task


def _hits(folder: Path, urls: Mapping[str, str], numbers: Iterator[int], rounds: int) -> list[Row]:
    wanted = [next(numbers) for _ in range(rounds + 3)]
    tasks: dict[str, Callable[[], object]] = {}
    with _environment(CACHEC_SERVER="off"):
        for name, url in urls.items():
            call = _call(folder / f"writer-{name}", _with(url, "mode=write"))
            for number in wanted:
                call(number)
            with _environment(CACHEC_REMOTE=url):
                line = [sys.executable, "-m", "cachec", "--dir", os.fspath(folder / f"writer-{name}"), "push"]
                subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
            reader = _call(folder / f"reader-{name}", _with(url, "mode=read"))
            tasks[name] = _next(reader, iter(wanted), True)
            tasks[f"{name} row"] = _row_of(url, rounds)
        times = interleaved(tasks, rounds, warmup=3)
    rows = []
    for name in urls:
        seconds, peer = times[name], f"one row of that size {times[f'{name} row'] * 1e3:.1f} ms"
        what = f"hit of 4 KiB in {name}, none here"
        rows.append(Row(what, seconds * 1e3, "ms", f"<= {_HIT:g}", seconds * 1e3 <= _HIT, peer))
    return rows


def _row_of(url: str, rounds: int) -> Callable[[], None]:
    """Reads a row of its own each time, as a hit does: what the server and the way take of it."""
    engine = engine_of(parse(_with(url, "timeout=60"), "main", os.environ))
    names = [os.urandom(32).hex() for _ in range(rounds + 3)]
    for name in names:
        engine.put_row(name, os.urandom(2000), (), time.monotonic() + 60, replace=False)
    left = iter(names)

    def task() -> None:
        assert engine.get_row(next(left), time.monotonic() + 60) is not None

    return task


def _downloads(folder: Path, urls: Mapping[str, str], nbytes: int, rounds: int) -> list[Row]:
    """Each in a process of its own, by turns: as an entry's artifact, and by the client itself into a file."""
    rows = []
    for name, url in urls.items():
        seconds: dict[str, list[float]] = {"put": [], "get": [], "plain": []}
        memory = 0.0
        for verb in ("put", *("get", "plain") * rounds):
            line = [
                sys.executable,
                os.fspath(_DOWNLOAD),
                verb,
                _with(url, "timeout=60"),
                str(nbytes),
                os.fspath(folder),
            ]
            done = subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True, env=_paths())
            told = json.loads(done.stdout)
            seconds[verb].append(told["seconds"])
            memory = max(memory, told["memory"] if verb == "get" else 0.0)
        got, plain = (min(seconds[verb]) for verb in ("get", "plain"))  # what else runs only adds
        peer = f"the client's own download {plain * 1e3:.0f} ms"
        what = f"{nbytes >> 20} MiB from {name}"
        rows.append(Row(what, got * 1e3, "ms", f"<= {_SLOWER}x", got <= _SLOWER * plain, peer, got / plain))
        rows.append(Row(f"{what}, peak memory more", memory, "MiB", f"<= {_MEMORY:g}", memory <= _MEMORY))
    return rows


def _paths() -> dict[str, str]:
    root = os.fspath(Path(__file__).parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))}


def _gone(folder: Path, urls: Mapping[str, str], numbers: Iterator[int], calls: int) -> list[Row]:
    """A build whose remote takes connections and never answers."""
    rows = []
    with listening() as hole, _environment(CACHEC_SERVER="off"):
        place = hole.removeprefix("http://").removesuffix("/team")
        gone = {"http": hole, "redis": f"redis://{place}/0", "s3": f"s3://{BUCKET}?endpoint=http://{place}"}
        gone["reapi"] = f"reapi://{place}"
        times = {}
        for name, url in {"none": "", **{name: url for name, url in gone.items() if name in urls}}.items():
            call = _call(folder / f"gone-{name}", url)
            started = time.monotonic()
            for _ in range(calls):
                assert not call(next(numbers))[1].hit
            times[name] = time.monotonic() - started
        for name in times.keys() - {"none"}:
            more = times[name] - times["none"]
            what = f"{calls} misses, {name} never answers: more"
            peer = f"without {times['none']:.1f} s"
            rows.append(Row(what, max(0.0, more), "s", f"<= {_GONE:g}", more <= _GONE, peer))
    return sorted(rows, key=lambda row: row.name)
