"""torch in a new process: a library of AOTInductor against torch's own loader, torch.compile against its mega-cache, a
model of transformers by ``aot`` against torch.compile with the folder that it has kept."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from bench.harness import Row, against, interleaved, settle
from bench.processes import cpu_of_children, environment

_MODEL = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))

def net(layers, width):
    return nn.Sequential(*(Block(width) for _ in range(layers))).eval()
"""

#: Writes two sets of weights, and torch's own package of the program.
_MAKE = """
import sys
from safetensors.torch import save_file
import torch
from model import net
layers, width = int(sys.argv[1]), int(sys.argv[2])
for seed in (0, 1):
    torch.manual_seed(seed)
    module = net(layers, width)
    save_file(module.state_dict(), f"{seed}.safetensors")
program = torch.export.export(module, (torch.ones(8, width),))
options = {"aot_inductor.package_constants_in_so": False, "always_keep_tensor_constants": True}
torch._inductor.aoti_compile_and_package(program, package_path=sys.argv[3], inductor_configs=options)
"""

_PLAIN = """
import sys
from safetensors.torch import load_file
import torch
run = torch._inductor.aoti_load_package(sys.argv[3])
run.load_constants(load_file(f"{sys.argv[4]}.safetensors"), check_full_update=True, user_managed=True)
print(float(run(torch.ones(8, int(sys.argv[2]))).sum()))
"""

_OURS = """
import sys, time
import numpy as np
import cachec
cache = cachec.Cache("store", log="off", mode="on")
layers, width = int(sys.argv[1]), int(sys.argv[2])

@cache.stage(tools=["torch"])
def build(weights: cachec.WeightSet, layers: int, width: int) -> cachec.File:
    import torch, cachec_torch
    from model import net
    made = cachec_torch.to_exported(lambda: net(layers, width), weights.placeholders(), (torch.ones(8, width),))
    return cachec_torch.compile_aoti(made)

weights = cachec.open_weights(f"{sys.argv[4]}.safetensors")
file, outcome = cache.call(build, weights, layers, width)
x = np.ones((8, width), "f4")
print(float(cachec.link(file, weights)(x).sum()), outcome.reason.kind, "torch" in sys.modules)
other = cachec.open_weights("0.safetensors")
times = []
for _ in range(9):
    started = time.perf_counter()
    cachec.link(file, other)
    times.append(time.perf_counter() - started)
print(sorted(times)[4])
"""


#: Plain torch.compile, whose folder is empty: alone, after which torch writes what it keeps as one file of bytes (its
#: mega-cache); with that file; with cachec.
_COMPILED = """
import sys
import torch
from model import net
how, seed = sys.argv[3:5]
if how == "ours":
    import cachec, cachec_torch
    cachec_torch.install(cachec.Cache("compiled", log="off", mode="on"))
if how == "mega":
    torch.compiler.load_cache_artifacts(open("mega", "rb").read())
torch.manual_seed(int(seed))
module, x = net(int(sys.argv[1]), int(sys.argv[2])), torch.ones(8, int(sys.argv[2]))
with torch.no_grad():
    y = torch.compile(module)(x)
    assert torch.allclose(y, module(x), atol=1e-4), how
if how == "save":
    open("mega", "wb").write(torch.compiler.save_cache_artifacts()[0])
"""

#: A model as its user writes it, by ``aot`` or by torch.compile with its own folder. Prints a digest of the numbers.
_AHEAD = """
import hashlib, sys
import torch
how, name, seed = sys.argv[3:6]
torch.manual_seed(int(seed))
more = {}
if name == "BERT":
    from transformers import BertConfig, BertModel
    module = BertModel(BertConfig(num_hidden_layers=2))
else:
    from transformers import GPT2Config, GPT2LMHeadModel
    module, more = GPT2LMHeadModel(GPT2Config(n_layer=2)), {"use_cache": False}
module.eval()
ids = torch.arange(32).reshape(2, 16)
if how == "ours":
    import cachec, cachec_torch
    cache = cachec.Cache("ahead", log="off", mode="on")
    run = cachec_torch.aot(module, (ids,), example_kwargs=more, cache=cache)
else:
    run = torch.compile(module)
with torch.no_grad():
    y = run(ids, **more)[0]
print(hashlib.sha256(y.numpy().tobytes()).hexdigest())
"""


