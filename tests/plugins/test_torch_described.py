"""What stands for objects around torch's modules."""

from __future__ import annotations

from typing import Any

from cachec_torch.described import describe


def _config(**settings: Any) -> Any:
    kind = type("GenerationConfig", (), {"__module__": "transformers.generation.configuration_utils"})
    made = kind()
    vars(made).update(settings)
    return made


def test_the_hash_that_a_process_gave_a_generation_config_does_not_count() -> None:
    one, other = _config(top_k=5, _original_object_hash=1), _config(top_k=5, _original_object_hash=2)
    assert describe(one) == describe(other)
    assert describe(one) != describe(_config(top_k=6, _original_object_hash=1))
