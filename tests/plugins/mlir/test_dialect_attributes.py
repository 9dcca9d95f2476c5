"""Attributes and types of dialects: what is in their bodies counts to the letter, and around them layout does not.

MLIR is the judge: modules are generated and changed at random, and what it prints of them is compared.
"""

from __future__ import annotations

import random
import re
import subprocess

import pytest

from cachec.errors import CheckpointError
from cachec_mlir import topology
from cachec_mlir.live.bindings import Bindings, generic
from tests.effort import rounds
from tests.plugins.mlir.test_topology import outside_strings

OPERATION = '"t.op"() {a = %s} : () -> ()\n'


def same(one: str, other: str) -> bool:
    return topology(one.encode()) == topology(other.encode())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("#foo.bar<x  y>", "#foo.bar<x y>"),
        ("#foo.bar<x\ny>", "#foo.bar<x y>"),
        ('#foo.bar<loc("x")>', '#foo.bar<loc("y")>'),
        ('#foo.bar<[1] loc("x")>', "#foo.bar<[1]>"),
        ("#foo.bar<%a>", "#foo.bar<%b>"),
        ("#foo.bar<^a>", "#foo.bar<^b>"),
        ("#foo.bar<a//b>", "#foo.bar<a//c>"),
        ("#foo.bar<a//\n>", "#foo.bar<a\n>"),
        ("#foo.bar<(a) -> (b)>", "#foo.bar<(a)->(b)>"),
        ('#foo.bar<"\\22>" a>', '#foo.bar<"\\22>"  a>'),
        ('#foo<"a  b">', '#foo< "a  b">'),
        ("!foo.t<a b>", "!foo.t<a  b>"),
        ("[#foo.bar<{a = {b}}>, 1]", "[#foo.bar<{a = { b}}>, 1]"),
        ("tensor<4xf32, #foo.enc<a b>>", "tensor<4xf32, #foo.enc<a  b>>"),
        ("#foo.bar<" + "x " * 2000 + ">", "#foo.bar<" + "x " * 1999 + "x  >"),
    ],
)
def test_a_body_counts_to_the_letter(one: str, other: str) -> None:
    mlir = Bindings("iree")
    texts = [generic(mlir.parse((OPERATION % each).encode())) for each in (one, other)]
    assert texts[0] != texts[1]
    assert not same(OPERATION % one, OPERATION % other)


def test_layout_around_a_body_does_not_count() -> None:
    text = OPERATION % '[#foo.bar<a "b">, !foo.t<c {d}>]'
    for changed in (text.replace(", !", "  ,// x\n !"), text.replace("= [", "=["), text.replace(" : ", "\n: ")):
        assert changed != text
        assert same(text, changed)


@pytest.mark.parametrize(
    "value", ["#foo.bar<x y>", "-5 : i64", "@f", "@f::@g", "[-1, 2]", "dense<-1> : tensor<2xi8>", "loc(unknown)"]
)
def test_an_alias_is_what_it_stands_for(value: str) -> None:
    assert same(f"#a = {value}\n#b = 1 : i32\n" + OPERATION % "[#a, #b]", OPERATION % f"[{value}, 1 : i32]")
    assert not same(f"#a = {value}\n" + OPERATION % "#a", OPERATION % "#foo.other")


def test_what_an_alias_in_a_body_stands_for_counts() -> None:
    one, other = "#a = 1 : i32\n", "#a = 2 : i32\n"
    for body in ("#foo.bar<#a>", "#foo.bar<[#a, #a]>", "#b"):
        ahead = "#b = #foo.bar<x, #a>\n" if body == "#b" else ""
        assert not same(one + ahead + OPERATION % body, other + ahead + OPERATION % body)
    assert same(one + OPERATION % "#foo.bar<x>", other + OPERATION % "#foo.bar<x>")
    assert len(topology((one + "#b = #foo.bar<#b, #c>\n#c = #foo.bar<#b>\n" + OPERATION % "#c").encode())) == 64


def test_a_location_that_is_a_value_counts_though_it_is_defined_behind() -> None:
    text = OPERATION % "loc(#loc1)" + '#loc = loc("x":1:1)\n#loc1 = loc(callsite(#loc at #loc))\n'
    assert not same(text, text.replace('"x"', '"y"'))
    assert same(text, text.replace("#loc1", "#other"))


@pytest.mark.parametrize("text", ["#foo.bar<(>", "#foo.bar<(]>", "#foo.bar<", '#foo.bar<">', "#foo.bar<\0>"])
def test_a_body_that_does_not_end_is_no_module(text: str) -> None:
    with pytest.raises(CheckpointError, match="byte"):
        topology((OPERATION % text).encode())


def test_digits_in_a_body_are_part_of_it() -> None:
    """Strings of digits are looked for before, as constants: one within a body, one within what only looks like one."""
    one = OPERATION % '#foo.bar<a//"0x0102">'
    assert not same(one, one.replace("0x0102", "0x0103"))
    assert not same(one, one.replace("0x0102", "0x010 2"))
    two = one.rstrip() + ' loc("x")\n' + OPERATION % 'dense<"0x01020304"> : tensor<4xi8>'
    assert not same(two, two.replace("01020304", "01020305"))
    assert same(two, two.replace('loc("x")', 'loc("y")'))


