"""JAX's own tests of its persistent cache, with our store where they have a dictionary.

``python -m tests.plugins.jax_suite FILE``: FILE is ``tests/compilation_cache_test.py`` of a checkout of JAX at the
installed version, which no wheel carries. Needs absl-py, as JAX's tests do. Ends with unittest's exit code.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from types import ModuleType

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"  # a test shards over two devices


def loaded(path: str) -> ModuleType:
    """The module of tests, with our class where it has its own."""
    import cachec
    from cachec_jax.persistent_cache import jax_cache

    spec = importlib.util.spec_from_file_location("jax_compilation_cache_test", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    folder = tempfile.TemporaryDirectory(prefix="jax-suite-")

    class Counted(type(jax_cache(cachec.Cache(folder.name)))):  # type: ignore[misc]
        """What the tests ask a dictionary for, asked of a store: each in a new one."""

        _kept = folder

        def __init__(self) -> None:
            self._store = cachec.Cache(tempfile.mkdtemp(dir=folder.name), log="off", mode="on")
            self.__dict__.update(vars(jax_cache(self._store)))

        def __len__(self) -> int:
            return len(list(self._store.store.entries()))

        def clear(self) -> None:
            for entry in self._store.store.entries():
                self._store.store.invalidate(entry.key)

    module.InMemoryCache = Counted  # type: ignore[attr-defined]
    return module


def main() -> None:
    """Run them all."""
    path = sys.argv.pop(1)
    module = loaded(path)
    from absl.testing import absltest
    from jax._src import test_util

    absltest.main(module=module, testLoader=test_util.JaxTestLoader())


if __name__ == "__main__":
    main()
