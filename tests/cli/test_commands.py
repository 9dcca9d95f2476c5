"""Each command against a store with known entries."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import msgspec
import pytest

from cachec.base.hashing import digest_bytes
from cachec.events import EventLog
from cachec.model import Fault, Outcome, Part, Reason, WeightSpec
from tests.parts import part

from .conftest import Shell

# --- stats


def outcome(reason: Reason, stage: str, seconds: float, saved: float = 0.0, time: float = 0.0) -> Outcome:
    return Outcome(reason=reason, stage=stage, key="k", seconds=seconds, saved=saved, time=time)


@pytest.fixture
def calls(shell: Shell) -> Shell:
    log = EventLog(shell.dir, log="off")
    log.emit(outcome(Reason.FIRST_RUN, "lower", 2.0, time=1000.0))
    log.emit(outcome(Reason.HIT, "lower", 0.5, saved=2.5))
    log.emit(outcome(Reason.HIT, "build", 0.5, saved=10.5))
    log.emit(outcome(Reason.OPTION_CHANGED, "build", 4.0))
    log.emit(outcome(Reason.MODE_OFF, "build", 1.0))
    log.emit(outcome(Reason.STAGE_RAISED, "build", 1.0))
    log.note_fault(Fault.STORE_FULL, "no room")
    with next((shell.dir / "log").iterdir()).open("ab") as file:
        file.write(b"{torn\n")
    return shell


def test_stats_json(calls: Shell) -> None:
    found = calls.json("stats")
    stages = found.pop("stages")
    assert found.pop("store")["size"] == 0
    assert found == {
        "dir": str(calls.dir),
        "since": None,
        "calls": 6,
        "counted": 4,
        "hits": 2,
        "misses": 2,
        "new": 1,
        "changed": 1,
        "lost": 0,
        "asked": 0,
        "bypasses": 1,
        "untimed": 0,
        "errors": 1,
        "hit_rate": 0.5,
        "remote": {"asked": 0, "hits": 0, "bytes": 0, "seconds": 0.0},
        "seconds_saved": 12.0,
        "seconds_spent": 8.0,
        "reasons": {
            "hit": 2,
            "bypass:mode-off": 1,
            "error:stage-raised": 1,
            "miss:first-run": 1,
            "miss:option-changed": 1,
        },
        "reason_seconds": {
            "hit": 1.0,
            "bypass:mode-off": 1.0,
            "error:stage-raised": 1.0,
            "miss:first-run": 2.0,
            "miss:option-changed": 4.0,
        },
        "faults": {"store-full": 1},
        "damaged_lines": 1,
    }
    assert stages["lower"] == {
        "calls": 2,
        "counted": 2,
        "hits": 1,
        "misses": 1,
        "new": 1,
        "changed": 0,
        "lost": 0,
        "asked": 0,
        "bypasses": 0,
        "untimed": 0,
        "errors": 0,
        "hit_rate": 0.5,
        "seconds_saved": 2.0,
        "seconds_spent": 2.0,
    }
    assert stages["build"]["calls"] == 4


def test_stats_text(calls: Shell) -> None:
    output = calls.run("stats").output
    assert output.startswith(
        "6 calls, 2 hits (50.0%), 12.00 s saved, 8.00 s spent\n2 misses: 1 new, 1 changed, 0 lost\n"
        "1 bypass, 1.00 s\n2 calls not in the rate: 1 mode-off, 1 stage-raised\n"
    )
    for words in ("miss:option-changed", "build", "store-full", "1 line of the log could not be read"):
        assert words in output


def test_each_miss_is_new_changed_lost_or_asked_for(shell: Shell) -> None:
    causes = {
        "new": {"first-run", "new-input"},
        "changed": {
            *("stage", "code", "tool", "ambient", "environment", "platform", "option", "topology", "weight-spec"),
            *("file", "weight-content", "dependency"),
        },
        "lost": {"entry-gone", "artifact-missing", "artifact-corrupt", "row-corrupt", "row-version", "row-foreign-key"}
        | {"class-not-loaded", "store-unavailable"},
        "asked": {"refresh", "verified", "verify-differs"},
    }
    causes["changed"] = {f"{each}-changed" for each in causes["changed"]} | {"unusable-here"}
    expected = {reason: cause for cause, reasons in causes.items() for reason in reasons}
    log = EventLog(shell.dir, log="off")
    for reason in Reason:
        log.emit(outcome(reason, reason.value, 1.0))
    stages = shell.json("stats")["stages"]
    for reason in Reason:
        found = [cause for cause in causes if stages[reason.value][cause]]
        assert found == ([expected[reason.value.partition(":")[2]]] if reason.kind == "miss" else []), reason


def test_stats_since(calls: Shell) -> None:
    assert calls.json("stats", "--since", "1h")["calls"] == 5
    assert calls.json("stats", "--since", "1970-01-01")["calls"] == 6
    assert calls.json("stats", "--since", "2999-01-01")["calls"] == 0
    result = calls.run("stats", "--since", "yesterday")
    assert result.exit_code == 2
    assert "24h" in result.stderr


# --- ls, show


BASE = (part("code/pkg.build", "1"), part("distribution/iree", "iree 3.13"), part("arg/target", "'llvm-cpu'"))


def test_ls(shell: Shell) -> None:
    old = shell.publish("aaaaaa", BASE, stage="pkg.lower", ago=7300)
    new = shell.publish("bbbbbb", BASE, content=b"x" * 2048, ago=30)
    found = shell.json("ls")["entries"]
    assert [each["key"] for each in found] == [new, old]
    parts_size = len(msgspec.json.encode(BASE))
    assert {name: found[0][name] for name in ("stage", "tags", "traces", "size", "seconds")} == {
        "stage": "pkg.build",
        "tags": ["nightly"],
        "traces": 1,
        "size": 2048 + parts_size,
        "seconds": 1.5,
    }
    header, first, second = shell.run("ls").output.splitlines()
    assert header.split() == ["key", "stage", "created", "runs", "size", "took"]
    assert first.split()[:5] == [new[:12], "pkg.build", "30", "s", "ago"]
    assert second.split()[:5] == [old[:12], "pkg.lower", "2", "h", "ago"]
    assert [each["key"] for each in shell.json("ls", "--stage", "lower")["entries"]] == [old]
    assert [each["key"] for each in shell.json("ls", "--stage", "pkg.lower")["entries"]] == [old]
    assert shell.json("ls", "--stage", "ower")["entries"] == []
    assert "no entries of a stage ower" in shell.run("ls", "--stage", "ower").output


def test_ls_leaves_out_a_damaged_row_and_says_so(shell: Shell) -> None:
    key = shell.publish("aaaaaa", BASE)
    shell.publish("bbbbbb", BASE)
    damage(shell, key)
    result = shell.run("ls")
    assert result.exit_code == 0
    assert "left out (row-corrupt)" in result.stderr
    assert "bbbbbb" in result.stdout
    assert "aaaaaa" not in result.stdout


def damage(shell: Shell, key: str) -> None:
    shell.store.close()
    with sqlite3.connect(shell.dir / "index" / "cache.db") as rows:
        assert (
            rows.execute("update Cache set value = ? where key like ?", (b"garbage", f"%:entry:%{key}")).rowcount == 1
        )
    rows.close()


def test_show_key(shell: Shell) -> None:
    key = shell.publish("aaaaaa", BASE)
    found = shell.json("show", "aaaaaa")
    assert (found["kind"], found["key"], found["stage"]) == ("entry", key, "pkg.build")
    assert found["parts"] == [
        {
            "part": each.label,
            "kind": each.kind.value,
            "name": each.name,
            "digest": each.digest,
            "detail": each.detail,
            "refs": [],
            "version": "",
            "value": "",
            "subject": "",
            "leaves": [],
        }
        for each in BASE
    ]
    (run,) = found["runs"]
    assert run["reads"] == [{"kind": "weight", "where": "weights", "name": "scale", "digest": "1" * 64}]
    assert run["artifacts"] == [{"digest": digest_bytes(b"artifact"), "size": 8}]
    assert shell.json("show", key.upper()) == found
    output = shell.run("show", "aaaaaa", "--full").output
    for words in (key, "distribution/iree", "iree 3.13", "read weight weights 'scale'", digest_bytes(b"artifact")):
        assert words in output


def test_show_a_key_whose_parts_are_gone(shell: Shell) -> None:
    shell.publish("aaaaaa", BASE)
    Path(shell.store.objects.place(digest_bytes(msgspec.json.encode(BASE)))).unlink()
    result = shell.run("show", "aaaaaa")
    assert result.exit_code == 0
    assert "artifact-missing" in result.stderr
    assert shell.json("show", "aaaaaa")["parts"] is None


def test_an_ambiguous_prefix_lists_its_keys(shell: Shell) -> None:
    keys = [shell.publish("aaaaaa" + tail, BASE) for tail in ("1", "2")]
    for command in ("show", "why", "invalidate"):
        result = shell.run(command, "aaaaaa")
        assert result.exit_code == 2
        assert "is the beginning of 2 keys" in result.stderr
        assert all(key[:12] in result.stderr for key in keys)
    assert shell.json("show", "aaaaaa1")["key"] == keys[0]


def test_show_of_what_is_neither_a_file_nor_a_key(shell: Shell) -> None:
    result = shell.run("show", "nofile")
    assert result.exit_code == 2
    assert "'nofile' is neither a file that is there nor a key (6 to 64 " in result.stderr


def test_show_file(shell: Shell, tmp_path: Path) -> None:
    one, two = shell.publish("aaaaaa", BASE), shell.publish("bbbbbb", BASE, stage="pkg.copy")
    copy = tmp_path / "model.vmfb"
    copy.write_bytes(b"artifact")
    assert shell.json("show", str(copy)) == {
        "kind": "file",
        "path": str(copy),
        "digest": digest_bytes(b"artifact"),
        "size": 8,
        "origins": [{"key": one, "stage": "pkg.build"}, {"key": two, "stage": "pkg.copy"}],
    }
    output = shell.run("show", str(copy)).output
    assert f"{copy} came from stage pkg.build, key {one}" in output


def test_show_a_file_that_nobody_made(shell: Shell, tmp_path: Path) -> None:
    shell.publish("aaaaaa", BASE)
    other = tmp_path / "other.vmfb"
    other.write_bytes(b"something else")
    assert shell.json("show", str(other), code=1)["origins"] == []
    result = shell.run("show", str(other))
    assert result.exit_code == 1
    assert "holds the content of" in result.stderr
    assert shell.run("show", "missing.vmfb").exit_code == 1
    folder = shell.run("show", str(tmp_path))
    assert folder.exit_code == 2
    assert "is a folder" in folder.stderr


# --- why


def test_why_against_the_nearest(shell: Shell) -> None:
    far = (part("code/pkg.build", "2"), part("distribution/iree", "iree 3.12"), part("arg/target", "'cuda'"))
    near = (*BASE[:2], part("arg/target", "'cuda'"))
    shell.publish("aaaaaa", far)
    nearest = shell.publish("bbbbbb", near)
    shell.publish("dddddd", BASE, stage="pkg.other")
    key = shell.publish("cccccc", BASE)
    assert shell.json("why", "cccccc") == {
        "key": key,
        "stage": "pkg.build",
        "other": {"key": nearest, "stage": "pkg.build", "chosen": "nearest"},
        "reason": "miss:option-changed",
        "differences": [
            {
                "part": "arg/target",
                "reason": "miss:option-changed",
                "old": "'cuda'",
                "new": "'llvm-cpu'",
                "words": "target: 'cuda' -> 'llvm-cpu'",
            }
        ],
    }
    assert "option-changed: target: 'cuda' -> 'llvm-cpu'" in shell.run("why", "cccccc").output


def test_why_against_another_names_every_part(shell: Shell) -> None:
    shell.publish("aaaaaa", (*BASE[:1], part("distribution/iree", "iree 3.12"), part("arg/target", "'cuda'")))
    shell.publish("bbbbbb", BASE)
    found = shell.json("why", "bbbbbb", "aaaaaa")
    assert found["other"]["chosen"] == "given"
    assert [each["part"] for each in found["differences"]] == ["distribution/iree", "arg/target"]
    same = shell.json("why", "aaaaaa", "aaaaaa")
    assert (same["reason"], same["differences"]) == (None, [])
    assert "no part differs" in shell.run("why", "aaaaaa", "aaaaaa").output


def test_why_without_another(shell: Shell) -> None:
    shell.publish("aaaaaa", BASE)
    result = shell.run("why", "aaaaaa")
    assert result.exit_code == 1
    assert "no other entry is like aaaaaa000000 of stage pkg.build" in result.stderr
    assert shell.run("why", "aaaaaa", "bbbbbb").exit_code == 1


def test_why_of_another_stage(shell: Shell) -> None:
    shell.publish("aaaaaa", BASE, stage="other")
    shell.publish("cccccc", [*BASE[:2], part("arg/target", "'cuda'"), part("arg/more", "1")])
    found = shell.json("why", "cccccc", "aaaaaa")
    assert (found["stage"], found["other"]["stage"]) == ("pkg.build", "other")
    words = {each["part"]: each["words"] for each in found["differences"]}
    assert words == {"arg/target": "target: 'llvm-cpu' -> 'cuda'", "arg/more": "more added: 1"}
    output = shell.run("why", "aaaaaa", "cccccc").output.splitlines()
    assert output[0] == "aaaaaa000000 (other) against cccccc000000 (pkg.build):"
    assert "  option-changed: target: 'cuda' -> 'llvm-cpu'" in output


def _built(log: EventLog, since: float) -> None:
    """Two builds, ten minutes apart; of the later one a call that began before others ended."""
    for number, (reason, detail, seconds, end) in enumerate(
        (
            (Reason.FIRST_RUN, "of another build", 50.0, since),
            (Reason.NEW_INPUT, "a.c was never compiled", 2.0, since + 602),
            (Reason.NEW_INPUT, "b.c was never compiled", 3.0, since + 605),
            (Reason.OPTION_CHANGED, "target: 'a' -> 'b' " * 8, 40.0, since + 642),
            (Reason.OPTION_CHANGED, "target: 'a' -> 'b' " * 8, 5.0, since + 643),
            (Reason.HIT, "", 0.1, since + 650),
            (Reason.MODE_OFF, "", 300.0, since + 905),
        )
    ):
        log.emit(
            Outcome(reason=reason, stage="exec:cc", key=f"{number:x}" * 64, detail=detail, seconds=seconds, time=end)
        )


def test_why_all_is_of_the_last_build_and_tells_what_cost_most_first(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    began = time.time() - 2000
    _built(EventLog(shell.dir, log="off", stats_file=tmp_path / "calls"), began)
    found = shell.json("why", "--all")
    assert (found["calls"], found["hits"], found["new"], found["changed"]) == (6, 1, 2, 2)
    assert (found["began"], found["ended"]) == (began + 600, began + 905)
    groups = [(each["reason"], each["calls"], each["seconds"]) for each in found["groups"]]
    assert groups == [("bypass:mode-off", 1, 300.0), ("miss:option-changed", 2, 45.0), ("miss:new-input", 2, 5.0)]
    assert found["groups"][2]["detail"] == "b.c was never compiled"
    assert found["groups"][1]["keys"] == ["3" * 64, "4" * 64]
    assert shell.json("why", "--all", "--since", "24h")["calls"] == 7
    assert shell.json("why", "--all", "--stats-file", "calls")["calls"] == 7
    assert shell.json("why", "--all", "--since", "1m")["groups"] == []
    monkeypatch.setenv("COLUMNS", "80")
    output = shell.run("why", "--all").output
    assert max(len(line) for line in output.splitlines() if " cachec --dir " not in line) <= 80
    assert output.startswith("the last build: 6 calls, 1 hit, ")
    assert "4 misses: 2 new, 2 changed, 0 lost, 0 asked\n" in output
    assert "   5.00 s     2 x new-input  exec:cc\n" in output
    assert f"{'':18}b.c was never compiled (and 1 more)\n{'':18}cachec --dir {shell.dir} why 222222222222\n" in output
    assert output.index("mode-off") < output.index("option-changed") < output.index("new-input")


def test_why_says_what_it_wants(shell: Shell) -> None:
    assert "no calls are recorded" in shell.run("why", "--all").output
    for line in (("why",), ("why", "--all", "aaaaaa"), ("why", "aaaaaa", "--since", "1h")):
        assert shell.run(*line).exit_code == 2


def test_why_names_operations_and_specs_from_the_store(shell: Shell) -> None:
    def parts(text: bytes, shape: tuple[int, ...], *, keep: bool) -> tuple[Part, ...]:
        specs = msgspec.json.encode([WeightSpec(name="w", dtype="float32", shape=shape, nbytes=4)])
        if keep:
            shell.store.objects.add_bytes(text)
            shell.store.objects.add_bytes(specs)
        return (
            part("program/model", "", text.decode(), refs=(digest_bytes(text),), version="jax:stablehlo"),
            part("weights/weights", "1 weights", specs.decode(), refs=(digest_bytes(specs),)),
        )

    shell.publish("aaaaaa", parts(b"%0 = stablehlo.add %1, %2 : tensor<3xf32>", (3,), keep=True))
    shell.publish("bbbbbb", parts(b"%9 = stablehlo.add %1, %2 : tensor<4xf32>", (4,), keep=True))
    shell.publish("cccccc", parts(b"%9 = stablehlo.add %1, %2 : tensor<5xf32>", (5,), keep=False))
    program, weights = (each["words"] for each in shell.json("why", "bbbbbb", "aaaaaa")["differences"])
    expected = "stablehlo.add %, % : tensor<3xf32> -> stablehlo.add %, % : tensor<4xf32>"
    assert program == f"program model: {expected}"
    assert weights == "weights weights: 'w': shape expected (3,), found (4,)"
    output = " ".join(shell.run("why", "cccccc", "aaaaaa").output.split())
    assert output.count("only digests are known of the new one") == 2


def test_terminal_escapes_in_names_are_not_printed(shell: Shell) -> None:
    shell.publish("aaaaaa", (part("arg/x", "\x1b[2J1"),), stage="pkg.\x1b[31m")
    shell.publish("bbbbbb", (part("arg/x", "2"),), stage="pkg.\x1b[31m")
    for command in (["ls"], ["show", "aaaaaa"], ["why", "aaaaaa"], ["invalidate", "aaaaaa"]):
        assert "\x1b" not in shell.run(*command).output


# --- invalidate, config


def test_invalidate(shell: Shell) -> None:
    keys = [shell.publish(key, BASE) for key in ("aaaaaa", "bbbbbb", "cccccc")]
    result = shell.run("invalidate", "aaaaaa")
    assert (result.exit_code, result.output) == (0, f"removed {keys[0][:12]} (pkg.build)\n")
    assert [each["key"] for each in shell.json("ls")["entries"]] != []
    assert {each["key"] for each in shell.json("ls")["entries"]} == set(keys[1:])
    found = shell.json("invalidate", "bbbbbb", keys[1], "dddddd", code=1)
    assert found["removed"] == [{"key": keys[1], "stage": "pkg.build"}]
    assert found["not_found"] == ["dddddd"]
    assert {each["key"] for each in shell.json("ls")["entries"]} == {keys[2]}
    assert shell.run("invalidate").exit_code == 2


def test_invalidate_removes_nothing_where_a_key_is_malformed(shell: Shell) -> None:
    shell.publish("aaaaaa", BASE)
    assert shell.run("invalidate", "aaaaaa", "xyz").exit_code == 2
    assert len(shell.json("ls")["entries"]) == 1


def test_invalidate_a_damaged_row_by_its_whole_key(shell: Shell) -> None:
    key = shell.publish("aaaaaa", BASE)
    damage(shell, key)
    assert shell.run("show", key).exit_code == 2
    found = shell.json("invalidate", key)
    assert (found["removed"], found["not_found"]) == ([{"key": key, "stage": ""}], [])
    assert shell.run("show", key).exit_code == 1


def test_config(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cachec.toml").write_text('# ours\nmax_size = "1GiB"\n')
    monkeypatch.setenv("CACHEC_LOG", "all")
    monkeypatch.setenv("CACHEC_LOGG", "all")
    found = shell.json("config")
    values = found["settings"]
    assert values["dir"] == {"value": str(shell.dir), "origin": "argument"}
    assert values["max_size"] == {"value": 1 << 30, "origin": f"file: {tmp_path / 'cachec.toml'}:2"}
    assert values["log"] == {"value": "all", "origin": "environment: CACHEC_LOG"}
    assert values["mode"] == {"value": "on", "origin": "default"}
    assert values["base_dir"] == {"value": None, "origin": "default"}
    assert list(values) == [
        "dir", "mode", "max_size", "namespace", "base_dir", "log", "lock_timeout", "stats_file", "repro_dir", "fsync",
        "record", "isolated", "shared", "server", "progress", "trusted", "remote", "key_parts", "telemetry",
    ]  # fmt: skip
    assert found["warnings"] == ["CACHEC_LOGG is not a setting (did you mean CACHEC_LOG?)"]
    result = shell.run("config")
    assert "1.0 GiB" in result.stdout
    assert "cachec.toml:2" in result.stdout
    assert "cachec: warning: CACHEC_LOGG is not a setting" in result.stderr


def test_config_shows_what_commands_are_told(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "cachec.toml"
    file.write_text('[exec]\noutputs = ["*.log"]\n\n[adapters.mycc]\nmatch = ["mycc"]\n')
    monkeypatch.chdir(tmp_path)
    found = shell.json("config")
    assert found["exec"] == {"outputs": {"value": ["*.log"], "origin": f"{file}:2"}}
    assert found["adapters"] == {"mycc": str(file)}
    assert "exec.outputs" in (said := shell.run("config").stdout)
    assert "adapters.mycc" in said
    file.write_text("[adapters.mycc]\n")
    (warning,) = shell.json("config")["warnings"]
    assert "adapter 'mycc': Object missing required field `match`" in warning
