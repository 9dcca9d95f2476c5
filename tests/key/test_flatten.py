"""What values hold by path, and what files say by key and line: the words of a difference inside."""

from __future__ import annotations

import collections
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import cachec
from cachec.base.hashing import digest_bytes
from cachec.key.content_diff import MAX_BYTES, CodeTexts, code_difference, content_difference, content_of
from cachec.key.describe import describe, literal_text
from cachec.key.flatten import MAX_LEAVES, leaf_difference, leaves
from cachec.model import PartKind


@dataclass
class Block:
    act: str = "gelu"
    inner: Any = None


class Record(msgspec.Struct):
    size: int = 1
    api_token: str = "hush"


Pair = collections.namedtuple("Pair", "left right")


@dataclass
class Config:
    blocks: list[Block] = field(default_factory=lambda: [Block(), Block()])
    options: dict[Any, Any] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (Config(), Config([Block(), Block("relu")]), "v.blocks[1].act: 'gelu' -> 'relu'"),
        (Config(), Config([Block()]), "v.blocks[1].act removed, was 'gelu'; v.blocks[1].inner removed, was None"),
        (Config(), Config(options={"a": 1}), "v.options['a'] added: 1"),
        (Config(options={"a": 1}), Config(), "v.options['a'] removed, was 1"),
        ({"a": {"b": (1, 2)}}, {"a": {"b": (1, 3)}}, "v['a']['b'][1]: 2 -> 3"),
        ({1: "x", "1": "y"}, {1: "x", "1": "z"}, "v['1']: 'y' -> 'z'"),
        ([Pair(1, 2)], [Pair(1, 4)], "v[0].right: 2 -> 4"),
        (Record(), Record(2), "v.size: 1 -> 2"),
        ({"s": {1, 2}}, {"s": {1, 3}}, "v['s']: {1, 2} -> {1, 3}"),
        ([np.zeros((2, 3))], [np.zeros((3, 2))], "v[0]: array float64[2, 3] -> array float64[3, 2]"),
        ([1] * 9, [2] * 9, "v[0]: 1 -> 2; v[1]: 1 -> 2; v[2]: 1 -> 2; v[3]: 1 -> 2; and 5 more"),
        ((), (1,), ""),
        (1, 2, ""),
        (Config(), Config(), ""),
    ],
)
def test_a_difference_is_told_by_its_path(old: object, new: object, words: str) -> None:
    assert leaf_difference(leaves(old, "v"), leaves(new, "v")) == words


def test_what_is_kept_is_bounded_and_holds_no_secret() -> None:
    nested: Any = []
    for _ in range(1000):
        nested = [nested, "x" * 10_000]
    kept = leaves(nested, "v")
    assert sum(len(path) + len(text) for path, text in kept) < 10_000
    assert len(leaves(list(range(10_000)), "v")) == MAX_LEAVES
    for value in (Record(), {"api_token": "hush"}, {"password": ["hush", b"hush"]}, [{"SECRET": {"a": "hush"}}]):
        assert "hush" not in str(leaves(value, "v"))
        assert "hush" not in describe(value)
        assert literal_text(value, "v") == ""
    assert "hush" not in describe({"user": "hush", "rest": ("hush",)}, name="api_key")
    assert describe({"tokenizer": "bert", "key": 7}) == "{'tokenizer': 'bert', 'key': 7}"


def test_what_goes_by_a_secrets_name_is_in_the_key_and_not_shown(cache: cachec.Cache) -> None:
    @cache.stage
    def fetch(token: str) -> str:
        return "model"

    secret = "-".join(["hush"] * 3)  # not as it is written: the text of this code is kept
    assert fetch.key(secret) != fetch.key("hush")
    assert fetch(secret) == "model"
    files = [path for path in cache.dir.rglob("*") if path.is_file()]
    assert len(files) > 2
    assert not [path for path in files if secret.encode() in path.read_bytes()]


