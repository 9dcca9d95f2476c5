import importlib.util
import json
import tempfile
from pathlib import Path


def class_text(name, fields):
    lines = ["@dataclass", f"class {name}:"]
    lines += [f"    {field}: int = {default}" for field, default in fields.items()]
    lines += ["    def total(self):", "        return sum(vars(self).values())", ""]
    return "\n".join(lines)


def load(schema):
    classes = json.loads(Path(schema).read_text())
    text = "from dataclasses import dataclass\n" + "\n".join(class_text(*item) for item in classes.items())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "messages.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location("messages", path)
        module = importlib.util.module_from_spec(spec)
        import sys

        sys.modules["messages"] = module
        spec.loader.exec_module(module)
    return module