# --- at random

WORDS = ["x", "y", "loc", "1", "0x1F", "%a", "^b", "#early", "#late", "@s", "=", ",", ":", "->", "//", "-", '"s  t"']
WORDS += ['"//"', '"#early"', 'loc("u")', "tensor<2x f32>", "a.b"]
SPACES = ["", " ", "  ", "\n", "\t"]


def body(r: random.Random, depth: int = 0) -> str:
    pieces = []
    for _ in range(r.randrange(1, 5)):
        if depth < 3 and r.random() < 0.3:
            opening, closing = r.choice(["<>", "()", "[]", "{}"])
            pieces.append(opening + body(r, depth + 1) + closing)
        else:
            pieces.append(r.choice(WORDS))
        pieces.append(r.choice(SPACES))
    return "".join(pieces)


def value(r: random.Random, depth: int = 0) -> str:
    some = [
        "loc(#late)",
        'loc("v":1:2)',
        "#early",
        "1 : i32",
        '"text  text"',
        "unit",
        "tensor<4x8xf32, #early>",
        "!kind",
    ]
    if r.random() < 0.5:
        name = r.choice(["#foo.bar", "!foo.type", "#foo", "#foo.a.b", "!foo"])
        return f"{name}<{body(r)}>"
    if depth < 2 and r.random() < 0.4:
        inner = [value(r, depth + 1) for _ in range(r.randrange(1, 4))]
        if r.random() < 0.5:
            return f"[{', '.join(inner)}]"
        return "{" + ", ".join(f"k{number} = {each}" for number, each in enumerate(inner)) + "}"
    return r.choice(some)


def module(r: random.Random) -> str:
    operations = [
        f'%v{number} = "t.op"() {{a = {value(r)}, b = {value(r)}}} : () -> i32 loc("w":{number}:1)\n'
        for number in range(r.randrange(1, 4))
    ]
    return f'#early = "early"\n!kind = !foo.kind<k  k>\n{"".join(operations)}#late = loc("late":1:1)\n'


def layout(text: str, r: random.Random) -> str:
    """Spaces, comments, names of values and places, where they are layout by what the hash promises."""
    some = ["  ", "\n", " // a comment\n", "\t"]
    text = outside_strings(text, r"(?<=[,={}]) ", lambda m: r.choice(some) if r.random() < 0.5 else m[0])
    return text.replace("%v0", "%first").replace('loc("w":0:1)', 'loc("elsewhere":2:2)')


def letters(text: str, r: random.Random) -> str:
    """Any change: mostly of a space, or of a character that stands for something."""
    at = r.randrange(len(text))
    kind = r.random()
    if kind < 0.5:
        places = [found.start() for found in re.finditer(r"\s", text)]
        at = r.choice(places)
        return text[:at] + r.choice(["", "  ", "\n", " // c\n"]) + text[at + 1 :]
    if kind < 0.8:
        return text[:at] + r.choice([*WORDS, *SPACES, "<", ">", '"']) + text[at:]
    return text[:at] + text[at + 1 :]


def printed(text: str, through: str) -> bytes | None:
    try:
        return generic(Bindings(through).parse(text.encode()))
    except CheckpointError:
        return None


@pytest.mark.parametrize("through", ["iree", "jax"])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.long
def test_against_mlir(seed: int, through: str) -> None:
    r = random.Random(f"{through} {seed}")
    equal = other = tried = 0
    while tried < 25:
        text = module(r)
        judged = printed(text, through)
        if judged is None:
            continue
        tried += 1
        changed = layout(text, r)
        assert printed(changed, through) == judged, changed
        assert same(text, changed), changed
        for _ in range(3):
            changed = letters(text, r)
            found = printed(changed, through)
            if found is None:
                continue  # no module of this MLIR
            if same(text, changed):
                assert found == judged, (text, changed)
                equal += 1
            else:
                other += 1
    assert equal > 3
    assert other > 15


@pytest.mark.long
def test_against_mlir_opt(tmp_path) -> None:
    """The same, in one process for all."""
    r = random.Random(19)
    number = rounds(60)
    pairs = [(text, change(text, r)) for text in (module(r) for _ in range(number)) for change in (layout, letters)]
    parsed = {text for pair in pairs for text in pair if printed(text, "iree") is not None}
    (tmp_path / "all.mlir").write_text("\n// -----\n".join(sorted(parsed)))
    options = ["--allow-unregistered-dialect", "--mlir-print-op-generic", "--mlir-print-local-scope"]
    command = ["mlir-opt-19", *options, "--split-input-file", str(tmp_path / "all.mlir")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    outputs = [each.strip() for each in done.stdout.split("// -----")]
    judged = dict(zip(sorted(parsed), outputs, strict=True))
    compared = [(one, two) for one, two in pairs if one in judged and two in judged]
    assert len(compared) > number * 2 / 3
    for one, two in compared:
        if same(one, two):
            assert judged[one] == judged[two], (one, two)
