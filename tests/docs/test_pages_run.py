"""Whoever follows a tutorial or a how-to from top to bottom gets what it shows."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.docs.page import DOCS, Reader, blocks, commands, sections
from tests.needs import need, need_packages

HUGGING_FACE = "My model is a Hugging Face model"

#: Page -> the programs that it needs.
PAGES = {
    "index.md": (),
    "tutorial/first-stage.md": ("gcc",),
    "tutorial/team.md": ("gcc",),
    "howto/find-out-why.md": ("gcc",),
    "howto/warm-and-ci.md": ("gcc",),
    "howto/disk-space.md": (),
}

#: What is run with further conditions.
APART = {"tutorial/jax.md", "tutorial/torch.md", "tutorial/cmake.md", "howto/coming-from.md"}


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    return Reader(tmp_path)


def test_every_tutorial_and_how_to_is_followed() -> None:
    pages = {path.relative_to(DOCS).as_posix() for name in ("tutorial", "howto") for path in (DOCS / name).glob("*.md")}
    assert pages | {"index.md"} == set(PAGES) | APART


@pytest.mark.parametrize("page", sorted({*PAGES, *APART}))
def test_every_program_of_a_page_is_a_file_that_is_used(page: str) -> None:
    found = [*blocks("".join(sections(page).values()))]
    for block in found:
        assert block.name is not None or block.language == "console", block.text
    for block in found:
        if block.language == "python" and not block.name.startswith("test_"):  # pytest finds it
            stem = Path(block.name).stem
            assert any(re.search(rf"\b{stem}\b", other.text) for other in found if other is not block), block.name


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES)
def test_a_page(reader: Reader, page: str) -> None:
    need(*PAGES[page])
    need_packages("cryptography", "safetensors", "watchdog")
    reader.follow(page)


@pytest.mark.long
def test_cmake(reader: Reader) -> None:
    need("cmake", "gcc", "make", "ninja", "mlir-opt-19")
    need_packages("iree-base-compiler")
    reader.follow("tutorial/cmake.md")


@pytest.mark.long
def test_jax(reader: Reader) -> None:
    need_packages("iree-base-compiler", "iree-base-runtime", "jax", "safetensors")
    reader.follow("tutorial/jax.md")


@pytest.mark.costly
def test_torch(reader: Reader) -> None:
    need("g++")
    need_packages("safetensors", "torch")
    reader.follow("tutorial/torch.md")


@pytest.mark.long
def test_coming_from_ccache_joblib_and_flax(reader: Reader) -> None:
    need("gcc")
    need_packages("flax", "jax")
    reader.follow("howto/coming-from.md", *(each for each in sections("howto/coming-from.md") if each != HUGGING_FACE))


@pytest.mark.costly
def test_coming_from_hugging_face(reader: Reader) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers", reason="no test of cachec needs it otherwise")
    need("g++")
    reader.follow("howto/coming-from.md", HUGGING_FACE)


@pytest.mark.long
def test_the_readme(reader: Reader) -> None:
    """Its programs run with the model of the tutorial for JAX; its command is run on one of IREE's programs."""
    need_packages("iree-base-compiler", "iree-base-runtime", "jax", "safetensors")
    text = (DOCS.parent / "README.md").read_text()
    programs = [block.text for block in blocks(text) if block.language == "python"]
    tutorial = {block.name: block.text for block in blocks((DOCS / "tutorial" / "jax.md").read_text())}
    for name in ("model.py", "make_weights.py"):
        (reader.folder / name).write_text(tutorial[name])
    (reader.folder / "stages.py").write_text(
        programs[-1] + "import numpy\nprint(run(numpy.ones((8, 64), 'f4')).shape)\n"
    )
    (reader.folder / "install.py").write_text(programs[0])
    module = {block.name: block.text for block in blocks((DOCS / "tutorial" / "cmake.md").read_text())}["abs.mlir"]
    (reader.folder / "model.mlir").write_text(module)
    consoles = [block for block in blocks(text) if block.language == "console"]
    (command,) = [each.line for block in consoles for each in commands(block) if each.line.startswith("cachec exec")]
    lines = ["$ python make_weights.py", "$ cp base.safetensors model.safetensors"]
    lines += ["$ python stages.py", "...", "(8, 64)", "$ python stages.py", "(8, 64)", "$ python install.py"]
    lines += [f"$ {command}", f"$ {command}", "$ cachec stats --json > stats.json"]
    page = "\n".join(["```console", *lines, "```", ""])
    reader.follow_text(page)
    counts = json.loads((reader.folder / "stats.json").read_text())
    assert counts["hits"] == 3, counts
