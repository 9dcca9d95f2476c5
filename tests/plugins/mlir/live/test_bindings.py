"""The topology through MLIR's own bindings: text in any notation, bytecode and live modules agree."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cachec.base.hashing import FileDigests
from cachec.errors import CheckpointError, PluginError, UsageError
from cachec_mlir import Topologies, link, program, strip, topology
from cachec_mlir.live.bindings import Bindings, bindings_of, generic, write_bytecode
from tests.plugins.mlir.conftest import inline_program
from tests.plugins.mlir.conftest import program as text_program

STABLEHLO = """\
module @m attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["x"=2]>
  func.func public @main(%a: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> tensor<4xf32> {
    %b = stablehlo.constant dense<[1.0, 2.0, 3.0, 4.0]> : tensor<4xf32>
    %c = stablehlo.add %a, %b : tensor<4xf32>
    return %c : tensor<4xf32>
  }
}
"""


@pytest.fixture(scope="module")
def iree() -> Bindings:
    return Bindings("iree")


@pytest.mark.parametrize("name", ["iree", "jax"])
def test_text_in_any_notation_bytecode_and_live_module_agree(name, tmp_path):
    bindings = Bindings(name)
    text = (text_program(0) if name == "iree" else STABLEHLO).encode()
    live = bindings.parse(text)
    write_bytecode(live, tmp_path / "m.mlirbc")
    pretty = live.operation.get_asm(binary=True, enable_debug_info=True)
    notation = live.operation.get_asm(binary=True, print_generic_op_form=True)
    (tmp_path / "m.mlir").write_bytes(text)
    found = {
        topology(each, bindings=name)
        for each in (text, tmp_path / "m.mlir", pretty, notation, tmp_path / "m.mlirbc", live)
    }
    assert len(found) == 1
    assert found.isdisjoint({topology(text), topology(tmp_path / "m.mlirbc")})


def test_what_counts_and_what_does_not(iree):
    text = text_program(0)
    base = topology(text.encode(), bindings="iree")
    same = (text.replace("%x", "%input"), text_program(1), "// by hand\n" + text, text.replace("%h = ", "  %h  = "))
    assert {topology(each.encode(), bindings="iree") for each in same} == {base}
    digits = text.index('w1: "0x')
    other = (
        text.replace("math.tanh", "math.erf"),
        text.replace("dense<0.0> : tensor<4x16", "dense<0.5> : tensor<4x16"),
        text.replace("private @w1", "@w1"),
        text.replace("@main", "@other"),
        text[:digits] + text[digits:].replace("0x10", "0x20", 1),
        text.replace("module @m", "module @m attributes {a.b = loc(unknown)}"),
    )
    assert len({base, *(topology(each.encode(), bindings="iree") for each in other)}) == len(other) + 1


def test_a_constant_that_stays_inline_counts_by_value(iree):
    one, two = (topology(inline_program(seed).encode(), bindings="iree") for seed in (0, 1))
    assert one != two
    live = [iree.parse(inline_program(seed).encode()) for seed in (0, 1, 0)]
    assert [topology(each) for each in live] == [one, two, one]


@pytest.mark.parametrize("bindings", [None, "iree"])
def test_with_locations_names_and_places_count(bindings, iree):
    text = text_program(0)
    moved = "\n\n" + text
    assert topology(text.encode(), bindings=bindings) == topology(moved.encode(), bindings=bindings)
    one = topology(text.encode(), bindings=bindings, locations=True)
    assert one != topology(text.encode(), bindings=bindings)
    assert one != topology(moved.encode(), bindings=bindings, locations=True)
    assert one == topology(text_program(1).encode(), bindings=bindings, locations=True)
    live = [iree.parse(each.encode()) for each in (text, moved)]
    assert topology(live[0]) == topology(live[1])
    assert topology(live[0], locations=True) != topology(live[1], locations=True)


def test_a_trailer_in_front_moves_what_is_behind_it():
    operations, _, trailer = text_program(0).partition("{-#")
    for lines in ("\n", "\n\n"):
        text = "{-#" + trailer.rstrip() + lines + operations
        assert topology(text.encode(), locations=True) != topology((text + "\n").encode(), locations=True)


@pytest.mark.long
def test_settings_of_text_and_bytecode_agree(iree_opt):
    setting = (
        ',\n  external_resources: { owner: { flag: true, text: "any(\\22cse)", blob: "0x1000000001020304" } }\n#-}\n'
    )
    text = text_program(0).replace("\n#-}\n", setting).encode()
    module = iree_opt(text, "--emit-bytecode")
    base = topology(text, bindings="iree")
    assert topology(module, bindings="iree") == base
    for old, new in (("true", "false"), ("cse", "dce"), ("01020304", "01020305"), ("0x10000000", "0x20000000")):
        changed = text.replace(old.encode(), new.encode())
        assert changed != text
        assert topology(changed, bindings="iree") != base
        assert topology(iree_opt(changed, "--emit-bytecode"), bindings="iree") != base


def test_bytecode_of_another_llvm_is_refused_in_words(mlir_opt, tmp_path):
    text = b"module { func.func @f(%x: f32) -> f32 { %y = arith.addf %x, %x : f32\n return %y : f32 } }"
    (tmp_path / "m.mlirbc").write_bytes(mlir_opt(text, "--emit-bytecode"))
    with pytest.raises(CheckpointError, match=r"m\.mlirbc: the MLIR of 'iree' can't read it"):
        topology(tmp_path / "m.mlirbc", bindings="iree")


def test_wrong_use(iree):
    live = iree.parse(b"module {}")
    with pytest.raises(UsageError, match="'iree'"):
        topology(live, bindings="jax")
    with pytest.raises(UsageError, match="'iree', 'jax'"):
        topology(b"module {}", bindings="other")
    with pytest.raises(CheckpointError, match="nothing"):
        topology(b"nothing.here", bindings="iree")


def test_bindings_that_are_not_installed_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "iree.compiler", None)
    with pytest.raises(PluginError, match=r"'iree' can't be imported.*pip install"):
        Bindings("iree")


def test_nothing_is_imported_before_it_is_needed():
    code = (
        "import sys, cachec_mlir\n"
        "cachec_mlir.topology(b'module {}'); cachec_mlir.program(b'module {}')\n"
        "assert not {n.split('.')[0] for n in sys.modules} & {'iree', 'jaxlib', 'jax', 'numpy'}, sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_live_modules_are_told_from_others(iree):
    assert bindings_of(iree.parse(b"module {}")) == "iree"
    assert bindings_of(Bindings("jax").parse(b"module {}")) == "jax"
    assert bindings_of(b"module {}") is None


def test_resources_pass_without_digits(iree, tmp_path):
    """A module with 32 MB in a resource: what is printed has none of them."""
    nbytes = 32 << 20
    text = f"module {{ util.global private @w = dense_resource<w> : tensor<{nbytes}xi8> }}".encode()
    declared = tmp_path / "declared"
    write_bytecode(iree.parse(text), declared)
    (tmp_path / "w").write_bytes(bytes(nbytes))
    from cachec.weights import WeightSet

    weights = WeightSet.from_files({"w": (tmp_path / "w", program(text).program.manifest.weights["w"])})
    link(declared, weights, tmp_path / "linked")
    live = iree.parse_file(tmp_path / "linked")
    assert len(generic(live)) < 1000
    before = anonymous()
    assert topology(live) == topology(tmp_path / "linked", bindings="iree")
    assert anonymous() - before < 8 << 20
    assert strip(tmp_path / "linked").resources["w"].nbytes == nbytes


def anonymous() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise AssertionError


# --- remembered


class Counting(FileDigests):
    """Digests with a memory in a dict."""

    def __init__(self) -> None:
        self.table: dict[str, bytes] = {}
        super().__init__(self)

    def recall(self, name: str) -> bytes | None:
        return self.table.get(name)

    def remember(self, name: str, value: bytes) -> None:
        self.table[name] = value


@pytest.fixture
def counted(monkeypatch) -> list[object]:
    module = sys.modules["cachec_mlir.topology_hash"]
    calls: list[object] = []
    real = module.topology
    monkeypatch.setattr(module, "topology", lambda source, **how: calls.append(source) or real(source, **how))
    return calls


def test_a_second_look_at_the_same_bytes_is_remembered(counted, tmp_path):
    known = Topologies()
    data = text_program(0).encode()
    assert known.of(data) == known.of(data) == topology(data)
    assert known.of(bytes(bytearray(data))) == topology(data)  # by content where the object is another
    assert len(counted) == 1
    assert known.of(data, locations=True) != known.of(data)
    assert known.of(inline_program(0).encode()) != known.of(data)
    assert len(counted) == 3
    mutable = bytearray(data)
    known.of(mutable)
    mutable[mutable.index(b"tanh") : mutable.index(b"tanh") + 4] = b"sinh"
    assert known.of(mutable) == topology(bytes(mutable)) != topology(data)


def test_a_file_is_remembered_where_a_write_would_show(counted, tmp_path, seconds_later):
    path = tmp_path / "m.mlir"
    path.write_text(text_program(0))
    digests = Counting()
    known = Topologies(digests)
    base = known.of(path)
    path.write_text(text_program(0).replace("tanh", "sinh"))
    assert known.of(path) == topology(path) != base
    seconds_later(2.1)
    known.of(path)
    seen = len(counted)
    assert known.of(path) == Topologies(digests).of(path) == topology(path)
    assert len(counted) == seen
    names = [name for name in digests.table if name.startswith("conclusion:mlir-topology:")]
    assert names
    for name in names:  # damaged: computed again
        digests.table[name] = b"not a digest"
    assert Topologies(digests).of(path) == topology(path)
    assert len(counted) == seen + 1


def test_what_is_kept_in_memory_is_bounded():
    known = Topologies(most=2, most_nbytes=1 << 20)
    many = [f"module @m{n} {{}}".encode() for n in range(9)]
    first = [known.of(each) for each in many]
    assert len(known._objects) == 2
    known.of(b"module {}\n" + b"// \n" * (1 << 19))
    assert known._nbytes < 1 << 20
    assert [known.of(each) for each in many] == first
