"""Live settings of JAX go from one process to another, and what they decide with them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("jax")

from tests.plugins.settings_processes import Seen, compared

CHANGES = {
    "nothing": "pass",
    "x64": "jax.config.update('jax_enable_x64', True)",
    "precision": "jax.config.update('jax_default_matmul_precision', 'highest')",
    "promotion": "jax.config.update('jax_numpy_dtype_promotion', 'strict')",
    "prng": "jax.config.update('jax_default_prng_impl', 'rbg')",
    "device": "jax.config.update('jax_default_device', jax.devices()[1])",
    "cache": "jax.config.update('jax_compilation_cache_dir', '/nowhere')",
    "context of x64": "stack.enter_context(cachec_jax.internals.enable_x64(True))",
    "context within": (
        "jax.config.update('jax_enable_x64', True); stack.enter_context(jax.numpy_rank_promotion('raise'))"
    ),
    "context of precision": "stack.enter_context(jax.default_matmul_precision('float32'))",
    "context of a device": "stack.enter_context(jax.default_device(jax.devices()[1]))",
    "context of promotion": "stack.enter_context(jax.numpy_dtype_promotion('strict'))",
    "mesh": "stack.enter_context(set_mesh(jax.make_mesh((2,), ('x',))))",
    "mesh of automatic axes": (
        "auto = (jax.sharding.AxisType.Auto,) * 2; "
        "stack.enter_context(set_mesh(jax.make_mesh((1, 2), ('a', 'b'), axis_types=auto)))"
    ),
    "mesh as a context": "stack.enter_context(jax.sharding.Mesh(np.array(jax.devices())[::-1], ('x',)))",
}

SETUP = (
    "import jax, numpy as np, jax.numpy as jnp, cachec_jax.internals\n"
    "set_mesh = getattr(jax, 'set_mesh', getattr(jax.sharding, 'use_mesh', None))"
)
PROBE = """[
    str(np.asarray(jnp.arange(2)).dtype),
    jax.jit(lambda x: x @ x).lower(jnp.ones((2, 2), "float32")).as_text(),
    str(sorted(each.id for each in jnp.ones(1).devices())),
    str(jax.sharding.get_abstract_mesh()),
    str(jax._src.mesh.thread_resources.env.physical_mesh.devices),
]"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    """Both processes have two devices."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_PLATFORMS", "cpu")
        patch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
        return compared(tmp_path_factory.mktemp("jax"), "cachec_jax", SETUP, PROBE, CHANGES)


@pytest.mark.parametrize("change", CHANGES)
def test_a_setting_goes_to_another_process(seen: dict[str, Seen], change: str) -> None:
    assert seen[change].worker == seen[change].caller
    assert (seen[change].caller[0] == seen["nothing"].caller[0]) == (change in {"nothing", "cache"})
    assert seen[change].after == seen["nothing"].caller[0]


def test_nothing_is_imported_to_set_nothing() -> None:
    program = "import sys; from cachec_jax import plugin; plugin.set_ambient({}); print('jax' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == "False\n"


def test_a_device_that_is_not_there_is_refused() -> None:
    from cachec_jax.settings_transfer import _DeviceName, read, write

    before = read()
    with pytest.raises(ValueError, match="no device 99 of platform 'cpu'"):
        write({"options": {"jax_default_device": _DeviceName("cpu", 99)}})
    write(before)


def test_jitted_functions_are_described_by_function_and_options() -> None:
    import jax

    from cachec.key.canonical_forms import Forms
    from cachec.key.module_globals import described_by
    from cachec.programs.registry import installed_plugins

    forms = Forms(lambda path: path == __file__, described_by(installed_plugins()))

    def double(x: object) -> object:
        return x

    first = jax.jit(double)
    before = forms.digest(first)
    first(1.0)  # what is compiled does not count
    assert forms.digest(first) == forms.digest(jax.jit(double)) == before
    assert len({before, forms.digest(jax.jit(double, static_argnums=0)), forms.digest(jax.jit(lambda x: 2))}) == 3
    assert forms.digest(jax.tree.structure([1])) != forms.digest(jax.tree.structure((1,)))
    assert forms.digest(jax.numpy.ones(2)) != forms.digest(jax.numpy.zeros(2))
    assert all(forms.digest(each) for each in (jax.tree.structure([1]), jax.numpy.ones(2)))
