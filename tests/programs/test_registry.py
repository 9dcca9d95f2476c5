"""Finding plugins: by entry point, by type, by distribution; broken ones are errors, not absences."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cachec import PluginError
from cachec.base.distributions import Distributions
from cachec.programs.registry import Plugins

_MODULE = """
from cachec.programs.plugin import Fingerprint, Plugin

class Thing: ...
class Narrower(Thing): ...

class FakePlugin(Plugin):
    name = "fake"
    distributions = ("fake-dist",)
    types = ("fake_plugin_module.Thing",)

    def fingerprint(self, value):
        return Fingerprint("0" * 64, "a thing")

plugin = FakePlugin()
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Install a fake distribution that offers a plugin; gives its folder."""

    def install(module: str, target: str = "fake_plugin_module:plugin") -> Plugins:
        (tmp_path / "fake_plugin_module.py").write_text(module)
        info = tmp_path / "fake_dist-1.0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-dist\nVersion: 1.0\n")
        (info / "RECORD").write_text("")
        (info / "entry_points.txt").write_text(f"[cachec.plugins]\nfake = {target}\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, "fake_plugin_module", raising=False)
        return Plugins(Distributions([str(tmp_path)]))

    yield install
    sys.modules.pop("fake_plugin_module", None)


def test_a_plugin_is_found_by_name_type_and_distribution(installed):
    plugins = installed(_MODULE)
    fake = plugins.find("fake")
    module = sys.modules["fake_plugin_module"]
    assert plugins.for_type(module.Thing) is fake
    assert plugins.for_type(module.Narrower) is fake
    assert plugins.for_type(int) is None
    assert plugins.for_distributions({"other", "fake-dist"}) == (fake,)
    assert plugins.for_distributions({"other"}) == ()


def test_nothing_is_imported_before_it_is_asked_for(installed):
    installed(_MODULE)
    assert "fake_plugin_module" not in sys.modules


@pytest.mark.parametrize(
    ("module", "target", "words"),
    [
        ("raise ImportError('its library is gone')", "fake_plugin_module:plugin", "its library is gone"),
        ("", "fake_plugin_module:plugin", "plugin"),
        ("plugin = 3", "fake_plugin_module:plugin", "int"),
        (_MODULE, "no_such_module:plugin", "no_such_module"),
    ],
)
def test_a_broken_plugin_is_an_error(installed, module, target, words):
    plugins = installed(module, target)
    with pytest.raises(PluginError, match=words):
        plugins.all()


def test_an_unknown_name_lists_the_known_ones(installed):
    with pytest.raises(PluginError, match=r"'nowhere'.*fake"):
        installed(_MODULE).find("nowhere")


def test_verbs_that_a_plugin_does_not_do_refuse(installed):
    fake = installed(_MODULE).find("fake")
    for call in (
        lambda: fake.encode(3, None),
        lambda: fake.link(3, None),
        lambda: fake.compare(3, 3),
        lambda: fake.strip(3, None),
        lambda: fake.decode({}, []),
    ):
        with pytest.raises(PluginError, match="fake"):
            call()
