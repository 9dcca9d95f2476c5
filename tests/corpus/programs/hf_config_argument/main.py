import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PretrainedConfig

import cachec

cache = cachec.Cache()


@cache.stage(tools=["torch", "transformers"])
def logits(config: PretrainedConfig, tokens: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(7)
    model = LlamaForCausalLM(config).eval()
    with torch.inference_mode():
        return model(tokens).logits[:, -1].clone()


@cache.stage(tools=["torch", "transformers"])
def memory(config: PretrainedConfig) -> int:
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    return sum(p.numel() * p.element_size() for p in model.parameters())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--dim", type=int, default=16)
    args = parser.parse_args()
    config = LlamaConfig(
        vocab_size=20,
        hidden_size=args.dim,
        intermediate_size=2 * args.dim,
        num_hidden_layers=args.layers,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    print("RESULT", memory(config))
    print("RESULT", [round(v, 3) for v in logits(config, torch.tensor([[1, 2, 3]]))[0, :5].tolist()])


if __name__ == "__main__":
    main()
