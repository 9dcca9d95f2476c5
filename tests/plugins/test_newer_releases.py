"""Each plugin with a library that is newer than it was tried with: its own self-test passes, and it is used."""

from __future__ import annotations

from pathlib import Path

import pytest

import cachec
from cachec.base.distributions import Distributions
from cachec.model import Reason
from cachec.programs.registry import installed_plugins
from cachec.programs.supported_versions import why_unsupported

TESTED = [plugin for plugin in installed_plugins().all() if plugin.self_test]


@pytest.mark.sampled
@pytest.mark.parametrize("plugin", TESTED, ids=lambda plugin: plugin.name)
def test_the_self_test_passes(plugin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distributions = Distributions()
    if any(distributions.find(name) is None for name in plugin.tried_releases):
        pytest.skip(f"needs {', '.join(plugin.tried_releases)}")
    monkeypatch.setattr(type(plugin), "tried_releases", dict.fromkeys(plugin.tried_releases, ">=0.0.1,<0.0.2"))
    assert why_unsupported(plugin, distributions, tmp_path) == ""
    assert len(list((tmp_path / "probes").iterdir())) == 1


@pytest.mark.sampled
@pytest.mark.parametrize("plugin", TESTED, ids=lambda plugin: plugin.name)
def test_a_library_that_is_broken_fails_it(plugin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the library's name, which holds nothing, comes first on the path."""
    packages = {"onnxruntime": "onnxruntime", "iree": "iree/runtime", "tvm": "tvm", "executorch": "executorch"}
    package = packages.get(plugin.name, plugin.name)
    folder = tmp_path / "broken" / package
    folder.mkdir(parents=True)
    for each in (folder, *folder.parents):
        if each == tmp_path / "broken":
            break
        (each / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "broken"))
    monkeypatch.setattr(type(plugin), "tried_releases", dict.fromkeys(plugin.tried_releases, ">=0.0.1,<0.0.2"))
    distributions = Distributions()
    if any(distributions.find(name) is None for name in plugin.tried_releases):
        pytest.skip(f"needs {', '.join(plugin.tried_releases)}")
    assert "failed: " in why_unsupported(plugin, distributions, tmp_path)


def passes() -> None:
    """A self-test that finds nothing."""


def refuses() -> None:
    """A self-test that fails."""
    raise AttributeError("moved in this release")


@pytest.mark.parametrize("is_used", [True, False], ids=["self-test passed", "self-test failed"])
@pytest.mark.parametrize("plugin", TESTED, ids=lambda plugin: plugin.name)
def test_a_stage_runs_whatever_the_self_test_says(plugin, is_used, tmp_path: Path, monkeypatch) -> None:
    distributions = Distributions()
    if any(distributions.find(name) is None for name in plugin.tried_releases):
        pytest.skip(f"needs {', '.join(plugin.tried_releases)}")
    monkeypatch.setattr(type(plugin), "tried_releases", dict.fromkeys(plugin.tried_releases, ">=0.0.1,<0.0.2"))
    monkeypatch.setattr(type(plugin), "self_test", f"{__name__}:{passes.__name__ if is_used else refuses.__name__}")
    cache = cachec.Cache(tmp_path / "store", log="off")
    stage = cache.stage(tools=[*plugin.distributions], version="1", name="one")(lambda: 1)
    (first, second) = (stage.call() for _ in range(2))
    assert (first[0], second[0]) == (1, 1)
    if is_used:
        assert (first[1].reason, second[1].reason) == (Reason.FIRST_RUN, Reason.HIT)
    else:
        assert second[1].reason is Reason.UNSUPPORTED_VERSION
        assert f"the self-test of {plugin.package} failed: AttributeError: moved" in second[1].detail
