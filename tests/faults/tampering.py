"""Every kind of file in a store, damaged: a result is right or made anew; never another one, never an exception."""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

from tests.faults.scene import Scene


def _flip(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def _cut(path: Path, rng: random.Random) -> None:
    os.truncate(path, rng.randrange(max(1, path.stat().st_size)))


def _grow(path: Path, rng: random.Random) -> None:
    with path.open("ab") as file:
        file.write(rng.randbytes(rng.randrange(1, 5000)))


def _garble(path: Path, rng: random.Random) -> None:
    path.write_bytes(rng.randbytes(rng.randrange(5000)))


def _empty(path: Path, _rng: random.Random) -> None:
    path.write_bytes(b"")


def _remove(path: Path, _rng: random.Random) -> None:
    path.unlink()


def _folder(path: Path, _rng: random.Random) -> None:
    path.unlink()
    path.mkdir()


def _fifo(path: Path, _rng: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


def _link(path: Path, _rng: random.Random) -> None:
    path.rename(path.with_name(path.name + ".moved"))
    path.symlink_to("nowhere")


def _unreadable(path: Path, _rng: random.Random) -> None:
    path.chmod(0)


def _exchange(path: Path, rng: random.Random) -> None:
    """With another one's content: it is whole, and another."""
    others = sorted(other for other in path.parent.parent.rglob("*") if other.is_file() and other != path)
    if others:
        path.write_bytes(rng.choice(others).read_bytes())


def _row(path: Path, rng: random.Random) -> None:
    """A value in the database, which is whole."""
    if path.name != "cache.db":
        _flip(path, rng)
        return
    connection = sqlite3.connect(path)
    rows = connection.execute("SELECT rowid, key, value, mode, filename FROM Cache").fetchall()
    number, _, value, _, _ = rng.choice(rows)
    changed = bytearray(value)
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    connection.execute(
        *rng.choice(
            (
                ("UPDATE Cache SET value = ? WHERE rowid = ?", (bytes(changed), number)),
                ("UPDATE Cache SET value = ? WHERE rowid = ?", (rng.choice(rows)[2], number)),
                ("UPDATE Cache SET value = ? WHERE rowid = ?", ("text", number)),
                ("UPDATE Cache SET value = ? WHERE rowid = ?", (None, number)),
                ("UPDATE Cache SET mode = ? WHERE rowid = ?", (4, number)),
                ("UPDATE Cache SET filename = ? WHERE rowid = ?", ("../../etc/passwd", number)),
                ("UPDATE Settings SET value = ? WHERE key = ?", (rng.choice((None, "x", -1)), "sqlite_journal_mode")),
                ("INSERT INTO Settings VALUES (?, ?)", (rng.choice(("close", "x", "disk_put")), "1")),
                ("DELETE FROM Cache WHERE rowid = ?", (number,)),
                ("PRAGMA user_version = 7", ()),
            )
        )
    )
    connection.commit()
    connection.close()


DAMAGES: dict[str, Callable[[Path, random.Random], None]] = {
    "a bit": _flip,
    "cut": _cut,
    "longer": _grow,
    "garbage": _garble,
    "empty": _empty,
    "gone": _remove,
    "a folder": _folder,
    "a fifo": _fifo,
    "a link to nothing": _link,
    "no permission": _unreadable,
    "another's content": _exchange,
    "a row": _row,
}


def damage(kind: str, path: Path, rng: random.Random) -> None:
    """Damage a file in a way of ``DAMAGES``; whoever is not root has to make it writable for that."""
    mode, above = path.stat().st_mode & 0o7777, path.parent.stat().st_mode & 0o7777
    path.parent.chmod(0o700)
    path.chmod(0o600)
    DAMAGES[kind](path, rng)
    if path.is_file() and kind != "no permission":
        path.chmod(mode)
    path.parent.chmod(above)


def files(scene: Scene) -> dict[str, list[Path]]:
    """The files of a store by their kind: the folder that they are in."""
    found: dict[str, list[Path]] = {}
    for path in sorted(scene.store.rglob("*")):
        if path.is_file():
            found.setdefault(path.relative_to(scene.store).parts[0], []).append(path)
    return found
