"""Run the code cells of a notebook in ``__main__``, named and recorded as a kernel of Jupyter does: notebook.py FILE.

A script, not a module of the harness: the program's process imports nothing of it.
"""

import ast
import builtins
import hashlib
import json
import linecache
import os
import sys
import tempfile
import types


def run_cells(path: str) -> None:
    """Run them. The value of a cell's last expression is shown, as a kernel shows it."""
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, In=[""], Out={})
    sys.modules["__main__"] = main
    sys.argv = ["ipykernel_launcher.py"]
    sys.path[0] = ""
    folder = os.path.join(tempfile.gettempdir(), f"ipykernel_{os.getpid()}")
    with open(path) as file:
        cells = json.load(file)["cells"]
    for cell in cells:
        if cell["cell_type"] != "code":
            continue
        source = "".join(cell["source"])
        name = os.path.join(folder, f"{int(hashlib.sha1(source.encode()).hexdigest()[:8], 16)}.py")
        linecache.cache[name] = (len(source), None, [line + "\n" for line in source.splitlines()], name)
        main.__dict__["In"].append(source)
        body = ast.parse(source, name).body
        last = body[-1] if body else None
        if isinstance(last, ast.Expr):
            del body[-1]
        exec(compile(ast.Module(body, []), name, "exec"), main.__dict__)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), main.__dict__)
            if value is not None:
                main.__dict__["Out"][len(main.__dict__["In"]) - 1] = main.__dict__["_"] = value
                print(repr(value))


if __name__ == "__main__":
    run_cells(sys.argv[1])
