"""Settings of a process that its code and libraries obey, though no global of the project holds them.

The caller takes them when a stage is called, the worker sets them before it runs the stage. A setting at its default is
None, so that a process that has not imported a library equals one whose settings nothing has changed.
"""

from __future__ import annotations

import csv
import decimal
import locale
import logging
import os
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from cachec.base.display_text import module_of
from cachec.base.hashing import digest_bytes
from cachec.base.lookups import umask
from cachec.base.tracer_hiding import unseen

__all__ = ["COUNTED", "apply", "digest", "snapshot"]


class _ProcessSetting(NamedTuple):
    """read: its value, which can be pickled, None for the default. write: gets such a value. counted: what of a value
    changes results, as plain data; None where the path of the project or the terminal decides."""

    read: Callable[[], Any]
    write: Callable[[Any], object]
    counted: Callable[[Any], Any] | None = lambda value: value


def snapshot() -> dict[str, Any]:
    """Name -> value, for every setting that is not at its default."""
    return {name: value for name, setting in _SETTINGS.items() if (value := setting.read()) is not None}


def apply(values: Mapping[str, Any]) -> None:
    """Bring this process to what ``snapshot`` returned in another. Raises what the setters raise."""
    with unseen():  # what the arguments and the current folder are is asked here, and not by the stage
        for name, setting in _SETTINGS.items():
            if setting.read() != values.get(name):
                setting.write(values.get(name))


#: The digest of a setting at its default.
_DEFAULT: Final = digest_bytes(b"null")


def digest(name: str) -> str:
    """The digest of one of ``COUNTED`` as it is now."""
    setting = _SETTINGS[name]
    if setting.counted is None:
        raise KeyError(name)
    value = setting.read()
    return _DEFAULT if value is None else digest_bytes(msgspec.json.encode(setting.counted(value), order="sorted"))


# --- one by one


def _by_default(read: Callable[[], Any], write: Callable[[Any], object], default: Any) -> _ProcessSetting:
    """A setting that one function reads and another writes."""
    return _ProcessSetting(
        lambda: None if (value := read()) == default else value,
        lambda value: write(default if value is None else value),
    )


_SIGNALS: Final = (decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow)
_CONTEXT: Final = (28, decimal.ROUND_HALF_EVEN, -999999, 999999, 1, 0, sorted(each.__name__ for each in _SIGNALS))


def _context_of(context: decimal.Context) -> tuple[Any, ...]:
    """What a context says of results. Its flags only tell of those that there were."""
    traps = sorted(signal.__name__ for signal, traps in context.traps.items() if traps)
    return context.prec, context.rounding, context.Emin, context.Emax, context.capitals, context.clamp, traps


def _set_context(context: decimal.Context, value: tuple[Any, ...]) -> None:
    for name, part in zip(("prec", "rounding", "Emin", "Emax", "capitals", "clamp"), value, strict=False):
        setattr(context, name, part)
    for signal in context.traps:
        context.traps[signal] = signal.__name__ in value[-1]


_CATEGORIES: Final = ("LC_COLLATE", "LC_CTYPE", "LC_MESSAGES", "LC_MONETARY", "LC_NUMERIC", "LC_TIME")


def _locale() -> dict[str, str]:
    return {name: locale.setlocale(getattr(locale, name)) for name in _CATEGORIES}


def _set_locale(value: Mapping[str, str]) -> None:
    for name, text in value.items():
        locale.setlocale(getattr(locale, name), text)


def _counted_locale(value: Mapping[str, str]) -> dict[str, str]:
    """The user's language begins in ``LC_CTYPE``, of which only the encoding of files changes anything."""
    return {**value, "LC_CTYPE": locale.nl_langinfo(locale.CODESET).upper()}


def _set_filters(value: list[Any]) -> None:
    filters: Any = warnings.filters
    warnings.resetwarnings()  # tells the interpreter, too
    filters[:] = value


def _counted_filters(value: list[Any]) -> list[Any]:
    """Filters up to the last one that makes errors of warnings: the others decide what is printed. Libraries add some
    when they are imported."""
    last = max((number for number, each in enumerate(value) if each[0] == "error"), default=-1)
    texts = []
    for action, message, category, module, line in value[: last + 1]:
        patterns = [getattr(each, "pattern", each) for each in (message, module)]
        texts.append([action, *patterns, f"{module_of(category)}.{category.__qualname__}", line])
    return texts


