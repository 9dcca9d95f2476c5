"""Ways of damaging what a store is made of: files, folders, links, rows, and names that are not there yet."""

from __future__ import annotations

import os
import random
import shutil
import socket
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple


class Place(NamedTuple):
    """role: the same on every machine. kind: of ``DAMAGES``. path: in the store. row: of the database at that path."""

    role: str
    kind: str
    path: Path
    row: int = 0


#: A file, or a link that leads where nobody but the user put it, has as many bytes as are read.
_ENDLESS = "/dev/zero"
#: Bytes of a file without content: reading it takes longer than anybody waits.
_HUGE = 1 << 40


def _outside(place: Place) -> Path:
    """A folder of the user's beside the store, in which nothing may change."""
    store = next(above for above in place.path.parents if above.name == "store")
    return store.parent / "outside"


def _flip(place: Place, rng: random.Random) -> None:
    data = bytearray(place.path.read_bytes())
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    place.path.write_bytes(data)


def _cut(place: Place, rng: random.Random) -> None:
    os.truncate(place.path, rng.randrange(max(1, place.path.stat().st_size)))


def _grow(place: Place, rng: random.Random) -> None:
    with place.path.open("ab") as file:
        file.write(rng.randbytes(rng.randrange(1, 5000)))


def _garble(place: Place, rng: random.Random) -> None:
    place.path.write_bytes(rng.randbytes(rng.randrange(5000)))


def _empty(place: Place, _rng: random.Random) -> None:
    place.path.write_bytes(b"")


def _huge(place: Place, _rng: random.Random) -> None:
    place.path.touch()
    os.truncate(place.path, _HUGE)


def _unreadable(place: Place, _rng: random.Random) -> None:
    if not os.path.lexists(place.path):
        place.path.touch()
    place.path.chmod(0)


def _exchange(place: Place, rng: random.Random) -> None:
    """With another one's content: it is whole, and another."""
    above = place.path.parent.parent
    others = sorted(other for other in above.rglob("*") if other.is_file() and other != place.path)
    if others:
        place.path.write_bytes(rng.choice(others).read_bytes())


def _remove(place: Place, _rng: random.Random) -> None:
    if place.path.is_dir() and not place.path.is_symlink():
        for folder, _, _ in os.walk(place.path):
            os.chmod(folder, 0o700)
        shutil.rmtree(place.path)
    else:
        place.path.unlink(missing_ok=True)


def _instead(make: Callable[[Place], object]) -> Callable[[Place, random.Random], None]:
    """Something else by that name."""

    def put(place: Place, rng: random.Random) -> None:
        _remove(place, rng)
        make(place)

    return put


def _socket(place: Place) -> None:
    short = place.path.with_name("socket")
    folder = os.open(place.path.parent, os.O_RDONLY)
    with closing(socket.socket(socket.AF_UNIX)) as made:
        made.bind(f"/proc/self/fd/{folder}/{short.name}")  # a longer path fits into no address
    os.close(folder)
    short.rename(place.path)


def _filled(place: Place) -> None:
    """A folder with names that nobody gave, one of which is no text."""
    place.path.mkdir(exist_ok=True)
    for name in (b"file", b"a" * 64, b"\xff\x1b[31m", b"a\nb", b"-rf"):
        with open(os.path.join(os.fsencode(place.path), name), "wb") as file:
            file.write(b"garbage")
    os.mkfifo(place.path / "fifo")
    (place.path / "folder" / "deep").mkdir(parents=True)


def _moved_out(place: Place, _rng: random.Random) -> None:
    """What it was lies elsewhere, and a link leads there."""
    target = _outside(place) / "moved" / f"{place.path.name}"
    target.parent.mkdir(exist_ok=True)
    if place.path.is_symlink():
        place.path.unlink()
        target.write_bytes(b"the user's")
    else:
        place.path.chmod(0o700)
        shutil.move(place.path, target)
    place.path.symlink_to(target)


def _open_to_all(place: Place, _rng: random.Random) -> None:
    place.path.chmod(0o777)


def _row(statement: str, *values: object) -> Callable[[Place, random.Random], None]:
    """Change a row of the database, which stays whole. values: taken as they are, or made of the row's own value and
    those of all."""

    def change(place: Place, rng: random.Random) -> None:
        with closing(sqlite3.connect(place.path)) as database:
            rows = database.execute("SELECT value FROM Cache ORDER BY rowid").fetchall()
            own = database.execute("SELECT value FROM Cache WHERE rowid = ?", (place.row,)).fetchone()
            made = [value(own[0], [row[0] for row in rows], rng) if callable(value) else value for value in values]
            database.execute(statement, (*made, place.row) if statement.endswith("rowid = ?") else made)
            database.commit()

    return change


