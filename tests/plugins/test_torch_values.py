"""Values of torch's as arguments and results of stages."""

from __future__ import annotations

import pytest
import torch

from cachec.errors import PluginError, UnkeyableArgument
from cachec.model import Reason
from cachec_torch import plugin, values

T = torch.arange(24.0).reshape(2, 3, 4)

#: No two are equal.
VALUES = {
    "tensor": T,
    "numbers": T + 1,
    "shape": T.reshape(6, 4),
    "order": T.reshape(4, 3, 2).permute(2, 1, 0),
    "parameter": torch.nn.Parameter(T),
    "frozen": torch.nn.Parameter(T, requires_grad=False),
    "gradients": T.clone().requires_grad_(),
    "double": T.double(),
    "half": T.half(),
    "bfloat16": T.bfloat16(),
    "float8": T.to(torch.float8_e4m3fn),
    "complex": T.to(torch.complex64) * 1j,
    "int": T.int(),
    "bool": T > 3,
    "no axes": torch.tensor(1.0),
    "nan": torch.tensor(float("nan")),
    "empty": torch.empty(0, 3),
    "dtype": torch.float32,
    "another dtype": torch.bfloat16,
    "device": torch.device("cpu"),
    "another device": torch.device("cuda:1"),
    "size": torch.Size([2, 3]),
    "another size": torch.Size([3, 2]),
}


def told(value):
    if not isinstance(value, torch.Tensor):
        return type(value), value
    flat = value.detach().contiguous().reshape(-1)
    data = flat.view(torch.uint8).tolist() if flat.numel() else []
    return type(value), value.dtype, value.shape, value.stride(), value.requires_grad, data


def test_values_come_back(cache) -> None:
    @cache.stage(version="1")
    def same(value):
        return value

    digests = set()
    for how, value in VALUES.items():
        for kind in ("miss", "hit"):
            result, outcome = cache.call(same, value)
            assert outcome.reason.kind == kind, (how, outcome)
            assert told(result) == told(value), how
        digests.add(plugin.fingerprint(value).digest)
    assert len(digests) == len(VALUES)


def test_they_may_lie_in_what_is_given_and_returned(cache) -> None:
    @cache.stage(version="1")
    def both(config: dict) -> dict:
        return {"sum": config["x"].sum(0), "as": [config["dtype"], config["x"].shape]}

    for reason in (Reason.FIRST_RUN, Reason.HIT):
        result, outcome = cache.call(both, {"x": T, "dtype": torch.half})
        assert outcome.reason is reason
        assert torch.equal(result["sum"], T.sum(0))
        assert result["as"] == [torch.half, T.shape]


def test_a_view_keeps_what_it_shows_alone(cache) -> None:
    @cache.stage(version="1")
    def column(x: torch.Tensor) -> torch.Tensor:
        return x[:, :, 1]

    column(T)
    back = column(T)
    assert torch.equal(back, T[:, :, 1])
    assert back.untyped_storage().nbytes() == 6 * 4
    back += 1
    assert torch.equal(column(T), T[:, :, 1]), "a result is the caller's own"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.eye(3).to_sparse(), "dense"),
        (torch.ones(2, device="meta"), "on meta"),
        (torch.ones(2, requires_grad=True) * 2, "detach"),
        (torch.ones(2).as_subclass(type("Other", (torch.Tensor,), {})), "Other"),
    ],
)
def test_what_has_more_to_it_than_bytes_is_refused(value, words) -> None:
    with pytest.raises(PluginError, match=words):
        values.encode(value, None)


def test_a_tensor_without_bytes_is_no_argument(cache) -> None:
    @cache.stage(version="1")
    def size(value) -> int:
        return 1

    for value in (torch.eye(3).to_sparse(), torch.ones(2, device="meta")):
        with pytest.raises((PluginError, UnkeyableArgument)):
            size(value)


FORM = {"dtype": "float32", "shape": [2, 2], "stride": [2, 1], "offset": 0, "nbytes": 16}


@pytest.mark.parametrize(
    "meta",
    [
        {},
        {"torch": "tensor"},
        {"torch": "name", "kind": "dtype", "name": "torch.nn"},
        {"torch": "name", "kind": "module", "name": "x"},
        {"torch": "size", "sizes": ["a"]},
        *(
            {"torch": "tensor", "parameter": False, "requires_grad": False, "form": FORM | changed}
            for changed in (
                {"dtype": "nn"},
                {"nbytes": 12},
                {"shape": [3, 2]},
                {"shape": [-2, -2]},
                {"stride": [1]},
                {"stride": [2000, 1]},
                {"stride": [1, 1]},
                {"stride": [-2, 1]},
                {"offset": 4},
            )
        ),
        {"torch": "tensor", "parameter": False, "requires_grad": True, "form": FORM | {"dtype": "int32"}},
    ],
)
def test_what_is_malformed_is_refused(meta, tmp_path) -> None:
    (tmp_path / "data").write_bytes(bytes(16))
    artifacts = [tmp_path / "data"] if meta.get("torch") == "tensor" else []
    with pytest.raises(PluginError):
        plugin.decode(meta, artifacts)


def test_what_differs_is_told() -> None:
    assert plugin.compare(T, T + 1e-7) is None
    assert plugin.compare(torch.tensor(float("nan")), torch.tensor(float("nan"))) is None
    assert plugin.compare(T, T + 1) == "the numbers differ"
    assert "float64" in plugin.compare(T, T.double())
    assert plugin.compare(T.int(), T.int() + 1) == "the numbers differ"
    assert plugin.compare(torch.half, torch.float) == "torch.float16 against torch.float32"
