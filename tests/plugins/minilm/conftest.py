"""The example's modules are plain scripts that import each other by name."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "minilm"


@pytest.fixture(scope="session", autouse=True)
def example(tmp_path_factory: pytest.TempPathFactory):
    """The example importable, with a cache of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLE))
        patch.syspath_prepend(str(Path(__file__).parent))
        patch.setenv("CACHEC_DIR", str(tmp_path_factory.mktemp("minilm") / "cache"))
        import_module("stages")  # opens its cache; each test runs without variables of ours
        yield
    for name in ("blocks", "checkpoint", "layers", "model", "pipeline", "reference", "stages"):
        sys.modules.pop(name, None)
