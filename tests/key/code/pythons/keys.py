"""Print the code keys of ``programs.py``, as this Python makes them: ``keys.py REPOSITORY FOLDER``.

It runs under Pythons that have no package but their own library, so it brings the little of msgspec and blake3 that
code keys need. Digests are therefore not those of a cache; that they are equal, or not, is what they are for.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import sys
import textwrap
import time
import types
import warnings
from pathlib import Path
from typing import Any, ClassVar


class Struct:
    """As much of ``msgspec.Struct`` as the records in code keys use."""

    def __init_subclass__(cls, **_: object) -> None:
        cls.names = [*cls.names, *inspect.get_annotations(cls)]

    names: ClassVar[list[str]] = []

    def __init__(self, *values: object, **named: object) -> None:
        self.__dict__.update(zip(self.names, values, strict=False))
        self.__dict__.update(named)


class Blake3:
    """BLAKE2 under the names of ``blake3``."""

    def __init__(self, data: bytes = b"") -> None:
        self._hash = hashlib.blake2b(data, digest_size=32)
        self.update = self._hash.update

    def digest(self) -> bytes:
        return self._hash.digest()

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def bring_packages() -> None:
    """Put what stands for msgspec and blake3 where imports find it."""
    msgspec: Any = types.ModuleType("msgspec")
    msgspec.Struct, msgspec.StructMeta = Struct, type("StructMeta", (type,), {})
    msgspec.Meta = msgspec.Raw = lambda *_, **__: None
    msgspec.field = lambda default=None, **_: default
    msgspec.MsgspecError = type("MsgspecError", (Exception,), {})
    blake3: Any = types.ModuleType("blake3")
    blake3.blake3 = Blake3
    sys.modules.update({"msgspec": msgspec, "blake3": blake3})


def main(repository: str, folder: Path) -> None:
    bring_packages()
    warnings.simplefilter("ignore")
    sys.dont_write_bytecode = True
    sys.path[:0] = [repository, str(folder), str(Path(__file__).parent)]
    from programs import HELPERS, PROGRAMS

    from cachec.key import option_encoding
    from cachec.key.code.executed_source import executed_sources
    from cachec.key.code.fingerprint import CodeKeys

    files = {**HELPERS, **{f"program_{name}.py": text for name, text in PROGRAMS.items()}}
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
    executed_sources()._started = time.time()  # as if the files had been there before the process
    keys = CodeKeys(
        lambda path: "wheel" if "-packages/" in path else None,
        lambda value, path: option_encoding.encode(value, lambda _value, _path: None, path),
    )
    found = {}
    for name in PROGRAMS:
        key = keys.of(importlib.import_module(f"program_{name}").stage)
        found[name] = {"digest": key.digest, **{part.name: part.digest for part in key.parts}}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
