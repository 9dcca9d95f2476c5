"""``cachec mlir``: each command on text and bytecode, what it prints and with which code it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from safetensors.numpy import load_file, save_file

from cachec.cli import main
from cachec_mlir import Renames, strip, topology
from tests.plugins.mlir.conftest import IREE_OPT, arrays, inline_program, program, trailer

HEX = np.random.default_rng(9).bytes(64).hex()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in (("a", program(0)), ("b", program(1)), ("inline", inline_program(0))):
        (tmp_path / f"{name}.mlir").write_text(text)
    return tmp_path


def run(*args: str, code: int = 0, stdin: bytes | None = None) -> Result:
    result = CliRunner().invoke(main, ["mlir", *args], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def shown_json(*args: str, code: int = 0):
    return json.loads(run(*args, "--json", code=code).stdout)


def no_digits(text: str) -> None:
    """No line of hexadecimal digits, and none of the weights' numbers."""
    assert max((len(line) for line in text.split("\n")), default=0) < 400
    data = arrays(0)["w1"].tobytes().hex()
    assert data[:32].lower() not in text.lower()


@pytest.mark.parametrize("name", ["inspect", "hash", "strip", "link", "relink", "diff"])
def test_every_help_has_an_example_and_the_json_fields(name: str) -> None:
    result = run(name, "--help")
    assert f"cachec mlir {name}" in result.output.split("Examples:")[1]
    assert "JSON: " in result.output


