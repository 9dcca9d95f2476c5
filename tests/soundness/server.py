"""A process that has imported what cases need and forks for each job: a new process in a few milliseconds.

Reads jobs as lines of JSON, writes an answer to each. A job names a store, and projects that are worked on one after
the other in one process: a folder and steps. ``["write", files]``, ``["call"]`` (miss, run and store, or hit),
``["look"]`` (hit or nothing), ``["anew"]`` (as in a new process: no module of the project is imported),
``["reload", module]``, ``["autoreload", module]``, ``["exec", module, text]``, ``["cells", name, texts]`` (a notebook
runs these).
"""

from __future__ import annotations

import contextlib
import importlib
import json
import linecache
import os
import shutil
import sys
import tempfile
import time
import traceback
import types
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cachec.errors import CachecError, CacheMissError
from cachec.key.code.executed_source import executed_sources
from cachec.model import Mode


def write(folder: Path, files: dict[str, str | None]) -> None:
    """Put files there, or away; those of an archive (``lib.zip/inner.py``) as one."""
    packed: dict[str, dict[str, str]] = {}
    for name, text in files.items():
        archive, inner, member = name.partition(".zip/")
        if inner and text is not None:
            packed.setdefault(f"{archive}.zip", {})[member] = text
            continue
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text is None:
            path.unlink(missing_ok=True)
        elif not path.exists() or path.read_text() != text:
            new = path.with_name(path.name + ".new")
            new.write_text(text)
            new.replace(path)
    for archive, members in packed.items():
        with zipfile.ZipFile(folder / f"{archive}.new", "w") as packing:
            for member, text in members.items():
                packing.writestr(zipfile.ZipInfo(member), text)
        (folder / f"{archive}.new").replace(folder / archive)


def call(stage: Any, mode: Mode = Mode.ON) -> dict[str, Any]:
    """What the cache answers, and what the stage itself does in the same place."""
    stage.mode = mode
    try:
        value, outcome = stage.call()
        answer = {"value": value, "reason": outcome.reason.value, "detail": outcome.detail, "stored": outcome.stored}
    except CacheMissError as error:
        return {"reason": "miss", "detail": str(error)}
    except CachecError as error:
        answer = {"value": None, "reason": "refused", "detail": str(error), "stored": False}
    except Exception as error:
        answer = {"value": repr(error), "reason": "raised", "detail": traceback.format_exc(), "stored": False}
    try:
        answer["truth"] = stage.uncached()
    except Exception as error:
        answer["truth"] = repr(error)
    return answer


def forget(folder: str) -> None:
    """Leave of the project what a new process has of it: nothing."""
    for name, module in list(sys.modules.items()):
        places = [getattr(module, "__file__", None), *map(str, getattr(module, "__path__", ()))]
        if any(place is not None and place.startswith(folder + "/") for place in places):
            if name == "main":
                module.cache.close()
            del sys.modules[name]
    sys.modules["__main__"] = types.ModuleType("__main__")
    linecache.clearcache()
    importlib.invalidate_caches()
    began()


def began() -> None:
    """What is there now was there before the process."""
    executed_sources.cache_clear()
    executed_sources()._started = time.time()


@contextlib.contextmanager
def entered(folder: str) -> Iterator[None]:
    os.chdir(folder)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        forget(folder)
        sys.path.remove(folder)
        os.chdir("/")


def reload(name: str) -> None:
    if name in sys.modules:
        importlib.invalidate_caches()
        with contextlib.suppress(Exception):  # half an import is a state that a program may be in
            importlib.reload(sys.modules[name])


def autoreload(name: str) -> None:
    """As IPython's ``%autoreload``: what others hold of the module becomes what the new one has under its name."""
    before = dict(vars(sys.modules[name])) if name in sys.modules else {}
    reload(name)
    for key, old in before.items():
        new = vars(sys.modules[name]).get(key)
        if old is not new and getattr(old, "__module__", None) == name:
            _become(old, new)


