"""The public face: names, docstrings, documentation that matches the code."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from shutil import which

import pytest

import cachec

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", cachec.__all__)
def test_every_exported_name_is_there_and_says_what_it_is(name):
    value = getattr(cachec, name)
    assert inspect.getdoc(value)


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="nowhere"):
        _ = cachec.nowhere


def test_dir_lists_the_exported_names():
    assert set(cachec.__all__) <= set(dir(cachec))


def test_importing_cachec_costs_next_to_nothing():
    code = "import sys, cachec; print(sorted({'numpy', 'msgspec', 'diskcache', 'click', 'blake3'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


_SUFFIXES = {".md", ".yml", ".sh", ".cmake", ".mk", ".toml", ""}


def _files(root: Path) -> list[Path]:
    """Of a checkout what git knows, as builds leave files beside it that nobody wrote; else all files."""
    listed = None
    if which("git") and (root / ".git").exists():  # else git finds a checkout that the root is somewhere in
        asked = ["git", "-C", str(root), "ls-files", "-z"]
        listed = subprocess.run(asked, capture_output=True, text=True, check=False)
    if listed is None or listed.returncode:  # no checkout, or one of somebody else, of which git does not tell
        return sorted(path for path in root.rglob("*") if path.is_file())
    return [path for name in listed.stdout.split("\0") if name and (path := root / name).is_file()]


#: Whoever reads these goes to files of this repository by the paths that they name.
_AT_ROOT = {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "Makefile", "pyproject.toml"}
_AT_ROOT |= {".pre-commit-hooks.yaml"}
TEXTS = [
    path
    for path in _files(ROOT)
    if (path.parent == ROOT and path.name in _AT_ROOT)
    or (path.relative_to(ROOT).parts[0] in {"docs", "examples", "plugins", ".ci"} and path.suffix in _SUFFIXES)
    if path.name != "modules.md"  # made of docstrings, some of which name files and modules of other projects
]
_FOLDERS = "cachec|plugins|cachec_[a-z]+|docs|tests|examples|bench|scripts|[.]ci"


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_paths_that_texts_name_exist(text):
    """Those with a suffix, from the root of the repository or from ``plugins``."""
    for path in re.findall(rf"(?<![\w./$-])((?:{_FOLDERS})/[\w./*-]*\.[a-z]+)\b", text.read_text()):
        if "NAME" not in path and "/out/" not in path:
            assert [*ROOT.glob(path), *(ROOT / "plugins").glob(path)], f"{text.name}: {path}"


#: What looks like a module and is none: files of settings, groups of entry points, tables and keys of configuration.
_NO_MODULES = re.compile(
    r"cachec\.(toml|plugins|commands|containers|formats|remotes|resolvers|warm(\.targets.*)?|cache|adopt|dir|hits|misses|outcomes|mk|json|calls|saved)\Z"
)


@pytest.mark.parametrize(
    "text",
    [text for text in TEXTS if text.name != "CHANGELOG.md"],  # which names what is gone
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_modules_and_names_that_texts_name_exist(text):
    for name in set(re.findall(r"(?<![\w./-])(cachec(?:_[a-z]+)?(?:\.[A-Za-z_]+)+)", text.read_text())):
        if name == "cachec_triton.cache_manager" and find_spec("triton") is None:
            assert find_spec(name) is not None  # can't be imported without triton
        elif not _NO_MODULES.match(name):
            resolve_name(name)  # raises where there is none


def test_what_a_build_leaves_in_a_checkout_is_no_text_of_it(tmp_path):
    (tmp_path / "page.md").touch()
    (tmp_path / "left.md").touch()
    assert _files(tmp_path) == [tmp_path / "left.md", tmp_path / "page.md"]  # as from an archive, without git
    if which("git"):
        subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
        subprocess.run(["git", "add", "page.md"], cwd=tmp_path, check=True)
        assert _files(tmp_path) == [tmp_path / "page.md"]


@pytest.mark.parametrize(
    "left", [".demo", ".demo-torch", ".demo-vit", "first.safetensors", "second.safetensors", "stats", "scale.opt.mlir"]
)
def test_what_examples_and_pages_leave_is_ignored_and_cleaned(left):
    recipe = (ROOT / "Makefile").read_text().partition("\nclean:")[2].partition("\n\n")[0]
    assert left in recipe.split()
    if which("git") and (ROOT / ".git").exists():
        for name in (left, f"{left}/"):  # as a file or as a folder
            asked = subprocess.run(["git", "-C", str(ROOT), "check-ignore", "-q", name], check=False)
            if asked.returncode in {0, 128}:  # 128: a checkout of somebody else
                break
        else:
            pytest.fail(left)
