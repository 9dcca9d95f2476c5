"""What differs between two keys, in words."""

from __future__ import annotations

import msgspec
import pytest

from cachec.base.display_text import MAX_SHOWN
from cachec.base.hashing import digest_bytes
from cachec.errors import StoreFault
from cachec.key.key_diff import KeyDifference, differences, first_difference, spec_difference
from cachec.model import Fault, Part, Reason, WeightSpec
from tests.parts import part

BASE = (
    part("stage/pkg.lower", ""),
    part("code/pkg.lower", "pkg.py:3"),
    part("code/pkg.scale", "pkg.py:9"),
    part("code/pkg.FACTOR", "2", value="2"),
    part("distribution/jaxlib", "jaxlib 0.10.1"),
    part("ambient/jax/enable_x64", "unset"),
    part("env/XLA_FLAGS", "unset"),
    part("platform", "x86_64"),
    part("arg/seq", "16"),
    part("file/table", "t.csv 1234"),
)


def changed(name: str, detail: str, content: str | None = None) -> tuple[Part, ...]:
    assert any(each.label == name for each in BASE)
    return tuple(
        part(name, detail, content, value=detail if each.value else "") if each.label == name else each for each in BASE
    )


@pytest.mark.parametrize(
    ("name", "detail", "reason", "words"),
    [
        ("stage/pkg.lower", "2", Reason.STAGE_CHANGED, "stage pkg.lower: '' -> 2"),
        ("code/pkg.lower", "pkg.py:4", Reason.CODE_CHANGED, "stage function pkg.lower changed (pkg.py:4)"),
        ("code/pkg.scale", "pkg.py, too long", Reason.CODE_CHANGED, "helper pkg.scale changed (pkg.py, too long)"),
        ("code/pkg.FACTOR", "3", Reason.CODE_CHANGED, "value pkg.FACTOR: 2 -> 3"),
        ("distribution/jaxlib", "jaxlib 0.10.2", Reason.TOOL_CHANGED, "tool jaxlib: jaxlib 0.10.1 -> jaxlib 0.10.2"),
        ("ambient/jax/enable_x64", "True", Reason.AMBIENT_CHANGED, "ambient jax/enable_x64: unset -> True"),
        ("env/XLA_FLAGS", "-x", Reason.ENVIRONMENT_CHANGED, "environment XLA_FLAGS: unset -> -x"),
        ("platform", "aarch64", Reason.PLATFORM_CHANGED, "platform: x86_64 -> aarch64"),
        ("arg/seq", "32", Reason.OPTION_CHANGED, "seq: 16 -> 32"),
        ("file/table", "t.csv 5678", Reason.FILE_CHANGED, "file table: t.csv 1234 -> t.csv 5678"),
    ],
)
def test_each_kind_of_part_has_its_reason_and_words(name: str, detail: str, reason: Reason, words: str) -> None:
    found = first_difference(BASE, changed(name, detail))
    assert (found.reason, found.detail) == (reason, words)
    assert [each.part.label for each in found.parts] == [name]


def test_of_two_machines_only_what_differs_is_named() -> None:
    common = " ".join(f"feature{number}" for number in range(80))

    def words(new: str) -> str:
        old = f"x86_64 Linux glibc2.36 cp312; Old: CPU 1: {common} avx512f avx512vl"
        (found,) = differences((part("platform", old),), (part("platform", new),))
        return found.words

    there = "x86_64 Linux glibc2.36 cp312; New CPU"
    assert words(f"{there}: {common}") == "platform: the processor lacks avx512f avx512vl"
    assert words(f"{there}: {common} avx512f avx512vl sse9") == "platform: the processor has also sse9"
    assert words(f"x86_64 Linux glibc2.39 cp312; New CPU: {common} avx512f") == (
        "platform: x86_64 Linux glibc2.36 cp312 -> x86_64 Linux glibc2.39 cp312; the processor lacks avx512vl"
    )
    assert words(f"{there}: ").endswith("and 58 more")
    assert words("portable; cp312").startswith("platform: x86_64 Linux")


def test_equal_parts_have_no_difference() -> None:
    assert first_difference(BASE, BASE) == KeyDifference(Reason.ENTRY_GONE, "no part of the key differs", ())
    assert differences(BASE, BASE) == ()


