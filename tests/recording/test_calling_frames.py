"""Who asks for a variable of the environment."""

from __future__ import annotations

from importlib.metadata import packages_distributions

from cachec.base.distributions import Distributions
from cachec.programs.registry import Plugins
from cachec.recording.calling_frames import DECLARED


def test_packages_that_have_a_plugin_leave_their_variables_to_it() -> None:
    installed = packages_distributions()
    for plugin in Plugins(Distributions()).all():
        for name in plugin.distributions:
            packages = {package for package, distributions in installed.items() if name in distributions}
            assert not packages or packages & DECLARED, name
