"""What plugins say of IR, and what is said where they fail or are not there."""

from __future__ import annotations

import pytest

from cachec.base.hashing import digest_bytes
from cachec.errors import PluginError
from cachec.key.key_diff import first_difference
from cachec.model import Part, PartKind
from cachec.programs import ir, registry
from cachec.programs.plugin import Plugin, Reproducer
from cachec.programs.registry import Plugins


class Telling(Plugin):
    name = "telling"

    def difference(self, before: bytes, after: bytes) -> str:
        return f"{before.decode()} became {after.decode()}"

    def suffix(self, format: str) -> str:
        return f".{format.partition(':')[2]}"

    def reproducer(self, command: list[str], data: bytes) -> Reproducer:
        return Reproducer(data + command[-1].encode(), ".again", "--again")


class Failing(Plugin):
    name = "failing"

    def difference(self, before: bytes, after: bytes) -> str:
        raise ZeroDivisionError("a bug")

    suffix = difference
    reproducer = difference


class Silent(Plugin):
    name = "silent"


@pytest.fixture(autouse=True)
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plugins, "all", lambda self: (Failing(), Silent(), Telling()))


def test_the_plugin_of_the_format_is_asked() -> None:
    assert ir.difference("telling:x", b"a", b"b") == "a became b"
    assert ir.suffix("telling:x") == ".x"
    assert ir.suffix("silent:x") == ".ir"


@pytest.mark.parametrize(
    ("format", "words"),
    [
        ("failing:x", "plugin 'failing' fails: ZeroDivisionError: a bug"),
        ("silent:x", "plugin 'silent' does not tell programs apart"),
        ("absent:x", "no plugin is named 'absent' .installed: failing, silent, telling."),
    ],
)
def test_a_plugin_that_fails_or_is_not_there_is_said(format: str, words: str) -> None:
    with pytest.raises(PluginError, match=words):
        ir.difference(format, b"a", b"b")
    held = {digest_bytes(data): data for data in (b"a", b"b")}
    old, new = (Part(PartKind.PROGRAM, "p", digest, refs=(digest,), version=format) for digest in held)
    found = first_difference((old,), (new,), held.get).detail
    assert found.startswith(f"program p: IR {digest_bytes(b'a')[:12]} -> {digest_bytes(b'b')[:12]} (")
    assert words[:8] in found


def test_a_reproducer_is_made_by_all_that_can_and_the_others_say_why_not() -> None:
    forms, refused = ir.reproducers(["tool", "-x"], b"data")
    assert forms == [Reproducer(b"data-x", ".again", "--again")]
    assert refused == ["plugin 'failing' fails: ZeroDivisionError: a bug"]


def test_plugins_that_can_t_be_loaded_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Plugins) -> tuple[Plugin, ...]:
        raise PluginError("plugin 'x' can't be loaded")

    monkeypatch.setattr(Plugins, "all", broken)
    assert ir.reproducers(["tool"], b"") == ([], ["plugin 'x' can't be loaded"])
    with pytest.raises(PluginError, match="can't be loaded"):
        ir.suffix("x:y")


def test_installed_plugins_are_found_once() -> None:
    assert registry.installed_plugins() is registry.installed_plugins()