def test_the_detail_alone_is_no_difference_and_the_digest_alone_is() -> None:
    assert differences(BASE, changed("arg/seq", "sixteen", "16")) == ()
    found = first_difference(BASE, changed("arg/seq", "16", "other bytes"))
    assert found.detail == "seq changed (both are shown as 16)"
    assert found.reason is Reason.OPTION_CHANGED


def test_a_value_is_told_from_code_by_its_field_whatever_it_looks_like() -> None:
    old = (
        part("stage/lower"),
        part("code/pkg.SEED", "12345678", value="12345678"),
        part("code/pkg.scale", "2", "1"),
        part("code/pkg.lower", "", "1"),
    )
    new = (
        part("stage/lower"),
        part("code/pkg.SEED", "0123456789ab", value="0123456789ab"),
        part("code/pkg.scale", "2", "2"),
        part("code/pkg.lower", "", "2"),
    )
    assert [each.words for each in differences(old, new)] == [
        "value pkg.SEED: 12345678 -> 0123456789ab",
        "helper pkg.scale changed (2)",
        "stage function pkg.lower changed",
    ]


def test_the_stage_of_a_script_is_named_after_main() -> None:
    old, new = (part("stage/__main__.lower"), part("code/demo.lower", "demo.py:3", "1")), part("stage/__main__.lower")
    found = first_difference(old, (new, part("code/demo.lower", "demo.py:3", "2")))
    assert found.detail == "stage function demo.lower changed (demo.py:3)"


def test_added_and_removed_parts() -> None:
    found = differences(BASE, (*BASE[:-2], part("arg/sequence", "16"), part("code/pkg.more")))
    more, sequence, seq, table = (part("code/pkg.more"), part("arg/sequence", "16"), *BASE[-2:])
    assert [(each.words, each.old, each.new) for each in found] == [
        ("helper pkg.more added", None, more),
        ("sequence added: 16", None, sequence),
        ("seq removed, was 16", seq, None),
        ("file table removed, was t.csv 1234", table, None),
    ]


def test_what_was_done_on_purpose_is_told_before_what_follows() -> None:
    old = (part("weights/w", "1"), part("program/p", "1"), part("arg/layers", "6"), part("distribution/x", "1"))
    new = (part("weights/w", "2"), part("program/p", "2"), part("arg/layers", "5"), part("distribution/x", "2"))
    found = first_difference(old, new)
    assert found.reason is Reason.TOOL_CHANGED
    assert [each.part.label for each in found.parts] == ["distribution/x", "arg/layers", "program/p", "weights/w"]


def test_a_program_inside_of_an_argument_is_told_instead_of_the_argument() -> None:
    old = (part("arg/pair", "tuple", "1"), part("program/pair[0]", "1"), part("arg/pai", "1"))
    new = (part("arg/pair", "tuple", "2"), part("program/pair[0]", "2"), part("arg/pai", "1"))
    assert first_difference(old, new).reason is Reason.TOPOLOGY_CHANGED
    assert first_difference(old, (*new[:2], part("arg/pai", "2"))).detail == "pai: 1 -> 2"


def test_two_parts_of_one_name_are_compared_each() -> None:
    old = (part("file/depends/a.h", "1"), part("file/depends/a.h", "2"))
    assert differences(old, old) == ()
    found = differences(old, (old[0], part("file/depends/a.h", "3")))
    assert [each.words for each in found] == ["file depends/a.h: 2 -> 3"]


def test_long_details_are_cut_around_the_difference() -> None:
    long = "x" * 500
    found = first_difference(BASE, changed("arg/seq", long + "a" + long))
    assert len(found.detail) < 2 * MAX_SHOWN + 20
    both = first_difference((part("arg/o", long + "a" + long),), (part("arg/o", long + "b" + long),))
    assert "xa" in both.detail
    assert "xb" in both.detail


# --- programs and weights, by what they refer to


def spec(name: str, shape: tuple[int, ...] = (4, 3), dtype: str = "float32") -> WeightSpec:
    return WeightSpec(name=name, dtype=dtype, shape=shape, nbytes=4)


