"""Functions of the standard library that look something up without an audit event, and a handler for each."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import util
from types import CodeType, FrameType

from cachec.base.fsio import identity_if_there
from cachec.base.paths import access_letters, entries, links_on, resolve_path
from cachec.recording.calling_frames import takes_either
from cachec.recording.observations import Observations, is_absolute, is_unrepeatable

#: Records the access of such a function's frame in a run.
LookupHandler = Callable[[Observations, FrameType], None]


def find_handler(code: CodeType, frame: FrameType) -> LookupHandler | None:
    """Return the handler for the access of the code that starts in ``frame``; None for nearly all code."""
    handler = _HANDLERS.get(code.co_qualname)
    return handler[1] if handler is not None and frame.f_globals.get("__name__") in handler[0] else None


def starts_thread(code: CodeType, frame: FrameType) -> bool:
    """Whether it is ``Thread.start``, which on Python 3.11 raises no event."""
    return code.co_qualname == "Thread.start" and frame.f_globals.get("__name__") == "threading"


def gives_work(code: CodeType, frame: FrameType) -> bool:
    """Whether it is ``ThreadPoolExecutor.submit``, by which all of a pool's work comes to it."""
    is_submit = code.co_qualname == "ThreadPoolExecutor.submit"
    return is_submit and frame.f_globals.get("__name__") == "concurrent.futures.thread"


def begins_work(code: CodeType, frame: FrameType) -> bool:
    """Whether it is where a pool's thread begins a job."""
    return code.co_qualname == "_WorkItem.run" and frame.f_globals.get("__name__") == "concurrent.futures.thread"


def _first(frame: FrameType) -> object:
    return frame.f_locals[frame.f_code.co_varnames[0]]


def place_asked(observed: Observations, path: object) -> None:
    """Whether something is at a path, and whether that is a folder."""
    place = observed.note_path(path)
    if place is not None:
        place_at(observed, place)


def place_at(observed: Observations, place: str) -> None:
    """The same of an absolute path; what the run made itself does not count."""
    counted = observed.counted_place(place)
    if counted is None:
        return
    try:
        status = os.stat(counted)
    except (OSError, ValueError):
        _absent(observed, counted)
    else:
        is_folder = stat.S_ISDIR(status.st_mode)
        if observed.there.setdefault(counted, is_folder) is not is_folder:
            observed.differs(counted, True)


def _absent(observed: Observations, path: str) -> None:
    """Nothing is at a path; whether it is a file that is in the way of its folder is another error."""
    observed.absent.setdefault(path)
    above = os.path.dirname(path)
    while above != "/" and not os.path.lexists(above):
        above = os.path.dirname(above)
    if not os.path.isdir(above) and os.path.exists(above) and observed.counted_place(above) is not None:
        observed.there.setdefault(above, False)


def content_at(observed: Observations, place: str) -> None:
    """More than whether something is there: its content counts."""
    counted = observed.counted_place(place)
    if counted is None:
        if place in observed.own_results and observed.own(place):
            observed.absent.setdefault(place)
        return
    state = identity_if_there(counted)
    if state is None:
        _absent(observed, counted)
    elif os.path.isdir(counted):
        observed.there.setdefault(counted, True)
        links_at(observed, place)  # the way to what is opened by its descriptor
    elif counted not in observed.opened:
        if observed.is_mixed(counted):
            observed.inconsistent = observed.inconsistent or f"{counted} was written to by the stage, and read then"
        observed.opened.setdefault(counted, state)


def result_file_at(observed: Observations, place: str) -> None:
    """What goes into a result."""
    state = identity_if_there(place)
    if place in observed.own_results and observed.own(place):
        input_at(observed, place)
    elif state is not None and observed.is_since(place, state):
        observed.make(place)
    elif state is not None:
        input_at(observed, place)


def input_at(observed: Observations, place: str) -> None:
    """What is in a folder, the content of everything else."""
    (listed_at if os.path.isdir(place) else content_at)(observed, place)


def listed_at(observed: Observations, place: str) -> None:
    """What is in a folder."""
    counted = observed.counted_place(place)
    if counted is None and observed.is_in_own_result(place):
        counted = place
        observed.filled.setdefault(place)
    if counted is None:
        return
    try:
        found = tuple(entries(counted))
    except OSError:
        if counted in observed.listed:
            observed.differs(counted, False)
        place_at(observed, counted)  # whoever asks may go on without
        return
    first = observed.listed.setdefault(counted, found)
    if first is found:
        places = (os.path.join(counted, each.partition("/")[0]) for each in found)
        observed.scratch.update(dict.fromkeys(filter(observed.own, places)))
    else:
        for each in sorted(set(first) ^ set(found)):
            observed.differs(os.path.join(counted, each.partition("/")[0]), each in found)