_UNSET_LOGGER: Final = (logging.NOTSET, False, True)


def _loggers() -> dict[str, tuple[int, bool, bool]]:
    """Level, ``disabled`` and ``propagate`` of the loggers that have others than new ones."""
    known = [(name, each) for name, each in logging.root.manager.loggerDict.items() if isinstance(each, logging.Logger)]
    found = {name: (each.level, bool(each.disabled), bool(each.propagate)) for name, each in known}
    return {name: value for name, value in found.items() if value != _UNSET_LOGGER}


def _levels() -> dict[str, Any] | None:
    value = {"root": logging.root.level, "disabled": logging.root.manager.disable, "loggers": _loggers()}
    return None if value == {"root": logging.WARNING, "disabled": 0, "loggers": {}} else value


def _set_levels(value: Mapping[str, Any] | None) -> None:
    value = value or {"root": logging.WARNING, "disabled": 0, "loggers": {}}
    logging.root.setLevel(value["root"])
    logging.disable(value["disabled"])
    for name, (level, disabled, propagate) in {**dict.fromkeys(_loggers(), _UNSET_LOGGER), **value["loggers"]}.items():
        logger = logging.getLogger(name)
        logger.setLevel(level)
        logger.disabled, logger.propagate = disabled, propagate


#: What numpy begins with.
_NUMPY_ERRORS: Final = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}
_NUMPY_PRINTED: Final = {
    **{"edgeitems": 3, "floatmode": "maxprec", "formatter": None, "infstr": "inf", "legacy": False, "linewidth": 75},
    **{"nanstr": "nan", "override_repr": None, "precision": 8, "sign": "-", "suppress": False, "threshold": 1000},
}


def _numpy() -> Any:
    numpy = sys.modules.get("numpy")
    return numpy if hasattr(numpy, "set_printoptions") and hasattr(numpy, "geterr") else None  # not half imported


def _numpy_errors() -> dict[str, Any] | None:
    numpy = _numpy()
    if numpy is None:
        return None
    value = {**numpy.geterr(), **({"call": numpy.geterrcall()} if numpy.geterrcall() is not None else {})}
    return None if value == _NUMPY_ERRORS else value


def _set_numpy_errors(value: Mapping[str, Any] | None) -> None:
    import numpy as np

    value = dict(value or _NUMPY_ERRORS)
    np.seterrcall(value.pop("call", None))
    np.seterr(**value)


def _numpy_printed() -> dict[str, Any] | None:
    numpy = _numpy()
    options = {} if numpy is None else numpy.get_printoptions()
    return {name: value for name, value in options.items() if value != _NUMPY_PRINTED.get(name)} or None


def _set_numpy_printed(value: Mapping[str, Any] | None) -> None:
    import numpy as np

    np.set_printoptions(**{**_NUMPY_PRINTED, **(value or {})})


def _mask() -> int:
    """The mask of new files. Asking umask(2) sets another for a moment, which another thread may see."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    return umask()


def _set_mask(value: int) -> None:
    os.umask(value)


def _without_functions(value: Mapping[str, Any]) -> dict[str, str]:
    """Functions by their names: what they do is in the project's text."""
    return {name: each.__qualname__ if hasattr(each, "__qualname__") else repr(each) for name, each in value.items()}


def _flags() -> Any:
    module = sys.modules.get("absl.flags")
    return None if module is None else module.FLAGS


def _flag_values() -> dict[str, Any] | None:
    """The flags of absl that the command line or the program has set, once they are parsed."""
    flags = _flags()
    if flags is None or not flags.is_parsed():
        return None
    return {name: flags[name].value for name in flags if flags[name].value != flags[name].default}


def _set_flag_values(values: Mapping[str, Any] | None) -> None:
    flags = _flags()
    if flags is None:
        return
    if values is None:
        flags.unparse_flags()
        return
    flags.mark_as_parsed()
    for name, value in values.items():
        if name in flags:  # a flag that no module of the worker defines, it can't read either
            flags[name].value = value
            flags[name].present = 1


