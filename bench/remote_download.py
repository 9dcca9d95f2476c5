"""One large download in a process of its own, for bench.remote: ``put|get|plain URL BYTES FOLDER``.

put: an entry with one artifact of that size. get: that entry into a new store. plain: the artifact's bytes into a file
by the engine's client alone. Prints the seconds that it took, and the MiB of memory that it used at most beyond what
the process had before, with its connection open.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

from cachec.base.hashing import digest_bytes
from cachec.model import RECORD_VERSION, ArtifactRef, Entry, Leaf, Trace
from cachec.remote.engines import engine_of
from cachec.remote.engines.action import Sum
from cachec.remote.engines.base import RemoteBlob
from cachec.remote.engines.reapi_messages import READ, asked_bytes, read_name, read_pieces
from cachec.remote.engines.redis import PIECE
from cachec.remote.trie import LookupCost, Trie
from cachec.remote.urls import Address, parse
from cachec.store.store import Store

_KEY = digest_bytes(b"key")


def main() -> None:
    """See above."""
    verb, url, nbytes, folder = sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
    address = parse(url, "main", os.environ)
    name = folder / f"large-{address.name}"
    with tempfile.TemporaryDirectory(dir=folder) as inside:
        task: Callable[[], object]
        if verb == "plain":
            digest, sum256 = name.read_text().split()
            blob = RemoteBlob(digest, nbytes, sum256)
            task = _plain(address, blob, Path(inside) / "file")
        else:
            store = Store(Path(inside) / "store")
            store.prepare()
            trie = Trie(engine_of(address), store, "main", 60.0, address.trust)
            if verb == "put":
                data = os.urandom(nbytes)
                ref = store.objects.add_bytes(data)
                name.write_text(f"{ref.digest} {sha256(data).hexdigest()}")
                entry = _entry(ref, store.objects.add_bytes(b"[]"))
                task = lambda: trie.put(entry, entry.traces[0], {})  # noqa: E731
            else:
                trie.get(
                    digest_bytes(b"none"), lambda _name: None, LookupCost()
                )  # it is connected, and all is imported
                task = lambda: _got(trie)  # noqa: E731
        before = _peak()
        started = time.perf_counter()
        task()
        taken = time.perf_counter() - started
        memory = _peak() - before
    print(json.dumps({"seconds": taken, "memory": memory}))


def _peak() -> float:
    """MiB that this process has used at most since its start, which ``getrusage`` does not tell: proc(5)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def _entry(ref: ArtifactRef, parts: ArtifactRef) -> Entry:
    trace = Trace(reads=(), value=Leaf("bytes", (ref,), {}), seconds=60.0, created=2.0)
    return Entry(version=RECORD_VERSION, key=_KEY, stage="large", tags=(), parts=parts, traces=(trace,))


def _got(trie: Trie) -> None:
    assert trie.get(_KEY, lambda _name: None, LookupCost()) is not None


def _plain(address: Address, blob: RemoteBlob, target: Path) -> Callable[[], object]:
    """What somebody would write who only wants the file."""
    digest, nbytes = blob.digest, blob.size
    place = f"b/{digest[:2]}/{digest}"
    if address.scheme == "file":
        return lambda: shutil.copyfile(f"{address.path}/{place}", target)
    if address.scheme == "redis":
        import redis

        client = redis.Redis(host=address.host, port=address.port, db=address.database)
        client.ping()
        keys = [f"cachec:b:{digest}", *(f"cachec:b:{digest}:{number}" for number in range(1, -(-nbytes // PIECE)))]
        return lambda: _write(target, (client.get(key) for key in keys))
    if address.scheme == "s3":
        from obstore.store import S3Store

        bucket = S3Store(
            address.host,
            prefix=address.path.strip("/"),
            endpoint=address.endpoint,
            region="us-east-1",
            client_options={"allow_http": True},
        )
        return lambda: _write(target, bucket.get(place).stream())
    if address.scheme == "reapi":
        import grpc

        channel = grpc.insecure_channel(f"{address.host}:{address.port}")
        grpc.channel_ready_future(channel).result()
        request = asked_bytes(read_name("", Sum(blob.sha256, nbytes)))
        answers = channel.unary_stream(READ)
        return lambda: _write(target, chain.from_iterable(map(read_pieces, answers(request))))
    import http.client

    connection = http.client.HTTPConnection(address.host, address.port)
    connection.connect()

    def download() -> None:
        connection.request("GET", f"{address.path}/{place}")
        with target.open("wb") as file:
            shutil.copyfileobj(connection.getresponse(), file, 1 << 18)

    return download


def _write(target: Path, pieces: Any) -> None:
    with target.open("wb") as file:
        for piece in pieces:
            file.write(piece)


if __name__ == "__main__":
    main()
