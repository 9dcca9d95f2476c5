import struct
import zlib

HEADER = struct.Struct("<4sHI")
RECORD = struct.Struct("<IB")
VERSION = 3


class FormatError(ValueError):
    pass


def dump(records):
    body = b"".join(RECORD.pack(zlib.crc32(name.encode()), count) for name, count in records)
    return HEADER.pack(b"NETB", VERSION, len(body)) + body


def load(data):
    magic, version, size = HEADER.unpack_from(data)
    if magic != b"NETB":
        raise FormatError(magic)
    body = memoryview(data)[HEADER.size :]
    return version, [count for _, count in RECORD.iter_unpack(body[:size])]
