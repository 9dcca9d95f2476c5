"""Write docs/explanation/modules.md: each layer with its modules, and the first sentence of each module's docstring.

python scripts/module_index.py           write the page
python scripts/module_index.py --check   exit with 1 if the page is not what would be written
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "explanation" / "modules.md"

HEAD = """# Index of modules

`scripts/module_index.py` makes this page from `pyproject.toml` and from the modules' docstrings. A module imports only
from layers below its own. [How cachec is built](architecture.md) explains the layers.
"""


def layers() -> list[list[str]]:
    """Return the layers of the package ``cachec`` as import-linter checks them, the highest first."""
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = [each for each in linter["contracts"] if each["name"] == "imports go down only"]
    return [re.findall(r"\w+", layer) for layer in contract["layers"]]


def summary(file: Path) -> str:
    """Return the first sentence of a module's docstring, with single backticks for code."""
    paragraph = " ".join((ast.get_docstring(ast.parse(file.read_text())) or "").split("\n\n")[0].split())
    sentence = re.match(r".*?\.(?=\s|$)", paragraph)
    return (sentence[0] if sentence else paragraph).replace("``", "`").rstrip(":")


def modules(place: Path) -> Iterator[str]:
    """Yield a line for each module of a package, or for the module itself."""
    files = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
    for file in files:
        path = file.parent if file.name == "__init__.py" else file.with_suffix("")
        text = summary(file)
        name = ".".join(path.relative_to(ROOT / "plugins" if "plugins" in path.parts else ROOT).parts)
        yield f"- `{name}`: {text}" if text else f"- `{name}`"


def page() -> str:
    """Return the text of the page."""
    blocks = [HEAD]
    drawn = layers()
    for number, names in zip(range(len(drawn), 0, -1), drawn, strict=True):
        blocks.append(f"## Layer {number}: {', '.join(f'`{name}`' for name in names)}\n")
        blocks.append("\n".join(line for name in names for line in modules(ROOT / "cachec" / name)) + "\n")
    blocks.append("## Plugins\n")
    plugins = sorted((ROOT / "plugins").glob("cachec_*"))
    blocks.append("\n".join(line for plugin in plugins for line in modules(plugin)) + "\n")
    return "\n".join(blocks)


def main() -> int:
    """Run the command line; return its status."""
    if sys.argv[1:] == ["--check"]:
        is_current = PAGE.exists() and PAGE.read_text() == page()
        if not is_current:
            sys.stderr.write(f"{PAGE.relative_to(ROOT)} is not current; run python scripts/module_index.py\n")
        return 0 if is_current else 1
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
