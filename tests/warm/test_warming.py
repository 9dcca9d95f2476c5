"""Warming in real worker processes: what runs, what does not, in which order, and what is told."""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import pytest

from cachec import warm
from cachec.errors import UsageError
from cachec.model import Reason

from .conftest import Project, statuses

DOUBLED = """
    [warm.targets.doubled]
    call = "stages:doubled"
    matrix = { n = [1, 2, 3] }
"""


def test_what_would_miss_runs_once_and_then_hits(project: Project) -> None:
    project.targets(DOUBLED)
    first = project.warm(jobs=2)
    assert statuses(first) == {f"doubled[n={n}]": "compiled" for n in (1, 2, 3)}
    assert first.exit_code == 0
    assert sorted(project.runs) == ["double 1", "double 2", "double 3"]
    again = project.warm(jobs=2)
    assert set(statuses(again).values()) == {"hit"}
    assert len(project.runs) == 3
    assert [outcome.hit for outcome in project.log()] == [False] * 3 + [True] * 3, "what is warm is in use"
    assert project.warm(check=True).exit_code == 0
    assert len(project.log()) == 6, "a check is not"


@pytest.mark.long
def test_a_check_compiles_and_counts_nothing_and_gives_the_reason(project: Project) -> None:
    project.targets(DOUBLED)
    cold = project.warm(check=True)
    assert (cold.exit_code, set(statuses(cold).values())) == (1, {"would-miss"})
    assert "first-run: no entry of this stage yet" in cold.results[0].why()
    assert project.runs == []
    assert project.log() == []
    project.warm("doubled[n=1]")
    assert project.warm("doubled[n=1]", check=True).exit_code == 0
    assert "option-changed: n: 1 -> 2" in project.warm("doubled[n=2]", check=True).results[0].why()
    text = (project.folder / "stages.py").read_text()
    project.write("stages.py", text.replace("return 2 * n", "return n + n"))
    changed = project.warm("doubled[n=1]", check=True)
    assert changed.exit_code == 1
    assert "code-changed" in changed.results[0].why()
    project.write("stages.py", text + "\n# a comment\n")
    assert project.warm("doubled[n=1]", check=True).exit_code == 0


def test_a_check_compiles_nothing_whatever_caches_and_stages_say(project: Project) -> None:
    project.write(
        "sly.py",
        """
        import threading, cachec
        from stages import ran
        cache = cachec.Cache(mode="refresh")

        @cache.stage(mode="off")
        def off(n: int) -> int:
            ran("off")
            return n

        @cache.stage(mode="verify")
        def verified(n: int) -> int:
            ran("verified")
            return n

        def swallows():
            try:
                off(1)
            except cachec.CacheMissError:
                pass

        def in_a_thread():
            thread = threading.Thread(target=verified, args=(1,))
            thread.start()
            thread.join()
            from stages import double
            double(1)
        """,
    )
    project.targets(
        """
        [warm.targets.swallows]
        call = "sly:swallows"
        [warm.targets.threaded]
        call = "sly:in_a_thread"
        """
    )
    assert set(statuses(project.warm(check=True)).values()) == {"would-miss"}
    assert project.runs == []


def test_a_stage_a_coroutine_and_a_nested_call_are_targets(project: Project) -> None:
    project.targets(
        """
        [warm.targets.stage]
        call = "stages:double"
        matrix = { n = [5] }
        [warm.targets.awaited]
        call = "stages:awaited"
        arguments = { n = 6 }
        [warm.targets.both]
        call = "stages:both"
        arguments = { n = 7 }
        """
    )
    assert set(statuses(project.warm()).values()) == {"compiled"}
    assert sorted(project.runs) == ["double 5", "double 6", "double 7", "word 14"]
    assert project.warm(check=True).exit_code == 0


