"""What the tests of attacks share: cachec run in a folder, as root and as another user."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

#: No user has these numbers but ``nobody``, and whoever attacks it.
USER, ATTACKER = 65534, 65533

Run = Callable[..., "subprocess.CompletedProcess[str]"]


#: Where root runs the tests, the short run attacks a plain user.
_BY_ROOT = [pytest.mark.long] if os.geteuid() == 0 else []


@pytest.fixture(params=[pytest.param("self", marks=_BY_ROOT), "other"])
def uid(request: pytest.FixtureRequest) -> int | None:
    """The user that is attacked: who runs the tests, and where that is root another one too."""
    if request.param == "self":
        return None
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    return USER


@pytest.fixture
def attacker(uid: int | None) -> int:
    """The user that attacks, for ``os.chown``."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    return ATTACKER


@pytest.fixture
def place(uid: int | None, tmp_path: Path) -> Path:
    """A folder of the attacked user, below folders that he can reach."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)
    own = tmp_path / "own"
    (own / "home").mkdir(parents=True)
    if uid is not None:
        os.chown(own, uid, uid)
        os.chown(own / "home", uid, uid)
    return own


@pytest.fixture
def run(uid: int | None, place: Path) -> Run:
    """Run Python with these arguments as the attacked user."""

    def start(
        *args: object, cwd: Path | None = None, environ: Mapping[str, str] | None = None, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*(() if uid is None else _become(uid)), sys.executable, *map(str, args)],
            cwd=cwd or place,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(place / "home"),
                "PYTHONPATH": str(Path(__file__).parents[2]),
                "PYTHONDONTWRITEBYTECODE": "1",
                "CACHEC_SERVER": "off",
                **(environ or {}),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )

    return start


def _become(uid: int) -> tuple[str, ...]:
    """Be that user, who may read everything, as Python itself may lie in a folder of root's; but write nothing more."""
    caps = "-all,+dac_read_search"
    return (
        *("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"),
        *(f"--inh-caps={caps}", f"--ambient-caps={caps}", "--"),
    )
