"""State of the process that code asks for by a function of the standard library, such as the umask or the locale."""

from __future__ import annotations

import codecs
import os
import sys
import time
from _locale import LC_ALL, getencoding, setlocale  # `locale` compiles expressions: a millisecond of a first hit
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from itertools import pairwise
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType

from cachec.base.display_text import module_of
from cachec.base.hashing import Hasher
from cachec.base.instances import attribute, is_instance


@cache
def process_start() -> float:
    """When this process began, Unix time: what was imported in it was not before. A forked process has its parent's
    imports, so it began with the first ancestor that runs the same command line, or that asked."""
    ticks, above = _began("self")
    mine = _program("self")
    with suppress(FileNotFoundError):  # it has ended just now
        while mine is not None and _program(above) == mine:
            ticks, above = _began(above)
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


def _began(process: str) -> tuple[int, str]:
    """When a process was forked, in ticks since the machine was started, and its parent's number (proc(5))."""
    with open(f"/proc/{process}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return int(fields[19]), fields[1].decode()


def _program(process: str) -> tuple[str, bytes] | None:
    """What a process executes, and with which arguments; None where that is not shown."""
    try:
        with open(f"/proc/{process}/cmdline", "rb") as file:
            return os.readlink(f"/proc/{process}/exe"), file.read()
    except OSError:
        return None


def _context() -> object:
    import decimal

    context = decimal.getcontext()
    limits = (context.prec, context.rounding, context.Emin, context.Emax, context.capitals, context.clamp)
    return (*limits, sorted(each.__name__ for each, is_on in context.traps.items() if is_on))


def _time_zone() -> object:
    return time.tzname, time.timezone, time.altzone, time.daylight


def _environment() -> object:
    packages = (each for each in sys.path if each.endswith(("site-packages", "dist-packages")))
    folders = (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix, os.path.dirname(os.__file__))
    return (*folders, sys.executable, *packages)


def _user_packages() -> object:
    site = sys.modules.get("site")
    return getattr(site, "USER_BASE", None), getattr(site, "USER_SITE", None), os.environ.get("HOME")


def _scratch() -> object:
    import tempfile

    return tempfile.gettempdir()


def _locale() -> object:
    return setlocale(LC_ALL)


def _encoding() -> object:
    return codecs.lookup(getencoding()).name


def _array_errors() -> object:
    numpy = sys.modules.get("numpy")
    return sorted(numpy.geterr().items()) if numpy is not None else _ERRORS


def _file_mask() -> object:
    """As proc(5) has it: umask(2) would set another one, which other threads see."""
    with open("/proc/self/status") as file:
        return next((line for line in file if line.startswith("Umask:")), "")


def _first_weekday() -> object:
    calendar = sys.modules.get("calendar")
    return calendar.firstweekday() if calendar is not None else 0


#: How numpy handles errors where nobody said anything.
_ERRORS = [("divide", "warn"), ("invalid", "warn"), ("over", "warn"), ("under", "ignore")]
#: The state that stands for where Python and its packages are.
ENVIRONMENT = "folders of this environment"
#: The folders that modules are looked for in.
SEARCH_PATH = "folders of imports"
#: Attributes of ``sys`` that tell it.
_PREFIXES = frozenset({"prefix", "exec_prefix", "base_prefix", "base_exec_prefix", "executable", "_base_executable"})
#: States by which whole packages answer, by the package.
PACKAGES = {
    "sysconfig": ENVIRONMENT,
    "decimal": "decimal context",
    "_pydecimal": "decimal context",
    "numpy": "numpy's errors",
    "calendar": "first day of the week",
}


#: What stands for each, and the names by which code asks for it.
_STATES: Mapping[str, tuple[Callable[[], object], tuple[str, ...]]] = {
    "arguments of the process": (lambda: [*sys.argv], ("argv", "orig_argv", "parse_args", "parse_known_args")),
    "user": (lambda: (os.getuid(), os.getgid()), ("getuid", "geteuid", "getgid", "getegid", "getuser", "getlogin")),
    "host": (os.uname, ("uname", "gethostname", "getfqdn")),
    "processors": (lambda: (os.cpu_count(), sorted(os.sched_getaffinity(0))), ("cpu_count", "sched_getaffinity")),
    "locale": (_locale, ("getlocale", "setlocale", "localeconv", "strxfrm", "strcoll")),
    "decimal context": (_context, ("Decimal", "getcontext", "localcontext")),
    "time zone": (_time_zone, ("localtime", "mktime", "ctime", "strftime", "tzname", "fromtimestamp", "astimezone")),
    "folder for scratch files": (_scratch, ("gettempdir", "gettempdirb")),
    "numpy's errors": (_array_errors, ("numpy", "geterr", "errstate", "seterr")),
    "flags of the interpreter": (lambda: sys.flags, ()),
    "encoding of files": (_encoding, ("open", "fdopen", "read_text", "TextIOWrapper", "getencoding")),
    "folders of this environment": (
        _environment,
        (
            *("sysconfig", "getsitepackages", "__spec__", "__path__", "submodule_search_locations", "locate_file"),
            *("getfile", "getsourcefile", "getabsfile", "get_filename", "get_python_inc", "get_python_lib"),
        ),
    ),
    "folder of this user's packages": (
        _user_packages,
        ("getusersitepackages", "getuserbase", "USER_BASE", "USER_SITE"),
    ),
    SEARCH_PATH: (lambda: [*sys.path], ()),
    "first day of the week": (_first_weekday, ("calendar",)),
    "mask of new files": (_file_mask, ("st_mode", "ST_MODE", "umask")),
    "limit of recursion": (sys.getrecursionlimit, ("getrecursionlimit",)),
}
_NAMED = (BuiltinFunctionType, FunctionType, ModuleType, type)
_NAMES = {name: state for state, (_, names) in _STATES.items() for name in names}


def queried_states(executed: Iterable[tuple[CodeType, Mapping[str, object]]]) -> set[str]:
    """The states that code which ran may have asked for, as far as its names and what they stand for tell. executed:
    code, each with its globals."""
    return {state for code, namespace in executed for state in _states_of_code(code, namespace)}


#: States of the machine and the user. All others of an isolated stage are in ``key.process_state``.
_OF_MACHINE = frozenset({"user", "host", "processors", "time zone"})


def asked_of_machine(names: Iterable[str]) -> set[str]:
    """Those of them that code which names ``names`` may have asked for."""
    return {_NAMES[name] for name in names if name in _NAMES} & _OF_MACHINE


def _states_of_code(code: CodeType, namespace: Mapping[str, object]) -> Iterator[str]:
    from cachec.key.tools.stdlib_registries import tables_asked  # on a miss only

    if "__file__" in code.co_names and _asks_another(code, "__file__"):
        yield ENVIRONMENT
    for name in code.co_names:
        value = namespace.get(name)
        if name in _NAMES:
            yield _NAMES[name]
        if value is sys.flags or ("flags" in code.co_names and (value is sys or name == "sys")):
            yield "flags of the interpreter"
        if value is sys.path or ((value is sys or name == "sys") and _takes(code, name, "path")):
            yield SEARCH_PATH
        if (value is sys or name == "sys") and not _PREFIXES.isdisjoint(code.co_names):
            yield ENVIRONMENT
        if is_instance(value, *_NAMED):  # under another name, perhaps
            own = str(attribute(value, "__name__"))
            if own in _NAMES:
                yield _NAMES[own]
            package = own if is_instance(value, ModuleType) else module_of(value)
        else:
            own, package = "", module_of(type(value))
        if (state := PACKAGES.get(package.partition(".")[0])) is not None:
            yield state
        yield from tables_asked((name, own, package))


def _asks_another(code: CodeType, name: str) -> bool:
    """Whether code asks for this of an object (``module.__file__``), and not for its own."""
    import dis  # rarely needed

    return any(each.argval == name and each.opname == "LOAD_ATTR" for each in dis.get_instructions(code))


def _takes(code: CodeType, name: str, attribute: str) -> bool:
    """Whether code takes an attribute of what it has under a name, or imports it from there."""
    import dis  # rarely needed

    if attribute not in code.co_names:
        return False
    steps = list(dis.get_instructions(code))
    return any(
        after.argval == attribute and (step.argval == name or after.opname == "IMPORT_FROM")
        for step, after in pairwise(steps)
    )


def state_digest(state: str, tables: list[object] | None = None) -> str:
    """The digest of a state as it is now. tables: what it was in its place: of one that stands for tables, their
    content."""
    if state in _STATES:
        return _digest(state, repr(_STATES[state][0]() if tables is None else tables))
    from cachec.key.tools.stdlib_registries import tables_of, tables_text  # few traces have such states

    return _digest(state, tables_text(tables_of(state) if tables is None else tables))


@lru_cache(maxsize=64)
def _digest(state: str, now: str) -> str:
    hasher = Hasher("state")
    if now:
        hasher.part(state, now.encode())
    return hasher.digest()
