"""After an edit a command gives what it gives without cachec, by each road, whatever it had given before.

Each case is one way in which a stored result was once handed out for another situation than its own.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from cachec.launcher import result
from tests.effort import WHOLE
from tests.launcher.conftest import Launcher, wait_for_clock

_PYTHON = sys.executable


class Case(NamedTuple):
    """before, edit: of a shell in the folder, each in its turn. masks: the umask at first, and after the edit."""

    line: tuple[str, ...]
    before: str = ""
    edit: str = ""
    options: tuple[str, ...] = ()
    masks: tuple[int, int] = (0o022, 0o022)


def _sh(script: str, before: str = "", edit: str = "", *options: str) -> Case:
    return Case(("sh", "-c", script), before, edit, options)


_TYPES = {
    "folder": "rm d/b; mkdir d/b",
    "link": "rm d/b; ln -s a d/b",
    "pipe": "rm d/b; mkfifo d/b",
    "same": "rm d/b; touch d/b",
}
_LISTERS = {
    "find": ("find", "d", "-type", "f"),
    "scandir": (_PYTHON, "-c", "import os; print(sorted((e.name, e.is_dir()) for e in os.scandir('d')))"),
    "ls": ("ls", "-p", "d"),
}
#: Opens a file by a link, and reads by what the kernel says of the descriptor.
_BY_DESCRIPTOR = "import os; fd = os.open('l', {}); {}"
_DESCRIPTORS = {
    "read": ("os.O_PATH", "print(open(f'/proc/self/fd/{fd}').read())"),
    "read by dev": ("os.O_PATH", "print(open(f'/dev/fd/{fd}').read())"),
    "path": ("os.O_PATH", "print(os.path.basename(os.readlink(f'/proc/self/fd/{fd}')))"),
    "path of an open file": ("os.O_RDONLY", "print(os.path.basename(os.readlink(f'/proc/self/fd/{fd}')))"),
    "status": ("os.O_PATH", "print(os.stat(f'/proc/self/fd/{fd}').st_mode)"),
    "executed": ("os.O_PATH", "os.set_inheritable(fd, True); os.execve(fd, ['x'], os.environ)"),
}
_MASKED = {
    "shell": ("sh", "-c", "echo 1 > o; stat -c %a o"),
    "cp -p": ("sh", "-c", "cp -p in o"),
    "cp": ("cp", "in", "o"),
    "copy": (_PYTHON, "-c", "import shutil; shutil.copy('in', 'o')"),
    "640": (_PYTHON, "-c", "import os; os.close(os.open('o', os.O_CREAT | os.O_WRONLY, 0o640))"),
    "755": (_PYTHON, "-c", "import os; os.close(os.open('o', os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o755))"),
    "mkdir": (_PYTHON, "-c", "import os; os.mkdir('o', 0o750)"),
    "install": ("install", "-m", "751", "in", "o"),
    "chmod": ("sh", "-c", "echo 1 > o; chmod 701 o"),
}
_OPENS = {
    "shell": ("sh", "-c", "echo 1 > o"),
    "755": (_PYTHON, "-c", "import os; os.close(os.open('o', os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o755))"),
    "only what is there": (_PYTHON, "-c", "import os; os.close(os.open('o', os.O_WRONLY | os.O_TRUNC))"),
    "cp": ("cp", "in", "o"),
    "own mask": ("sh", "-c", "umask 077; echo 1 > o"),
    "link": ("ln", "-sf", "in", "o"),
    "moved": ("sh", "-c", "echo 1 > n; mv -f n o"),
}
_MODES = (0o111, 0o444, 0o400, 0o600, 0o755, 0o666) if WHOLE else (0o111, 0o444, 0o755)

CASES = {
    **{
        f"type of a listed name: {how}, {what}": Case(line, "mkdir d; touch d/a d/b", edit)
        for how, line in _LISTERS.items()
        for what, edit in _TYPES.items()
    },
    **{
        f"by descriptor: {name}": Case(
            (_PYTHON, "-c", _BY_DESCRIPTOR.format(*words)),
            "printf '#!/bin/sh\necho 1\n' > a; printf '#!/bin/sh\necho 2\n' > b; chmod +x a b; ln -s a l",
            "rm l; ln -s b l",
        )
        for name, words in _DESCRIPTORS.items()
    },
    "by descriptor: a folder's": Case(
        (_PYTHON, "-c", "import os; fd = os.open('l/f', os.O_PATH); print(os.readlink(f'/proc/self/fd/{fd}'))"),
        "mkdir a b; touch a/f b/f; ln -s a l",
        "rm l; ln -s b l",
    ),
    "a folder becomes a link": _sh("cd R && pwd -P", "mkdir R", "mv R S; ln -s S R"),
    "a folder above becomes a link": _sh("cd R/x && /bin/pwd -P", "mkdir -p R/x", "mv R S; ln -s S R"),
    "a folder stays": _sh("cd R && pwd -P", "mkdir R", "mv R S; mv S R"),
    **{
        f"mask: {name}, {mask:o}": Case(line, "echo > in; chmod 664 in", "rm -rf o", masks=(0o022, mask))
        for name, line in _MASKED.items()
        for mask in (0o077, 0o002)
    },
    **{
        f"existing output: {name}, {mode:o}": Case(line, "echo > in", f"rm -f o; echo 2 > o; chmod {mode:o} o")
        for name, line in _OPENS.items()
        for mode in _MODES
    },
    **{
        f"existing output at first: {name}, {mode:o}": Case(line, f"echo > in; echo 2 > o; chmod {mode:o} o", "rm -f o")
        for name, line in _OPENS.items()
        for mode in _MODES
    },
    **{
        f"set-group-ID, {name}": Case(
            (_PYTHON, "-c", "import os; os.mkdir('s/d'); open('s/d/f', 'w').close(); os.mkdir('s/d/e', 0o700)"),
            f"mkdir s; chmod {first} s",
            f"rm -rf s; mkdir s; chmod {second} s",
        )
        for name, first, second in (("kept", "2755", "2755"), ("given", "755", "2755"), ("taken", "2755", "755"))
    },
    "set-group-ID, by the command": _sh("mkdir d; chmod g+s d", "", "rm -r d"),
    "a folder that is made again": _sh("rm -rf o; mkdir o; echo > o/x", "", "touch o/y", "--outputs=o"),
    "an empty folder that is made again": _sh("rm -rf o; mkdir o; echo > o/x", "mkdir o", "touch o/y", "--outputs=o"),
    "a full folder that is made again": _sh(
        "rm -rf o; mkdir o; echo > o/x", "mkdir o; touch o/x", "touch o/y", "--outputs=o"
    ),
    "owner": Case(("stat", "-c", "%u:%g", "in"), "touch in", "chown 1:2 in"),
    "owner of a folder": Case(("stat", "-c", "%u:%g", "in"), "mkdir in", "chown 1 in"),
    "owner of a link": Case(("stat", "-c", "%u:%g", "in"), "ln -s x in", "chown -h 1 in"),
    "moved within an own folder": _sh("mkdir t; echo > t/x; mv t o; mv o/x o/y; mkdir o/z; rmdir o/z", "", "rm -rf o"),
}

#: Those of which nothing may be stored.
UNSTORED = {
    "set-group-ID, by the command",
    *(f"existing output: only what is there, {mode:o}" for mode in _MODES),  # it fails where nothing is there
}


def _tree(folder: Path) -> dict[str, tuple[object, ...]]:
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content: object = ""
        if path.is_symlink():
            content = os.readlink(path)
        elif stat.S_ISREG(status.st_mode):
            content = path.read_bytes()
        found[str(path.relative_to(folder))] = (oct(status.st_mode), status.st_uid, status.st_gid, content)
    return found


def _in_folder(script: str) -> None:
    subprocess.run(["sh", "-c", script], check=True)


@pytest.mark.parametrize("name", CASES)
def test_what_a_command_gives_after_an_edit(launcher: Launcher, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(result, "pass_through", lambda program, argv, _: subprocess.call([program, *argv[1:]]))
    case = CASES[name]
    if "chown" in case.edit and os.geteuid():
        pytest.skip("only root can give files away")
    copy = launcher.folder.parent / "copy"
    _in_folder(case.before)
    names = _tree(launcher.folder).keys()
    before = os.umask(case.masks[0])
    try:
        launcher.run(*case.line, options=case.options)
        assert launcher.last().stored == (name not in UNSTORED)
        for made in sorted(_tree(launcher.folder).keys() - names, reverse=True):
            _in_folder(f"rm -d {made}")
        launcher.run(*case.line, options=case.options)  # a hit, of which there is a memo, unless it looked at an output
        os.umask(case.masks[1])
        _in_folder(f"{case.edit}; cp -a . {copy}")
        bare = subprocess.run(case.line, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        expected = _tree(launcher.folder)
        _in_folder(f"find . -mindepth 1 -delete; cp -a {copy}/. .")
        wait_for_clock()
        ran = launcher.direct(*case.line, options=case.options) or launcher.run(*case.line, options=case.options)
    finally:
        os.umask(before)
    assert (*ran[:2], _tree(launcher.folder)) == (bare.returncode, bare.stdout, expected)