def run(folder: Path, *, scale: float = 1.0) -> list[Row]:
    """scale: share of the full number of layers, rounds and widths.

    Nearly all of a compile is the C++ compiler, once a kernel: its time goes by the number of layers, not by width.
    """
    layers, width, rounds = (4, 128, 3) if scale == 1.0 else (1, 16, 1)
    texts = {"model": _MODEL, "make": _MAKE, "plain": _PLAIN, "ours": _OURS, "compiled": _COMPILED, "ahead": _AHEAD}
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)

    def child(script: str, *more: str) -> list[str]:
        inductor = folder / "inductor"
        if script == "compiled":  # torch's own loader keeps what it finds out of the processor, by a compile
            shutil.rmtree(inductor, ignore_errors=True)
        command = [sys.executable, f"{script}.py", str(layers), str(width), *more]
        environ = environment() | {"TORCHINDUCTOR_CACHE_DIR": str(inductor)}
        done = subprocess.run(command, cwd=folder, env=environ, check=True, capture_output=True, text=True)
        return done.stdout.split()

    model = f"{layers} layers of {width}"
    rows = [*_linked(folder, child, model, rounds), *_jitted(child, model, rounds)]
    if find_spec("transformers") is not None and scale == 1.0:
        rows += [_ahead(child, name, rounds) for name in ("BERT", "GPT-2")]
    return rows


def _ahead(child: Callable[..., list[str]], name: str, rounds: int) -> Row:
    """Both have compiled before; the numbers of a hit are those of the run that compiled, bit for bit."""

    def ours() -> None:
        digest = child("ahead", "ours", name, "0")
        if digest != cold:
            raise AssertionError(f"a hit gave other numbers: {digest}, and the cold run {cold}")

    cold = child("ahead", "ours", name, "0")
    tasks = {"ours": ours, "plain": lambda: child("ahead", "plain", name, "0")}
    seconds = interleaved(tasks, rounds, clock=cpu_of_children)
    words = f"aot, new process, {name} of 2 layers, to the first result, of the processor"
    return against(words, seconds["ours"], 0.45, "torch.compile, its folder kept", seconds["plain"])


def _linked(folder: Path, child: Callable[..., list[str]], model: str, rounds: int) -> list[Row]:
    swaps: list[float] = []

    def ours(expected: str) -> None:
        number, kind, imported, swap = child("ours", "model.pt2", "1")
        swaps.append(float(swap))
        if (kind, imported) != (expected, "True" if expected == "miss" else "False"):
            raise AssertionError(f"{kind}, torch imported: {imported}")
        if abs(float(number) - plain) > 1e-4 * abs(plain):
            raise AssertionError(f"{number} is not what torch's loader gives, {plain}")

    child("make", "model.pt2")
    plain = float(child("plain", "model.pt2", "1")[0])
    ours("miss")
    settle(folder)
    tasks = {"ours": lambda: ours("hit"), "plain": lambda: child("plain", "model.pt2", "1")}
    seconds = interleaved(tasks, rounds, clock=cpu_of_children)
    swap = sorted(swaps[1:])[len(swaps[1:]) // 2]
    return [
        against(
            f"AOTInductor, new process, other weights, to the first result ({model}), of the processor",
            seconds["ours"],
            0.6,
            "torch's own loader",
            seconds["plain"],
        ),
        Row(f"AOTInductor, other weights linked in a process ({model})", swap * 1e3, "ms", "<= 5 ms", swap <= 5e-3),
    ]


def _jitted(child: Callable[..., list[str]], model: str, rounds: int) -> list[Row]:
    """The peers compile, for a minute on a busy machine, and take much the same each time: one run of each."""
    peers = interleaved(
        {how: lambda how=how: child("compiled", how, "0") for how in ("save", "mega")},
        1,
        warmup=0,
        clock=cpu_of_children,
    )
    child("compiled", "ours", "0")
    ours = interleaved({"ours": lambda: child("compiled", "ours", "1")}, rounds, warmup=0, clock=cpu_of_children)
    words = f"torch.compile, new process, empty folder, other weights ({model}), of the processor"
    return [
        against(f"{words}, against {peer}", ours["ours"], most, peer, peers[how])
        for how, peer, most in (("save", "a cold one", 0.2), ("mega", "torch's mega-cache", 0.25))
    ]
