"""Runs a program as Python does, in a Python that has no ``cachec-startup.pth``: see ``cachec_startup.command``."""

import os
import sys

from cachec_startup import start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, TracebackType
    from typing import Any


def main(args: list[str]) -> None:
    """Run the program of ``sys.argv``: ``-c``, its kind, what that kind takes, and its own arguments.

    args: what Python was given by the user. Raises what the program raises.
    """
    sys.path.pop()  # where this module was found
    if not sys.flags.safe_path:
        sys.path.pop(0)  # the empty one of ``-c``
    kind, value, *rest = sys.argv[1:]
    sys.orig_argv[1:] = args
    sys.argv[:] = [f"-{kind}" if kind in {"c", "m"} else value, *rest]
    start()
    if kind == "file" and not os.path.isabs(value):
        value = f"{os.getcwd()}/{value}"
    try:
        _run(kind, value)
    except SystemExit:
        raise
    except BaseException as error:
        _hide_callers(error)
        raise


def _run(kind: str, value: str) -> None:
    """Put the first folder in the path, and execute the program in ``__main__``."""
    import pkgutil
    import runpy

    first = ""
    if kind == "m":
        first = os.getcwd()
    elif kind == "file":
        first = os.path.dirname(os.path.realpath(value))
        if pkgutil.get_importer(value) is not None:  # a folder or a zip file with a __main__
            sys.path.insert(0, value)
            runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined] # as Python does
            return
    if not sys.flags.safe_path:
        sys.path.insert(0, first)
    if kind == "m":
        runpy._run_module_as_main(value)  # type: ignore[attr-defined] # as Python does
        return
    exec(_code(kind, value), vars(sys.modules["__main__"]))


def _code(kind: str, value: str) -> "CodeType":
    """The code of the program; ``__main__`` gets the names that Python gives it. Raises SyntaxError."""
    from importlib.machinery import SourceFileLoader, SourcelessFileLoader
    from importlib.util import MAGIC_NUMBER

    if kind == "c":
        if sys.version_info >= (3, 14):
            from textwrap import dedent

            value = dedent(value)
        if sys.version_info >= (3, 13):  # where a traceback shows its lines
            import linecache

            linecache.cache["<string>"] = (len(value), None, value.splitlines(keepends=True), "<string>")
        return compile(value, "<string>", "exec", dont_inherit=True)
    names = vars(sys.modules["__main__"])
    if kind == "stdin":
        names.update(__file__="<stdin>", __cached__=None)
        return compile(sys.stdin.buffer.read(), "<stdin>", "exec", dont_inherit=True)
    with open(value, "rb") as file:
        data = file.read()
    is_compiled = data.startswith(MAGIC_NUMBER)
    loader: Any = (SourcelessFileLoader if is_compiled else SourceFileLoader)("__main__", value)
    names.update(__file__=value, __cached__=None, __loader__=loader)
    code: CodeType = loader.get_code("__main__") if is_compiled else compile(data, value, "exec", dont_inherit=True)
    return code


def _hide_callers(error: BaseException) -> None:
    """Have the traceback that is printed begin with the program, as without this module."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename == main.__code__.co_filename:
        traceback = traceback.tb_next
    show = sys.excepthook

    def show_program(kind: type[BaseException], value: BaseException, _: "TracebackType | None") -> None:
        sys.excepthook = show
        show(kind, value.with_traceback(traceback), traceback)

    sys.excepthook = show_program
