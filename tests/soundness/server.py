"""A process that has imported what cases need and forks for each: a new process in a few milliseconds.

Reads jobs as lines of JSON, writes an answer to each. A job names a folder and a store, and steps that are taken one by
one in a process of its own: ``["write", files]``, ``["call"]``, ``["reload", module]``, ``["exec", module, text]``.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from cachec.errors import CachecError
from cachec.key.code.executed import executed


def write(folder: Path, files: dict[str, str | None]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text is None:
            path.unlink(missing_ok=True)
        elif not path.exists() or path.read_text() != text:
            new = path.with_name(path.name + ".new")
            new.write_text(text)
            new.replace(path)


def call(stage: Any) -> dict[str, Any]:
    """What the cache answers, and what the stage itself does in the same place."""
    try:
        value, outcome = stage.call()
        answer = {"value": value, "reason": outcome.reason.value, "detail": outcome.detail, "stored": outcome.stored}
    except CachecError as error:
        answer = {"value": None, "reason": "refused", "detail": str(error), "stored": False}
    except Exception as error:
        answer = {"value": repr(error), "reason": "raised", "detail": traceback.format_exc(), "stored": False}
    try:
        answer["truth"] = stage.uncached()
    except Exception as error:
        answer["truth"] = repr(error)
    return answer


def work(job: dict[str, Any]) -> list[dict[str, Any]]:
    folder = Path(job["folder"])
    os.environ["SOUNDNESS_STORE"] = job["store"]
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    answers = []
    for kind, *given in job["steps"]:
        if kind == "write":
            write(folder, given[0])
            if not answers:  # what is written first was there before the process
                executed.cache_clear()
                executed()._started = time.time()
        elif kind == "reload":
            if given[0] in sys.modules:
                importlib.invalidate_caches()
                with contextlib.suppress(Exception):  # half an import is a state that a program may be in
                    importlib.reload(sys.modules[given[0]])
        elif kind == "exec":
            module = importlib.import_module(given[0])
            exec(given[1], vars(module))
        elif kind == "call":
            answers.append(call(importlib.import_module("main").stage))
    return answers


_WARM = """
import os, cachec
@cachec.Cache(os.environ['SOUNDNESS_STORE'], log='off', mode='on').stage
def stage(): return 'it'
"""


def warm() -> None:
    """Import, by one call that misses and one that hits, whatever a first call imports."""
    folder = tempfile.mkdtemp(prefix="soundness-warm-")
    try:
        work(
            {"folder": folder, "store": f"{folder}/store", "steps": [["write", {"main.py": _WARM}], ["call"], ["call"]]}
        )
        importlib.import_module("cachec.key.compare")
    finally:
        os.chdir("/")
        sys.path.remove(folder)
        sys.modules.pop("main", None)
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
