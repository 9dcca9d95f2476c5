"""``cachec watch``: what is told after a change, whatever way it was made in."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cachec.cli import main
from cachec.errors import ConfigError
from cachec.store.index import DiskcacheIndex
from cachec.watch.files import Files

from .conftest import Watching, helpers

Watch = Callable[..., Watching]

TARGETS = """
    [warm.targets.doubled]
    call = "stages:doubled"
    matrix = { n = [1] }
    [warm.targets.word]
    call = "words:upper"
"""


@pytest.fixture
def warmed(project: Any) -> Any:
    """Two warm targets: one of ``stages.py``, one of ``words.py`` that reads ``model.txt`` and looks for ``extra``."""
    project.write(
        "words.py",
        """
        import os, cachec
        from stages import ran
        cache = cachec.Cache()

        @cache.stage
        def upper_of(model: cachec.File) -> str:
            ran("upper")
            cachec.depends("extra.txt")
            return model.read_bytes().decode().upper()

        def upper():
            upper_of(cachec.File("model.txt"))
        """,
    )
    project.write("model.txt", "model")
    project.targets(TARGETS)
    assert project.warm().exit_code == 0
    return project


def edit(path: Path, old: str, new: str, how: str = "in place") -> None:
    text = path.read_text()
    assert old in text
    if how == "in place":
        path.write_text(text.replace(old, new))
    elif how == "rename":  # Vim with backupcopy=no, and most editors
        fresh = path.with_name("4913")
        fresh.write_text(text.replace(old, new))
        os.replace(fresh, path)
    else:  # keep a backup, write anew
        os.rename(path, path.with_name(path.name + "~"))
        path.write_text(text.replace(old, new))


@pytest.mark.sampled
@pytest.mark.parametrize("how", ["in place", "rename", "backup"])
def test_a_saved_source_file(warmed: Any, watch: Watch, how: str) -> None:
    watching = watch()
    assert {event.target for event in watching.events if event.kind == "warm"} == {"doubled[n=1]", "word"}
    edit(warmed.folder / "stages.py", "return 2 * n", "return n + n", how)
    stale = watching.next("stale", "doubled[n=1]")
    assert "code-changed" in stale.why
    assert str(warmed.folder / "stages.py") in next(e for e in watching.events if e.kind == "changed").paths
    watching.looked()  # no edit in the middle of that
    edit(warmed.folder / "stages.py", "return n + n", "return 2 * n", how)
    assert watching.next("warm").target == "doubled[n=1]"
    assert not [event for event in watching.events if event.kind == "stale" and event.target == "word"]
    assert len(warmed.runs) == 2, "nothing was compiled"


@pytest.mark.long
def test_a_comment_makes_nothing_stale(warmed: Any, watch: Watch) -> None:
    watching = watch()
    edit(warmed.folder / "stages.py", "return 2 * n", "return 2 * n  # twice")
    watching.next("changed")
    assert [event for event in watching.quiet(1.0) if event.kind != "changed"] == []


@pytest.mark.long
def test_models_files_that_were_absent_and_the_targets_themselves(warmed: Any, watch: Watch) -> None:
    watching = watch()
    warmed.write("model.txt", "other")
    assert "file-changed" in watching.next("stale", "word").why
    warmed.write("model.txt", "model")
    watching.next("warm", "word")
    warmed.write("extra.txt", "x")
    assert "extra.txt is there now" in watching.next("stale", "word").why
    (warmed.folder / "extra.txt").unlink()
    watching.next("warm", "word")
    warmed.targets(TARGETS.replace("n = [1]", "n = [1, 2]"))
    watching.next("stale", "doubled[n=2]")
    warmed.targets(TARGETS.replace("n = [1]", "n = 1"))
    assert "a table of lists" in watching.next("error").why
    (warmed.folder / "words.py").write_text("def upper(:\n")
    assert "SyntaxError" in watching.next("failed", "word").why


@pytest.mark.long
def test_a_folder_as_an_argument(warmed: Any, watch: Watch) -> None:
    warmed.write("data/one.txt", "1")
    warmed.write(
        "folders.py",
        """
        import cachec
        cache = cachec.Cache()
        @cache.stage
        def names(data: cachec.Dir) -> list:
            return sorted(each.name for each in data.path.iterdir())
        def f():
            names(cachec.Dir("data"))
        """,
    )
    warmed.targets('[warm.targets.f]\ncall = "folders:f"\n')
    assert warmed.warm().exit_code == 0
    watching = watch()
    warmed.write("data/two.txt", "2")
    watching.next("stale", "f")
    (warmed.folder / "data" / "two.txt").unlink()
    watching.next("warm", "f")
    warmed.write("data/one.txt", "other")
    watching.next("stale", "f")


@pytest.mark.long
def test_a_module_that_hides_another(warmed: Any, watch: Watch) -> None:
    warmed.write("lib/hidden.py", (warmed.folder / "stages.py").read_text())
    warmed.targets('[warm.targets.h]\ncall = "hidden:doubled"\npath = ["first", "lib"]\narguments = { n = 1 }\n')
    (warmed.folder / "first").mkdir()
    assert warmed.warm().exit_code == 0
    watching = watch()
    warmed.write("first/hidden.py", (warmed.folder / "stages.py").read_text().replace("return 2 * n", "return n + n"))
    watching.next("stale", "h")


def test_without_watchdog(warmed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("cachec.watch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "watchdog.events", None)
    result = CliRunner().invoke(main, ["watch"])
    assert (result.exit_code, result.stderr) == (
        2,
        "cachec: error: cachec watch needs watchdog: pip install 'cachec[watch]'\n",
    )


@pytest.mark.long
def test_with_warm_what_is_stale_is_compiled(warmed: Any, watch: Watch) -> None:
    watching = watch(warm=True)
    edit(warmed.folder / "stages.py", "return 2 * n", "return n + n")
    watching.next("stale", "doubled[n=1]")
    watching.next("compiled", "doubled[n=1]")
    assert warmed.runs.count("double 1") == 2
    assert warmed.runs.count("upper") == 1
    assert warmed.warm(check=True).exit_code == 0
    assert [event.kind for event in watching.quiet(1.0)] == []


@pytest.mark.long
def test_a_newer_change_cancels_what_is_compiled(warmed: Any, watch: Watch) -> None:
    watching = watch(warm=True)
    edit(warmed.folder / "stages.py", "time.sleep(seconds)", "time.sleep(60)")
    watching.next("stale", "doubled[n=1]")
    helpers_until(lambda: warmed.runs.count("double 1") == 2)
    edit(warmed.folder / "stages.py", "time.sleep(60)", "time.sleep(seconds + 0)")
    watching.next("cancelled")
    watching.next("compiled", "doubled[n=1]")


def helpers_until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.long
def test_a_folder_that_is_removed_and_made_again_and_moved(warmed: Any, watch: Watch) -> None:
    package = warmed.folder / "package"
    warmed.write("package/__init__.py", "")
    warmed.write("package/inner.py", (warmed.folder / "stages.py").read_text())
    warmed.targets('[warm.targets.p]\ncall = "package.inner:doubled"\narguments = { n = 1 }\n')
    assert warmed.warm().exit_code == 0
    watching = watch()
    kept = warmed.folder.parent / "kept"
    shutil.copytree(package, kept)
    shutil.rmtree(package)
    watching.next("failed", "p")
    shutil.copytree(kept, package)
    watching.next("warm", "p")
    os.rename(package, warmed.folder / "other")
    watching.next("failed", "p")
    os.rename(warmed.folder / "other", package)
    watching.next("warm", "p")
    edit(package / "inner.py", "return 2 * n", "return n + n")
    watching.next("stale", "p")


@pytest.mark.long
def test_editors_temporary_files_are_no_change(warmed: Any, watch: Watch) -> None:
    watching = watch()
    names = (".stages.py.swp", "4913", "stages.py~", ".#stages.py", "#stages.py#", "stages.py.tmp", ".goutputstream-X")
    for name in names:
        (warmed.folder / name).write_text("x")
        (warmed.folder / name).unlink()
    assert watching.quiet(1.0) == []


@pytest.mark.long
def test_five_thousand_files_at_once(warmed: Any, watch: Watch) -> None:
    watching = watch()
    for number in range(5000):
        (warmed.folder / f"f{number}.txt").write_text("x")
    edit(warmed.folder / "stages.py", "return 2 * n", "return n + n")
    watching.next("stale", "doubled[n=1]")
    for number in range(5000):
        (warmed.folder / f"f{number}.txt").unlink()
    edit(warmed.folder / "stages.py", "return n + n", "return 2 * n")
    watching.next("warm", "doubled[n=1]")


@pytest.mark.long
def test_no_event_at_all(warmed: Any, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """An overflow, a network file system, a kernel without watches: the files are looked at by time."""
    monkeypatch.setattr("cachec.watch.file_events.Notices.follow", lambda *_: None)
    watching = watch()
    edit(warmed.folder / "stages.py", "return 2 * n", "return n + n")
    watching.next("stale", "doubled[n=1]")


@pytest.mark.long
def test_the_store_is_cleared(warmed: Any, watch: Watch) -> None:
    watching = watch()
    shutil.rmtree(warmed.store)
    watching.next("stale", "doubled[n=1]")
    assert "new-input" in watching.next("stale", "word").why
    assert "changed" not in {event.kind for event in watching.events}, "what happens in the store is no news"
    told = len(watching.events)
    assert warmed.warm().exit_code == 0
    helpers_until(lambda: {e.target for e in watching.events[told:] if e.kind == "warm"} == {"word", "doubled[n=1]"})
    assert watching.quiet(2.5) == []


@pytest.mark.long
def test_an_event_is_never_believed(warmed: Any, watch: Watch) -> None:
    watching = watch()
    path = warmed.folder / "stages.py"
    for _ in range(3):
        os.utime(path)
        watching.next("changed")
    assert [event for event in watching.quiet(1.0) if event.kind != "changed"] == []


@pytest.mark.long
def test_a_target_that_writes_what_it_reads_is_not_looked_at_for_ever(warmed: Any, watch: Watch) -> None:
    warmed.write(
        "writes.py",
        """
        from pathlib import Path
        from stages import double
        def f():
            Path("own.txt").write_text("4")
            double(int(Path("own.txt").read_text()))
        """,
    )
    warmed.targets('[warm.targets.w]\ncall = "writes:f"\n')
    watching = watch(warm=True)
    assert [event.kind for event in watching.events if event.target == "w"] == ["stale", "compiled"]
    watching.quiet(1.0)
    assert watching.quiet(1.5) == []


def test_a_first_configuration_that_can_not_be_read(warmed: Any) -> None:
    warmed.targets("[warm]\njobs = 0\n")
    with pytest.raises(ConfigError, match="jobs = 0"):
        Watching().watcher.run()


@pytest.mark.long
def test_idle_costs_next_to_nothing(warmed: Any, watch: Watch) -> None:
    watching = watch()
    watching.quiet(0.5)
    before = resource.getrusage(resource.RUSAGE_SELF)
    watching.quiet(4.0)
    after = resource.getrusage(resource.RUSAGE_SELF)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert used < 0.2, "5 % of 4 s; bench/watch.py holds it to 1 %"


@pytest.mark.long
def test_on_the_command_line(warmed: Any) -> None:
    process = subprocess.Popen(
        [*helpers.CLI, "watch"], cwd=warmed.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(3)]
    assert {line.split()[0] for line in lines[:2]} == {"warm"}
    assert lines[2].startswith("watching ")
    edit(warmed.folder / "stages.py", "return 2 * n", "return n + n")
    assert process.stdout.readline() == "changed: stages.py\n"
    assert process.stdout.readline().startswith("stale    doubled[n=1] (")
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert (process.returncode, rest) == (0, "")


def test_nothing_declared(project: Any) -> None:
    done = project.command("watch")
    assert (done.returncode, "no targets are declared" in done.stderr) == (2, True)


def test_files_that_changed_while_they_were_first_looked_at(tmp_path: Path) -> None:
    files = Files(tmp_path / "store")
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("")
    os.utime(old)
    time.sleep(0.05)
    since = time.time()
    time.sleep(0.05)
    new.write_text("")
    assert files.learn([str(old), str(new), str(tmp_path / "absent")], since) == [str(new)]
    assert files.changed(installed=True, entries=False, folders=True) == []
    (tmp_path / "absent").write_text("")
    assert files.changed(installed=True, entries=False, folders=True) == [str(tmp_path / "absent")]
    assert files.changed(installed=True, entries=False, folders=True) == []


def test_an_entry_that_came_while_nobody_asked_for_entries(tmp_path: Path) -> None:
    files = Files(tmp_path)
    look = partial(files.changed, installed=True, folders=True)
    index = DiskcacheIndex(tmp_path / "index")
    index.write("a", b"a", "")
    index.write("b", b"b", "")
    assert len(look(entries=False)) == 1, "another database"
    files.accept_store()
    assert look(entries=True) == []
    index.write("c", b"c", "")
    assert look(entries=False) == []
    assert look(entries=True) == look(entries=True) != [], "until it is accepted"
    files.accept_store()
    index.read("c")
    index.close()
    assert look(entries=True) == [], "reading, and closing that takes SQLite's log away, is no change"
    files.close()


@pytest.mark.long
def test_a_configuration_file_that_goes_and_comes_back(warmed: Any, watch: Watch) -> None:
    watching = watch()
    file = warmed.folder / "cachec.toml"
    text = file.read_text()
    file.unlink()
    assert "declares no targets any more" in watching.next("error").why
    edit(warmed.folder / "stages.py", "return 2 * n", "return n + n")
    watching.next("stale", "doubled[n=1]")
    file.write_text(text.replace("n = [1]", "n = [1, 2]"))
    watching.next("stale", "doubled[n=2]")


@pytest.mark.long
def test_a_configuration_file_that_takes_over(warmed: Any, watch: Watch) -> None:
    text = (warmed.folder / "cachec.toml").read_text()
    (warmed.folder / "cachec.toml").unlink()
    warmed.write("pyproject.toml", text.replace("[warm", "[tool.cachec.warm"))
    watching = watch()
    warmed.targets(text.replace("n = [1]", "n = [1, 2]"))
    watching.next("stale", "doubled[n=2]")


@pytest.mark.long
def test_edits_within_a_second_that_keep_the_size(warmed: Any, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python would take the compiled module of the edit before for that of this one."""
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    watching = watch()
    for _ in range(4):
        edit(warmed.folder / "stages.py", "return 2 * n", "return 3 * n")
        watching.next("stale", "doubled[n=1]")
        edit(warmed.folder / "stages.py", "return 3 * n", "return 2 * n")
        watching.next("warm", "doubled[n=1]")
