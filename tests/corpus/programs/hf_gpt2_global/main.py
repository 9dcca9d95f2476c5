# A language model as a global, as an inference script has it.
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import cachec

cache = cachec.Cache()
torch.manual_seed(0)
config = AutoConfig.for_model("gpt2", vocab_size=24, n_embd=16, n_layer=1, n_head=2, n_positions=12)
model = AutoModelForCausalLM.from_config(config).eval()


@cache.stage(tools=["torch", "transformers"])
def next_tokens(prompt: list[int], k: int) -> list[int]:
    with torch.no_grad():
        logits = model(torch.tensor([prompt])).logits[0, -1]
    return logits.topk(k).indices.tolist()


@cache.stage(tools=["torch", "transformers"])
def parameter_count() -> int:
    return sum(p.numel() for p in model.parameters())


print("RESULT", parameter_count())
for prompt in ([1, 2, 3], [5]):
    print("RESULT", prompt, next_tokens(prompt, 4))