def test_dependencies_come_first_and_failures_skip_only_what_needs_them(project: Project) -> None:
    project.targets(
        """
        [warm.targets.last]
        call = "stages:doubled"
        arguments = { n = 9 }
        after = ["broken"]
        [warm.targets.second]
        call = "stages:both"
        matrix = { n = [1, 2] }
        after = ["first"]
        [warm.targets.first]
        call = "stages:doubled"
        matrix = { n = [1, 2] }
        arguments = { seconds = 0.2 }
        [warm.targets.broken]
        call = "stages:fails"
        """
    )
    summary = project.warm(jobs=4)
    found = statuses(summary)
    assert found.pop("last") == "skipped"
    assert found.pop("broken") == "failed"
    assert set(found.values()) == {"compiled"}
    assert summary.exit_code == 2
    assert sorted(project.runs) == ["double 1", "double 2", "word 2", "word 4"], "second found what first had made"
    results = {result.id: result for result in summary.results}
    assert results["broken"].error == "ValueError: no luck"
    assert results["broken"].output.startswith("some words\nTraceback")
    assert results["last"].error == "comes after broken, which failed"


def test_a_dependent_that_needs_what_comes_before_is_not_a_failure(project: Project) -> None:
    project.write(
        "chain.py",
        """
        from pathlib import Path
        from stages import double
        def make():
            Path("made.txt").write_text(str(double(4)))
        def use():
            double(int(Path("made.txt").read_text()))
        """,
    )
    project.targets(
        """
        [warm.targets.make]
        call = "chain:make"
        [warm.targets.use]
        call = "chain:use"
        after = ["make"]
        """
    )
    checked = project.warm(check=True)
    assert statuses(checked) == {"make": "would-miss", "use": "would-miss"}
    assert "comes after make; FileNotFoundError" in checked.results[1].why()
    assert statuses(project.warm()) == {"make": "compiled", "use": "compiled"}
    assert project.warm(check=True).exit_code == 0


@pytest.mark.long
def test_env_isolation_and_folders_of_modules(project: Project) -> None:
    project.write(
        "lib/where.py",
        """
        import os
        import cachec
        cache = cachec.Cache()
        imported = []
        @cache.stage(env=["WHICH"])
        def told(n: int) -> list:
            return [os.environ["WHICH"], os.getpid()]
        def again(n):
            imported.append(n)
            assert len(imported) == 1, imported
            told(n)
        """,
    )
    project.targets(
        """
        [warm.targets.env]
        call = "where:told"
        path = ["lib"]
        matrix = { which = ["x", "y"] }
        arguments = { n = 1 }
        env = { WHICH = "{which}" }
        [warm.targets.isolated]
        call = "where:again"
        path = ["lib"]
        env = { WHICH = "z" }
        matrix = { n = [1, 2] }
        isolated = true
        """
    )
    summary = project.warm()
    assert "does not take the arguments of env[which=x]: got an unexpected keyword argument 'which'" in (
        summary.results[0].error
    )
    text = (project.folder / "lib/where.py").read_text()
    project.write("lib/where.py", text.replace("told(n: int)", "told(n: int, which: str = '')"))
    summary = project.warm(jobs=1)
    assert set(statuses(summary).values()) == {"compiled"}, [result.why() for result in summary.results]


@pytest.mark.long
def test_modules_of_one_name_in_two_folders_are_two(project: Project) -> None:
    for folder in ("one", "two"):
        project.write(f"{folder}/mine.py", f"from stages import word\ndef f():\n    word({folder!r})\n")
    project.targets(
        """
        [warm.targets.one]
        call = "mine:f"
        path = ["one"]
        [warm.targets.two]
        call = "mine:f"
        path = ["two"]
        """
    )
    assert set(statuses(project.warm(jobs=1)).values()) == {"compiled"}
    assert project.runs == ["word one", "word two"]


