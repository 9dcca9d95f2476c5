"""What a miss of a command says beside thousands of others: for each kind of edit the right entry, part and words."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from cachec.base.hashing import digest_bytes
from cachec.launcher.explain import explain
from cachec.model import Inline, Part, Trace
from cachec.store.store import Store

from .conftest import FAKECC, FAKECC_ADAPTER, Launcher, write

LINE = ("fakecc", "a.txt", "-DX=1", "-g", "-o", "a.out", "-l", "lib.txt")


class Edit(NamedTuple):
    """What is done before the command line; reason, and the first difference: its part and words."""

    reason: str
    part: str = ""
    words: str = ""
    line: tuple[str, ...] = LINE
    options: tuple[str, ...] = ()
    change: Callable[[pytest.MonkeyPatch], object] = lambda _: None


def line(**changed: str) -> tuple[str, ...]:
    return tuple(changed.get(each.lstrip("-").partition("=")[0].replace(".", "_"), each) for each in LINE)


def variable(name: str, value: str) -> Callable[[pytest.MonkeyPatch], object]:
    return lambda patch: patch.setenv(name, value)


def text(path: str, content: str) -> Callable[[pytest.MonkeyPatch], object]:
    return lambda _: write(path, content)


def adapter(_: pytest.MonkeyPatch) -> None:
    write("../fakecc.toml", FAKECC_ADAPTER.replace('"--print"', '"--more"'))


JSON = json.dumps({"opt": {"level": 2, "passes": ["a", "b"]}}, indent=1)

EDITS = {
    "a flag more": Edit("option-changed", "arg/-O2", "-O2 added", line=(*LINE, "-O2")),
    "a flag less": Edit("option-changed", "arg/-g", "-g removed", line=tuple(each for each in LINE if each != "-g")),
    "another value": Edit("option-changed", "arg/-DX", "-DX: -DX=1 -> -DX=2", line=line(DX="-DX=2")),
    "the order": Edit(
        "option-changed",
        "order/order of arguments",
        "order of arguments",
        line=(LINE[0], "-g", LINE[1], LINE[2], *LINE[4:]),
    ),
    "another output": Edit("option-changed", "arg/-o", "-o: -o a.out -> -o b.out", line=line(a_out="b.out")),
    "a line": Edit("file-changed", "file/a.txt", "line 2: 'two' -> '2'", change=text("a.txt", "one\n2\nthree\n")),
    "a line more": Edit(
        "file-changed", "file/a.txt", "line 3 added: 'and'", change=text("a.txt", "one\ntwo\nand\nthree\n")
    ),
    "a line less": Edit("file-changed", "file/a.txt", "line 2 removed: 'two'", change=text("a.txt", "one\nthree\n")),
    "a beside file": Edit("dependency-changed", "", "lib.txt has other content", change=text("lib.txt", "bil\n")),
    "the mode of a beside file": Edit(
        "dependency-changed", "", "lib.txt has the mode 600, and had 644", change=lambda _: os.chmod("lib.txt", 0o600)
    ),
    "another beside file": Edit(
        "option-changed", "arg/-l", "-l: -l lib.txt -> -l lib2.txt", line=line(lib_txt="lib2.txt")
    ),
    "a variable": Edit(
        "environment-changed", "env/FAKE_OPT", "FAKE_OPT: not set -> '3'", change=variable("FAKE_OPT", "3")
    ),
    "the locale": Edit("environment-changed", "env/LC_ALL", "LC_ALL", change=variable("LC_ALL", "C.UTF-8")),
    "the loader's folders": Edit(
        "environment-changed", "env/LD_LIBRARY_PATH", "LD_LIBRARY_PATH", change=variable("LD_LIBRARY_PATH", "/nowhere")
    ),
    "the compiler": Edit(
        "dependency-changed",
        "",
        "fakecc has other content",
        change=text("../bin/fakecc", FAKECC + "# another build\n"),
    ),
    "the adapter": Edit("stage-changed", "stage/exec:fakecc", "adapter fakecc", change=adapter),
    "portable": Edit("platform-changed", "platform", "platform removed", options=("--portable",)),
    "a file named by option": Edit("file-changed", "file/lib2.txt", "lib2.txt added", options=("--input=lib2.txt",)),
    "a new file": Edit("new-input", "", "new.txt was never compiled", line=line(a_txt="new.txt")),
    "a new file over the old output": Edit(
        "new-input", "", "new.txt was never compiled; the nearest is of a.txt", line=line(a_txt="new.txt", g="-O3")
    ),
    "a renamed file": Edit("new-input", "", "copy.txt was never compiled", line=line(a_txt="copy.txt")),
    "a file in another folder": Edit(
        "option-changed", "arg/input", "input: a.txt -> sub/a.txt", line=line(a_txt="sub/a.txt")
    ),
    "a flag and a line": Edit(
        "option-changed", "arg/-O2", "-O2 added", line=(*LINE, "-O2"), change=text("a.txt", "one\n2\nthree\n")
    ),
    "nothing": Edit("hit"),
    "time stamps": Edit("hit", change=lambda _: os.utime("a.txt", (5, 5))),
}


def beside(store: Store, key: str, count: int) -> None:
    """Newer entries like that of a key, each of another source and output, with its own flags."""
    entry = store.lookup(key)
    assert entry is not None
    parts = store.parts(entry)
    trace = Trace(reads=(), value=Inline("int", "1"), seconds=1.0, created=1.0)

    def other(part: Part, number: int) -> Part:
        if part.subject or part.label in {"arg/-DX", "arg/input"}:
            digest, name = digest_bytes(f"{part.label} {number}".encode()), f"{part.subject and 'other'}{number}"
            return msgspec.structs.replace(part, digest=digest, subject=part.subject and name, detail=name)
        return part

    def publish() -> None:
        for number in range(count):
            said = [other(part, number) for part in parts]
            described = store.objects.add_bytes(msgspec.json.encode(said))
            store.publish(
                digest_bytes(f"other {number}".encode()), entry.stage, (), described, trace, search_parts=said
            )

    store.index.atomically(publish)


@pytest.mark.parametrize("others", [20, pytest.param(600, marks=pytest.mark.long)])
def test_each_edit_of_a_command(launcher: Launcher, monkeypatch: pytest.MonkeyPatch, others: int) -> None:
    for name in (*("sub/a.txt", "copy.txt", "a.txt"), "lib2.txt", "lib.txt", "new.txt"):
        write(name, {"lib.txt": "lib\n", "lib2.txt": "lib\n", "new.txt": "new\n"}.get(name, "one\ntwo\nthree\n"))
    os.chmod("lib.txt", 0o644)
    launcher.run(*LINE)
    base = launcher.last().key
    store = Store(launcher.store)
    beside(store, base, others)
    kept = {
        path: path.read_bytes()
        for path in (Path("a.txt"), Path("lib.txt"), Path("../bin/fakecc"), Path("../fakecc.toml"))
    }
    wrong = {}
    for name, edit in EDITS.items():
        with monkeypatch.context() as patch:
            edit.change(patch)
            found = explain([*edit.options, "--", *edit.line])
        for path, content in kept.items():
            path.write_bytes(content)
        os.chmod("lib.txt", 0o644)
        first = found.differences[0] if found.differences else None
        seen = [found.outcome.reason.value.removeprefix("miss:")]
        if edit.part:
            seen += [found.nearest, first.part.label if first else "", first.words if first else ""]
            ok = (
                seen[:3] == [edit.reason, base, edit.part]
                and edit.words in seen[3]
                and edit.words in found.outcome.detail
            )
        else:
            seen.append(found.outcome.detail)
            ok = seen[0] == edit.reason and edit.words in seen[1]
        if not ok:
            wrong[name] = seen
    store.close()
    assert not wrong, "\n".join(f"{name}: {seen}" for name, seen in wrong.items())


def test_a_file_with_keys_is_told_by_key(launcher: Launcher) -> None:
    for suffix, before, after in (
        ("json", JSON, JSON.replace("2", "3")),
        ("yaml", "opt:\n  level: 2\n  passes: [a, b]\n", "opt: {passes: [a, b], level: 3}\n"),
    ):
        write(f"cfg.{suffix}", before)
        line = ("fakecc", f"cfg.{suffix}", "-o", "out")
        launcher.run(*line)
        write(f"cfg.{suffix}", after)
        found = explain(["--", *line])
        assert found.outcome.detail.endswith(f"file cfg.{suffix}: ['opt']['level']: 2 -> 3"), found
