"""Messages between a caller and a worker."""

from __future__ import annotations

import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import cachec
from cachec.programs.registry import installed_plugins
from cachec.worker.protocol import CannotSend, MessageChannel, PeerClosedError
from cachec.worker.value_transfer import ValueTransfer, WeightRequest, answer_request, received_weights


@pytest.fixture
def channels() -> Iterator[tuple[MessageChannel, MessageChannel]]:
    ours, theirs = socket.socketpair()
    pair = MessageChannel(ours.detach()), MessageChannel(theirs.detach())
    yield pair
    for each in pair:
        each.close()


def _through(channels: tuple[MessageChannel, MessageChannel], value: Any) -> Any:
    channels[0].send(value, ValueTransfer(installed_plugins()))
    return channels[1].receive()[0]


def test_arrays_keep_what_code_can_ask_of_them(channels: tuple[MessageChannel, MessageChannel]) -> None:
    plain = np.arange(12.0).reshape(3, 4)
    fixed = plain.copy()
    fixed.flags.writeable = False
    arrays = {"plain": plain, "fixed": fixed, "turned": plain.T, "part": plain[::2, 1:], "none": np.zeros((0, 3))}
    got = {name: _through(channels, array) for name, array in arrays.items()}
    for name, array in arrays.items():
        assert np.array_equal(got[name], array)
        assert got[name].dtype == array.dtype
        assert not array.size or got[name].strides == array.strides, name
        assert got[name].flags.writeable == array.flags.writeable, name
    got["plain"][0] = 7
    assert plain[0, 0] == 0


def test_one_object_stays_one(channels: tuple[MessageChannel, MessageChannel]) -> None:
    array = np.ones(3)
    first, second, equal = _through(channels, [array, array, array.copy()])
    assert first is second
    assert first is not equal


def test_arrays_that_share_memory_are_not_sent(channels: tuple[MessageChannel, MessageChannel]) -> None:
    array = np.arange(12.0).reshape(3, 4)
    apart = _through(channels, [array[:1], array[1:], array[:, :0]])
    assert np.array_equal(apart[1], array[1:])
    for others in ([array, array[:1]], [array[:, :2], array[:, 1:]], [array.T, array]):
        with pytest.raises(CannotSend, match="share memory"):
            channels[0].send(others, ValueTransfer(installed_plugins()))


def _counter() -> tuple[Callable[[], int], Callable[[], int], Callable[[int], int]]:
    count = 0

    def add() -> int:
        nonlocal count
        count += 1
        return count

    def factorial(number: int) -> int:
        return 1 if number == 0 else number * factorial(number - 1)

    nothing = None
    return add, lambda: count, lambda number: nothing or factorial(number)


def test_functions_share_the_variables_of_their_closures(channels: tuple[MessageChannel, MessageChannel]) -> None:
    add, read, factorial = _through(channels, _counter())
    assert (add(), add(), read(), factorial(4)) == (1, 2, 2, 24)


def test_a_gradient_arrives_with_its_tensor(channels: tuple[MessageChannel, MessageChannel]) -> None:
    torch = pytest.importorskip("torch")
    weight = torch.nn.Parameter(torch.ones(2))
    (3 * weight).sum().backward()
    assert _through(channels, weight).grad.tolist() == [3.0, 3.0]


def test_a_program_and_a_manifest_arrive_whole(channels: tuple[MessageChannel, MessageChannel]) -> None:
    weights = cachec.WeightSet.from_arrays({"a": np.ones((2, 3), "f4")})
    program = cachec.Program(b"module {}", format="mlir:text", manifest=weights.manifest)
    got = _through(channels, program)
    assert (got.topology, got.ir, got.manifest.digest) == (program.topology, program.ir, program.manifest.digest)


@pytest.mark.parametrize("what", ["an open file", "a generator", "a lock"])
def test_what_no_other_process_can_have_is_not_sent(channels: tuple[MessageChannel, MessageChannel], what: str) -> None:
    with open(__file__, encoding="utf-8") as file:
        value = {"an open file": file, "a generator": (each for each in ()), "a lock": threading.Lock()}[what]
        with pytest.raises(CannotSend):
            channels[0].send(value, ValueTransfer(installed_plugins()))


def test_weights_are_read_when_they_are_asked_for(channels: tuple[MessageChannel, MessageChannel]) -> None:
    weights = cachec.WeightSet.from_arrays({"a": np.arange(6, dtype="f4").reshape(2, 3), "b": np.ones(2, "i8")})
    values, asked = ValueTransfer(installed_plugins()), list[WeightRequest]()

    def ask(request: WeightRequest) -> Any:
        asked.append(request)
        return answer_request(request, values.weights)

    channels[0].send([weights, weights], values)
    first, second = channels[1].receive(lambda reference: received_weights(reference, ask))[0]
    assert first.spec_digest == weights.spec_digest
    assert asked == []
    assert np.array_equal(first["a"].read(), weights["a"].read())
    assert first["b"].digest() == weights["b"].digest()
    assert {request.name for request in asked} == {"a", "b"}
    assert {request.number for request in asked} == {0}
    assert second.spec_digest == first.spec_digest


def test_what_the_callers_weights_raise_is_raised_in_the_worker(
    channels: tuple[MessageChannel, MessageChannel],
) -> None:
    weights = cachec.WeightSet.from_arrays({"a": np.ones(2, "f4")}).placeholders()
    values = ValueTransfer(installed_plugins())
    channels[0].send(weights, values)
    got = channels[1].receive(
        lambda reference: received_weights(reference, lambda request: answer_request(request, values.weights))
    )[0]
    with pytest.raises(cachec.WeightReadError):
        got["a"].read()


def test_the_end_of_the_other_side_is_told(channels: tuple[MessageChannel, MessageChannel]) -> None:
    channels[0].close()
    with pytest.raises(PeerClosedError):
        channels[1].receive()
    with pytest.raises(PeerClosedError):
        channels[1].send("text")


def test_a_wait_ends_in_time(channels: tuple[MessageChannel, MessageChannel]) -> None:
    with pytest.raises(TimeoutError):
        channels[1].receive(timeout=0.01)


def test_a_reference_that_nobody_expects_is_refused(channels: tuple[MessageChannel, MessageChannel]) -> None:
    channels[0].send(cachec.WeightSet.from_arrays({"a": np.ones(2, "f4")}), ValueTransfer(installed_plugins()))
    with pytest.raises(pickle.UnpicklingError):
        channels[1].receive()