def modules_sought(observed: Observations) -> None:
    """A module is looked for: in what the run added to ``sys.path`` any file may be it, or come before it."""
    for folder in (each for each in sys.path if isinstance(each, str) and each not in observed.path):
        place = observed.note_path(folder or os.curdir)
        if place is not None:
            listed_at(observed, place)


def content_asked(observed: Observations, path: object) -> None:
    """The content at a path in whatever form."""
    place = observed.note_path(path)
    if place is not None:
        content_at(observed, place)


def attributes_asked(observed: Observations, path: object) -> None:
    """The extended attributes of a file, of which no read tells."""
    content_asked(observed, path)
    place = observed.note_path(path)
    if place is not None and observed.counted_place(place) is not None:
        observed.nondeterministic = observed.nondeterministic or f"extended attributes of {place} were asked for"


def read_from(observed: Observations, path: object) -> None:
    """What is read from a descriptor. One that was opened before the run may stand anywhere in its file."""
    place = observed.note_path(path)
    if place is None or is_unrepeatable(place) or observed.counted_place(place) is None:
        return
    if place not in observed.opened and resolve_path(place) not in {resolve_path(each) for each in observed.opened}:
        observed.nondeterministic = (
            observed.nondeterministic or f"{place} was read from a descriptor that was opened before the run"
        )


def status_asked(observed: Observations, path: object) -> None:
    """What ``os.stat`` tells: the content for the size of it; more where code names more of it."""
    place = observed.note_path(path)
    if place is None:
        return
    content_at(observed, place)
    counted = observed.counted_place(place)
    if counted is not None and counted not in observed.stated:
        with suppress(OSError, ValueError):
            observed.stated[counted] = os.stat(counted)


def links_asked(observed: Observations, path: object) -> None:
    """Where a path leads."""
    place = observed.note_path(path)
    if place is not None:
        links_at(observed, place)


def links_at(observed: Observations, place: str) -> None:
    """Record the links on an absolute path. Rewriting a file in place does not change them."""
    found = links_on(place)
    if found and observed.own(place) and place not in observed.rewritten:
        return
    if observed.links.setdefault(place, found) != found:
        observed.differs(place, os.path.lexists(place))


def entry_asked(observed: Observations, path: object) -> None:
    """Whether anything is at a path, be it a link to nowhere."""
    links_asked(observed, path)
    place_asked(observed, path)


def removal_asked(observed: Observations, path: object) -> None:
    """Something is removed, which fails where nothing is."""
    place = observed.note_path(path)
    state = None if place is None else identity_if_there(place)
    if place is not None and (state is None or not observed.is_since(place, state)):
        entry_asked(observed, path)


def own_status_asked(observed: Observations, path: object) -> None:
    """What ``os.lstat`` tells, of a link itself."""
    links_asked(observed, path)
    status_asked(observed, path)


def allowed_asked(observed: Observations, path: object) -> None:
    """What may be done with what is at a path."""
    place_asked(observed, path)
    place = observed.note_path(path)
    if place is not None and (not observed.own(place) or place in observed.rewritten):
        found = access_letters(place)
        if observed.allowed.setdefault(place, found) != found:
            observed.differs(place, os.path.lexists(place))


def check_again(observed: Observations) -> None:
    """At what was there when the run looked: each look was told of before it was done. What it looked for in vain, and
    is there now, may have been made by its own native code, and is passed over."""
    for place, is_folder in list(observed.there.items()):
        is_as_before = os.path.isdir(place) if is_folder else os.path.exists(place) and not os.path.isdir(place)
        if observed.counted_place(place) is not None and not is_as_before:
            observed.differs(place, os.path.lexists(place))
    for place in list(observed.links):
        links_asked(observed, place)
    for place in list(observed.allowed):
        allowed_asked(observed, place)
    for folder in list(observed.listed):
        listed_at(observed, folder)


def current_folder_asked(observed: Observations, _asked: object) -> None:
    """What the current folder is."""
    observed.asked_cwd = True


def _is_there(observed: Observations, frame: FrameType) -> None:
    if not takes_either(frame.f_back):
        place_asked(observed, _first(frame))


def _is_link(observed: Observations, frame: FrameType) -> None:
    entry_asked(observed, _first(frame))


def _is_such(observed: Observations, frame: FrameType) -> None:
    """``Path.exists`` asks no more than whether the path is there."""
    observed.asked.setdefault(frame.f_code.co_name)
    back = frame.f_back
    if back is not None and back.f_code.co_name == "lstat":
        back = back.f_back  # it asks by ``stat``
    asks_less = back is not None and str(back.f_globals.get("__name__")).partition(".")[0] == "pathlib"
    if asks_less:
        place_asked(observed, _first(frame))
    elif frame.f_locals.get("follow_symlinks") is False:
        own_status_asked(observed, _first(frame))
    else:
        status_asked(observed, _first(frame))