def test_the_group_is_in_the_help_and_not_imported_for_it() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from cachec.cli import main;"
        "out = CliRunner().invoke(main, ['--help']).output;"
        "assert 'Commands of plugins' in out and 'mlir' in out, out; assert 'cachec_mlir' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_compiler_is_imported_for_text(folder: Path) -> None:
    code = (
        "import sys; from click.testing import CliRunner; from cachec.cli import main;"
        "r = CliRunner().invoke(main, ['mlir', 'inspect', 'a.mlir']); assert r.exit_code == 0, r.output;"
        "print(sorted({m.partition('.')[0] for m in sys.modules} & {'iree', 'jax', 'jaxlib', 'mlir', 'torch'}))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout == b"[]\n"


# --- inspect


def test_inspect_a_text(folder: Path) -> None:
    found = shown_json("inspect", "a.mlir")
    assert (found["kind"], found["size"]) == ("text", (folder / "a.mlir").stat().st_size)
    assert found["topology"] == topology(folder / "a.mlir")
    assert found["operation_names"]["linalg.matmul"] == 2
    assert found["dialects"]["util"] == 4
    assert found["operations"] == sum(found["operation_names"].values()) == 12
    assert [(each["name"], each["type"], each["nbytes"], each["alignment"]) for each in found["resources"]] == [
        ("w1", "tensor<8x16xf32>", 512, 16),
        ("w2", "tensor<16x8xf32>", 512, 16),
    ]
    assert found["resource_bytes"] == 1024
    no_digits(run("inspect", "a.mlir").output)


def test_inspect_bytecode_and_what_has_no_bytes(folder: Path) -> None:
    subprocess.run([IREE_OPT, "--emit-bytecode", "a.mlir", "-o", "a.mlirbc"], check=True)
    found = shown_json("inspect", "a.mlirbc")
    assert found["kind"] == "bytecode"
    assert found["producer"].startswith("MLIR")
    assert found["operation_names"]["math.tanh"] == 1
    assert [each["type"] for each in found["resources"]] == ["tensor<8x16xf32>", "tensor<16x8xf32>"]
    run("strip", "a.mlirbc", "-o", "s.mlirbc")
    assert shown_json("inspect", "s.mlirbc")["declared"] == ["w1", "w2"]
    run("strip", "a.mlir", "-o", "s.mlir")
    assert shown_json("inspect", "s.mlir")["declared"] == ["w1", "w2"]


def test_inspect_bytecode_that_nothing_here_reads(folder: Path, bytecode: bytes) -> None:
    (folder / "other.mlirbc").write_bytes(bytecode)
    found = shown_json("inspect", "other.mlirbc")
    assert found["operations"] is None
    assert "Print it with its own tool" in found["unread"] or "can't read it" in found["unread"]
    assert [each["nbytes"] for each in found["resources"]] == [40, 24, 4]
    assert "operations unknown" in run("inspect", "other.mlirbc").output


# --- hash


def test_hash(folder: Path) -> None:
    lines = run("hash", "a.mlir", "b.mlir").stdout.splitlines()
    assert lines == [f"{topology(folder / 'a.mlir')}  a.mlir", f"{topology(folder / 'a.mlir')}  b.mlir"]
    (folder / "c.mlir").write_text(program(0).replace("tanh", "exp"))
    a, c = shown_json("hash", "a.mlir", "c.mlir")
    assert a["topology"] != c["topology"]
    assert run("hash", "-", stdin=program(0).encode()).stdout == f"{a['topology']}  -\n"


def test_a_hash_is_remembered_in_the_store_that_is_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEC_DIR", str(folder / "store"))
    lines = run("hash", "a.mlir", "b.mlir").stdout
    assert not (folder / "store").exists()  # none is made
    (folder / "store").mkdir(mode=0o700)
    assert run("hash", "a.mlir", "b.mlir").stdout == lines

    def refuse(*_: object, **__: object) -> str:
        raise AssertionError("it was hashed before")

    monkeypatch.setattr(sys.modules["cachec_mlir.topology_hash"], "topology", refuse)
    assert run("hash", "a.mlir", "b.mlir").stdout == lines


def test_hash_of_text_and_bytecode_through_bindings(folder: Path) -> None:
    subprocess.run([IREE_OPT, "--emit-bytecode", "a.mlir", "-o", "a.mlirbc"], check=True)
    one, other = shown_json("hash", "--bindings", "iree", "a.mlir", "a.mlirbc")
    assert one["topology"] == other["topology"]


# --- strip


@pytest.mark.parametrize("name", ["a.mlir", "inline.mlir"])
def test_strip_prints_a_bug_report_that_parses(folder: Path, name: str, iree_opt) -> None:
    report = run("strip", name).stdout
    header = [line for line in report.split("\n") if line.startswith("//")]
    assert header[0] == f"// {name}: {(folder / name).stat().st_size:,} bytes, " + header[0].rpartition("bytes, ")[2]
    assert any("iree-base-compiler" in line for line in header)
    assert any("w1: tensor<8x16xf32>, 512 bytes" in line for line in header)
    no_digits(report)
    assert b"math.tanh" in iree_opt(report.encode())
    assert len(report) < 1500


def test_strip_prints_bytecode_through_bindings(folder: Path) -> None:
    subprocess.run([IREE_OPT, "--emit-bytecode", "a.mlir", "-o", "a.mlirbc"], check=True)
    report = run("strip", "a.mlirbc").stdout
    assert "// bytecode, printed in generic notation by the MLIR of iree" in report
    assert '"math.tanh"' in report
    no_digits(report)


def test_strip_cuts_what_stays_inline(folder: Path) -> None:
    text = f'module attributes {{my.blob = "0x{HEX * 40}"}} {{\n}}\n'
    (folder / "setting.mlir").write_text(text)
    report = run("strip", "setting.mlir").stdout
    assert "1 inline constant cut here" in report
    assert len(report) < 700
    run("strip", "setting.mlir", "-o", "whole.mlir")
    assert (folder / "whole.mlir").read_text() == text


def test_a_small_constant_is_printed_whole(folder: Path, iree_opt) -> None:
    digits = arrays(0)["w1"].tobytes()[:128].hex()
    text = f'func.func @f() -> tensor<32xf32> {{\n  %c = arith.constant dense<"0x{digits}"> : tensor<32xf32>\n'
    (folder / "small.mlir").write_text(text + "  return %c : tensor<32xf32>\n}\n")
    report = run("strip", "small.mlir").stdout
    assert digits in report
    assert "cut" not in report
    assert b"arith.constant" in iree_opt(report.encode())


def test_a_name_of_a_file_does_not_end_the_comment(folder: Path) -> None:
    name = "x\nmodule { \x1b[31m.mlir"
    (folder / name).write_text(program(0))
    report = run("strip", name).stdout
    assert report.startswith("// x\\nmodule { \\x1b[31m.mlir: ")


@pytest.mark.parametrize("name", ["a.mlir", "a.mlirbc"])
def test_strip_and_link_give_the_module_back(folder: Path, name: str) -> None:
    subprocess.run([IREE_OPT, "--emit-bytecode", "a.mlir", "-o", "a.mlirbc"], check=True)
    found = shown_json("strip", name, "-o", "s", "--weights", "w.safetensors")
    assert [(each["name"], each["dtype"], each["shape"]) for each in found["weights"]] == [
        ("w1", "float32", [8, 16]),
        ("w2", "float32", [16, 8]),
    ]
    np.testing.assert_array_equal(load_file("w.safetensors")["w1"], arrays(0)["w1"])
    assert os.stat("s").st_size == found["stripped_size"] < 1000
    linked = shown_json("link", "s", "w.safetensors", "-o", "back")
    assert linked["nbytes"] == os.stat("back").st_size
    assert topology("back") == topology(name)
    assert shown_json("diff", name, "back", "--values")["same"]


def test_stdin_and_stdout(folder: Path) -> None:
    stripped = run("strip", "-", "-o", "-", stdin=program(0).encode()).stdout_bytes
    assert stripped == strip(folder / "a.mlir").ir
    (folder / "s.mlir").write_bytes(stripped)
    whole = run("link", "s.mlir", "a.mlir", "-o", "-").stdout_bytes
    (folder / "whole.mlir").write_bytes(whole)
    assert shown_json("diff", "a.mlir", "whole.mlir", "--values")["same"]


# --- link and relink


def test_link_by_other_names_says_what_was_not_asked_for(folder: Path) -> None:
    run("strip", "a.mlir", "-o", "s.mlir")
    save_file({"x": arrays(1)["w1"], "w2": arrays(1)["w2"], "more": np.zeros(3, "f4")}, "w.safetensors")
    found = shown_json("link", "s.mlir", "w.safetensors", "-o", "b2.mlir", "--name", "w1=x")
    assert found["unused"] == ["more"]
    assert [each.spec().nbytes for each in strip("b2.mlir").resources.values()] == [512, 512]
    assert b"".join(strip("b2.mlir").resources["w1"].blob.pieces()) == arrays(1)["w1"].tobytes()


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({"w1": np.zeros((8, 16), "f4")}, "no bytes for 1 resources of the module, first 'w2'"),
        ({"w1": np.zeros((8, 16), "f4"), "w2": np.zeros((8, 16), "f4")}, "'w2'"),
        ({"w1": np.zeros((8, 16), "f4"), "w2": np.zeros((16, 9), "f4")}, "'w2'"),
    ],
)
def test_a_link_that_does_not_fit_leaves_nothing(folder: Path, tensors, says: str) -> None:
    run("strip", "a.mlir", "-o", "s.mlir")
    save_file(tensors, "w.safetensors")
    before = sorted(os.listdir())
    result = run("link", "s.mlir", "w.safetensors", "-o", "out.mlir", code=2)
    assert says in result.stderr
    assert result.stderr.count("\n") == 1
    assert sorted(os.listdir()) == before


