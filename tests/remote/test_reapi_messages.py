"""The messages of the Remote Execution API: the same as by the package ``protobuf``, and nothing believed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachec.base.hashing import digest_bytes
from cachec.errors import StoreFault
from cachec.model import Fault
from cachec.remote.engines import action, protobuf, reapi_messages
from cachec.remote.engines.action import Sum
from cachec.remote.engines.base import RemoteBlob
from tests.effort import rounds
from tests.remote.reapi_protocol import kind

TRIED = settings(max_examples=rounds(2000), deadline=None, database=None)

SUMS = st.builds(Sum, st.text("0123456789abcdef", min_size=64, max_size=64), st.integers(0, (1 << 63) - 1))
INSTANCES = st.text("abc/._-", max_size=20).map(str.encode)
DIGESTS = st.binary(max_size=8).map(digest_bytes)


def digest(of: Sum) -> Any:
    return kind("Digest")(hash=of.sha256, size_bytes=of.size)


@pytest.mark.fuzz
@TRIED
@given(INSTANCES, SUMS, st.binary(max_size=50), DIGESTS, st.integers(0, 1 << 40), st.booleans())
def test_requests_are_those_of_the_package(
    instance: bytes, one: Sum, data: bytes, name: str, offset: int, is_last: bool
) -> None:
    text = instance.decode()
    command, root = digest(Sum.of(reapi_messages.COMMAND)), digest(Sum.of(b""))
    expected = {
        reapi_messages.COMMAND: kind("Command")(arguments=["cachec"]),
        reapi_messages.action(name): kind("Action")(
            command_digest=command, input_root_digest=root, salt=b"cachec row " + name.encode()
        ),
        reapi_messages.asked_capabilities(instance): kind("GetCapabilitiesRequest")(instance_name=text),
        reapi_messages.asked_result(instance, one): kind("GetActionResultRequest")(
            instance_name=text, action_digest=digest(one), inline_stdout=True
        ),
        reapi_messages.updated_result(instance, one, action.encode_result(data, ())): kind("UpdateActionResultRequest")(
            instance_name=text, action_digest=digest(one), action_result=kind("ActionResult")(stdout_raw=data)
        ),
        reapi_messages.asked_missing(instance, one): kind("FindMissingBlobsRequest")(
            instance_name=text, blob_digests=[digest(one)]
        ),
        reapi_messages.batch_update(instance, (data, b"x"), (one, Sum.of(b"x"))): kind("BatchUpdateBlobsRequest")(
            instance_name=text,
            requests=[
                kind("BatchUpdate")(digest=digest(one), data=data),
                kind("BatchUpdate")(digest=digest(Sum.of(b"x")), data=b"x"),
            ],
        ),
        reapi_messages.asked_bytes(text): kind("ReadRequest")(resource_name=text),
        reapi_messages.written_bytes(text, offset, data, is_last=is_last): kind("WriteRequest")(
            resource_name="" if offset else text, write_offset=offset, finish_write=is_last, data=data
        ),
    }
    for ours, theirs in expected.items():
        assert type(theirs).FromString(ours) == theirs
    # In the bytes that the package writes: the sum of an action has to be the same wherever it is made.
    for ours in (reapi_messages.COMMAND, reapi_messages.action(name)):
        assert ours == expected[ours].SerializeToString(deterministic=True)


@pytest.mark.fuzz
@TRIED
@given(
    st.lists(SUMS, max_size=5),
    st.binary(max_size=50),
    st.integers(-(1 << 31), (1 << 31) - 1),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.lists(st.integers(0, 12), max_size=5),
    st.booleans(),
)
def test_answers_are_understood(
    sums: list[Sum], data: bytes, code: int, number: int, functions: list[int], is_updated: bool
) -> None:
    result = kind("ActionResult")(
        stdout_raw=data,
        exit_code=code,
        output_files=[kind("OutputFile")(path="a", digest=digest(each)) for each in sums],
    )
    if data:
        assert action.decode_row(result.SerializeToString()) == data
        assert action.find_external_row(result.SerializeToString()) is None
    for each in sums:
        moved = kind("ActionResult")(stdout_digest=digest(each), stderr_raw=data)
        assert action.find_external_row(moved.SerializeToString()) == each
    missing = kind("FindMissingBlobsResponse")(missing_blob_digests=map(digest, sums))
    assert reapi_messages.missing(missing.SerializeToString()) == sums
    status = kind("Status")(code=code, message="x")
    updated = kind("BatchUpdateBlobsResponse")(
        responses=[kind("BatchUpdated")(digest=digest(each), status=status) for each in sums]
    )
    assert reapi_messages.decode_update_codes(updated.SerializeToString()) == dict.fromkeys(sums, code)
    assert b"".join(reapi_messages.read_pieces(kind("ReadResponse")(data=data).SerializeToString())) == data
    assert (
        reapi_messages.decode_committed_size(kind("WriteResponse")(committed_size=number).SerializeToString()) == number
    )
    stated = kind("ServerCapabilities")()
    stated.cache_capabilities.digest_functions.extend(functions)
    stated.cache_capabilities.action_cache_update_capabilities.update_enabled = is_updated
    stated.cache_capabilities.max_batch_total_size_bytes = number
    assert reapi_messages.capabilities(stated.SerializeToString()) == (
        not functions or 1 in functions,
        is_updated,
        max(0, number),
        0,
    )


READERS: dict[str, Callable[[bytes], object]] = {
    "unpacked": action.decode_row,
    "outsourced": action.find_external_row,
    "capabilities": reapi_messages.capabilities,
    "missing": reapi_messages.missing,
    "updated": reapi_messages.decode_update_codes,
    "read_pieces": lambda data: list(reapi_messages.read_pieces(data)),
    "committed": reapi_messages.decode_committed_size,
    "sum": Sum.read,
}


def read(data: bytes) -> None:
    for reader in READERS.values():
        with contextlib.suppress(StoreFault):
            reader(data)


@pytest.mark.fuzz
@TRIED
@given(st.binary(max_size=200))
def test_garbage_is_a_fault_or_nothing(data: bytes) -> None:
    read(data)
    read(protobuf.message(1, data) + protobuf.message(2, data) + protobuf.message(5, data) + protobuf.message(6, data))


@pytest.mark.fuzz
@TRIED
@given(st.data())
def test_what_was_changed_on_the_way_is_a_fault_or_another_message(data: st.DataObject) -> None:
    blobs = [RemoteBlob(digest_bytes(b"x"), 3, Sum.of(b"x").sha256)]
    whole = bytearray(
        data.draw(
            st.sampled_from(
                [
                    action.encode_result(b"row", blobs),
                    protobuf.message(2, Sum.of(b"x").encoded) * 2,
                    protobuf.message(1, protobuf.message(1, Sum.of(b"x").encoded) + protobuf.message(2, b"\x08\x05")),
                ]
            )
        )
    )
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    read(bytes(whole))
    read(bytes(whole[: data.draw(st.integers(0, len(whole)))]))


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a",
        b"\x0a\x05abc",
        b"\x0b",
        b"\x00\x00",
        b"\xff" * 11,
        b"\x08" + b"\xff" * 10,
        b"\x0d\x01",
        b"\x08\x01" * 70_000,
    ],
    ids=["no-length", "cut", "group", "number-0", "long-tag", "long-number", "cut-fixed", "too-many"],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(StoreFault, match=r"a (cut |malformed )?row") as raised:
        list(protobuf.fields(data, "row"))
    assert raised.value.fault is Fault.REMOTE_CORRUPT


@pytest.mark.parametrize(
    "one",
    [b"", b"\x0a\x03abc\x10\x01", Sum("A" * 64, 1).encoded, Sum.of(b"x").encoded + b"\x10" + b"\xff" * 9 + b"\x01"],
)
def test_what_is_no_sum_is_refused(one: bytes) -> None:
    with pytest.raises(StoreFault):
        Sum.read(one)
    with pytest.raises(StoreFault):
        reapi_messages.missing(protobuf.message(2, one))
    with pytest.raises(StoreFault):
        action.find_external_row(protobuf.message(6, one + b"\x10" + b"\xff" * 9 + b"\x01"))


def test_names_of_resources() -> None:
    blob = Sum.of(b"x")
    assert reapi_messages.read_name("", blob) == f"blobs/{blob.sha256}/1"
    assert reapi_messages.read_name("a/b", blob) == f"a/b/blobs/{blob.sha256}/1"
    assert reapi_messages.write_name("", blob, "u") == f"uploads/u/blobs/{blob.sha256}/1"
    assert reapi_messages.write_name("a/b", blob, "u") == f"a/b/uploads/u/blobs/{blob.sha256}/1"


def test_fixed_bytes() -> None:
    """Made with protoc of remote_execution.proto: what is kept on servers stays findable."""
    command = bytes.fromhex("0a06636163686563")
    assert command == reapi_messages.COMMAND
    name = "ab" * 32
    expected = (
        b"\x0a\x44\x0a\x40" + Sum.of(command).sha256.encode() + b"\x10\x08"
        b"\x12\x42\x0a\x40" + Sum.of(b"").sha256.encode() + b"\x4a\x4bcachec row " + name.encode()
    )
    assert reapi_messages.action(name) == expected
