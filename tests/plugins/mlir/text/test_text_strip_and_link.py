"""Text: strip and link, on modules written here."""

import os
import subprocess
import sys

import numpy as np
import pytest

from cachec.errors import CheckpointError, LinkError
from cachec.weights import WeightSet
from cachec_mlir import canonical, link, strip, topology
from tests.plugins.mlir.conftest import arrays, inline_program, program, trailer


def test_strip_takes_resources_out(tmp_path):
    path = tmp_path / "m.mlir"
    path.write_text(program(0))
    for source in (path, program(0).encode()):
        stripped = strip(source)
        assert stripped.lifted == ()
        assert stripped.ir.decode() == program(0).partition("{-#")[0] + "\n"
        weights = stripped.resources.weights()
        for name, value in arrays(0).items():
            assert weights[name].dtype == "float32"
            np.testing.assert_array_equal(weights[name].read(), value)
            assert stripped.resources[name].alignment == 16


def test_ir_is_the_same_for_other_weights():
    assert strip(program(0).encode()).ir == strip(program(1).encode()).ir
    assert strip(inline_program(0).encode()).ir == strip(inline_program(1).encode()).ir


def test_constants_are_lifted_and_put_back(tmp_path):
    data = inline_program(0).encode()
    stripped = strip(data)
    assert stripped.lifted == ("w1", "w2")
    assert b"dense_resource<w1> : tensor<8x16xf32>" in stripped.ir
    assert b"dense<0.0>" in stripped.ir
    for name, value in zip(stripped.lifted, arrays(0).values(), strict=True):
        np.testing.assert_array_equal(stripped.resources.weights()[name].read(), value)
    link(stripped.ir, stripped.resources, tmp_path / "out", inline=stripped.lifted)
    assert (tmp_path / "out").read_bytes() == data
    link(stripped.ir, stripped.resources, tmp_path / "out")
    again = strip(tmp_path / "out")
    assert topology(again.ir) == topology(stripped.ir)
    for name in stripped.lifted:
        assert b"".join(again.resources[name].blob.pieces()) == b"".join(stripped.resources[name].blob.pieces())


@pytest.mark.parametrize(
    "constant",
    [
        'dense<"0x0000803F"> : tensor<64x64xf32>',  # a splat
        'dense<"0x' + "FF" * 512 + '"> : tensor<4096xi1>',  # packed bits
        'dense<"0x' + "FF" * 512 + '"> : tensor<1024xi4>',
        'dense<"0x' + "FF" * 255 + '"> : tensor<255xi8>',  # small
        'dense<"0x' + "FF" * 512 + '"> : !foo.bar',
        'dense<"0x' + "FF" * 512 + '">',
        '"0x' + "FF" * 512 + '"',
        'foo_dense<"0x' + "FF" * 512 + '"> : tensor<512xi8>',
    ],
)
def test_what_stays_inline_is_in_the_hash(constant):
    data = f'"op"() {{a = {constant}}} : () -> ()\n'.encode()
    assert strip(data).ir == data
    assert not strip(data).resources
    other = data.replace(b"3F", b"40") if b"3F" in data else data.replace(b"FF", b"FE", 1)
    assert topology(other) != topology(data)
    assert topology(strip(other).ir) != topology(strip(data).ir)


def test_in_comments_and_strings_nothing_is_found():
    text = b'// dense<"0xZZ {-# "\n"op"() {a = "dense_resource<w> {-# \\" // dense<\\"0x"} : () -> () // "\n'
    assert strip(text).ir == text
    assert topology(text) == topology(text.partition(b"\n")[2])


def test_keys_that_are_strings(tmp_path):
    name = 'a "b" \\ ü'
    weights = WeightSet.from_arrays({name: np.arange(3, dtype="i2")})
    ir = b'"op"() {a = dense_resource<"a \\22b\\22 \\5C \\C3\\BC"> : tensor<3xi16>} : () -> ()\n'
    link(ir, weights, tmp_path / "out")
    stripped = strip(tmp_path / "out")
    np.testing.assert_array_equal(stripped.resources.weights()[name].read(), [0, 1, 2])
    assert topology(stripped.ir) == topology(ir)


def test_a_resource_without_bytes_has_any_alignment(tmp_path):
    """MLIR prints 0 for it, and 4 or 16 where it was given so."""
    text = """func.func @main() -> tensor<0xi8> {
  %0 = arith.constant dense_resource<empty> : tensor<0xi8>
  return %0 : tensor<0xi8>
}
{-# dialect_resources: { builtin: { empty: "0x00000000" } } #-}
"""
    made = [text.replace("00000000", digits).encode() for digits in ("00000000", "01000000", "10000000")]
    assert len({topology(each) for each in made}) == 1
    for each in made:
        stripped = strip(each)
        assert stripped.resources["empty"].nbytes == 0
        link(stripped.ir, stripped.resources, tmp_path / "out")
        assert topology(tmp_path / "out") == topology(each)
    with pytest.raises(CheckpointError, match="power of two"):
        strip(made[0].replace(b'"0x00000000"', b'"0x0000000001"'))


