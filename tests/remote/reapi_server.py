"""A strict cache of the Remote Execution API on the loopback, which does everything wrong that it is told to.

It knows the protocol by the package ``protobuf`` (reapi_protocol.py), and refuses what the API does not allow.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from cachec.remote.engines.reapi_link import grpc
from tests.remote.reapi_protocol import kind

INSTANCE = "team/main"

_EMPTY = sha256(b"").hexdigest()
_API = "build.bazel.remote.execution.v2."

#: Method, its service, its request and its answer.
_UNARY = (
    ("GetCapabilities", f"{_API}Capabilities", "GetCapabilitiesRequest", "ServerCapabilities"),
    ("GetActionResult", f"{_API}ActionCache", "GetActionResultRequest", "ActionResult"),
    ("UpdateActionResult", f"{_API}ActionCache", "UpdateActionResultRequest", "ActionResult"),
    ("FindMissingBlobs", f"{_API}ContentAddressableStorage", "FindMissingBlobsRequest", "FindMissingBlobsResponse"),
    ("BatchUpdateBlobs", f"{_API}ContentAddressableStorage", "BatchUpdateBlobsRequest", "BatchUpdateBlobsResponse"),
)


@dataclass
class ReapiSite:
    """What the server keeps, how it behaves, and what it was asked.

    refuse: the code that a method ends with, or None. hang: methods that wait for the end of the test. raw: bytes in
    place of the answer to a method. alter: of a blob that is read. pieces: messages of a stream, after which it ends by
    ``refuse`` of ``"stream"``, or waits where ``"stream"`` is in ``hang``. moves: rows go into blobs. trusts: results
    are given though their blobs are gone.
    """

    blobs: dict[str, bytes] = field(default_factory=lambda: {_EMPTY: b""})
    results: dict[str, Any] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    metadata: list[dict[str, Any]] = field(default_factory=list)
    refuse: dict[str, grpc.StatusCode] = field(default_factory=dict)
    hang: set[str] = field(default_factory=set)
    raw: dict[str, bytes] = field(default_factory=dict)
    alter: Callable[[bytes], bytes] = lambda data: data
    pieces: int | None = None
    piece: int = 1 << 16
    committed: int | None = None
    moves: bool = False
    trusts: bool = False
    functions: tuple[int, ...] = (1, 9)
    is_updated: bool = True
    batch: int = 1 << 21
    most: int = 0
    ended: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def forget_blobs(self) -> None:
        """Evict all but what is always there."""
        self.blobs = {_EMPTY: b""}


class _Refused(Exception):
    def __init__(self, code: str, words: str) -> None:
        super().__init__(words)
        self.code = grpc.StatusCode[code]


class _Service:
    def __init__(self, site: ReapiSite) -> None:
        self._site = site

    def unary(self, method: str) -> Callable[[bytes, Any], bytes]:
        (request_kind,) = (request for name, _, request, _ in _UNARY if name == method)

        def answer(request: bytes, context: Any) -> bytes:
            with self._called(method, context):
                if (raw := self._site.raw.get(method)) is not None:
                    return raw
                message = kind(request_kind).FromString(request)
                if message.instance_name != INSTANCE:
                    raise _Refused("INVALID_ARGUMENT", f"no instance {message.instance_name!r}")
                found: bytes = getattr(self, f"_{method}")(message).SerializeToString()
                return found
            raise AssertionError

        return answer

    @contextlib.contextmanager
    def _called(self, method: str, context: Any) -> Iterator[None]:
        self._site.calls.append(method)
        self._site.metadata.append(dict(context.invocation_metadata()))
        try:
            self._told(method)
            yield
        except _Refused as refused:
            context.abort(refused.code, str(refused))

    def _told(self, method: str) -> None:
        if method in self._site.hang:
            self._site.ended.wait()
        if (code := self._site.refuse.get(method)) is not None:
            raise _Refused(code.name, "told to\033[31m")

    def _is_there(self, digest: Any) -> bool:
        if re.fullmatch("[0-9a-f]{64}", digest.hash) is None:
            raise _Refused("INVALID_ARGUMENT", "a digest of another function")
        data = self._site.blobs.get(digest.hash)
        return data is not None and len(data) == digest.size_bytes

    def _GetCapabilities(self, _request: Any) -> Any:
        site, answer = self._site, kind("ServerCapabilities")()
        cache = answer.cache_capabilities
        cache.digest_functions.extend(site.functions)
        cache.action_cache_update_capabilities.update_enabled = site.is_updated
        cache.max_batch_total_size_bytes, cache.max_cas_blob_size_bytes = site.batch, site.most
        cache.supported_compressors.extend([0, 1])
        return answer

    def _GetActionResult(self, request: Any) -> Any:
        result = self._site.results.get(request.action_digest.hash)
        if result is None or not (
            self._site.trusts or all(self._is_there(each.digest) for each in result.output_files)
        ):
            raise _Refused("NOT_FOUND", "no such result")
        if not request.inline_stdout:
            raise _Refused("INVALID_ARGUMENT", "the row is asked for by another call")
        return result

    def _UpdateActionResult(self, request: Any) -> Any:
        site, digest = self._site, request.action_digest
        if not self._is_there(digest):
            raise _Refused("FAILED_PRECONDITION", "the action is not there")
        action = kind("Action").FromString(site.blobs[digest.hash])
        if not self._is_there(action.command_digest) or not self._is_there(action.input_root_digest):
            raise _Refused("FAILED_PRECONDITION", "the command is not there")
        if not kind("Command").FromString(site.blobs[action.command_digest.hash]).arguments:
            raise _Refused("INVALID_ARGUMENT", "the command is none")
        result = request.action_result
        for each in result.output_files:
            if not each.path or each.path.startswith("/"):
                raise _Refused("INVALID_ARGUMENT", "a path of an output")
            self._is_there(each.digest)
        if site.moves:
            row, result.stdout_raw = result.stdout_raw, b""
            result.stdout_digest.hash, result.stdout_digest.size_bytes = sha256(row).hexdigest(), len(row)
            site.blobs[result.stdout_digest.hash] = row
        site.results[digest.hash] = result
        return result

    def _FindMissingBlobs(self, request: Any) -> Any:
        missing = [each for each in request.blob_digests if not self._is_there(each)]
        return kind("FindMissingBlobsResponse")(missing_blob_digests=missing)

    def _BatchUpdateBlobs(self, request: Any) -> Any:
        if sum(len(each.data) for each in request.requests) > self._site.batch > 0:
            raise _Refused("INVALID_ARGUMENT", "more than a batch")
        answer = kind("BatchUpdateBlobsResponse")()
        for each in request.requests:
            response = answer.responses.add(digest=each.digest)
            if self._sum(each.data) != (each.digest.hash, each.digest.size_bytes):
                response.status.code = 3
            elif (code := self._site.refuse.get("batch")) is not None:
                response.status.code = code.value[0]
            else:
                self._site.blobs[each.digest.hash] = each.data
        return answer

    @staticmethod
    def _sum(data: bytes) -> tuple[str, int]:
        return sha256(data).hexdigest(), len(data)

    def read(self, request: bytes, context: Any) -> Iterator[bytes]:
        site = self._site
        with self._called("Read", context):
            if (raw := site.raw.get("Read")) is not None:
                yield raw
                return
            message = kind("ReadRequest").FromString(request)
            match = re.fullmatch(f"{INSTANCE}/blobs/([0-9a-f]{{64}})/([0-9]+)", message.resource_name)
            if match is None:
                raise _Refused("INVALID_ARGUMENT", f"no resource {message.resource_name!r}")
            if not self._is_there(kind("Digest")(hash=match[1], size_bytes=int(match[2]))):
                raise _Refused("NOT_FOUND", "no such blob")
            data = site.alter(site.blobs[match[1]])
            for number, at in enumerate(range(0, len(data), site.piece)):
                if number == site.pieces:
                    self._told("stream")
                    return
                yield kind("ReadResponse")(data=data[at : at + site.piece]).SerializeToString()

    def write(self, requests: Iterator[bytes], context: Any) -> bytes:
        site, data, name, is_done = self._site, bytearray(), "", False
        with self._called("Write", context):
            for each in requests:
                message = kind("WriteRequest").FromString(each)
                name = name or message.resource_name
                if message.resource_name not in {"", name} or message.write_offset != len(data) or is_done:
                    raise _Refused("INVALID_ARGUMENT", "a request out of order")
                uuid = "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
                match = re.fullmatch(f"{INSTANCE}/uploads/{uuid}/blobs/([0-9a-f]{{64}})/([0-9]+)", name)
                if match is None:
                    raise _Refused("INVALID_ARGUMENT", f"no resource {name!r}")
                if match[1] in site.blobs:
                    return self._committed(int(match[2]))
                data += message.data
                is_done = message.finish_write
                if site.pieces is not None and len(data) >= site.pieces:
                    self._told("stream")
            if not is_done or self._sum(bytes(data)) != (match[1], int(match[2])):
                raise _Refused("INVALID_ARGUMENT", "other bytes than were said")
            site.blobs[match[1]] = bytes(data)
        return self._committed(len(data))

    def _committed(self, size: int) -> bytes:
        answer = kind("WriteResponse")(committed_size=size if self._site.committed is None else self._site.committed)
        found: bytes = answer.SerializeToString()
        return found


@contextlib.contextmanager
def serving_reapi(credentials: Any = None, compression: Any = None) -> Iterator[ReapiSite]:
    """The site of a server that runs meanwhile. credentials: of TLS."""
    site = ReapiSite()
    service = _Service(site)
    methods: dict[str, dict[str, Any]] = {}
    for method, name, _, _ in _UNARY:
        methods.setdefault(name, {})[method] = grpc.unary_unary_rpc_method_handler(service.unary(method))
    methods["google.bytestream.ByteStream"] = {
        "Read": grpc.unary_stream_rpc_method_handler(service.read),
        "Write": grpc.stream_unary_rpc_method_handler(service.write),
    }
    pool = ThreadPoolExecutor(12)
    options = [("grpc.max_send_message_length", -1)]
    server = grpc.server(
        pool,
        [grpc.method_handlers_generic_handler(name, handlers) for name, handlers in methods.items()],
        options=options,
        compression=compression,
    )
    if credentials is None:
        site.url = f"reapi://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}/{INSTANCE}"
    else:
        site.url = f"reapis://localhost:{server.add_secure_port('127.0.0.1:0', credentials)}/{INSTANCE}"
    server.start()
    try:
        yield site
    finally:
        site.ended.set()
        server.stop(None).wait()
        pool.shutdown()
