"""A tiny BERT from a configuration, exported."""

import hashlib

import torch
from transformers import BertConfig, BertModel

import cachec

cache = cachec.Cache()

CONFIG = BertConfig(
    vocab_size=32,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=24,
    max_position_embeddings=16,
)


@cache.stage(tools=["torch", "transformers"])
def hidden_states(config: dict, length: int, seed: int) -> torch.Tensor:
    torch.manual_seed(seed)
    model = BertModel(BertConfig(**config)).eval()
    with torch.no_grad():
        return model(input_ids=torch.arange(length)[None] % config["vocab_size"]).last_hidden_state


def main():
    options = {k: v for k, v in CONFIG.to_dict().items() if k.startswith(("hidden", "num_", "vocab", "inter", "max_pos"))}
    y = hidden_states(options, 6, 0)
    print("RESULT", tuple(y.shape), [round(v, 3) for v in y[0, 0, :4].tolist()])
    y = hidden_states(options, 4, 1)
    print("RESULT", tuple(y.shape), [round(v, 3) for v in y[0, 0, :4].tolist()])


if __name__ == "__main__":
    main()
