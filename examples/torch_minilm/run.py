"""Embeddings of three sentences in a process of its own: ``python run.py aoti|compile|eager WEIGHTS OUTPUT``.

aoti: by a library that is linked to the weights, without torch. compile: by plain ``torch.compile``. eager: by torch.
"""

from __future__ import annotations

import sys

import numpy as np
from stages import build, cache, export, open_weights

SENTENCES = ("A cache keeps what was made once.", "Compiled programs are stored.", "The cat sleeps.")
LENGTH = 16


def by_library(weights_path: str, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
    import cachec

    weights = open_weights(weights_path)
    return cachec.link(build(export(weights, *ids.shape)), weights)(ids, mask)


def by_torch(weights_path: str, ids: np.ndarray, mask: np.ndarray, *, compiled: bool) -> np.ndarray:
    import torch
    from model import MiniLM

    with torch.device("meta"):
        model = MiniLM().eval()
    # Copies: the file is mapped for reading only.
    state = {name: torch.from_numpy(weight.read().copy()) for name, weight in open_weights(weights_path).items()}
    model.load_state_dict(state, assign=True)
    if compiled:
        import cachec_torch

        cachec_torch.install(cache)
        model = torch.compile(model)
    with torch.no_grad():
        return model(torch.from_numpy(ids), torch.from_numpy(mask)).numpy()


def main(how: str, weights_path: str, output: str) -> None:
    from checkpoint import tokenize

    ids, mask = (each.astype("i8") for each in tokenize(SENTENCES, LENGTH))
    if how == "aoti":
        result = by_library(weights_path, ids, mask)
    else:
        result = by_torch(weights_path, ids, mask, compiled=how == "compile")
    np.save(output, result)


if __name__ == "__main__":
    main(*sys.argv[1:])