def test_settings_and_other_dialects_stay():
    text = program(0).replace(
        "\n  }\n#-}",
        ',\n    torch: {\n      w1: "0x0400000001020304"\n    }\n  },\n  external_resources: {\n'
        '    mlir_reproducer: {\n      pipeline: "any(cse)", verify_each: true\n    }\n  }\n#-}',
    )
    stripped = strip(text.encode())
    assert list(stripped.resources) == ["w1", "w2"]
    for kept in (
        b"{-#\n  dialect_resources: {\n    ",
        b'torch: {\n      w1: "0x0400000001020304"',
        b'pipeline: "any(cse)"',
        b"verify_each: true",
    ):
        assert kept in stripped.ir
    assert strip(stripped.ir).ir == stripped.ir
    base = topology(text.encode())
    for old, new in (("any(cse)", "any(dce)"), ("true", "false"), ("mlir_reproducer", "x"), ("torch", "tosh")):
        assert topology(text.replace(old, new).encode()) != base


def test_link_checks_names_and_types(tmp_path):
    ir = strip(program(0).encode()).ir
    out = tmp_path / "out"
    good = arrays(1)
    with pytest.raises(LinkError, match=r"no bytes for 1 resources of the module, first 'w2'"):
        link(ir, WeightSet.from_arrays({"w1": good["w1"]}), out)
    with pytest.raises(LinkError, match=r"'w1'.*tensor<8x16xf32>.*float32 \[16, 8\]"):
        link(ir, WeightSet.from_arrays({"w1": good["w2"], "w2": good["w2"]}), out)
    with pytest.raises(LinkError, match=r"takes 512 bytes, what it is linked to has 1024"):
        link(ir, WeightSet.from_arrays({"w1": good["w1"].astype("f8"), "w2": good["w2"]}), out)
    with pytest.raises(LinkError, match="inline= names 'w3'"):
        link(ir, WeightSet.from_arrays(good), out, inline=["w3"])
    with pytest.raises(LinkError, match="has bytes of 'w1'"):
        link(program(0).encode(), WeightSet.from_arrays(good), out)
    assert os.listdir(tmp_path) == []
    link(ir, WeightSet.from_arrays(good), out, alignment=16)
    assert strip(out).ir.rstrip() == ir.rstrip()
    assert topology(out) == topology(program(0).encode()) == topology(program(1).encode())


def test_a_type_that_disagrees_with_the_bytes():
    with pytest.raises(CheckpointError, match="takes 1024 bytes, the module has 512"):
        strip(program(0).replace("tensor<8x16xf32>", "tensor<16x16xf32>").encode())


LARGE = """
import sys
from cachec_mlir import strip, topology
def private():
    with open("/proc/self/smaps_rollup") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous"))
before = private()
stripped = strip(sys.argv[1])
topology(sys.argv[1])
with open("/proc/self/status") as lines:
    peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
print(len(stripped.resources), private() - before, stripped.resources["w3"].nbytes)
"""


def test_private_memory_does_not_grow_with_the_text(tmp_path):
    """64 MiB of hexadecimal digits: what the process has for itself grows by less than 8 MiB."""
    each = np.zeros(2 << 20, "f4")
    ir = "".join(f'"op"() {{a = dense_resource<w{i}> : tensor<{2 << 20}xf32>}} : () -> ()\n' for i in range(4))
    link(ir.encode(), WeightSet.from_arrays({f"w{i}": each for i in range(4)}), tmp_path / "m")
    assert os.path.getsize(tmp_path / "m") > 64 << 20
    done = subprocess.run([sys.executable, "-c", LARGE, str(tmp_path / "m")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    count, grown, nbytes = map(int, done.stdout.split())
    assert (count, nbytes) == (4, 8 << 20)
    assert grown < 8 << 10


def test_between_text_and_bytecode(tmp_path):
    from tests.plugins.mlir.conftest import Builder

    bytecode = Builder().finish([("w1", None), ("w2", None)])
    text = strip(program(3).encode())
    link(bytecode, text.resources, tmp_path / "bc")
    link(text.ir, strip(tmp_path / "bc").resources, tmp_path / "text")
    weights = strip(tmp_path / "text").resources.weights()
    for name, value in arrays(3).items():
        np.testing.assert_array_equal(weights[name].read(), value)


def test_the_trailer_by_itself():
    assert strip(trailer(arrays(0)).encode()).ir.strip() == b""
    assert canonical(trailer(arrays(0)).encode()) == ""
    assert topology(b"") != topology(trailer(arrays(0)).encode())
