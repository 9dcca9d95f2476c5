"""The topology hash: random changes that must not count, and random changes that must."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cachec.errors import CheckpointError
from cachec_mlir import canonical, topology
from tests.plugins.mlir.conftest import inline_program, program

CONTROL_FLOW = """\
#map = affine_map<(d0, d1) -> (d1, d0)>
#set = affine_set<(d0) : (d0 - 10 >= 0)>
!vec = tensor<4xf32>
module attributes {foo.map = #map, foo.pair = [#map, #set]} {
  func.func private @declared(i32, !vec) -> (i32 {x.a = 1 : i32})
  func.func @loop(%n: i32, %v: !vec) -> (i32, !vec) attributes {bar = {a = "}"}} {
    %zero = arith.constant 0 : i32
    cf.br ^head(%zero : i32)
  ^head(%i: i32):
    %more = arith.cmpi slt, %i, %n : i32
    cf.cond_br %more, ^body, ^end(%i, %n : i32, i32)
  ^body:
    %one = arith.constant 1 : i32
    %next = arith.addi %i, %one : i32
    cf.br ^head(%next : i32)
  ^end(%a: i32, %b: i32):
    return %a, %v : i32, !vec
  }
  func.func @regions(%n: i32) -> i32 {
    %two:2 = "foo.pair"(%n) ({
    ^bb0(%x: i32):
      %y = arith.addi %x, %n : i32
      "foo.yield"(%y) : (i32) -> ()
    }, {
    ^bb0(%x: i32):
      %y = arith.muli %x, %n : i32
      "foo.yield"(%y) : (i32) -> ()
    }) {map = #map, e = -1.5e-10 : f32} : (i32) -> (i32, i32)
    %s = arith.subi %two#0, %two#1 : i32
    return %s : i32
  }
}
"""
STATIC = {"control flow": CONTROL_FLOW, "resources": program(0), "inline": inline_program(0)}
MODULES = [*STATIC, "minilm", "flow", "generic"]


class Texts(dict[str, str]):
    """Modules by name; hypothesis prints arguments."""

    def __repr__(self) -> str:
        return "Texts"


@pytest.fixture(scope="module")
def texts(minilm, iree_opt, tmp_path_factory) -> Texts:
    """Modules by name; ``flow`` and ``generic`` are printed by IREE."""
    import subprocess

    from tests.plugins.mlir.conftest import IREE_OPT

    path = tmp_path_factory.mktemp("flow") / "m.mlir"
    path.write_text(program(0))
    command = [IREE_OPT.with_name("iree-compile"), "--compile-to=flow", "--iree-hal-target-device=local"]
    command += ["--iree-hal-local-target-device-backends=llvm-cpu", path.name, "-o", "-"]
    done = subprocess.run(command, capture_output=True, cwd=path.parent, check=True)
    generic = iree_opt(program(0).encode(), "--mlir-print-op-generic", "--mlir-print-local-scope")
    return Texts(STATIC | {"minilm": minilm[0], "flow": done.stdout.decode(), "generic": generic.decode()})


#: A dialect's attribute or type with its body, brackets in brackets.
BODY = r"\w"
for _ in range(6):
    BODY = rf"(?:[^<>(){{}}\[\]\"-]|->|-(?!>)|\"[^\"]*\"|[<({{\[](?:{BODY})*[>)}}\]])"
BODY = rf"[#!][A-Za-z_][\w$-]*(?:\.[\w$.-]+|\s*)<(?:{BODY})*>"


def outside_strings(text: str, pattern: str, change) -> str:
    """``change(match)`` for each match of ``pattern`` that is in no string, comment, trailer or dialect's attribute."""
    head, mark, tail = text.partition("{-#")
    found = re.compile(rf'"(?:[^"\\]|\\.)*"|//.*|{BODY}|({pattern})')
    return found.sub(lambda m: m[0] if m[1] is None else change(m), head) + mark + tail


def by_function(text: str, change) -> str:
    """``change`` for each top-level piece: a new one begins at each line with a function."""
    return "".join(change(piece) for piece in re.split(r"(?m)(?=^ *(?:func|util)\.func )", text))


def rename_values(text: str, r: random.Random) -> str:
    def piece(part: str) -> str:
        names = sorted(set(re.findall(r"%([\w$.-]+)", part)))
        pool = {*names, *(f"x{n}" for n in range(len(names))), *map(str, range(9000, 9000 + len(names)))}
        to = dict(zip(names, r.sample(sorted(pool), len(names)), strict=True))
        return outside_strings(part, r"%[\w$.-]+", lambda m: "%" + to[m[0][1:]])