@pytest.mark.parametrize(
    ("name", "old", "new", "words"),
    [
        ("a.json", '{"a": [1, {"b": 2}]}', '{\n"a": [1, {"b": 3}]}', "['a'][1]['b']: 2 -> 3"),
        ("a.json", '{"a": 1}', '{"a": 1, "c": null}', "['c'] added: None"),
        ("a.json", '{"a": 1}', '{ "a": 1}', """line 1: '{"a": 1}' -> '{ "a": 1}'"""),
        ("a.json", '{"a": 1', '{"a": 2', """line 1: '{"a": 1' -> '{"a": 2'"""),
        ("a.yml", "a: 1\nb: [x]\n", "b: [y]\na: 1\n", "['b'][0]: 'x' -> 'y'"),
        ("a.yaml", "a: [\n", "a: {\n", "line 1: 'a: [' -> 'a: {'"),
        ("a.c", "1\n2\n3\n", "1\n2\nx\n3\n", "line 3 added: 'x'"),
        ("a.c", "1\n2\n3\n", "1\n3\n", "line 2 removed: '2'"),
        ("a.c", "", "1\n", "line 1 added: '1'"),
        ("a.c", "a\nb\nc\nd\n", "A\nb\nC\nd\n", "line 1: 'a' -> 'A'; line 3: 'c' -> 'C'"),
        ("a.c", "\n".join("abcdefgh"), "\n".join("ABCDEFGH"), "and 4 more lines"),
        ("a.c", "\n".join(map(str, range(2000))), "\n".join(map(str, range(5000, 9000))), "2000 lines -> 4000 lines"),
        ("a.bin", "a\0b", "a\0c", ""),
    ],
)
def test_a_file_is_told_by_key_or_line(name: str, old: str, new: str, words: str) -> None:
    found = content_difference(name, old.encode(), new.encode())
    assert found == words or (words in found and words.startswith(("and", "2000")))


def test_what_is_no_text_or_too_large_is_not_looked_into() -> None:
    assert content_difference("a.json", b"\xff", b"\xfe") == ""
    assert content_difference("a.json", b"1" * (MAX_BYTES + 1), b"2") == ""
    deep = "[" * 100_000
    assert content_difference("a.json", deep.encode(), b"[]").startswith("line 1: ")


def test_a_file_is_read_only_while_it_is_the_one(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text(json.dumps([1]))
    digest = digest_bytes(b"[1]")
    assert content_of(str(path), digest, 3) == b"[1]"
    assert content_of(str(path), digest, 2) is None
    assert content_of(str(path), digest_bytes(b"[2]"), 3) is None
    assert content_of(str(tmp_path), digest, 3) is None
    assert content_of(str(tmp_path / "gone"), digest, 3) is None


def _texts(**texts: tuple[int, str]) -> bytes:
    return msgspec.json.encode(texts)


def test_code_is_told_by_the_lines_of_its_file() -> None:
    old, new = _texts(f=(3, "def f():\n    return 1"), g=(9, "g = 1")), _texts(f=(5, "def f():\n    return 2"))
    assert code_difference("f", old, new) == "line 6: '    return 1' -> '    return 2'"
    for name, before, after in (("g", old, new), ("f", old, old), ("f", b"", new), ("f", b'{"f": 1}', new)):
        assert code_difference(name, before, after) == ""


def test_a_stage_keeps_the_texts_of_its_code(tmp_path: Path) -> None:
    cache = cachec.Cache(tmp_path / "store", log="off")

    @cache.stage(name="stage")
    def stage(n: int) -> int:
        return _helper(n)

    _, outcome = cache.call(stage, 1)
    entry = cache.store.lookup(outcome.key)
    assert entry is not None
    [digest] = {ref for part in cache.store.parts(entry) if part.kind is PartKind.CODE for ref in part.refs}
    assert digest in {ref.digest for ref in entry.traces[0].explanations}  # or gc would take it
    texts = msgspec.json.decode(cache.store.content(digest) or b"", type=CodeTexts)
    helper = next(text for name, text in texts.items() if name.endswith("._helper"))
    lines = Path(__file__).read_text().splitlines()
    assert helper.text == "\n".join(lines[helper.line - 1 : helper.line + 1])
    assert helper.text.startswith("def _helper")


def _helper(n: int) -> int:
    return n + 1
