"""``scripts/compat.py``: which columns are asked for, and the table that it keeps."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from cachec.programs.registry import installed_plugins
from cachec.programs.supported_versions import compare

ROOT = Path(__file__).parents[2]


@pytest.fixture
def compat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("compat", ROOT / "scripts" / "compat.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "compat", module)
    spec.loader.exec_module(module)
    (tmp_path / "page.md").write_text("# Page\n\n" + "\n".join(module.HEAD) + "\n\n## After\n\n| a | b |\n")
    monkeypatch.setattr(module, "PAGE", tmp_path / "page.md")
    return module


def test_a_row_replaces_that_of_its_release(compat: Any) -> None:
    for library, release, result in (
        ("tvm", "0.27.0", "works"),
        ("iree", "3.10.0", "fails"),
        ("iree", "3.9.0", "works"),
        ("iree", "3.10.0", "works (2 passed)"),
    ):
        compat.write(compat.Result(library, release, result, "3.11.7", "2026-11-26"))
    assert compat.PAGE.read_text() == "\n".join(
        [
            *("# Page", "", *compat.HEAD),
            "| iree | 3.9.0 | works | 3.11.7 | 2026-11-26 |",
            "| iree | 3.10.0 | works (2 passed) | 3.11.7 | 2026-11-26 |",
            "| tvm | 0.27.0 | works | 3.11.7 | 2026-11-26 |",
            *("", "## After", "", "| a | b |", ""),
        ]
    )


def test_columns(compat: Any) -> None:
    assert list(compat._asked(["iree==3.9.0", "triton"]))[:2] == [("iree", "3.9.0"), ("triton", "3.7.1")]
    assert not {name for name, _ in compat._asked([])} & {"torch", "executorch"}
    assert list(compat._asked(["jax", "onnxruntime"], oldest=True)) == [("jax", "0.6.2"), ("onnxruntime", "1.20.1")]
    with pytest.raises(SystemExit, match="no library 'nothing'; there are jax"):
        list(compat._asked(["nothing==1"]))


def test_every_range_has_a_column_with_its_ends(compat: Any) -> None:
    plugins = {plugin.name: plugin for plugin in installed_plugins().all() if plugin.tried_releases}
    assert plugins.keys() == {library.plugin for library in compat.LIBRARIES.values()}
    for name, plugin in plugins.items():
        tried = next(iter(plugin.tried_releases.values()))
        sides = [compare(release, tried) for release in compat.LIBRARIES[name].releases]
        assert 0 in sides, name
        assert all(Path(ROOT, each.partition("::")[0]).exists() or "*" in each for each in compat.LIBRARIES[name].tests)
