"""Programs and manifests: what is equal, what is checked, what is fetched late."""

from __future__ import annotations

import pytest

from cachec import LinkError, Manifest, Program, WeightSpec
from cachec.programs.linker import link


def spec(name: str, **changes: object) -> WeightSpec:
    fields = {"name": name, "dtype": "float32", "shape": (2, 3), "nbytes": 24, **changes}
    return WeightSpec(**fields)  # type: ignore[arg-type]


def manifest(*specs: WeightSpec) -> Manifest:
    return Manifest.of({each.name: each for each in specs})


def test_the_order_of_names_does_not_count():
    assert manifest(spec("a"), spec("b")) == manifest(spec("b"), spec("a"))


@pytest.mark.parametrize(
    "other",
    [
        spec("b"),
        spec("a", dtype="int32"),
        spec("a", shape=(3, 2)),
        spec("a", alias="z"),
        spec("a", shard=(0, 2)),
        spec("a", layout="column-major"),
    ],
)
def test_every_field_of_a_spec_counts_and_is_named_by_the_check(other):
    mine = manifest(spec("a"))
    assert mine != manifest(other)
    with pytest.raises(LinkError, match="'a'"):
        mine.check({other.name: other})


def test_missing_and_extra_names_are_named():
    with pytest.raises(LinkError, match=r"missing 'a'.*extra 'c'"):
        manifest(spec("a"), spec("b")).check({"b": spec("b"), "c": spec("c")})
    manifest(spec("a")).check({"a": spec("a")})


def test_two_manifests_merge_unless_they_disagree():
    both = manifest(spec("a")).merge(manifest(spec("b")))
    assert set(both.weights) == {"a", "b"}
    with pytest.raises(LinkError, match="'a'"):
        manifest(spec("a")).merge(manifest(spec("a", dtype="int8")))


def test_a_malformed_stored_manifest_is_an_error():
    with pytest.raises(LinkError, match="malformed"):
        _ = Manifest("0" * 64, lambda: b"[{}]").weights


def test_a_program_is_its_format_ir_and_manifest():
    base = Program("ir", format="x:text", manifest=manifest(spec("a")))
    assert base == Program(b"ir", format="x:text", manifest=manifest(spec("a")))
    others = [
        Program("IR", format="x:text", manifest=manifest(spec("a"))),
        Program("ir", format="y:text", manifest=manifest(spec("a"))),
        Program("ir", format="x:text", manifest=manifest(spec("b"))),
    ]
    assert len({base.topology, *(each.topology for each in others)}) == 4


def test_a_stored_program_is_fetched_when_looked_at():
    fetched = []
    program = Program.stored(
        format="x:text", manifest=manifest(), ir_digest="0" * 64, load=lambda: fetched.append(1) or b"ir"
    )
    assert len(program.topology) == 64
    assert fetched == []
    assert program.text == program.text == "ir"
    assert fetched == [1]


def test_link_refuses_what_no_plugin_made(tmp_path, weights_file):
    import cachec

    weights = cachec.open_weights(weights_file)
    with pytest.raises(LinkError, match="kind"):
        link(cachec.File(tmp_path / "x"), weights)
    with pytest.raises(LinkError, match="int"):
        link(3, weights)  # type: ignore[arg-type]
    with pytest.raises(LinkError, match="not a str; cachec"):
        link(cachec.File(tmp_path / "x", kind="iree:vmfb"), "w.safetensors")  # type: ignore[arg-type]
    # an artifact without a manifest fits no weights at all
    with pytest.raises(LinkError, match="extra"):
        link(cachec.File(tmp_path / "x", kind="iree:vmfb"), weights)
    with pytest.raises(cachec.PluginError, match="nowhere"):
        link(cachec.File(tmp_path / "x", kind="nowhere:x", manifest=weights.manifest), weights)


def test_equal_specs_are_equal_manifests_however_their_layout_came_about():
    stated = [spec("a"), spec("a", layout="row-major"), spec("a", layout="".join(["row", "-major"]))]
    found = {manifest(each).digest for each in stated}
    assert len(found) == 1
    decoded = Manifest("0" * 64, manifest(stated[2]).encode).weights["a"]
    assert manifest(decoded).digest in found


def test_a_canonical_digest_counts_instead_of_the_ir():
    def program(ir: str, canonical: str | None) -> Program:
        return Program(ir, format="x:text", manifest=manifest(spec("a")), canonical=canonical)

    base = program("%a", "0" * 64)
    assert base == program("%b", "0" * 64)
    assert len({base, program("%a", "1" * 64), program("%a", None), program("%b", None)}) == 4
    # no canonical digest is taken for one of an IR
    assert program("%a", None).topology != program("%a", program("%a", None).ir_digest).topology
    again = base.linked_as(base.manifest.with_callers({"a": "x.a"}))
    assert again == base
    assert again.ir == b"%a"
    assert again.manifest == base.manifest
    assert again.manifest.callers == {"a": "x.a"}
    assert again.manifest.encode() == base.manifest.encode()


def test_manifests_that_mean_different_weights_by_a_name_do_not_merge():
    base = manifest(spec("a"))
    assert base.merge(base.with_callers({"a": "x"}).with_callers({})).callers == {}
    assert base.with_callers({"a": "x"}).merge(base.with_callers({"a": "x"})).callers == {"a": "x"}
    with pytest.raises(LinkError, match="'x' and 'y'"):
        base.with_callers({"a": "x"}).merge(base.with_callers({"a": "y"}))
    both = base.with_callers({"a": "x"}).merge(manifest(spec("b")).with_callers({"b": "z"}))
    assert both.callers == {"a": "x", "b": "z"}
