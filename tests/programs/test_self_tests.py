"""Releases that no plugin was tried with: older ones are not used, newer ones once their plugin's self-test passed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cachec
from cachec import config
from cachec.base.distributions import Distributions
from cachec.doctor import examine
from cachec.doctor.case import Case
from cachec.doctor.examination import repair
from cachec.errors import CachecWarning, UnsupportedVersion
from cachec.events import read_log
from cachec.programs import self_tests
from cachec.programs.registry import Plugins, installed_plugins
from cachec.programs.supported_versions import compare, installed_releases, step_aside, why_unsupported

ROOT = Path(__file__).parents[2]

_MODULE = """
import os, signal, time
from cachec.programs.plugin import Plugin

class Fake(Plugin):
    name = "fake"
    distributions = ("fake-dist",)
    tried_releases = {"fake-dist": ">=1.0,<2"}
    self_test = "fake_plugin_module:self_test"

plugin = Fake()

def self_test():
    with open(os.path.join(os.path.dirname(__file__), "runs"), "a") as runs:
        runs.write("x")
    BODY
"""

NEWER = "fake-dist 2.1 is newer than fake_plugin_module was tried with (>=1.0,<2)"

Install = Callable[..., "Fake"]


class Fake:
    """A distribution with a plugin, whose self-test does as a test says."""

    def __init__(self, site: Path, store: Path) -> None:
        self.site = site
        self.store = store
        self.distributions = Distributions([str(site), *sys.path])

    @property
    def plugin(self) -> Any:
        return Plugins(self.distributions).find("fake")

    @property
    def runs(self) -> int:
        return len((self.site / "runs").read_text()) if (self.site / "runs").exists() else 0

    @property
    def verdicts(self) -> list[Path]:
        return sorted((self.store / "probes").glob("*"))

    def why(self) -> str:
        return why_unsupported(self.plugin, self.distributions, self.store)

    def stage(self) -> Any:
        cache = cachec.Cache(self.store, log="off")

        @cache.stage(tools=["fake-dist"], name="fake")
        def made(n: int) -> int:
            return n

        return cache, made

    def findings(self) -> list[Any]:
        case = Case(config.load({"dir": self.store}), distributions=self.distributions)
        return [each for each in examine(case).findings if each.check == "compiler" and "fake" in each.words]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def make(body: str = "pass", version: str = "2.1") -> Fake:
        site = tmp_path / "site"
        site.mkdir()
        (site / "fake_plugin_module.py").write_text(_MODULE.replace("BODY", body))
        info = site / f"fake_dist-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: fake-dist\nVersion: {version}\n")
        (info / "RECORD").write_text("")
        (info / "entry_points.txt").write_text("[cachec.plugins]\nfake = fake_plugin_module:plugin\n")
        monkeypatch.syspath_prepend(str(site))
        monkeypatch.delitem(sys.modules, "fake_plugin_module", raising=False)
        return Fake(site, tmp_path / "store")

    yield make
    sys.modules.pop("fake_plugin_module", None)


@pytest.mark.parametrize("version", ["1.0", "1.9.9+local", "1.0.0rc1"])
def test_a_release_that_was_tried_is_not_tested(install: Install, version: str) -> None:
    fake = install("raise OSError", version)
    assert (fake.why(), fake.runs, fake.verdicts) == ("", 0, [])


def test_an_older_release_is_not_used(install: Install) -> None:
    fake = install(version="0.9.7")
    assert fake.why() == "fake_plugin_module needs fake-dist>=1.0, found 0.9.7"
    assert fake.runs == 0
    (finding,) = fake.findings()
    assert (finding.fix, finding.repair) == ("pip install 'fake-dist>=1.0,<2'", None)


def test_no_release_is_advised_that_another_distribution_may_refuse(install: Install) -> None:
    """As torch refuses another release of triton than its own."""
    fake = install(version="0.9.7")
    owner = fake.site / "owner-3.1.dist-info"
    owner.mkdir()
    (owner / "METADATA").write_text("Name: owner\nVersion: 3.1\nRequires-Dist: fake-dist==0.9.7\n")
    (owner / "RECORD").write_text("")
    (finding,) = fake.findings()
    assert finding.fix == "a newer release of owner 3.1, which says what it goes with"


def test_a_newer_release_is_used_once_its_self_test_passed(install: Install) -> None:
    fake = install("import cachec; assert cachec.Cache().settings.dir.parent.samefile('.')")
    for _ in range(2):
        cache, made = fake.stage()
        assert [cache.call(made, 1)[1].reason.kind for _ in range(2)][-1] == "hit"
    assert (fake.runs, len(fake.verdicts)) == (1, 1)
    case = Case(config.load({"dir": fake.store}), distributions=fake.distributions)
    facts = examine(case).facts["compilers"]["fake-dist"]
    assert (facts["version"], facts["tried"], facts["self_test"]["failure"]) == ("2.1", ">=1.0,<2", None)
    assert fake.findings() == []


def test_doctor_has_one_line_of_it(install: Install, capfd: pytest.CaptureFixture[str]) -> None:
    from cachec.cli.cmd_doctor import facts_lines

    fake = install()
    fake.why()
    case = Case(config.load({"dir": fake.store}), distributions=fake.distributions)
    (line,) = [line for line in facts_lines("store", dict(examine(case).facts)) if line.startswith("self-tests")]
    assert "fake-dist 2.1 passed on 2" in line


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise ValueError('1 is not\\n  2')", "failed: ValueError: 1 is not 2"),
        ("raise SystemExit(0)", "failed: SystemExit: 0"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "failed: it was ended by SIGSEGV"),
        ("os._exit(0)", "failed: it ended with status 0"),
        ("import nothing_of_that_name", "failed: ModuleNotFoundError: No module named 'nothing_of_that_name'"),
    ],
)
def test_a_newer_release_that_fails_runs_uncached(install: Install, body: str, words: str) -> None:
    fake = install(body)
    reason = f"{NEWER}, and the self-test of fake_plugin_module {words}"
    for _ in range(2):
        cache, made = fake.stage()
        found, outcome = cache.call(made, 3)
        assert (found, outcome.reason.value, outcome.stored) == (3, "bypass:unsupported-version", False)
        assert outcome.detail == reason
    assert fake.runs == 1
    assert [(each.reason.value, each.detail) for each in read_log(fake.store)] == [
        ("bypass:unsupported-version", reason)
    ] * 2
    (finding,) = fake.findings()
    assert words in finding.words


def test_stats_count_it(install: Install) -> None:
    fake = install("raise ValueError('no')")
    _, made = fake.stage()
    made(1)
    done = subprocess.run(
        [sys.executable, "-m", "cachec", "--dir", str(fake.store), "stats"], capture_output=True, text=True, check=True
    )
    assert "unsupported-version" in done.stdout


def test_a_self_test_that_hangs_is_ended_with_what_it_started(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = install(
        "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
        "open(os.path.join(os.path.dirname(__file__), 'child'), 'w').write(str(child.pid)); time.sleep(600)"
    )
    monkeypatch.setattr(self_tests, "LIMIT_SECONDS", 5.0)
    assert fake.why().endswith("the self-test of fake_plugin_module took longer than 5 s")
    child = int((fake.site / "child").read_text())
    while _runs(child):  # it was killed, and ends in a moment; else pytest ends this test
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_plugin_without_a_self_test(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install()
    monkeypatch.setattr(type(fake.plugin), "self_test", "")
    assert fake.why() == f"{NEWER}, and fake_plugin_module has no self-test"
    assert fake.verdicts == []


def test_a_process_that_can_not_start_is_remembered_by_nobody(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = install()
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    assert "could not be run" in fake.why()
    monkeypatch.undo()
    assert fake.verdicts == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"reason": ""}',
        '{"subject": 1, "reason": "", "time": 1}',
        "\0" * 70000,
        "[" * 5000,
        "OTHER",
    ],
)
def test_a_broken_verdict_is_made_again(install: Install, text: str) -> None:
    fake = install()
    assert fake.why() == ""
    (place,) = fake.verdicts
    whole = json.loads(place.read_text())
    if text == "OTHER":
        whole["subject"]["plugin"] = "another"
        text = json.dumps(whole)
    place.write_text(text)
    assert (fake.why(), fake.runs) == ("", 2)
    assert json.loads(place.read_text())["subject"]["plugin"] == "fake"


def test_a_link_or_a_pipe_is_no_verdict(install: Install) -> None:
    fake = install("raise ValueError")
    fake.why()
    (place,) = fake.verdicts
    place.unlink()
    os.mkfifo(place)
    assert "ValueError" in fake.why()
    assert fake.runs == 2
    assert place.is_file()


@pytest.mark.parametrize("part", ["releases", "python", "cachec"])
def test_a_verdict_is_of_these_versions(install: Install, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    fake = install()
    fake.why()
    subject = self_tests._subject

    def changed(*args: Any) -> Any:
        value = {"fake-dist": "2.2"} if part == "releases" else "another"
        return type(whole := subject(*args))(**{**_fields(whole), part: value})

    monkeypatch.setattr(self_tests, "_subject", changed)
    assert (fake.why(), fake.runs, len(fake.verdicts)) == ("", 2, 2)


def _fields(struct: Any) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


def test_a_failure_counts_for_days(install: Install, seconds_later: Callable[[float], None]) -> None:
    fake = install("raise ValueError")
    fake.why()
    fake.why()
    assert fake.runs == 1
    seconds_later(8 * 86400.0)
    fake.why()
    assert fake.runs == 2


def test_a_pass_counts_for_ever(install: Install, seconds_later: Callable[[float], None]) -> None:
    fake = install()
    fake.why()
    seconds_later(1e9)
    fake.why()
    assert fake.runs == 1


def test_threads_and_processes_at_once_run_it_once(install: Install) -> None:
    fake = install("time.sleep(0.5)")
    _ = fake.plugin
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(fake.why())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (found, fake.runs) == ([""] * 4, 1)


def test_a_store_that_can_not_be_written(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install()
    fake.store.write_text("no folder")
    assert (fake.why(), fake.why(), fake.runs) == ("", "", 2)


def test_without_a_store_nothing_is_tested(install: Install) -> None:
    fake = install("raise ValueError")
    assert why_unsupported(fake.plugin, fake.distributions, None) == ""
    assert fake.runs == 0


def test_a_self_test_starts_no_other(install: Install) -> None:
    fake = install(
        "import sys, cachec; from cachec.programs.registry import Plugins; from cachec.base.distributions import "
        "Distributions; from pathlib import Path;"
        "assert Plugins(Distributions(), Path('store')).for_distributions(['fake-dist'])[0].name == 'fake'"
    )
    assert (fake.why(), fake.runs) == ("", 1)


def test_settings_of_the_user_do_not_reach_it(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEC_MODE", "off")
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    fake = install(
        "import cachec, warnings; assert cachec.Cache().settings.mode.value == 'on'; warnings.warn('a warning')"
    )
    assert fake.why() == ""


def test_doctor_runs_it_again(install: Install) -> None:
    fake = install("assert os.path.exists(os.path.join(os.path.dirname(__file__), 'mended'))")
    (finding,) = fake.findings()
    assert "has not run yet" in finding.words
    fake.why()
    (finding,) = fake.findings()
    assert "AssertionError" in finding.words
    (fake.site / "mended").touch()
    assert repair((finding,)) == [(finding, "")]
    assert (fake.findings(), fake.why(), fake.runs) == ([], "", 2)


def test_install_steps_aside_with_a_warning() -> None:
    with pytest.warns(CachecWarning, match="a reason") as told:
        step_aside("a reason", strict=False)
    assert told[0].filename == __file__
    with pytest.raises(UnsupportedVersion, match="a reason"):
        step_aside("a reason", strict=True)


def test_a_nested_stage_in_a_worker_runs_no_test(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install()
    monkeypatch.setattr(self_tests, "is_worker", lambda: True)
    assert fake.why() == f"{NEWER}, and its self-test does not run within a stage; run `cachec doctor --fix`"
    assert (fake.runs, fake.verdicts) == (0, [])


def test_the_oldest_release_is_that_of_the_package() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for plugin in installed_plugins().all():
        asked = {name + tried.partition(",")[0] for name, tried in plugin.tried_releases.items()}
        assert asked <= set(extras.get(plugin.name, ())), plugin.name


def test_the_installed_releases_were_tried() -> None:
    for plugin in installed_plugins().all():
        releases = installed_releases(plugin, Distributions())
        assert not releases.too_old, plugin.name
        assert not releases.newer, plugin.name


@pytest.mark.parametrize(
    ("version", "tried", "expected"),
    [
        ("0.10.2", ">=0.10,<0.11", 0),
        ("0.10", ">=0.10.0,<0.11", 0),
        ("0.10.0rc1", ">=0.10,<0.11", 0),
        ("0.9.2", ">=0.10,<0.11", -1),
        ("0.11.0", ">=0.10,<0.11", 1),
        ("0.11.0.dev20260101", ">=0.10,<0.11", 1),
        ("1.0+local", ">=0.10,<1.1", 0),
        ("unknown", ">=0.10,<0.11", -1),
    ],
)
def test_ranges(version: str, tried: str, expected: int) -> None:
    assert compare(version, tried) == expected


@pytest.mark.parametrize("tried", ["", "==1", ">=1;<2", "~=1.2", ">=1.0", "<2"])
def test_ranges_that_are_none(tried: str) -> None:
    with pytest.raises(ValueError, match="no range"):
        compare("1.0", tried)