def test_relink_after_a_pass_and_a_renamed_resource_is_refused(folder: Path) -> None:
    run("strip", "a.mlir", "-o", "s.mlir")
    Path("new.mlir").write_bytes(subprocess.run([IREE_OPT, "--cse", "s.mlir"], check=True, capture_output=True).stdout)
    assert shown_json("relink", "new.mlir", "a.mlir", "-o", "whole.mlir")["unused"] == []
    assert b"".join(strip("whole.mlir").resources["w2"].blob.pieces()) == arrays(0)["w2"].tobytes()
    Path("renamed.mlir").write_text(Path("new.mlir").read_text().replace("<w1>", "<w1_2>"))
    result = run("relink", "renamed.mlir", "a.mlir", "-o", "x.mlir", code=2)
    assert "w1_2" in result.stderr
    assert not Path("x.mlir").exists()
    run("relink", "renamed.mlir", "a.mlir", "-o", "x.mlir", "--name", "w1_2=w1")
    assert b"".join(strip("x.mlir").resources["w1_2"].blob.pieces()) == arrays(0)["w1"].tobytes()


def test_relink_takes_a_record_and_refuses_what_may_be_another_s(folder: Path) -> None:
    w = {"w": arrays(0)["w1"], "w_2": arrays(1)["w1"]}
    text = program(0).partition("{-#")[0].replace("16x8", "8x16").replace("<w1>", "<w>").replace("<w2>", "<w_2>")
    (folder / "old.mlir").write_text(text + trailer(w))
    run("strip", "old.mlir", "-o", "new.mlir")
    assert "w_2" in run("relink", "new.mlir", "old.mlir", "-o", "x.mlir", code=2).stderr
    assert "w_2" in run("relink", "new.mlir", "old.mlir", "-o", "x.mlir", "--name", "w=w", code=2).stderr
    assert not Path("x.mlir").exists()
    run("relink", "new.mlir", "old.mlir", "-o", "x.mlir", "--name", "w=w_2", "--name", "w_2=w")
    assert b"".join(strip("x.mlir").resources["w"].blob.pieces()) == w["w_2"].tobytes()
    Path("record").write_bytes(Renames({"w": "w", "w_2": "w_2"}, ()).encode())
    run("relink", "new.mlir", "old.mlir", "-o", "y.mlir", "--renames", "record")
    assert shown_json("diff", "old.mlir", "y.mlir", "--values")["same"]
    run("relink", "new.mlir", "old.mlir", "-o", "y.mlir", "--renames", "record", "--name", "w=w", code=2)