def _same(observed: Observations, frame: FrameType) -> None:
    for name in frame.f_code.co_varnames[:2]:
        own_status_asked(observed, frame.f_locals[name])


def _resolve_path(observed: Observations, frame: FrameType) -> None:
    _made_absolute(observed, frame)
    links_asked(observed, _first(frame))


def _made_absolute(observed: Observations, frame: FrameType) -> None:
    """Record that the result of a relative path has the current folder in it. ``runpy`` only opens it."""
    if frame.f_back is not None and frame.f_back.f_globals.get("__name__") == "runpy":
        return
    try:
        observed.asked_cwd = observed.asked_cwd or not is_absolute(_first(frame))
    except TypeError:
        return


def _module(observed: Observations, frame: FrameType) -> None:
    """A module is imported by its name, or asked for (``find_spec``)."""
    name, package = frame.f_locals["name"], frame.f_locals["package"]
    modules_sought(observed)
    names = observed.named if frame.f_code.co_name == "import_module" else observed.sought
    if isinstance(name, str):
        try:
            names.setdefault(util.resolve_name(name, package))
        except (ImportError, ValueError, TypeError):
            return  # the call itself fails in this way


def _dunder_import(observed: Observations, frame: FrameType) -> None:
    """``importlib.__import__``, which is Python's own and not the function behind the statement."""
    name, level = frame.f_locals["name"], frame.f_locals["level"]
    package = (frame.f_locals["globals"] or {}).get("__package__")
    with suppress(ImportError, ValueError, TypeError):  # the call itself fails in this way
        found = util.resolve_name("." * level + name, package)
        for each in ("", *map(".{}".format, frame.f_locals["fromlist"])):
            observed.named.setdefault(f"{found}{each}")


def _distribution(observed: Observations, frame: FrameType) -> None:
    observed.installed.setdefault(str(frame.f_locals["name"]))


def _distributions(observed: Observations, frame: FrameType) -> None:
    back = frame.f_back
    while back is not None and back.f_globals.get("__name__", "").startswith("importlib.metadata"):
        if back.f_code.co_name == "from_name":
            return
        back = back.f_back
    observed.installed.setdefault("*")


def _lines(observed: Observations, frame: FrameType) -> None:
    """The lines of a file, which ``linecache`` may have had before: the file counts where it still has these lines."""
    name, cached = frame.f_locals["filename"], frame.f_globals["cache"]
    entry = cached.get(name)
    if entry is None or len(entry) == 1 or entry[1] is None:
        return  # it will be opened, or is the text of no file
    import tokenize  # linecache has it

    try:
        with tokenize.open(entry[3]) as file:
            lines = file.readlines()
    except (OSError, UnicodeDecodeError, SyntaxError):
        lines = []
    if "".join(lines).rstrip("\n") == "".join(entry[2]).rstrip("\n"):
        content_asked(observed, entry[3])
    else:
        message = f"linecache has lines of {name} that are not those of the file: call linecache.checkcache() before"
        observed.nondeterministic = observed.nondeterministic or message


_PATHS = ("genericpath", "posixpath")
_PATHLIB = ("pathlib", "pathlib._local")
_METADATA = ("importlib.metadata",)
#: Qualified name of a function -> its modules, and the handler of its access.
_HANDLERS: dict[str, tuple[tuple[str, ...], LookupHandler]] = {
    **dict.fromkeys(("exists", "isfile", "isdir"), (_PATHS, _is_there)),
    **dict.fromkeys(("lexists", "islink", "ismount"), (_PATHS, _is_link)),
    **dict.fromkeys(("Path.exists", "Path.is_file", "Path.is_dir"), (_PATHLIB, _is_there)),
    **dict.fromkeys(("getsize", "getmtime", "getctime", "getatime"), (_PATHS, _is_such)),
    "getlines": (("linecache",), _lines),
    "Path.stat": (_PATHLIB, _is_such),
    **dict.fromkeys(("Path.is_symlink", "Path.readlink"), (_PATHLIB, _is_link)),
    **dict.fromkeys(("samefile", "Path.samefile"), ((*_PATHS, *_PATHLIB), _same)),
    "abspath": (_PATHS, _made_absolute),
    "realpath": (_PATHS, _resolve_path),
    "Path.absolute": (_PATHLIB, _made_absolute),
    "Path.cwd": (_PATHLIB, current_folder_asked),
    "find_spec": (("importlib.util",), _module),
    "import_module": (("importlib",), _module),
    "__import__": (("importlib._bootstrap",), _dunder_import),
    "Distribution.from_name": (_METADATA, _distribution),
    "MetadataPathFinder.find_distributions": (_METADATA, _distributions),
}
#: The modules that have one, and that of ``Thread.start``.
MODULES = frozenset({"threading", *(module for modules, _ in _HANDLERS.values() for module in modules)})
