import importlib
import pkgutil

import optimizer.passes


def load_passes():
    modules = [
        importlib.import_module(f"optimizer.passes.{info.name}")
        for info in pkgutil.iter_modules(optimizer.passes.__path__)
    ]
    return sorted(modules, key=lambda module: module.PRIORITY)


def optimize(ops):
    for module in load_passes():
        ops = module.apply(ops)
    return ops