@pytest.mark.long
def test_saved_seconds_and_an_estimate_from_earlier_runs(project: Project) -> None:
    project.targets(
        """
        [warm.targets.doubled]
        call = "stages:doubled"
        matrix = { n = [1, 2] }
        arguments = { seconds = 0.3 }
        """
    )
    first = project.warm(jobs=1)
    assert first.estimate is None
    assert 0.6 < first.spent < 5
    hit = project.warm(jobs=1)
    assert 0.5 < hit.saved < 5
    text = (project.folder / "stages.py").read_text()
    project.write("stages.py", text.replace("return 2 * n", "return n + n"))
    third = project.warm(jobs=1)
    assert third.estimate is not None
    assert 0.5 < third.estimate < 5
    data = third.data()
    assert (data["compiled"], data["targets"][0]["calls"][0]["reason"]) == (2, "miss:code-changed")


@pytest.mark.parametrize("mode", ["off", "read-only", "require"])
def test_a_mode_that_stores_nothing_is_refused(project: Project, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    project.targets(DOUBLED)
    monkeypatch.setenv("CACHEC_MODE", mode)
    with pytest.raises(UsageError, match=rf"mode '{mode}' \(environment: CACHEC_MODE\) stores nothing"):
        project.warm()
    assert project.warm(check=True).exit_code == 1


@pytest.mark.long
def test_mode_refresh_runs_everything_again(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.targets(DOUBLED)
    project.warm()
    monkeypatch.setenv("CACHEC_MODE", "refresh")
    assert set(statuses(project.warm()).values()) == {"compiled"}
    assert {outcome.reason for outcome in project.log()[3:]} == {Reason.REFRESH}


def test_a_result_that_is_not_stored_is_a_failure(project: Project) -> None:
    project.write(
        "restless.py",
        """
        from pathlib import Path
        import cachec
        cache = cachec.Cache()
        @cache.stage
        def changes(path: cachec.File) -> int:
            Path(path).write_text("other")
            return 1
        def target():
            Path("in.txt").write_text("one")
            changes(cachec.File("in.txt"))
        """,
    )
    project.targets('[warm.targets.a]\ncall = "restless:target"\n')
    result = project.warm().results[0]
    assert result.status is warm.Status.FAILED
    assert "ran, but its result is not stored (bypass:input-changed-during-run)" in result.error


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_any_executor_will_do(project: Project, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.syspath_prepend(str(project.folder))
    monkeypatch.setitem(sys.modules, "stages", None)  # put back at the end, whatever another test has imported
    del sys.modules["stages"]
    targets = [warm.Target(name="t", call="stages:doubled", path=(str(project.folder),), matrix={"n": (1, 2, 3)})]
    make = (
        ThreadPoolExecutor if kind == "threads" else lambda n: ProcessPoolExecutor(n, mp_context=get_context("spawn"))
    )
    with make(2) as executor:
        first = warm.warm(targets, executor=executor, jobs=2)
        assert set(statuses(first).values()) == {"compiled"}, first.results
        assert warm.warm(targets, executor=executor, check=True).exit_code == 0
        with pytest.raises(UsageError, match="`isolated`, which needs cachec's own workers"):
            warm.warm([warm.Target(name="t", call="m:f", isolated=True)], executor=executor)
    assert sorted(project.runs) == ["double 1", "double 2", "double 3"]
    broken = warm.warm(targets[:1], executor=executor, check=True)
    assert broken.exit_code == 2
    assert "RuntimeError: cannot schedule new futures after shutdown" in broken.results[0].error


def test_rows_alone_may_be_given(project: Project) -> None:
    project.targets(DOUBLED + '\nafter = ["other"]\n[warm.targets.other]\ncall = "stages:fails"\n')
    rows = [row for row in warm.load().rows if row.target == "doubled"]
    assert set(statuses(warm.warm(rows)).values()) == {"compiled"}, "what they wait for was not given, so it is done"


def test_rows_that_wait_for_each_other_are_refused(project: Project) -> None:
    rows = [warm.Row(id=one, target=one, axes={}, call="stages:nothing", after=(other,)) for one, other in ("ab", "ba")]
    with pytest.raises(UsageError, match="rows wait for each other: a, b"):
        warm.warm(rows, check=True)
