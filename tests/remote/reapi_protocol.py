"""The messages of the Remote Execution API for the package ``protobuf``, which the code under test does without.

Numbers and types are of build/bazel/remote/execution/v2/remote_execution.proto of github.com/bazelbuild/remote-apis
and google/bytestream/bytestream.proto of github.com/googleapis/googleapis, as far as a cache needs them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

#: A message a line: its name, and its fields: type, name and number; ``*`` for a repeated one.
MESSAGES = """
Digest: string hash 1, int64 size_bytes 2
Status: int32 code 1, string message 2
Command: string* arguments 1
Action: Digest command_digest 1, Digest input_root_digest 2, bool do_not_cache 7, bytes salt 9
OutputFile: string path 1, Digest digest 2, bool is_executable 4, bytes contents 5
ActionResult: OutputFile* output_files 2, int32 exit_code 4, bytes stdout_raw 5, Digest stdout_digest 6, bytes stderr_raw 7
GetActionResultRequest: string instance_name 1, Digest action_digest 2, bool inline_stdout 3, bool inline_stderr 4
UpdateActionResultRequest: string instance_name 1, Digest action_digest 2, ActionResult action_result 3
FindMissingBlobsRequest: string instance_name 1, Digest* blob_digests 2
FindMissingBlobsResponse: Digest* missing_blob_digests 2
BatchUpdate: Digest digest 1, bytes data 2, int32 compressor 3
BatchUpdateBlobsRequest: string instance_name 1, BatchUpdate* requests 2
BatchUpdated: Digest digest 1, Status status 2
BatchUpdateBlobsResponse: BatchUpdated* responses 1
GetCapabilitiesRequest: string instance_name 1
ActionCacheUpdateCapabilities: bool update_enabled 1
CacheCapabilities: int32* digest_functions 1, ActionCacheUpdateCapabilities action_cache_update_capabilities 2, int64 max_batch_total_size_bytes 4, int32* supported_compressors 6, int64 max_cas_blob_size_bytes 8
ServerCapabilities: CacheCapabilities cache_capabilities 1
ReadRequest: string resource_name 1, int64 read_offset 2, int64 read_limit 3
ReadResponse: bytes data 10
WriteRequest: string resource_name 1, int64 write_offset 2, bool finish_write 3, bytes data 10
WriteResponse: int64 committed_size 1
"""  # noqa: E501

_TYPES = {"int64": 3, "int32": 5, "bool": 8, "string": 9, "bytes": 12}


@cache
def _pool() -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto(name="reapi.proto", package="reapi", syntax="proto3")
    for line in MESSAGES.strip().splitlines():
        name, _, rest = line.partition(": ")
        message = file.message_type.add(name=name)
        for each in rest.split(", "):
            kind, field, number = each.split()
            label = 3 if kind.endswith("*") else 1
            kind = kind.rstrip("*")
            added = message.field.add(name=field, number=int(number), label=label, type=_TYPES.get(kind, 11))
            if kind not in _TYPES:
                added.type_name = f".reapi.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


@cache
def kind(name: str) -> Any:
    """The class of a message."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"reapi.{name}"))