def _become(old: object, new: object) -> None:
    if isinstance(old, types.FunctionType) and isinstance(new, types.FunctionType):
        with contextlib.suppress(ValueError):  # other closures: then the old one stays
            old.__code__ = new.__code__
            old.__defaults__, old.__doc__, old.__kwdefaults__ = new.__defaults__, new.__doc__, new.__kwdefaults__
            old.__dict__.update(new.__dict__)
    elif isinstance(old, type) and isinstance(new, type):
        for key, value in list(vars(old).items()):
            held = vars(new).get(key)
            if isinstance(value, types.FunctionType):
                _become(value, held)
            elif key in vars(new) and not key.startswith("__"):
                with contextlib.suppress(AttributeError, TypeError):  # read-only, as slots are
                    setattr(old, key, held)


def run_cells(kernel: str, texts: list[str]) -> None:
    """Run the cells of a notebook as ipykernel does: each a file that is not there, whose text ``linecache`` has."""
    main = sys.modules["__main__"]
    for text in texts:
        number = main.__dict__.setdefault("_count", 0) + 1
        main.__dict__["_count"] = number
        name = kernel.replace("#", str(number))
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        exec(compile(text, name, "exec"), main.__dict__)


def follow(folder: str, steps: list[list[Any]]) -> list[dict[str, Any]]:
    """What comes of the looks among the steps that are taken with one project."""
    answers: list[dict[str, Any]] = []
    began()
    module, is_new = "main", True
    for kind, *given in steps:
        if kind == "write":
            write(Path(folder), given[0])
            if is_new:
                began()
        elif kind == "anew":
            forget(folder)
            is_new = True
        elif kind == "reload":
            reload(given[0])
        elif kind == "autoreload":
            autoreload(given[0])
        elif kind == "exec":
            exec(given[1], vars(importlib.import_module(given[0])))
        elif kind == "cells":
            module = "__main__"
            run_cells(*given)
        else:
            stage = importlib.import_module(module).stage
            answers.append(call(stage, Mode.ON if kind == "call" else Mode.REQUIRE))
            is_new = False
    return answers


def work(job: dict[str, Any]) -> list[Any]:
    """The answers of each project, in order; of one that failed what it failed with."""
    os.environ["SOUNDNESS_STORE"] = job["store"]
    done: list[Any] = []
    for folder, steps in job["projects"]:
        os.makedirs(folder, exist_ok=True)
        try:
            with entered(folder):
                done.append(follow(folder, steps))
        except Exception:
            done.append({"failed": traceback.format_exc()})
    return done


_WARM = """
import os, cachec
cache = cachec.Cache(os.environ['SOUNDNESS_STORE'], log='off', mode='on')
@cache.stage
def stage(): return 'it'
"""


def warm() -> None:
    """Import, by one call that misses and one that hits, whatever a first call imports."""
    folder = tempfile.mkdtemp(prefix="soundness-warm-")
    try:
        work({"store": f"{folder}/store", "projects": [[folder, [["write", {"main.py": _WARM}], ["call"], ["look"]]]]})
        importlib.import_module("cachec.key.key_diff")
    finally:
        shutil.rmtree(folder)
    sys.dont_write_bytecode = True


def main() -> None:
    warm()
    for line in sys.stdin:
        read, written = os.pipe()
        child = os.fork()
        if not child:
            os.close(read)
            try:
                data = json.dumps(work(json.loads(line)))
            except BaseException:
                data = json.dumps({"failed": traceback.format_exc()})
            with os.fdopen(written, "w") as pipe:
                pipe.write(data)
            os._exit(0)
        os.close(written)
        with os.fdopen(read) as pipe:
            answer = pipe.read()
        os.waitpid(child, 0)
        print(answer or json.dumps({"failed": "the process ended without a word"}), flush=True)


if __name__ == "__main__":
    main()