def test_by_reference_copies_nothing(folder: Path) -> None:
    run("strip", "a.mlir", "-o", "s.mlir", "--to", "parameter", "--weights", "w.safetensors")
    found = shown_json("link", "s.mlir", "w.safetensors", "-o", "bound.mlir", "--by-reference")
    assert Path(found["archive"]).samefile("w.safetensors")
    assert Path("bound.mlir").stat().st_size == found["nbytes"] < 1000
    assert "#flow.parameter.named" in Path("bound.mlir").read_text()
    subprocess.run([IREE_OPT, "--emit-bytecode", "a.mlir", "-o", "a.mlirbc"], check=True)
    run("strip", "a.mlir", "-o", "new.mlir")
    found = shown_json("relink", "new.mlir", "a.mlirbc", "-o", "r.mlir", "--by-reference")
    assert Path(found["archive"]).suffix == ".irpa"
    assert Path("r.mlir").read_bytes() == Path("new.mlir").read_bytes()
    run("relink", "new.mlir", "a.mlirbc", "-o", "-", "--by-reference", code=2)


# --- diff


def test_diff_exit_codes(folder: Path) -> None:
    assert "the same program" in run("diff", "a.mlir", "b.mlir").stdout
    run("diff", "a.mlir", "b.mlir", "--values", code=1)
    (folder / "c.mlir").write_text(program(0).replace("tanh", "exp"))
    result = run("diff", "a.mlir", "c.mlir", code=1)
    assert "in @main:" in result.stdout
    assert "- 9: %t = math.tanh" in result.stdout
    assert "+ 9: %t = math.exp" in result.stdout
    no_digits(result.stdout)
    assert run("diff", "-", "a.mlir", stdin=program(0).encode()).exit_code == 0
    run("diff", "-", "-", code=2)


# --- wrong use


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("inspect", "none.mlir"), "none.mlir"),
        (("hash", "cut.mlirbc"), "cut.mlirbc: byte "),
        (("strip", "open.mlir"), "open.mlir: byte "),
        (("strip", "a.mlir", "--weights", "w.bin"), "--weights w.bin"),
        (("strip", "a.mlir", "-o", "folder"), "folder"),
        (("link", "a.mlir", "w.safetensors", "-o", "x", "--name", "w1"), "--name 'w1'"),
        (("link", "a.mlir", "w.safetensors", "-o", "x", "--alignment", "3"), "power of two"),
        (("diff", "a.mlir", "cut.mlirbc"), "--bindings"),
    ],
)
def test_what_is_wrong_is_one_line(folder: Path, bytecode: bytes, args: tuple[str, ...], says: str) -> None:
    (folder / "cut.mlirbc").write_bytes(bytecode[:60])
    (folder / "open.mlir").write_text('module { "x')
    (folder / "folder").mkdir()
    save_file(arrays(0), "w.safetensors")
    before = sorted(os.listdir())
    result = run(*args, code=2)
    assert says in result.stderr
    assert result.stderr.count("\n") == 1
    assert sorted(os.listdir()) == before


# --- outputs


#: Commands that write, by what they write. small.mlir is a.mlir without weights, w.safetensors has them.
WRITING = {
    "strip -o": ("strip", "a.mlir", "-o", "out"),
    "strip --weights": ("strip", "a.mlir", "-o", "other", "--weights", "out"),
    "link": ("link", "small.mlir", "w.safetensors", "-o", "out"),
    "relink": ("relink", "small.mlir", "a.mlir", "-o", "out"),
    "by reference": ("relink", "small.mlir", "a.mlirbc", "--by-reference", "-o", "out"),
}


@pytest.fixture(scope="module")
def as_bytecode() -> bytes:
    return subprocess.run(
        [IREE_OPT, "--emit-bytecode"], input=program(0).encode(), check=True, capture_output=True
    ).stdout


