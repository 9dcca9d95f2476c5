import os
import runpy


def load(path):
    names = runpy.run_path(path)
    child = {name: value for name, value in names.items() if not name.startswith("_") and not callable(value)}
    base = names.get("_base_")
    if base is None:
        return child
    merged = load(os.path.join(os.path.dirname(path), base))
    merged.update(child)
    return merged
