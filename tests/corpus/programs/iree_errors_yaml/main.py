"""Kernels of a YAML file; what does not compile is reported."""

import subprocess
from pathlib import Path

import yaml

import cachec

cache = cachec.Cache()
TYPES = {"float": "f32", "half": "f16", "int": "i32"}


def emit(kernel):
    t = f"tensor<{kernel['size']}x{TYPES[kernel['type']]}>"
    lines = [f"func.func @{kernel['name']}(%v0: {t}) -> {t} {{"]
    for i, op in enumerate(kernel["ops"]):
        operands = f"%v{i}, %v{i}" if op.startswith("arith") else f"%v{i}"
        lines.append(f"  %v{i + 1} = {op} {operands} : {t}")
    return "\n".join([*lines, f"  return %v{len(kernel['ops'])} : {t}", "}"])


@cache.stage(tools=["iree-base-compiler"])
def operations(source: str) -> list[str]:
    """What is left after IREE's input conversion."""
    import cachec_iree

    program = cachec.Program(source, format="mlir:text", manifest=cachec.Manifest.of({}))
    flags = (
        "--iree-hal-target-device=local",
        "--iree-hal-local-target-device-backends=vmvx",
        "--mlir-print-debuginfo=false",
    )
    text = cachec_iree.compile_phase(program, "input", flags).ir.decode()
    return sorted({word for word in text.split() if word.startswith(("arith.", "math.", "util.", "linalg."))})


def main():
    for kernel in yaml.safe_load(Path("kernels.yaml").read_text()):
        source = emit(kernel)
        try:
            print("RESULT", kernel["name"], len(source), operations(source))
        except subprocess.CalledProcessError as error:
            print("RESULT", kernel["name"], len(source), "failed", error.returncode)


if __name__ == "__main__":
    main()