class Artifacts(dict[str, bytes]):
    def program(self, text: bytes, topology: str, form: str = "jax:stablehlo") -> Part:
        self[digest_bytes(text)] = text
        return part("program/model", form, topology, version=form, refs=(digest_bytes(text),))

    def weights(self, specs: list[WeightSpec], rank: str = "") -> Part:
        data = msgspec.json.encode(specs)
        self[digest_bytes(data)] = data
        digest = digest_bytes(data)
        return part("weights/w", f"{len(specs)} weights{rank}", digest + rank, refs=(digest,))


def test_programs_are_told_by_their_operations() -> None:
    held = Artifacts()
    old = held.program(b"%0 = stablehlo.add %1, %2 : tensor<3xf32>", "t1")
    new = held.program(b"%0 = stablehlo.subtract %1, %2 : tensor<3xf32>", "t2")
    found = first_difference((old,), (new,), held.get)
    assert found.reason is Reason.TOPOLOGY_CHANGED
    assert "- stablehlo.add %, % : tensor<3xf32>; + stablehlo.subtract" in found.detail
    (same,) = differences((old,), (new,), held.get)
    assert same.words == found.detail


def test_programs_without_their_text_say_so() -> None:
    held = Artifacts()
    old, new = held.program(b"a.b", "t1"), held.program(b"c.d", "t2")
    assert "only digests are known of the old and the new one" in first_difference((old,), (new,)).detail
    one = {digest_bytes(b"a.b"): b"a.b"}
    assert "only digests are known of the new one" in first_difference((old,), (new,), one.get).detail

    def broken(_digest: str) -> bytes | None:
        raise StoreFault(Fault.ARTIFACT_CORRUPT, "it is")

    assert "only digests are known" in first_difference((old,), (new,), broken).detail
    binary = held.program(b"\xff\xfe", "t3")
    words = first_difference((old,), (binary,), held.get).detail
    assert "bytecode, whose operations `cachec mlir diff` tells apart" in words
    assert "only digests" in first_difference((part("program/p", "?"),), (part("program/p", "!"),), held.get).detail


def test_one_text_with_other_weights_or_format() -> None:
    held = Artifacts()
    old = held.program(b"same", "t1")
    assert "linked with other weights" in first_difference((old,), (held.program(b"same", "t2"),), held.get).detail
    other = held.program(b"same", "t2", "torch:stablehlo")
    assert "jax:stablehlo -> torch:stablehlo" in first_difference((old,), (other,), held.get).detail


def test_weights_are_told_by_their_specs() -> None:
    held = Artifacts()
    old, new = held.weights([spec("a"), spec("b")]), held.weights([spec("a", (4, 4)), spec("c")])
    found = first_difference((old,), (new,), held.get)
    assert found.reason is Reason.WEIGHT_SPEC_CHANGED
    assert found.detail == "weights w: 'a': shape expected (4, 3), found (4, 4); 1 added: 'c'; 1 removed: 'b'"
    assert "2 weights -> 2 weights; manifest" in first_difference((old,), (new,)).detail
    ranked = held.weights([spec("a"), spec("b")], ", rank 1")
    assert first_difference((old,), (ranked,), held.get).detail == "weights w: 2 weights -> 2 weights, rank 1"
    held[digest_bytes(b"[{}]")] = b"[{}]"
    damaged = part("weights/w", f"1 weights, manifest {digest_bytes(b'[{}]')}")
    assert "only digests are known of the new one" in first_difference((old,), (damaged,), held.get).detail


def test_spec_difference() -> None:
    old = {name: spec(name) for name in "abc"}
    assert spec_difference(old, dict(reversed(old.items()))) == ""
    words = spec_difference(old, {**old, "a": spec("a", dtype="bfloat16")})
    assert words == "'a': dtype expected 'float32', found 'bfloat16'"
    many = {f"w{n}": spec(f"w{n}") for n in range(20)}
    assert spec_difference({}, many).startswith("20 added: 'w0', 'w1'")
    assert spec_difference({}, many).endswith("and 14 more")
    assert "and 14 more changed" in spec_difference(many, {name: spec(name, (1,)) for name in many})