@pytest.fixture
def written(folder: Path, as_bytecode: bytes) -> Path:
    (folder / "a.mlirbc").write_bytes(as_bytecode)
    run("strip", "a.mlir", "-o", "small.mlir", "--weights", "w.safetensors")
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and not path.is_symlink()}


def to(name: str, args: tuple[str, ...]) -> list[str]:
    suffix = ".safetensors" if "--weights" in args else ""
    return [name + suffix if each == "out" else each for each in args]


@pytest.mark.parametrize("writing", WRITING)
@pytest.mark.parametrize(("umask", "before", "mode"), [(0o077, None, 0o600), (0o022, 0o600, 0o600), (0, 0o444, 0o444)])
def test_permissions(written: Path, writing: str, umask: int, before: int | None, mode: int) -> None:
    args = to("out", WRITING[writing])
    paths = [written / (args[-1])] + ([written / "out.irpa"] if writing == "by reference" else [])
    for path in paths if before is not None else []:
        path.touch()
        path.chmod(before)
    old = os.umask(umask)
    try:
        run(*args)
    finally:
        os.umask(old)
    for path in paths:
        assert path.stat().st_size > 0
        assert path.stat().st_mode & 0o777 == mode


@pytest.mark.parametrize("writing", WRITING)
@pytest.mark.parametrize("kind", ["folder", "symbolic link", "named pipe", "no folder"])
def test_an_output_that_is_no_file_is_named_before_anything_is_written(written: Path, writing: str, kind: str) -> None:
    args = to("there" if kind != "no folder" else "none/there", WRITING[writing])
    place = Path(args[-1])
    match kind:
        case "folder":
            place.mkdir()
        case "symbolic link":
            place.symlink_to("a.mlir")
        case "named pipe":
            os.mkfifo(place)
    before = files(written)
    said = run(*args, code=2).stderr
    assert f"{place}" in said
    assert kind in said
    assert "partial" not in said
    assert files(written) == before


@pytest.mark.parametrize("spelling", ["{}", "./{}", "link/{}", "alias-{}"])
@pytest.mark.parametrize(
    ("args", "twice"),
    [
        (("strip", "a.mlir", "-o", "x.safetensors", "--weights", "*"), "x.safetensors"),
        (("strip", "a.mlir", "-o", "*", "--weights", "x.safetensors"), "x.safetensors"),
        (("strip", "a.safetensors", "--weights", "*"), "a.safetensors"),
        (("link", "small.mlir", "w.safetensors", "-o", "*"), "w.safetensors"),
        (("link", "small.mlir", "w.safetensors", "-o", "*", "--by-reference"), "w.safetensors"),
        (("relink", "small.mlir", "a.mlir", "-o", "*"), "a.mlir"),
        (("relink", "small.mlir", "a.mlirbc", "-o", "*", "--by-reference"), "a.mlirbc"),
        (("relink", "small.mlir", "a.mlirbc", "-o", "*", "--by-reference"), "small.mlir"),
    ],
)
def test_no_file_is_given_twice(written: Path, args: tuple[str, ...], twice: str, spelling: str) -> None:
    (written / "a.safetensors").write_bytes((written / "a.mlir").read_bytes())
    (written / "link").symlink_to(".")
    (written / f"alias-{twice}").symlink_to(twice)
    before = files(written)
    said = run(*(spelling.format(twice) if each == "*" else each for each in args), code=2).stderr
    assert "given twice" in said or (spelling == "alias-{}" and "found a symbolic link" in said)
    assert twice in said
    assert files(written) == before


def test_a_module_may_be_written_in_place(written: Path) -> None:
    whole = topology("a.mlir")
    run("link", "small.mlir", "w.safetensors", "-o", "small.mlir")
    assert topology("small.mlir") == whole
    run("strip", "small.mlir", "-o", "small.mlir", "--weights", "w.safetensors")
    assert load_file("w.safetensors")["w1"].tobytes() == arrays(0)["w1"].tobytes()


def test_the_older_module_may_be_stdin(written: Path) -> None:
    run("relink", "small.mlir", "-", "-o", "out.mlir", stdin=(written / "a.mlir").read_bytes())
    assert strip("out.mlir").resources["w1"].blob.digest() == strip("a.mlir").resources["w1"].blob.digest()
    assert "stdin" in run("relink", "-", "-", "-o", "x", code=2).stderr
    assert "found -" in run("relink", "small.mlir", "-", "-o", "x", "--by-reference", code=2).stderr
    assert "stdin" in run("link", "small.mlir", "-", "-o", "x", code=2).stderr