def _multiprocessing() -> Any:
    module = sys.modules.get("multiprocessing")
    return module if hasattr(module, "get_start_method") else None  # not half imported


def _start_method() -> str | None:
    module = _multiprocessing()
    method: str | None = None if module is None else module.get_start_method(allow_none=True)
    return method


def _set_start_method(value: str | None) -> None:
    import multiprocessing

    multiprocessing.set_start_method(value, force=True)


_DIALECT: Final = (
    *("delimiter", "doublequote", "escapechar", "lineterminator", "quotechar", "quoting", "skipinitialspace", "strict"),
)


def _set_field_size(value: int) -> None:
    csv.field_size_limit(value)


def _dialects() -> dict[str, dict[str, Any]] | None:
    """What the program has registered with csv."""
    names = set(csv.list_dialects()) - {"excel", "excel-tab", "unix"}
    return {name: {each: getattr(csv.get_dialect(name), each) for each in _DIALECT} for name in sorted(names)} or None


def _set_dialects(values: Mapping[str, Mapping[str, Any]] | None) -> None:
    for name in _dialects() or {}:
        csv.unregister_dialect(name)
    for name, options in (values or {}).items():
        csv.register_dialect(name, **options)


def _stack_size() -> int:
    """Asking sets the default: what it was is set again."""
    value = threading.stack_size()
    threading.stack_size(value)
    return value


_FLAGS: Final = ("utf8_mode", "dev_mode", "bytes_warning", "warn_default_encoding")


def _python_flags() -> dict[str, int] | None:
    """The flags that Python was started with and that change results; ``-O`` counts with the platform."""
    return {name: value for name in _FLAGS if (value := int(getattr(sys.flags, name)))} or None


def _refuse_flags(value: object) -> None:
    raise ValueError(f"this process runs with flags of Python ({value}) that a worker would not have")


_SETTINGS: Final[dict[str, _ProcessSetting]] = {
    "flags of Python": _ProcessSetting(_python_flags, _refuse_flags),
    "current folder": _ProcessSetting(os.getcwd, os.chdir, None),
    "arguments": _ProcessSetting(
        lambda: list(sys.argv),
        lambda value: sys.argv.__setitem__(slice(None), value),
        lambda value: [os.path.basename(value[0]), *value[1:]] if value else [],
    ),
    "umask": _by_default(_mask, _set_mask, 0o022),
    "recursion limit": _by_default(sys.getrecursionlimit, sys.setrecursionlimit, 1000),
    "size of stacks of threads": _by_default(_stack_size, threading.stack_size, 0),
    "digits of an int": _by_default(sys.get_int_max_str_digits, sys.set_int_max_str_digits, 4300),
    "decimal": _by_default(
        lambda: _context_of(decimal.getcontext()), lambda value: _set_context(decimal.getcontext(), value), _CONTEXT
    ),
    "decimal of new threads": _by_default(
        lambda: _context_of(decimal.DefaultContext), lambda value: _set_context(decimal.DefaultContext, value), _CONTEXT
    ),
    "locale": _ProcessSetting(_locale, _set_locale, _counted_locale),
    "warnings": _ProcessSetting(lambda: list(warnings.filters), _set_filters, _counted_filters),
    "log levels": _ProcessSetting(_levels, _set_levels, lambda value: [value["root"], value["disabled"]]),
    "timeout of sockets": _ProcessSetting(socket.getdefaulttimeout, socket.setdefaulttimeout),
    "switch interval": _by_default(sys.getswitchinterval, sys.setswitchinterval, 0.005),
    "size of a field of csv": _by_default(csv.field_size_limit, _set_field_size, 131072),
    "dialects of csv": _ProcessSetting(_dialects, _set_dialects),
    "flags of absl": _ProcessSetting(_flag_values, _set_flag_values, _without_functions),
    "start method of multiprocessing": _ProcessSetting(_start_method, _set_start_method),
    "numpy errors": _ProcessSetting(_numpy_errors, _set_numpy_errors, _without_functions),
    "numpy printing": _ProcessSetting(_numpy_printed, _set_numpy_printed, _without_functions),
}

#: The settings that change results.
COUNTED: Final = tuple(name for name, setting in _SETTINGS.items() if setting.counted is not None)
