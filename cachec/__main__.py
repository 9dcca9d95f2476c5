"""``python -m cachec`` and the console script: ``exec``, ``python``, and ``check`` of what it answers at once, by a
short road; the rest through ``cachec.cli``."""

import sys


def main() -> int:
    """Run the command line of this process; returns its exit status. ``exec`` ends the process by itself."""
    if sys.argv[1:2] == ["exec"]:
        from cachec.launcher.build_tools import unwrap_launchers

        args = unwrap_launchers(sys.argv[2:], sys.argv[0])
        if args[:1] not in (["--help"], ["-h"]):
            try:
                status = _execute(args)
            except KeyboardInterrupt:  # while it imports, say: who waits for us sees the signal, and no traceback
                from signal import SIGINT

                from cachec.launcher.result import die_by

                status = die_by(SIGINT)
            _end(status)
    if sys.argv[1:2] == ["check"]:
        from cachec.launcher.direct import would_answer

        if would_answer(sys.argv[2:]):
            sys.stdout.write("hit\n")
            _end(0)
    if sys.argv[1:2] == ["python"] and sys.argv[2:3] not in (["--help"], ["-h"]):
        from cachec_startup.command import become_python, has_startup_file

        if has_startup_file():  # else the command says what is missing
            become_python(sys.argv[2:])
    import gc

    gc.set_threshold(100_000)  # modules are no garbage, and to look through them takes milliseconds, again at the end
    _import_click()
    from cachec.cli import main as command_line

    try:
        command_line(prog_name="cachec")
    except SystemExit as ended:  # click ends so whatever it has run to its end
        import threading

        is_status = ended.code is None or isinstance(ended.code, int)
        if is_status and threading.active_count() == 1:  # who else runs here is waited for
            _end(int(ended.code or 0))
        raise
    finally:
        gc.freeze()
    return 0


def _import_click() -> None:
    """Have click imported without ``inspect``, of which it asks no more than ``cleandoc`` of options, and pathlib's
    ``urllib.parse`` without ``ipaddress``: to import both takes half as long as to start Python. Whoever asks for more
    of them has them imported then. For a process of our own alone."""
    from importlib import import_module

    from cachec.base.lazy import later

    def cleandoc(text: str) -> str:
        if "\n" not in text:
            return text.expandtabs().lstrip()
        from inspect import cleandoc as of_lines

        return of_lines(text)

    omitted = {name: later(name) for name in ("inspect", "ipaddress") if name not in sys.modules}
    if "inspect" in omitted:
        vars(omitted["inspect"])["cleandoc"] = cleandoc
    modules: dict[str, object] = sys.modules  # type: ignore[assignment]
    modules.update(omitted)
    for package in ("urllib.parse", "click"):
        import_module(package)
    for name, each in omitted.items():  # nobody else is to have them
        if modules.get(name) is each:
            del modules[name]


def _occupy_stdin() -> None:
    """Where standard input is closed, have nothing there: else the next file that is opened takes its place."""
    import os

    try:
        os.fstat(0)
    except OSError:
        os.open(os.devnull, os.O_RDONLY)


def _uncoerce_locale() -> None:
    """Take out the variable that Python itself sets where the locale is C (PEP 538): a command is not to get it."""
    import os

    if os.environ.get("LC_CTYPE") in {"C.UTF-8", "C.utf8", "UTF-8"}:
        with open("/proc/self/environ", "rb", 0) as file:
            if b"\0LC_CTYPE=" not in b"\0" + file.read(1 << 22):
                del os.environ["LC_CTYPE"]


def _execute(args: list[str]) -> int:
    import os

    from cachec.launcher.direct import answer
    from cachec.launcher.inherited_fds import list_inherited

    _occupy_stdin()
    _uncoerce_locale()
    descriptors = list_inherited(os.environ)
    if answer(args):
        return 0
    from cachec.launcher.client import ask
    from cachec.launcher.result import perform

    ending, folder, name = (None, "", "") if descriptors else ask(args)
    if ending is not None:
        return perform(ending)
    import gc

    gc.disable()  # a short process: 300 imported modules are no garbage, and to look through them takes milliseconds
    if name:
        from cachec.launcher.server_start import is_there

        ending = ask(args)[0] if is_there(folder, name) else None
        if ending is not None:
            return perform(ending)
    from cachec.base.msgspec_import import import_msgspec

    import_msgspec()
    from cachec.launcher.execute import main as execute

    return execute(args, descriptors=descriptors)


def _end(status: int) -> None:
    """End this process without taking the interpreter apart, which takes longer than a hit on the direct road, and a
    tenth of what a command that only looks takes."""
    import atexit
    import os

    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # closed by who started us
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
