"""The pytest plugin: ``--cachec=MODE`` for every call of a run, a ``cachec`` fixture, and a line in the summary.

It is loaded in every run of pytest where cachec is installed, so nothing of cachec is imported here beyond a module
that imports nothing else; a run that calls no stage pays for that alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from cachec.base.call_hooks import Oversight, oversee_process

if TYPE_CHECKING:
    from cachec.model import Outcome
    from cachec.testing.isolation import IsolatedCache

#: The modes of the cache; tests hold this against ``cachec.Mode``, which is slow to import.
MODES = ("on", "off", "read-only", "refresh", "require", "verify", "both")

_NAME = "cachec-counts"
#: Stages that are named in the summary.
_SHOWN = 8


class Counts:
    """Counts the calls of a run. kinds: ``hit``, ``miss``, ``bypass``, ``error``. stages: what missed, and why."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.stages: Counter[str] = Counter()
        self.saved = 0.0
        self.spent = 0.0

    def __call__(self, outcome: Outcome) -> None:
        """Count one."""
        self.kinds[outcome.reason.kind] += 1
        if outcome.hit:
            self.saved += outcome.saved - outcome.seconds
        else:
            self.spent += outcome.seconds
            self.stages[f"{outcome.stage}: {outcome.reason.value}"] += 1

    def data(self) -> list[Any]:
        """As plain data, for pytest-xdist."""
        return [dict(self.kinds), dict(self.stages), self.saved, self.spent]

    def add(self, data: list[Any]) -> None:
        """Add the ``data`` of another process."""
        self.kinds.update(data[0])
        self.stages.update(data[1])
        self.saved += data[2]
        self.spent += data[3]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker of pytest-xdist ended."""
        data = getattr(node, "workeroutput", {}).get(_NAME)
        if data is not None:
            self.add(data)


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--cachec``."""
    parser.getgroup("cachec").addoption(
        "--cachec",
        choices=MODES,
        metavar="MODE",
        help="the mode of every cache in this run, whatever they were told: " + ", ".join(MODES)
        + "; require: a test that would compile fails",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Count every call of this process, from here to the end."""
    mode = None
    wanted = config.getoption("--cachec")
    if wanted is not None:
        from cachec.model import Mode

        mode = Mode(wanted)
    counts = Counts()
    config.pluginmanager.register(counts, _NAME)
    stack = ExitStack()
    stack.enter_context(oversee_process(Oversight(counts, mode)))
    config.add_cleanup(stack.close)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In a worker of pytest-xdist: hand the counts over."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[_NAME] = _counts(session.config).data()


def pytest_report_header(config: pytest.Config) -> str | None:
    """The mode, where one was asked for."""
    wanted = config.getoption("--cachec")
    return None if wanted is None else f"cachec: mode {wanted}"


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """One line, and with ``-v`` what missed; nothing in a run that called no stage."""
    counts = _counts(config)
    if not counts.kinds:
        return
    from cachec.report import period

    kinds = [kind for kind in ("hit", "miss", "bypass", "error") if counts.kinds[kind]]
    counts_text = ", ".join(f"{counts.kinds[kind]} {kind}" for kind in kinds)
    terminalreporter.write_sep("-", "cachec")
    terminalreporter.write_line(f"{counts_text}; saved {period(max(counts.saved, 0.0))}, spent {period(counts.spent)}")
    if config.get_verbosity() > 0:
        for name, count in counts.stages.most_common(_SHOWN):
            terminalreporter.write_line(f"  {count} x {name}")


def _counts(config: pytest.Config) -> Counts:
    counter = config.pluginmanager.get_plugin(_NAME)
    assert isinstance(counter, Counts)
    return counter


@pytest.fixture
def cachec(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[IsolatedCache]:
    """A store of its own for one test; see ``cachec.testing.isolation.IsolatedCache``."""
    from cachec.testing.isolation import IsolatedCache

    isolated = IsolatedCache(tmp_path_factory.mktemp("cachec"), monkeypatch)
    with isolated:
        yield isolated