    return by_function(text, piece)


def rename_labels(text: str, r: random.Random) -> str:
    def piece(part: str) -> str:
        to = {name: f"l{r.random()}".replace(".", "_") for name in set(re.findall(r"\^(\w+)", part))}
        return outside_strings(part, r"\^\w+", lambda m: "^" + to[m[0][1:]])

    return by_function(text, piece)


def rename_aliases(text: str, r: random.Random) -> str:
    names = re.findall(r"(?m)^([#!]\w+) =", text)
    to = {name: f"{name[0]}n{r.randrange(10**9)}" for name in names}
    return outside_strings(text, r"[#!][\w.]+", lambda m: to.get(m[0], m[0]))


def inline_aliases(text: str, r: random.Random) -> str:
    while (found := re.search(r"(?m)^([#!]\w+) = (.*)\n", text)) is not None:
        text = text[: found.start()] + text[found.end() :]
        text = outside_strings(text, r"[#!][\w.]+", lambda m, found=found: found[2] if m[0] == found[1] else m[0])
    return text


def spaces(text: str, r: random.Random) -> str:
    some = [" ", "  ", "\n", "\t ", ' // a "comment { (\n ', "\r\n", "\n\n//\n"]
    return outside_strings(text, r"[ \n]", lambda m: r.choice(some) if r.random() < 0.3 else m[0])


def locations(text: str, r: random.Random) -> str:
    some = [
        ' loc("a.py":1:2)',
        " loc(unknown)",
        ' loc(fused<{a = "}"}>["x", "y"(callsite("b" at "c":3:4))])',
        " loc(#loc7)",
    ]
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if re.match(r"\s+%[\w:, %]+ = .* : .*[\w>)]$", line) and r.random() < 0.5:
            lines[number] += r.choice(some)
    head, mark, tail = "\n".join(lines).partition("{-#")
    return head + '\n#loc7 = loc("z":1:1)\n#loc8 = loc(callsite(#loc7 at #loc7))\n' + mark + tail


def resource_bytes(text: str, r: random.Random) -> str:
    head, mark, tail = text.partition("{-#")
    return (
        head
        + mark
        + re.sub(r'(?<="0x\w{8})(\w+)', lambda m: "".join(r.choices("0123456789abcdefABCDEF", k=len(m[0]))), tail)
    )


def resource_order(text: str, r: random.Random) -> str:
    head, mark, tail = text.partition("{-#")
    items = re.findall(r'\w+: "0x\w+"', tail)
    shuffled = reversed(items)
    return head + mark + re.sub(r'\w+: "0x\w+"', lambda m: next(shuffled), tail)


SAME = [
    *(rename_values, rename_labels, rename_aliases, inline_aliases, locations, resource_bytes, resource_order),
    spaces,
]
QUICK = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("name", MODULES)
@QUICK
@given(seed=st.integers(0, 2**32), changes=st.sets(st.sampled_from(SAME), min_size=1, max_size=4))
def test_what_does_not_count(texts, name, seed, changes):
    r, text = random.Random(seed), texts[name]
    if len(text) > 20_000:
        text = re.split(r"(?m)(?=^  func\.func private)", text)[-1]  # one function of MiniLM at a time
        text = "module {\n" + text
    changed = text
    for change in sorted(changes, key=SAME.index):  # the others work on lines, so spaces come last
        changed = change(changed, r)
    assert topology(changed.encode()) == topology(text.encode()), [each.__name__ for each in changes]


@pytest.mark.parametrize("change", SAME, ids=lambda f: f.__name__)
def test_each_change_changes_some_text(texts, change):
    changed = {name for name, text in texts.items() if change(text, random.Random(1)) != text}
    assert changed
    for name in changed:
        assert topology(change(texts[name], random.Random(1)).encode()) == topology(texts[name].encode()), name


TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|->|[%^#!@]?[\w$.]+|\S')


#: Each bracket, and how another pair is put beside it.
BRACKETS = {"{": "{}{", "}": "}{}", "(": "()(", ")": ")()", "[": "[][", "]": "][]", "<": "<><", ">": "><>"}


def program_tokens(text: str) -> list[tuple[int, int]]:
    """Tokens that say something: in no trailer, not a name (those are changed one at a time elsewhere)."""
    head = text.partition("{-#")[0]
    return [
        m.span()
        for m in TOKEN.finditer(head)
        if (m[0][0] not in "%^#!" and not re.match(r"\s*=", head[m.end() :])) or m[0] == "="
    ]


@pytest.mark.parametrize("name", MODULES)
@QUICK
@given(data=st.data())
def test_what_counts(texts, name, data):
    text = texts[name]
    base = topology(text.encode())
    tokens = program_tokens(text)
    start, end = data.draw(st.sampled_from(tokens))
    token = text[start:end]
    kind = "replace" if token in BRACKETS else data.draw(st.sampled_from(["replace", "repeat", "drop", "swap"]))
    # With spaces, or it would become a part of the name beside it.
    if kind == "replace":
        other = "@other" if token[0] == "@" else '"other"' if token[0] == '"' else f"x {token}"
        new = f"{text[:start]} {BRACKETS.get(token, other)} {text[end:]}"
    elif kind == "repeat":
        new = f"{text[:start]} {token} {token} {text[end:]}"
    elif kind == "drop":
        new = f"{text[:start]} {text[end:]}"
    else:
        other_start, other_end = data.draw(st.sampled_from(tokens))
        if text[other_start:other_end] in {token, *BRACKETS}:
            return
        (a, b), (c, d) = sorted([(start, end), (other_start, other_end)])
        new = f"{text[:a]} {text[c:d]} {text[b:c]} {text[a:b]} {text[d:]}"
    try:
        found = topology(new.encode())
    except CheckpointError:
        return  # no module at all
    assert found != base, (kind, token, new[max(0, start - 60) : end + 60])


@pytest.mark.parametrize("name", MODULES)
@QUICK
@given(data=st.data())
def test_another_operand_counts(texts, name, data):
    """One use of a value becomes a use of another that is there too."""
    text = texts[name].partition("{-#")[0]
    pieces = [p for p in re.split(r"(?m)(?=^ *(?:func|util)\.func )", text) if len(set(re.findall(r"%[\w$]+", p))) > 1]
    if not pieces:
        pieces = [text]
    piece = data.draw(st.sampled_from(pieces))
    uses = list(re.finditer(r"%[\w$]+", piece))
    use = data.draw(st.sampled_from(uses))
    other = data.draw(st.sampled_from(sorted({m[0] for m in uses} - {use[0]})))
    if sum(m[0] == use[0] for m in uses) == 1 or sum(m[0] == other for m in uses) == 1:
        return  # perhaps only a new name
    assert topology(text.replace(piece, piece[: use.start()] + other + piece[use.end() :]).encode()) != topology(
        text.encode()
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("@loop", "@other"),
        ("private @declared", "@declared"),
        ("%i, %n : i32, i32)", "%n, %i : i32, i32)"),
        ("return %a, %v", "return %b, %v"),
        ("slt", "sle"),
        ("^body, ^end(%i, %n : i32, i32)", "^end(%i, %n : i32, i32), ^body"),
        ("(d1, d0)", "(d0, d1)"),
        ("!vec = tensor<4xf32>", "!vec = tensor<4xf64>"),
        ("[#map, #set]", "[#set, #map]"),
        ("%two#0, %two#1", "%two#1, %two#0"),
        ('"}"', '"} "'),
        ("arith.addi %x, %n", "arith.addi %n, %x"),
        ("-1.5e-10", "1.5e-10"),
        ("arith.constant 0 : i32", "arith.constant 0 : i64"),
    ],
)
def test_a_change_by_hand_counts(old, new):
    changed = CONTROL_FLOW.replace(old, new, 1)
    assert changed != CONTROL_FLOW
    assert topology(changed.encode()) != topology(CONTROL_FLOW.encode())


def test_resources_count_by_size_name_and_alignment():
    text = program(0)
    found = re.search(r'w1: "0x(\w{8})(\w+)"', text)
    base = topology(text.encode())
    for changed in (
        text[: found.start(2)] + "00" + text[found.start(2) :],
        text.replace('w1: "0x10', 'w1: "0x20'),
        text.replace('w1: "0x', 'w3: "0x'),
        text.replace(found[0] + ",", ""),
        text.replace("dense_resource<w2>", "dense_resource<w1>"),
        text.replace("dense_resource<w1>", "dense<1.0>"),
        text.partition("{-#")[0],
    ):
        assert changed != text
        assert topology(changed.encode()) != base


def test_a_constant_that_is_inline_counts():
    assert topology(inline_program(0).encode()) != topology(inline_program(1).encode())
    for long in (10, 10_000):  # as it is, and by its digest
        text = '"op"() {a = dense<"0x' + "00" * long + '"> : tensor<4xi8>} : () -> ()'
        assert topology(text.encode()) != topology(text.replace('00"', '01"').encode())
        assert topology(text.encode()) != topology(text.replace('"0x00', '"0x').encode())


def test_locations_of_jax_do_not_count(minilm):
    plain, located = minilm
    assert "loc(" in located
    assert "loc(" not in plain
    assert topology(plain.encode()) == topology(located.encode())


def test_a_location_that_is_a_value_counts():
    text = '"op"() {a = loc("x":1:1), b = [loc("y":1:1), loc("z":2:2)]} : () -> () loc("w":1:1)'
    text += '\nop at loc("u") : i32\nop at loc("t") {a = 1}\n^a(%a: i32 loc("s"), %b: i32 loc("r")):\n'
    for name in "xyzut":
        assert topology(text.replace(f'"{name}"', '"v"').encode()) != topology(text.encode())
    for name in "wsr":
        assert topology(text.replace(f'"{name}"', '"v"').encode()) == topology(text.encode())


def test_iree_prints_what_it_reads(iree_opt):
    """Other names for values, with and without locations, from text and from bytecode."""
    printed = iree_opt(CONTROL_FLOW.replace("foo.pair = ", "x.y = ").encode(), "--allow-unregistered-dialect")
    renamed = rename_values(printed.decode(), random.Random(0)).encode()
    assert renamed != printed
    options = ("--allow-unregistered-dialect", "--mlir-print-debuginfo")
    again = iree_opt(renamed, *options)
    assert b"loc(" in again
    assert topology(again) == topology(renamed) == topology(printed)
    bytecode = iree_opt(renamed, "--allow-unregistered-dialect", "--emit-bytecode")
    assert topology(iree_opt(bytecode, "--allow-unregistered-dialect")) == topology(printed)


def op(name: str, *uses: str, result: str = "", regions: tuple[str, ...] = (), to: str = "") -> str:
    """A generic operation; all values are i1."""
    inner = "" if not regions else " ({ " + " }, { ".join(regions) + " })"
    kind = f"({', '.join('i1' for _ in uses)}) -> {'i1' if result else '()'}"
    return (f"{result} = " if result else "") + f'"{name}"({", ".join(uses)}){to}{inner} : {kind} '


X, Y = op("d", result="%x"), op("d", result="%y")
BLOCKS = '{0}: "c"() : () -> () {1}: "d"() : () -> ()'
SCOPES = {
    "two regions, two values": (op("a", regions=(X, X)), op("a", regions=(X, Y)), True),
    "used inside before it is defined outside": (
        op("a", regions=(op("u", "%x"),)) + X + Y,
        op("a", regions=(op("u", "%y"),)) + X + Y,
        False,
    ),
    "used inside after": (X + Y + op("a", regions=(op("u", "%x"),)), X + Y + op("a", regions=(op("u", "%y"),)), False),
    "used in two regions within one": (
        op("a", regions=(X + Y + op("b", regions=(op("u", "%x"), op("u", "%y"))),)),
        op("a", regions=(X + Y + op("b", regions=(op("u", "%x"), op("u", "%x"))),)),
        False,
    ),
    "a label for each region": (
        op("a", regions=(op("b", to="[^x]") + BLOCKS.format("^x", "^z"),) * 2),
        op("a", regions=tuple(op("b", to=f"[{each}]") + BLOCKS.format(each, "^z") for each in ("^x", "^y"))),
        True,
    ),
    "the order of successors": (
        op("a", regions=(op("b", to="[^x, ^y]") + BLOCKS.format("^x", "^y"),)),
        op("a", regions=(op("b", to="[^y, ^x]") + BLOCKS.format("^x", "^y"),)),
        False,
    ),
    "a symbol that need not be quoted": ("call @g() : () -> ()", 'call @"g"() : () -> ()', True),
    "a symbol that has to be": ("call @g() : () -> ()", 'call @"g "() : () -> ()', False),
}


@pytest.mark.parametrize(("one", "other", "same"), SCOPES.values(), ids=SCOPES)
def test_scopes(one, other, same):
    one, other = (f"module {{\n  func.func @f() {{\n    {each}\n    return\n  }}\n}}\n" for each in (one, other))
    assert one != other
    assert (topology(one.encode()) == topology(other.encode())) is same


#: What stands between the arguments of a function and its body.
HEADERS = [
    "",
    "-> i32",
    "-> (i32, i32)",
    '-> (i32 {x.y = "{"}, i32) attributes {a = {b = 1}, c = "}"}',
    '-> tensor<4xi32, "string">',
    "-> tensor<4xi32, {foo.bar = 1}>",
    "-> tensor<4xi32, #foo.enc<bar.baz, (d0) -> (d0)>>",
    '-> !llvm.struct<"a.b", (i32, ptr)>',
    "-> !llvm.ptr<1> comdat(@a::@b) vscale_range(1, 2) attributes {k}",
    "-> %a",
    "-> %a as tensor<4xi32, #foo.enc<bar.baz>>",
    "-> (%a as i32, i32) attributes {x.y}",
    "-> !foo.bar<a>::b.c",  # nothing that is known: names are those of the module
    "-> !foo.bar[a.b] unknown words",
    "attributes {x.y = [1, 2]}",
]


@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("kind", ["func.func", "util.func public", "llvm.func", "ml_program.func"])
def test_an_argument_is_a_value_of_the_body(kind, header):
    """Wherever a header ends: another argument is another program."""
    text = f'{kind} @f(%a: i32, %b: i32) {header} {{\n "use"(%a) : (i32) -> ()\n}}\n'
    for around in ("{0}", "module {{\n{0}}}", "{0}func.func @g() {{\n}}\n", "{0}{0}"):
        one, other = (around.format(each) for each in (text, text.replace('use"(%a', 'use"(%b')))
        assert topology(one.encode()) != topology(other.encode())
    if header != HEADERS[-3] and "unknown" not in header:
        renamed = text.replace("%a", "%x").replace("%b", "%y")
        assert topology((text + text).encode()) == topology((text + renamed).encode())


def test_the_number_of_a_result_is_no_alias():
    text = '#1 = "a"\n#2 = "a"\n%x:3 = "d"() {k = #1} : () -> (i32, i32, i32)\n"u"(%x#1) : (i32) -> ()\n'
    assert topology(text.encode()) != topology(text.replace("%x#1", "%x#2").encode())
    assert topology(text.encode()) == topology(text.replace("k = #1", "k = #2").encode())


def test_a_value_of_the_module_is_no_value_of_a_function():
    """Between functions a name goes on to mean what it did, also behind one without a body."""
    for function in ("func.func @f() {\n return\n }", "func.func private @f(i32) -> (i32 {a.b = 1})"):
        values = [op(name, result=f"%{name}") for name in "mno"]
        text = "\n".join([*values[:2], function, values[2], "func.func @g() {\n}", op("use", "%m", "%o")])
        base = topology(text.encode())
        assert topology(text.replace("%o", "%k").encode()) == base
        assert topology(text.replace("%m, %o", "%n, %o").encode()) != base
        assert topology(text.replace("%m, %o", "%m, %m").encode()) != base


def test_aliases_that_grow_stay_small():
    lines = ["#a0 = [1, 2, 3, 4, 5, 6, 7, 8]"] + [f"#a{n} = [#a{n - 1}, #a{n - 1}]" for n in range(1, 60)]
    text = "\n".join([*lines, '"op"() {a = #a59} : () -> ()'])
    assert len(canonical(text.encode())) < 5000
    assert topology(text.encode()) != topology(text.replace("[1,", "[0,").encode())


def test_any_depth_is_read():
    for text in (
        "#a = " + "i32 : " * 100_000 + "i32\n",
        "!t = " + "() -> " * 100_000 + "i32\n",
        "{" * 50_000 + "}" * 50_000,
    ):
        assert len(topology(text.encode())) == 64


@pytest.mark.long
def test_long_lines_are_read_in_pieces():
    text = '"op"() : () -> () ' * 80_000
    assert topology(text.encode()) == topology(text.replace(" ", "  ").encode())
    lines = ("x" * (1 << 20) + "\n") * 4
    assert topology(lines.encode()) == topology(lines.replace("\n", "\n\n").encode())
