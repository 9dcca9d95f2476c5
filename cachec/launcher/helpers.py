"""What stands behind a launcher and is no compiler: commands of the build system itself, and another launcher.

CMake's launcher property stands before every command of a rule, its own helpers (``cmake -E copy``) too. These have no
compiler in them, so they cost little more than the start of Python: no key and no index, and an outcome of their own.
"""

import os
import time

from cachec.base import foreign, xdg
from cachec.base.appending import Appender

#: By the base name of the command.
NAMES = frozenset({"cmake", "cmake3", "ctest", "cpack", "ccmake", "make", "gmake", "ninja", "samu", "rsync", "latexmk"})

#: Of these, those that decide by the times of files, which are in no trace: what they start can be cached, they can't.
BY_TIME = NAMES - {"cmake", "cmake3", "cpack", "ccmake"}

#: As ``config.MAX_FILE``.
_MAX_FILE = 1 << 24

DETAIL = "a command of the build system itself"

#: The signals that Python ignores, which a command would inherit.
_RESTORED = ("SIGPIPE", "SIGXFSZ")


def is_helper(command: str) -> bool:
    """Whether the command belongs to a build system. Its description on the command line wins over that."""
    return command.rpartition("/")[2] in NAMES


def unwrapped(args: list[str], own: str) -> list[str]:
    """``args`` without a launcher before a launcher: ``[--restat] -- [env NAME=VALUE...] cachec exec REST`` is REST.

    CMake puts its launcher before commands that have one already. own: how this process was started; another cachec is
    left to be one. The variables come into ``os.environ``.
    """
    begin = int(args[:1] == ["--restat"])
    at = begin + 1
    variables: list[str] = []
    if args[begin : begin + 2] == ["--", "env"]:
        at += 1
        while at < len(args) and args[at].startswith("CACHEC_") and "=" in args[at]:
            variables.append(args[at])
            at += 1
    if args[begin : begin + 1] != ["--"] or args[at : at + 2] != [own, "exec"]:
        return args
    for name, _, value in (each.partition("=") for each in variables):
        os.environ[name] = value
    return unwrapped(args[at + 2 :], own)


def run_helper(args: list[str]) -> None:
    """Become the command, if ``args`` (what follows ``cachec exec``) is a helper and nothing else was said of it.

    Returns where it is none, and where the whole road is needed to say what is wrong; that does the same.
    """
    args = args[args[:1] == ["--restat"] :]
    if len(args) < 2 or args[0] != "--" or not is_helper(args[1]):
        return
    from cachec.launcher.depth import deepened, is_too_deep

    if is_too_deep(os.environ):
        return
    try:
        settings = _settings(os.getcwd())
    except (OSError, ValueError, RecursionError):
        return
    now = time.time()
    log = f"{settings['dir']}/log/{time.strftime('%Y-%m-%d', time.gmtime(now))}.jsonl"
    if settings["log"] == "all" or not os.path.exists(log):
        return  # the whole road tells it, or makes the log
    record = '{"reason":"bypass:build-helper","stage":"exec:%s","key":"","detail":"%s","time":%.6f}\n'
    line = (record % (args[1].rpartition("/")[2], DETAIL, now)).encode()
    for path in (log, settings["stats_file"]):
        try:
            if path:
                Appender(path).append(line)
        except OSError:
            continue  # as events.EventLog: no record is no reason to fail
    import _signal  # type: ignore[import-not-found]

    for name in _RESTORED:
        _signal.signal(getattr(_signal, name), _signal.SIG_DFL)
    try:
        os.execvpe(args[1], args[1:], {**os.environ, **deepened(os.environ)})
    except OSError:
        return


def _settings(folder: str) -> dict[str, str]:
    """``dir``, ``stats_file`` and ``log`` as config.py finds them; empty for none.

    Raises ValueError where the whole road has to say what is wrong, and OSError.
    """
    environ = os.environ
    names = ("dir", "stats_file", "log")
    settings = {name: environ.get("CACHEC_" + name.upper(), "") for name in names}
    starts = dict.fromkeys(names, folder)
    if not all(settings.values()):
        for table, place, is_confined in ((*_table(folder), True), (*_user_table(), False)):
            for name in names:
                value = table.get(name, "")
                if not isinstance(value, str):
                    raise ValueError(name)  # noqa: TRY004 - one kind for all that the whole road has to tell
                if not value or settings[name]:
                    continue
                settings[name], starts[name] = value, place
                if is_confined and name != "log" and not foreign.is_within(_placed(value, place), place):
                    raise ValueError(name)
    for name in ("dir", "stats_file"):
        if settings[name]:
            settings[name] = _placed(settings[name], starts[name])
    settings["dir"] = settings["dir"] or xdg.cache_folder(environ)
    if not settings["dir"]:
        raise ValueError("dir")
    return settings


def _placed(value: str, folder: str) -> str:
    path = xdg.expand_user(value, os.environ)
    if not path:
        raise ValueError(value)
    return os.path.normpath(os.path.join(folder, path))


def _table(folder: str) -> tuple[dict[str, object], str]:
    """The nearest configuration upwards, and its folder; empty where there is none.

    Raises ValueError where it is malformed, or others can write it.
    """
    while True:
        for name, tables in (("cachec.toml", ()), ("pyproject.toml", ("tool", "cachec"))):
            path = os.path.join(folder, name)
            if not os.path.isfile(path):
                continue
            data = foreign.read_regular(path, _MAX_FILE)
            if tables and b"cachec" not in data:
                continue
            import tomllib

            table = tomllib.loads(data.decode())
            for each in tables:
                table = table.get(each, {})
                if not isinstance(table, dict):
                    raise ValueError(path)  # noqa: TRY004 - one kind for all that the whole road has to tell
            if table or not tables:
                if foreign.why_distrusted(path):
                    raise ValueError(path)
                return table, folder
        if folder == os.path.dirname(folder):
            return {}, ""
        folder = os.path.dirname(folder)


def _user_table() -> tuple[dict[str, object], str]:
    """The user's own settings, and their folder, as ``config`` finds them."""
    path = xdg.settings_file(os.environ)
    if not path or not os.path.isfile(path):
        return {}, ""
    import tomllib

    return tomllib.loads(foreign.read_regular(path, _MAX_FILE).decode()), os.path.dirname(path)
