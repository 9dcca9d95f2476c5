"""A seeded part of ``make faults``; the whole is ``python -m tests.faults``."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest

from cachec.errors import StoreFault
from cachec.stage.folder_watch import FolderWatch
from cachec.store.index import DiskcacheIndex
from cachec.store.store_size import limit
from tests.effort import WHOLE, sample
from tests.faults import campaign
from tests.faults.campaign import ERRORS, ROUNDS, Case, Verdicts, preload, round_of, run_cases
from tests.faults.fuzzing import fuzz
from tests.faults.isolated import kill_isolated
from tests.faults.operations import OPERATIONS, WARM, Operation, prepare
from tests.faults.readers import FAMILIES, Family
from tests.faults.served import served
from tests.faults.system import At, Sites, Watched, unavailable, watched
from tests.faults.tampering import tamper_cases
from tests.faults.together import together

SEED = 1


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults")
    found = prepare(folder / "prepared")
    preload(found, folder / "preloaded")
    return found


@pytest.mark.fuzz
@pytest.mark.parametrize("family", sample(FAMILIES), ids=lambda family: family.name)
def test_a_reader_refuses_and_raises_nothing_else(tmp_path: Path, family: Family) -> None:
    found = fuzz(family, 300 if WHOLE else 20, SEED, tmp_path)
    assert found.broken == {}, "\n".join(found.broken.values())
    assert found.inputs
    if WHOLE:
        assert found.outcomes["read"], "every one was refused: nothing was looked into"


@pytest.mark.skipif(bool(unavailable()), reason=unavailable())
def test_what_is_failed_fails_once(tmp_path: Path) -> None:
    def look() -> int:
        try:
            (tmp_path / "file").write_bytes(b"x")
        except OSError as error:
            return error.errno
        return 0

    whole = watched(look, None)
    assert whole.status == 0
    at = whole.calls.index("openat") + 1
    assert watched(look, At(at, 28)).status == 28
    assert watched(look, At(at, 0)).status == -9
    assert watched(look, At(len(whole.calls) + 1, 5)).struck is None


@pytest.mark.skipif(bool(unavailable()), reason=unavailable())
def test_turns_of_a_loop_are_one_site(tmp_path: Path) -> None:
    def look() -> int:
        for _ in range(3):
            os.access(tmp_path, os.R_OK)
        os.access(tmp_path, os.R_OK)
        return 0

    found = watched(look, None, sites=Sites())
    assert found.calls == ("access",) * 4
    assert [found.sites.count(site) for site in found.sites] == [3, 3, 3, 1]
    assert watched(look, At(4, errno.EACCES, "access")).struck == "access"


@pytest.mark.skipif(bool(unavailable()), reason=unavailable())
@pytest.mark.parametrize("calls", [1, 2, 3, 4, 5])
def test_the_rounds_fail_each_call_of_a_site_with_each_error(calls: int) -> None:
    found = Watched(0, ("read",) * calls, None, 0.0, sites=("read 1 of x",) * calls)
    cases = [case for number in range(ROUNDS) for case in round_of(OPERATIONS[0], number, found)]
    assert sorted((case.fault, case.number) for case in cases) == sorted(product(ERRORS, range(1, calls + 1)))


@pytest.mark.long
@pytest.mark.skipif(bool(unavailable()), reason=unavailable())
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_a_call_that_fails(tmp_path: Path, prepared: Path, operation: Operation) -> None:
    calls = campaign.calls_of(operation, prepared, tmp_path / "count")
    rng = random.Random(f"{SEED}{operation.name}")
    cases = [Case(operation, fault, rng.randint(1, len(calls))) for fault in ERRORS]
    if operation.name == "stage miss":  # a result in hand was lost where no plugin could be looked for
        listed = [number for number, name in enumerate(calls, 1) if name == "getdents64"]
        cases += [Case(operation, "EIO", number) for number in listed[::6]]
    if operation.name == "stage miss that evicts":  # gc met a folder that can't be listed, in a call
        listed = [number for number, name in enumerate(calls, 1) if name == "getdents64"]
        cases += [Case(operation, "EMFILE", number) for number in listed[-40::8]]
    if operation.name == "gc":  # what names the weights was taken for nothing, and they for forgotten
        opened = [number for number, name in enumerate(calls, 1) if name == "openat"]
        cases += [Case(operation, "EACCES", number) for number in opened[::5]]
    _none_is_wrong(run_cases(cases, prepared, tmp_path / "run"))


@pytest.mark.long
@pytest.mark.parametrize(
    "operation", [*(each for each in OPERATIONS if not each.hits), WARM], ids=lambda operation: operation.name
)
def test_a_kill(tmp_path: Path, prepared: Path, operation: Operation) -> None:
    count = 1 if operation is WARM else 3
    cases = [Case(operation, "random", SEED * 1000 + number) for number in range(count)]
    if not unavailable():
        cases += [Case(operation, "killed", random.Random(number).randint(1, 160)) for number in range(count)]
    _none_is_wrong(run_cases(cases, prepared, tmp_path / "run"))


@pytest.mark.long
@pytest.mark.skipif(bool(unavailable()), reason=unavailable())
def test_a_lock_of_the_index_that_can_not_be_given_up(tmp_path: Path) -> None:
    """The lock then stays with the process; diskcache would wait for it for a minute, and again at each write. SQLite
    itself meets a lock of the log that its own connection holds (``walTryBeginRead``): it tries 100 times, sleeps for
    10 s in all between them, and says SQLITE_PROTOCOL. Nobody repeats that."""
    import diskcache  # noqa: F401 - so that its import is no call

    def write(folder: Path) -> int:
        index = DiskcacheIndex(folder)
        for number in range(2):
            with suppress(StoreFault):
                index.write("a", b"%d" % number, "tag")
        with suppress(StoreFault):
            index.read("a")
        index.close()
        return 0

    whole = watched(lambda: write(tmp_path / "whole"), None)
    locks = [number for number, name in enumerate(whole.calls, 1) if name == "fcntl"]
    assert len(locks) > 40
    for number in random.Random(SEED).sample(locks, 40):
        found = watched(lambda: write(tmp_path / str(number)), At(number, errno.EIO), campaign.BOUND, awake=True)
        assert found.status == 0, (number, found)
        assert found.slept <= 100, (number, found.slept)
        assert write(tmp_path / str(number)) == 0


@pytest.mark.long
def test_files_that_are_damaged(tmp_path: Path, prepared: Path) -> None:
    _none_is_wrong(tamper_cases(prepared, tmp_path / "tampered", SEED, 6))


@pytest.mark.long
def test_eight_processes_in_one_store(tmp_path: Path, prepared: Path) -> None:
    _none_is_wrong(together(prepared, tmp_path / "together", SEED, 60))


@pytest.mark.long
def test_servers_that_are_killed(tmp_path: Path) -> None:
    _none_is_wrong(served(tmp_path, SEED, 10))


@pytest.mark.long
def test_processes_of_isolated_stages_that_are_killed(tmp_path: Path) -> None:
    found = kill_isolated(tmp_path / "isolated", 1, 60)
    assert not found.bad, "\n".join(found.bad)
    assert {role for _, role, _ in found.counts} >= {"caller", "starter", "worker or keeper"}


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_than_root(tmp_path: Path) -> None:
    """Permissions hold for him."""
    caps = "-all,+dac_read_search"  # Python itself may lie in a folder of root's
    line = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        f"--inh-caps={caps}",
        f"--ambient-caps={caps}",
    ]
    line += ["--", sys.executable, "-m", "tests.faults", "--only", "tampering", "--only", "kills", "--count", "6"]
    done = subprocess.run(line, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 wrong" in done.stdout


def _none_is_wrong(verdicts: Verdicts) -> None:
    assert not verdicts.bad, "\n\n".join(verdicts.bad)
    assert verdicts.counts


def _watch(folder: Path) -> None:
    """Twice, one of which is not kept for the next run."""
    one, two = FolderWatch([str(folder)]), FolderWatch([str(folder)])
    one.close()
    two.close()


@pytest.mark.skipif(bool(unavailable()), reason=unavailable())
@pytest.mark.parametrize("what", [_watch, lambda folder: limit(1, folder / "not yet", 0)], ids=["a watch", "a limit"])
def test_what_follows_a_run_raises_no_error_of_the_system(tmp_path: Path, what: Callable[[Path], object]) -> None:
    def run() -> int:
        with suppress(StoreFault):
            what(tmp_path)
        return 0

    calls = watched(run, None).calls
    assert len(calls) > 2
    for number in range(1, len(calls) + 1):
        assert watched(run, At(number, errno.EIO), campaign.BOUND).status == 0, calls[number - 1]


@pytest.mark.long
@pytest.mark.skipif(bool(unavailable()), reason=unavailable())
@pytest.mark.parametrize("error", [errno.EIO, errno.EACCES, errno.EMFILE], ids=errno.errorcode.get)
def test_an_index_that_is_refused_once_keeps_its_rows(tmp_path: Path, error: int) -> None:
    """SQLite then opens it for reading alone, or says of one refused read that the database is malformed."""
    import diskcache  # noqa: F401 - so that its import is no call

    index = DiskcacheIndex(tmp_path / "index")
    index.write("kept", b"row", "tag")
    index.close()

    def write() -> int:
        again = DiskcacheIndex(tmp_path / "index")
        with suppress(StoreFault):
            again.write("new", b"row", "tag")
        again.close()
        return 0

    calls = watched(write, None).calls
    refused = [number for number, name in enumerate(calls, 1) if name in {"openat", "pread64"}]
    assert len(refused) > 8
    for number in refused:
        assert watched(write, At(number, error), campaign.BOUND).status == 0
        assert not list((tmp_path / "index").glob("corrupt-*"))
        assert DiskcacheIndex(tmp_path / "index").read("kept") == b"row"
