"""The tests that every plugin inherits.

    class TestMine(PluginConformance):
        plugin = my_plugin
        def stages(self, cache): ...        # the plugin's own lower and build, as a user would write them
        def weight_sets(self, folder): ...
        def inputs(self): ...

Run with pytest. Everything happens in a cache of its own under ``tmp_path``, by way of the public interface.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import cachec
from cachec.model import Reason
from cachec.programs.plugin import Plugin


class PluginConformance:
    """Hooks first; a plugin's test class fills them in. No hook may use the plugin under test except ``stages``."""

    #: The plugin object.
    plugin: Plugin
    #: Modules that importing the plugin's package, and asking for ``ambient``, must not import.
    compilers: tuple[str, ...] = ()
    #: Two values for ``lower``'s second argument: a small constant of the program that no name stands for.
    variants: tuple[Any, Any] = (1.0, 1.5)
    #: Largest difference between two runs of one program on equal weights.
    tolerance: float = 1e-4

    def stages(self, cache: cachec.Cache) -> tuple[Any, Any]:
        """``lower(weights, variant) -> Program`` and ``build(program) -> File``, decorated with ``cache.stage``."""
        raise NotImplementedError

    def weight_sets(self, folder: Path) -> tuple[cachec.WeightSet, cachec.WeightSet]:
        """Two sets of equal names, shapes and dtypes and other values in every weight."""
        raise NotImplementedError

    def inputs(self) -> Sequence[Any]:
        """Arrays for one run."""
        raise NotImplementedError

    def link(self, artifact: Any, weights: cachec.WeightSet) -> Callable[..., Any]:
        """Something to call with ``inputs``, which gives one array."""
        linked: Callable[..., Any] = cachec.link(artifact, weights)
        return linked

    def values(self) -> Sequence[Any]:
        """Results that the plugin stores by itself, no two of them equal. Empty where it stores none."""
        return ()

    # --- the suite

    @pytest.fixture
    def cache(self, tmp_path: Path) -> cachec.Cache:
        return cachec.Cache(tmp_path / "cache", log="off")

    @pytest.fixture
    def sets(self, tmp_path: Path) -> tuple[cachec.WeightSet, cachec.WeightSet]:
        return self.weight_sets(tmp_path)

    def test_new_weights_hit_and_give_their_own_numbers(self, cache: cachec.Cache, sets: Any) -> None:
        lower, build = self.stages(cache)
        first, second = sets
        assert first.manifest == second.manifest, "the two weight sets must differ in their values only"
        program, cold = cache.call(lower, first, self.variants[0])
        artifact, cold_build = cache.call(build, program)
        assert (cold.reason.kind, cold_build.reason.kind) == ("miss", "miss"), (cold, cold_build)
        before = self._numbers(artifact, first)

        program, outcome = cache.call(lower, second, self.variants[0])
        artifact, outcome_build = cache.call(build, program)
        assert (outcome.reason, outcome_build.reason) == (Reason.HIT, Reason.HIT), (outcome, outcome_build)
        after = self._numbers(artifact, second)
        compiled = build.uncached(lower.uncached(second, self.variants[0]))
        assert self._differ(after, self._numbers(compiled, second)) <= self.tolerance
        assert self._differ(after, before) > self.tolerance, "the second run did not use the second weights"

    def test_a_value_that_no_name_stands_for_is_in_the_key(self, cache: cachec.Cache, sets: Any) -> None:
        lower, build = self.stages(cache)
        weights, _ = sets
        results = []
        for variant in self.variants:
            program = lower.uncached(weights, variant)
            artifact, outcome = cache.call(build, program)
            assert outcome.reason.kind == "miss", f"a program with another constant was taken for this one: {outcome}"
            results.append(self._numbers(artifact, weights))
        assert self._differ(*results) > self.tolerance, "the variants must give other numbers"
        again = cache.call(build, lower.uncached(weights, self.variants[0]))[1]
        assert again.reason is Reason.HIT

    def test_an_argument_changed_during_the_stage_is_stored_nowhere(self, cache: cachec.Cache, sets: Any) -> None:
        import numpy as np

        lower, _ = self.stages(cache)
        weights, _ = sets

        @cache.stage(name="conformance.scribble", version="1")
        def scribble(program: cachec.Program, values: Any) -> cachec.Program:
            values += 1
            return program

        program = lower(weights, self.variants[0])
        for _ in range(2):
            result, outcome = cache.call(scribble, program, np.zeros(3))
            assert outcome.reason is Reason.INPUT_CHANGED
            assert not outcome.stored
            assert result == program

    def test_weights_that_do_not_fit_are_refused(self, cache: cachec.Cache, sets: Any) -> None:
        lower, build = self.stages(cache)
        weights, _ = sets
        artifact = build(lower(weights, self.variants[0]))
        name = min(weights)
        with pytest.raises(cachec.LinkError, match="missing"):
            self.link(artifact, weights.select(exclude=[name]))
        with pytest.raises(cachec.LinkError, match="extra"):
            self.link(artifact, weights.rename({name: name + "_renamed"}))

    def test_a_warm_result_is_the_cold_one(self, cache: cachec.Cache, sets: Any) -> None:
        lower, build = self.stages(cache)
        weights, _ = sets
        cold = build(lower(weights, self.variants[0]))
        warm = build(lower(weights, self.variants[0]))
        assert self.plugin.compare(build.uncached(lower.uncached(weights, self.variants[0])), warm) is None
        assert cold.read_bytes() == warm.read_bytes()

    def test_values_come_back_equal(self, cache: cachec.Cache) -> None:
        @cache.stage(name="conformance.pass-on", version="1")
        def pass_on(value: Any) -> Any:
            return value

        for value in self.values():
            for kind in ("miss", "hit"):
                result, outcome = cache.call(pass_on, value)
                assert outcome.reason.kind == kind, outcome
                assert type(result) is type(value)
                assert self.plugin.compare(value, result) is None

    def test_values_are_told_apart_as_arguments(self) -> None:
        values = self.values()
        digests = [self.plugin.fingerprint(value).digest for value in values]
        assert [self.plugin.fingerprint(value).digest for value in values] == digests
        assert len(set(digests)) == len(values)

    def test_ambient_is_stable_text(self) -> None:
        ambient = self.plugin.ambient()
        assert ambient == self.plugin.ambient()
        assert all(type(name) is str and type(value) is str for name, value in ambient.items())

    def test_the_plugin_does_not_import_its_compiler(self) -> None:
        package = type(self.plugin).__module__.partition(".")[0]
        program = (
            f"import sys, {package} as package; package.plugin.ambient(); "
            f"print([name for name in {[*self.compilers, 'numpy']!r} if name in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[]"

    def _numbers(self, artifact: Any, weights: cachec.WeightSet) -> Any:
        import numpy as np

        return np.asarray(self.link(artifact, weights)(*self.inputs()))

    def _differ(self, a: Any, b: Any) -> float:
        assert a.shape == b.shape
        return float(abs(a - b).max())
