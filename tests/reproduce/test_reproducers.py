"""Reproducers end to end: made of an entry, looked at, run again by command or by calling the stage."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import cachec
from cachec.reproduce.metadata import About
from cachec.reproduce.reader import load
from cachec.store.store import Store
from tests.parts import part

from .conftest import Project


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def call(stage, *args, **kwargs) -> cachec.Outcome:
    return stage.call(*args, **kwargs)[1]


# --- commands


def test_commands_are_run_again_and_give_the_same_artifact(project: Project, program: cachec.Program) -> None:
    file, outcome = project.upper.call(program)
    bug = project.make(outcome)
    found = project.json("run", str(bug))
    assert found["same"]
    (artifact,) = found["artifacts"]
    assert artifact["expected"] == artifact["found"] == cachec_digest(file.read_bytes())
    assert len(found["tools"]) == 2
    assert all("the same tool as recorded" in words for words in found["tools"])


def cachec_digest(data: bytes) -> str:
    from blake3 import blake3

    return blake3(data).hexdigest()


def test_what_is_in_it(project: Project, program: cachec.Program) -> None:
    bug = project.make(call(project.upper, program))
    found = members(bug)
    assert sorted(found) == ["README.md", "manifests/0.json", "recipe.json", "reproducer.json", "work/in.mlir"]
    assert found["work/in.mlir"] == program.ir
    assert found["manifests/0.json"] == program.manifest.encode()
    about = msgspec.json.decode(found["reproducer.json"], type=About)
    names = {part.label for part in about.parts}
    assert {"env/PROJECT_FLAG", "platform", "arg/flag", "program/program"} <= names
    assert about.stage == "repro_project.upper"
    readme = found["README.md"].decode()
    for words in ("cachec repro run", "`'x'`", "PROJECT_FLAG='f 1'", 'cd "$R"/work && python', "2 weights of 52 bytes"):
        assert words in readme, words


def test_neither_secrets_nor_places_of_this_machine_are_in_it(project: Project, program: cachec.Program) -> None:
    bug = project.make(call(project.upper, program, secret="s3cret-argument"))
    whole = b"\n".join(members(bug).values())
    assert b"hunter2" not in whole
    assert b"PROJECT_TOKEN" in whole
    assert os.fsencode(project.folder) not in whole
    assert b"/tmp" not in whole


def test_arguments_by_a_secret_s_name_are_left_out(project: Project) -> None:
    @project.cache.stage
    def stage(number: int, api_token: str, options: dict) -> bytes:
        return b"x"

    bug = project.make(call(stage, 1, "t0ps3cret", {"password": "pa55", "level": "debug"}))
    whole = b"".join(members(bug).values())
    assert b"t0ps3cret" not in whole
    assert b"pa55" not in whole
    assert b"debug" in whole


def test_an_ignored_argument_is_left_out(project: Project) -> None:
    @project.cache.stage(ignore=["secret"])
    def stage(number: int, secret: str = "") -> bytes:
        return b"x"

    bug = project.make(call(stage, 1, secret="s3cret-argument"))
    assert b"s3cret-argument" not in b"".join(members(bug).values())


def test_the_readme_commands_work_without_cachec(project: Project, program: cachec.Program) -> None:
    bug = project.make(call(project.upper, program))
    folder = project.folder / "by hand"
    with zipfile.ZipFile(bug) as archive:
        archive.extractall(folder)
    block = (folder / "README.md").read_text().partition("Unpack the zip")[2].partition("\n\n")[2].partition("\n\n")[0]
    script = "set -e\nmkdir -p work/sub\n" + "\n".join(line.strip() for line in block.split("\n"))
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-c", script], cwd=folder, check=True, env=environ)
    expected = load(bug).about.expected[0].digest
    assert cachec_digest((folder / "work" / "sub" / "out.txt").read_bytes()) == expected


def test_the_same_run_gives_the_same_bytes(project: Project, program: cachec.Program) -> None:
    outcome = call(project.upper, program)
    first = project.make(outcome, "1.zip").read_bytes()
    assert project.make(outcome, "2.zip").read_bytes() == first
    assert project.make(outcome, "3.zip", "--seed", "7").read_bytes() != first
    project.upper.invalidate(program)
    assert project.make(call(project.upper, program), "4.zip").read_bytes() == first


def test_another_artifact_is_exit_code_1(project: Project, program: cachec.Program, tmp_path: Path) -> None:
    bug = project.make(call(project.upper, program))
    other = tmp_path / "python-that-writes-x"
    other.write_text('#!/bin/sh\necho x > "$4"\n')
    other.chmod(0o700)
    name = Path(sys.executable).name
    found = project.json("run", str(bug), "--tool", f"{name}={other}", code=1)
    assert not found["same"]
    assert found["artifacts"][0]["found"] != found["artifacts"][0]["expected"]
    assert "another tool than recorded" in found["tools"][0]
    assert "differs" in project.run("run", str(bug), "--tool", f"{name}={other}", code=1).stdout
    failing = tmp_path / "fails"
    failing.write_text("#!/bin/sh\necho no >&2\nexit 9\n")
    failing.chmod(0o700)
    found = project.json("run", str(bug), "--tool", f"{name}={failing}", code=1)
    assert found["failure"].endswith("exit code 9:\nno")
    assert found["artifacts"][0]["found"] is None


def test_a_tool_that_is_not_there(project: Project, program: cachec.Program, monkeypatch: pytest.MonkeyPatch) -> None:
    bug = project.make(call(project.upper, program))
    monkeypatch.setenv("PATH", str(project.folder))
    result = project.run("run", str(bug), code=2)
    assert "is not installed here" in result.stderr
    assert f"--tool {Path(sys.executable).name}=PATH" in result.stderr


def test_stdin_is_kept(project: Project) -> None:
    bug = project.make(call(project.from_stdin, b"abc"))
    assert members(bug)["stdin/0"] == b"abc"
    assert project.json("run", str(bug))["same"]


def test_an_input_of_the_project_is_kept_and_a_large_one_asked_for(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = project.folder / "elsewhere" / "source.txt"
    source.parent.mkdir()
    source.write_text("hello")
    bug = project.make(call(project.with_file, source))
    assert b"hello" in members(bug).values()
    assert project.json("run", str(bug))["same"]

    monkeypatch.setattr("cachec.commands.reproducer_files.MAX_FILE_BYTES", 3)
    monkeypatch.setattr("cachec.reproduce.arguments.MAX_STORED", 3)
    monkeypatch.setattr("cachec.key.content_diff.MAX_STORED_BYTES", 3)
    source.write_text("other")
    outcome = call(project.with_file, source)
    bug = project.make(outcome)
    assert b"other" in members(bug).values(), "it is still in its place"
    data = source.read_bytes()
    source.write_text("changed")
    bug = project.make(outcome)
    assert load(bug).about.missing
    (name,) = [each.partition(" ")[0] for each in load(bug).about.missing if each.startswith("work")]
    result = project.run("run", str(bug), code=2)
    assert f"--file {name}=FILE" in result.stderr
    (project.folder / "again").write_bytes(data)
    assert project.json("run", str(bug), "--file", f"{name}=again")["same"]


def test_weights_of_a_command_are_made_from_the_seed(project: Project) -> None:
    params = project.folder / "w" / "p.safetensors"
    params.parent.mkdir()
    save_file({"a": np.ones((100, 10), "f4")}, params)
    bug = project.make(call(project.with_weights, params))
    assert np.ones(100, "f4").tobytes() not in b"".join(members(bug).values())
    params.unlink()
    assert project.json("run", str(bug))["same"], "a file of the same names, shapes and size"


def test_what_a_command_says_is_kept_only_where_it_fails(project: Project) -> None:
    outcome = call(project.noisy, 1)
    first = project.make(outcome, "1.zip").read_bytes()
    assert b"/tmp" not in b"".join(members(project.folder / "1.zip").values())
    project.noisy.invalidate(1)
    assert project.make(call(project.noisy, 1), "2.zip").read_bytes() == first


# --- whose it is


def test_a_foreign_reproducer_is_shown_and_not_run(project: Project, program: cachec.Program) -> None:
    bug = project.make(call(project.upper, program))
    result = project.run("run", str(bug), code=2, store="another")
    assert "nothing was run" in result.stderr
    assert "in.mlir mid.txt" in result.stderr
    assert project.json("run", str(bug), "--run-code", store="another")["same"]
    # one whose recipe was changed is foreign too, even if it says the key of an entry of ours
    changed = members(bug)
    recipe = json.loads(changed["recipe.json"])
    recipe["commands"][0]["args"][1] = "import os; os.mkdir('/tmp/h6-was-here')"
    changed["recipe.json"] = json.dumps(recipe).encode()
    about = json.loads(changed["reproducer.json"])
    about["recipe"] = cachec_digest(changed["recipe.json"])
    changed["reproducer.json"] = json.dumps(about).encode()
    from cachec.reproduce.archive import write_archive

    evil = project.folder / "evil.zip"
    evil.write_bytes(write_archive(changed))
    assert "nothing was run" in project.run("run", str(evil), code=2).stderr
    assert not Path("/tmp/h6-was-here").exists()
    project.upper.invalidate(program)
    assert "nothing was run" in project.run("run", str(bug), code=2).stderr


def test_show_runs_nothing(project: Project, program: cachec.Program) -> None:
    bug = project.make(call(project.upper, program))
    found = project.json("show", str(bug), store="another")
    assert found["mode"] == "command"
    assert len(found["commands"]) == 2
    assert found["weights"] == 2
    assert found["expected"][0]["codec"] == "file"
    assert "runs    cd" in project.run("show", str(bug)).stdout


def test_keep(project: Project, program: cachec.Program) -> None:
    bug = project.make(call(project.upper, program))
    project.run("run", str(bug), "--keep", "kept")
    assert (project.folder / "kept" / "work" / "sub" / "out.txt").is_file()
    assert "does not exist yet" in project.run("run", str(bug), "--keep", "kept", code=2).stderr


# --- Python stages


def test_a_python_stage_is_called_with_its_arguments(project: Project) -> None:
    weights = cachec.WeightSet.from_arrays({"a": np.ones((3, 4), "f4"), "b": np.zeros(2, "i8")})
    options = {"x": (1, 2.5, None, "t" * 2000), "y": [True, b"z" * 3000]}
    bug = project.make(call(project.shapes, weights, options))
    assert load(bug).about.mode == "python"
    found = project.json("run", str(bug))
    assert found["same"], found
    assert np.ones(12, "f4").tobytes() not in b"".join(members(bug).values())


def test_a_stage_that_reads_weights_needs_their_bytes(project: Project, weights_file: Path) -> None:
    text = project.folder / "t.txt"
    text.write_text("T")
    weights = cachec.open_weights(weights_file)
    outcome = call(project.total, weights, ("a", "scale"), 2.0, text)
    bug = project.make(outcome)
    result = project.run("run", str(bug), code=1)
    assert "the run read 2 weights, 0 of them inside" in result.stdout
    options = ("--weights", str(weights_file), "--with-weights", "a", "--with-weights", "scale")
    bug = project.make(outcome, "bug2.zip", *options)
    assert load(bug).about.given == ("a", "scale")
    assert project.json("run", str(bug))["same"]


def test_weights_that_are_not_those_of_the_run_are_refused(project: Project, weights_file: Path) -> None:
    text = project.folder / "t.txt"
    text.write_text("T")
    outcome = call(project.total, cachec.open_weights(weights_file), ("a",), 2.0, text)
    arrays = load_file(weights_file)
    save_file({**arrays, "a": arrays["a"] + 1, "x": arrays["a"]}, "other.safetensors")
    save_file({**arrays, "a": arrays["b"][:2]}, "shape.safetensors")
    target = project.folder / "no.zip"
    for source, name, says in [
        ("other.safetensors", "a", "the run read other bytes"),
        ("other.safetensors", "x", "none of those"),
        ("shape.safetensors", "a", "float32 [4, 3] expected, found float32 [2, 3]"),
        (str(weights_file), "q", "q"),
    ]:
        args = (outcome.key, "-o", str(target), "--weights", source, "--with-weights", name)
        assert says in project.run(*args, code=2).stderr
    assert "--weights SOURCE" in project.run(outcome.key, "-o", str(target), "--with-weights", "a", code=2).stderr
    assert not target.exists()


def test_code_that_is_not_here_is_refused_clearly(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = cachec.WeightSet.from_arrays({"a": np.ones(2, "f4")})
    bug = project.make(call(project.shapes, weights, {}))
    sys.modules.pop("repro_project")
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != str(project.folder / "src")])
    result = project.run("run", str(bug), code=2)
    assert "repro_project:shapes can't be imported here" in result.stderr
    assert "--path FOLDER" in result.stderr
    assert project.json("run", str(bug), "--path", "src")["same"]


def test_a_name_that_is_no_stage_is_never_called(project: Project) -> None:
    weights = cachec.WeightSet.from_arrays({"a": np.ones(2, "f4")})
    bug = project.make(call(project.shapes, weights, {}))
    changed = members(bug)
    recipe = json.loads(changed["recipe.json"]) | {"entry": "os:system", "arguments": {}}
    changed["recipe.json"] = json.dumps(recipe).encode()
    about = json.loads(changed["reproducer.json"])
    about["recipe"] = cachec_digest(changed["recipe.json"])
    changed["reproducer.json"] = json.dumps(about).encode()
    from cachec.reproduce.archive import write_archive

    bug.write_bytes(write_archive(changed))
    assert "os:system is no stage here" in project.run("run", str(bug), "--run-code", code=2).stderr


def test_an_argument_that_is_not_kept_is_named(project: Project) -> None:
    weights = cachec.WeightSet.from_arrays({"a": np.ones(2, "f4")})
    bug = project.make(call(project.shapes, weights, {"array": np.zeros(3)}))
    result = project.run("run", str(bug), code=2)
    assert "argument options['array'] was array float64[3]" in result.stderr


# --- failures


def test_a_failing_command_leaves_one_where_it_is_asked_for(
    project: Project, program: cachec.Program, caplog: pytest.LogCaptureFixture
) -> None:
    cache = cachec.Cache(project.folder / "store", log="miss")
    assert cache.settings.repro_dir is None
    with pytest.raises(subprocess.CalledProcessError):
        project.fails(program)
    assert not (project.folder / "repros").exists()
    settings = msgspec.structs.replace(project.cache.settings, repro_dir=project.folder / "repros", log="miss")
    project.cache._engine.settings = settings
    project.cache.events._log = "miss"
    with pytest.raises(subprocess.CalledProcessError):
        project.fails(program)
    (bug,) = (project.folder / "repros").iterdir()
    assert bug.name.startswith("repro_project.fails-")
    assert f"a reproducer of the failure is in {bug}" in caplog.text
    found = project.json("show", str(bug))
    assert found["failure"] == {
        "error": "CalledProcessError",
        "text": f"{Path(sys.executable).name} ended with exit code 3",
    }
    assert members(bug)["stderr.txt"] == b"bad input: module {\n}\nwork/x"
    assert b"/tmp" not in b"".join(members(bug).values())
    refused = project.run("run", str(bug), code=2).stderr
    assert "this reproducer is of a run that failed, and a store holds none of these" in refused
    assert "then say --run-code" in refused
    replayed = project.json("run", str(bug), "--run-code")
    assert replayed["same"]
    assert "exit code 3" in replayed["failure"]
    assert "failed as recorded" in project.run("run", str(bug), "--run-code").stdout


def test_a_command_that_does_not_end(project: Project, program: cachec.Program) -> None:
    project.cache._engine.settings = msgspec.structs.replace(
        project.cache.settings, repro_dir=project.folder / "repros"
    )
    with pytest.raises(subprocess.TimeoutExpired):
        project.hangs(1)
    (bug,) = (project.folder / "repros").iterdir()
    found = project.json("run", str(bug), "--run-code", "--timeout", "0.3")
    assert found["same"]
    assert found["failure"].endswith("did not end within 0.3 s")
    bug = project.make(call(project.upper, program))
    found = project.json("run", str(bug), "--timeout", "0.001", code=1)
    assert "did not end within" in found["failure"]


def test_a_failing_python_stage_too(project: Project, program: cachec.Program) -> None:
    project.cache._engine.settings = msgspec.structs.replace(
        project.cache.settings, repro_dir=project.folder / "repros"
    )
    with pytest.raises(ValueError, match="number 7"):
        project.raises(program, 7)
    (bug,) = (project.folder / "repros").iterdir()
    assert project.json("run", str(bug), "--run-code")["same"]
    (project.folder / "src" / "repro_project.py").write_text(
        "import cachec\ncache = cachec.Cache()\n@cache.stage\ndef raises(program, number):\n    return b'fixed'\n"
    )
    sys.modules.pop("repro_project")
    result = project.run("run", str(bug), "--run-code", code=1)
    assert "did not fail; ValueError was expected" in result.stdout


def test_a_reproducer_that_can_t_be_written_does_not_hide_the_error(
    project: Project, program: cachec.Program, caplog: pytest.LogCaptureFixture
) -> None:
    (project.folder / "file").write_text("")
    project.cache._engine.settings = msgspec.structs.replace(
        project.cache.settings, repro_dir=project.folder / "file" / "below"
    )
    project.cache.events._log = "miss"
    with pytest.raises(ValueError, match="number 7"):
        project.raises(program, 7)
    assert "no reproducer of the failure could be written" in caplog.text


def test_the_setting_is_a_variable() -> None:
    from cachec import config

    found = config.load({}, environ={"CACHEC_REPRO_DIR": "r"}, cwd="/x")
    assert found.repro_dir == Path("/x/r")


# --- entries


def test_an_entry_without_a_recipe(project: Project) -> None:
    store = Store(project.folder / "store")
    outcome = call(project.from_stdin, b"abc")
    entry = store.lookup(outcome.key)
    assert entry is not None
    assert store.recipe(entry) is not None
    parts = store.objects.add_bytes(msgspec.json.encode([part("arg/x")]))
    store.publish(outcome.key, entry.stage, (), parts, entry.traces[0])
    result = project.run(outcome.key, "-o", "no.zip", code=2)
    assert "stored without saying how it was called" in result.stderr
    assert not Path("no.zip").exists()
    store.close()
    project.run("abcdef", "-o", "no.zip", code=1)


def test_what_a_reproducer_needs_is_referred_to(project: Project, program: cachec.Program) -> None:
    from cachec.store.store import references

    store = Store(project.folder / "store")
    entry = store.lookup(call(project.upper, program).key)
    assert entry is not None
    held = {ref.digest for ref in references(entry)}
    assert {program.ir_digest, program.manifest.digest} <= held
    assert store.find_artifact(program.ir_digest) == [], "it was given, not made"
    store.close()


def test_a_file_that_is_there_is_replaced_whole_or_not(project: Project, program: cachec.Program) -> None:
    outcome = call(project.upper, program)
    (project.folder / "dir").mkdir()
    assert "expected to be a file or nothing" in project.run(outcome.key, "-o", "dir", code=2).stderr
    assert "No such file" in project.run(outcome.key, "-o", "none/x.zip", code=2).stderr
    bug = project.make(outcome)
    assert bug.stat().st_mode & 0o777 == 0o600


# --- synthetic weights


def test_weights_are_written_from_the_seed(project: Project, program: cachec.Program) -> None:
    bug = project.make(call(project.upper, program))
    found = project.json("weights", str(bug), "-o", "w.safetensors")
    assert found == {"path": "w.safetensors", "weights": 2, "nbytes": 52}
    written = cachec.open_weights("w.safetensors")
    assert {name: (spec.dtype, spec.shape) for name, spec in written.specs.items()} == {
        "a": ("float32", (4, 3)),
        "b": ("bfloat16", (2,)),
    }
    first = Path("w.safetensors").read_bytes()
    project.run("weights", str(bug), "-o", "w.safetensors")
    assert Path("w.safetensors").read_bytes() == first
    assert ".safetensors or .irpa" in project.run("weights", str(bug), "-o", "w.bin", code=2).stderr