def _bit(own: bytes, _all: list[bytes], rng: random.Random) -> bytes:
    changed = bytearray(own)
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


_FOLDER_INSTEAD = {
    "a folder": _instead(_filled),
    "a fifo": _instead(lambda place: os.mkfifo(place.path)),
    "a socket": _instead(_socket),
    "a link to nothing": _instead(lambda place: place.path.symlink_to("nowhere")),
    "a link to itself": _instead(lambda place: place.path.symlink_to(place.path.name)),
    "a link to what never ends": _instead(lambda place: place.path.symlink_to(_ENDLESS)),
    "a link to the user's file": _instead(lambda place: place.path.symlink_to(_outside(place) / "file")),
    "a link to the user's folder": _instead(lambda place: place.path.symlink_to(_outside(place) / "folder")),
}
_CONTENT = {"garbage": _garble, "empty": _empty, "huge": _huge, "no permission": _unreadable}

#: By the kind of a place, the ways.
DAMAGES: dict[str, dict[str, Callable[[Place, random.Random], None]]] = {
    "file": {
        **{"a bit": _flip, "cut": _cut, "longer": _grow, "another's content": _exchange, "gone": _remove},
        **{"moved out": _moved_out, "open to all": _open_to_all},
        **_CONTENT,
        **_FOLDER_INSTEAD,
    },
    "folder": {
        **{"gone": _remove, "moved out": _moved_out, "open to all": _open_to_all, "no permission": _unreadable},
        **{"a file": _instead(lambda place: place.path.write_bytes(b"x")), "more": lambda place, _: _filled(place)},
        **_FOLDER_INSTEAD,
    },
    "link": {"gone": _remove, "moved out": _moved_out, **_FOLDER_INSTEAD},
    "not there": {**_CONTENT, **_FOLDER_INSTEAD},
    "row": {
        "a bit": _row("UPDATE Cache SET value = ? WHERE rowid = ?", _bit),
        "cut": _row(
            "UPDATE Cache SET value = ? WHERE rowid = ?", lambda own, _all, rng: own[: rng.randrange(len(own))]
        ),
        "another's": _row("UPDATE Cache SET value = ? WHERE rowid = ?", lambda _own, every, rng: rng.choice(every)),
        "text": _row("UPDATE Cache SET value = ? WHERE rowid = ?", "text"),
        "none": _row("UPDATE Cache SET value = ? WHERE rowid = ?", None),
        "a number": _row("UPDATE Cache SET value = ? WHERE rowid = ?", -1),
        "of another mode": _row("UPDATE Cache SET mode = ? WHERE rowid = ?", 4),
        "a name of a file": _row("UPDATE Cache SET filename = ? WHERE rowid = ?", "../../etc/passwd"),
        "another tag": _row("UPDATE Cache SET tag = ? WHERE rowid = ?", b"\xff"),
        "expired": _row("UPDATE Cache SET expire_time = ? WHERE rowid = ?", 1.0),
        "gone": _row("DELETE FROM Cache WHERE rowid = ?"),
    },
    "database": {
        **{
            f"a mode that is {value!r}": _row("UPDATE Settings SET value = ? WHERE key = 'sqlite_journal_mode'", value)
            for value in (None, "x", -1)
        },
        **{
            f"a setting {name}": _row("INSERT INTO Settings VALUES (?, '1')", name)
            for name in ("close", "x", "disk_put")
        },
        "another version": _row("PRAGMA user_version = 7"),
        "no table": _row("DROP TABLE Cache"),
        "no settings": _row("DROP TABLE Settings"),
        "a trigger": _row("CREATE TRIGGER cruel AFTER INSERT ON Cache BEGIN DELETE FROM Cache; END"),
    },
}


def damage(way: str, place: Place, rng: random.Random) -> None:
    """Damage a place in a way of its kind; whoever is not root has to make it writable for that."""
    path, above = place.path, place.path.parent
    above_mode = above.stat().st_mode & 0o7777
    above.chmod(0o700)
    mode = path.lstat().st_mode & 0o7777 if os.path.lexists(path) else None
    if mode is not None and not path.is_symlink():
        path.chmod(0o700)
    DAMAGES[place.kind][way](place, rng)
    if mode is not None and place.kind in {"file", "folder"} and way not in {"no permission", "open to all"}:
        same = path.is_file() if place.kind == "file" else path.is_dir()
        if same and not path.is_symlink():
            path.chmod(mode)
    if above.is_dir():
        above.chmod(above_mode)
