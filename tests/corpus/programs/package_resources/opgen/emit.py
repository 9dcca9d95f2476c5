from importlib import resources

from opgen.table import ops


def signature(op):
    args = ", ".join(f"float *x{i}" for i in range(ops()[op]["args"]))
    return f"void {op}(float *out, {args});"


def header():
    with resources.files("opgen").joinpath("data", "header.txt").open() as file:
        return file.read()
