"""The tests that every plugin inherits. Each asks for what a real compiler once got wrong.

CONTRIBUTING.md has the recipe.

    class TestMine(PluginConformance):
        plugin = my_plugin
        def stages(self, cache): ...        # the plugin's own lower and build, as a user would write them
        def weight_sets(self, folder): ...
        def inputs(self): ...

Run with pytest. Everything happens in a cache of its own under ``tmp_path``, by way of the public interface. One test
runs the class again in new processes: its module may import no compiler at the top, and its hooks take no fixtures.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import cachec
from cachec.model import Reason
from cachec.programs.plugin import Plugin

#: Argv: the suite's module, its file, the class; a cache, a folder, which set. Prints what a hit and a link imported.
_HIT = """
import importlib.util, json, sys
from pathlib import Path
import cachec

name, file, suite, cache, folder, number = sys.argv[1:]
spec = importlib.util.spec_from_file_location(name, file)
module = sys.modules[name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
suite = getattr(module, suite)()
cache = cachec.Cache(cache, log="off")
lower, build = suite.stages(cache)
weights = suite.weight_sets(Path(folder))[int(number)]
program, first = cache.call(lower, weights, suite.variants[0])
artifact, second = cache.call(build, program)
found = {"outcomes": [first.reason.kind, second.reason.kind]}
found["compilers"] = [name for name in suite.compilers if name in sys.modules]
suite.link(artifact, weights)(*suite.inputs())
found["linked"] = [name for name in suite.compilers if name in sys.modules]
print(json.dumps(found))
"""


class PluginConformance:
    """Hooks first; a plugin's test class fills them in. No hook may use the plugin under test except ``stages``."""

    #: The plugin object.
    plugin: Plugin
    #: Modules that importing the plugin's package, asking for ``ambient``, and a hit must not import.
    compilers: tuple[str, ...] = ()
    #: Those of them that linking imports: the compiler's runtime.
    runtimes: tuple[str, ...] = ()
    #: Two values for ``lower``'s second argument: a small constant of the program that no name stands for.
    variants: tuple[Any, Any] = (1.0, 1.5)
    #: Largest difference between two runs of one program on equal weights.
    tolerance: float = 1e-4

    def stages(self, cache: cachec.Cache) -> tuple[Any, Any]:
        """``lower(weights, variant) -> Program`` and ``build(program) -> File``, decorated with ``cache.stage``."""
        raise NotImplementedError

    def weight_sets(self, folder: Path) -> tuple[cachec.WeightSet, cachec.WeightSet]:
        """Two sets of equal names, shapes and dtypes and other values in every weight, each of which counts in the
        result. Among them one without dimensions, and vectors of 1, 8 and 9 elements: compilers take small ones by
        value.
        """
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

    def test_small_weights_are_among_them(self, sets: Any) -> None:
        shapes = {weight.shape for weight in sets[0].values()}
        assert {(), (1,), (8,), (9,)} <= shapes, "weights of 0 dimensions, and of 1, 8 and 9 elements, have to be there"

    def test_every_weight_is_the_linked_one(self, cache: cachec.Cache, sets: Any) -> None:
        lower, build = self.stages(cache)
        first, second = sets
        artifact = build(lower(first, self.variants[0]))
        before = self._numbers(artifact, first)
        for name in first:
            tied = next((group for group in first.layout.ties if name in group), (name,))
            changed = {each: second[each] for each in tied}
            mixed = cachec.WeightSet.from_weights({**first, **changed}, tied=first.layout.ties)
            assert self._differ(self._numbers(artifact, mixed), before) > self.tolerance, (
                f"{name!r} is in the artifact by value, or counts for nothing"
            )

    def test_a_build_reads_no_value(self, cache: cachec.Cache, sets: Any) -> None:
        """Of ones, which compilers fold, and of NaN."""
        lower, build = self.stages(cache)
        program = lower.uncached(sets[0], self.variants[0])
        artifact = build.uncached(program)
        for filling in (1.0, float("nan")):
            other = lower.uncached(self._filled_with(sets[0], filling), self.variants[0])
            assert other == program, f"the program depends on the values of weights: other ones for {filling}"
            found = self.plugin.compare(artifact, build.uncached(other))
            assert found is None, f"the artifact depends on the values of weights ({filling}): {found}"

    def test_weights_of_other_types_and_shapes_are_refused(self, cache: cachec.Cache, sets: Any) -> None:
        import numpy as np

        lower, build = self.stages(cache)
        weights, _ = sets
        artifact = build(lower(weights, self.variants[0]))
        arrays = {name: weight.read() for name, weight in weights.items()}

        def assert_refused(name: str, array: Any, **more: Any) -> None:
            with pytest.raises((cachec.LinkError, cachec.UsageError)):
                self.link(artifact, cachec.WeightSet.from_arrays(arrays | {name: array}, **more))

        for name, array in arrays.items():
            assert_refused(name, array[..., np.newaxis])
            assert_refused(name, array.astype("f8" if array.dtype != np.dtype("f8") else "f4"))
            turned = array.T
            if turned.shape != array.shape or not turned.flags.c_contiguous:
                assert_refused(name, turned)
            by_column = np.asfortranarray(array)
            if not by_column.flags.c_contiguous:  # with a dimension of 1 the two orders are one
                assert_refused(name, by_column)
        tied = {name for group in weights.layout.ties for name in group}
        like: dict[Any, list[str]] = {}
        for name in sorted(arrays.keys() - tied):
            like.setdefault((arrays[name].shape, arrays[name].dtype), []).append(name)
        for names in like.values():
            if len(names) > 1:
                assert_refused(names[0], arrays[names[1]], tied=[*weights.layout.ties, names[:2]])

    def test_ambient_is_the_same_after_a_build(self, cache: cachec.Cache, sets: Any) -> None:
        lower, build = self.stages(cache)
        before = dict(self.plugin.ambient())
        self._numbers(build(lower(sets[0], self.variants[0])), sets[0])
        assert self.plugin.ambient() == before, "a build leaves settings changed: what comes after it misses"

    def test_compare_tells_artifacts_apart(self, cache: cachec.Cache, sets: Any) -> None:
        lower, build = self.stages(cache)
        first, second = (build(lower(sets[0], variant)) for variant in self.variants)
        assert self.plugin.compare(first, first) is None
        assert self.plugin.compare(first, second), "mode verify would take another program's artifact for this one's"

    def test_compare_tells_values_apart(self) -> None:
        values = self.values()
        for number, value in enumerate(values):
            assert all(self.plugin.compare(value, other) for other in values[:number])

    def test_a_hit_in_a_new_process_imports_no_compiler(self, tmp_path: Path, request: pytest.FixtureRequest) -> None:
        module = sys.modules[type(self).__module__]
        command = [sys.executable, "-c", _HIT, type(self).__module__, str(module.__file__), type(self).__qualname__]
        for number, kind in enumerate(("miss", "hit")):
            folder = tmp_path / kind
            folder.mkdir()
            more = [str(tmp_path / "cache"), str(folder), str(number)]
            done = subprocess.run(
                [*command, *more], cwd=request.config.rootpath, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
            report = json.loads(done.stdout.splitlines()[-1])
            assert report["outcomes"] == [kind, kind], report
        assert report["compilers"] == [], "a hit imported the compiler"
        assert set(report["linked"]) <= set(self.runtimes), "linking imported the compiler"

    def test_an_argument_changed_during_the_stage_is_stored_nowhere(self, cache: cachec.Cache, sets: Any) -> None:
        import numpy as np

        lower, _ = self.stages(cache)
        weights, _ = sets

        @cache.stage(name="conformance.scribble", version="1")
        def scribble(program: cachec.Program, values: np.ndarray[Any, Any]) -> cachec.Program:
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

    def test_values_are_distinguished_as_arguments(self) -> None:
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

    def _filled_with(self, weights: cachec.WeightSet, value: float) -> cachec.WeightSet:
        """The same with this in place of every value; integers and booleans get 1."""
        import numpy as np

        arrays = {}
        for name, weight in weights.items():
            array = weight.private().copy()
            array[...] = value if np.issubdtype(array.dtype, np.inexact) else 1
            arrays[name] = array
        filled = cachec.WeightSet.from_arrays(arrays, tied=weights.layout.ties)
        assert filled.manifest == weights.manifest
        return filled

    def _differ(self, a: Any, b: Any) -> float:
        assert a.shape == b.shape
        return float(abs(a - b).max())
