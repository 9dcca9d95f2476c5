"""What the tests of all formats do with a file: cut it, change it, and compare with what the official library reads."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from cachec.base.hashing import digest_bytes
from cachec.errors import CheckpointError
from cachec.weights import WeightSet, open_weights
from tests.effort import rounds

#: What the official library reads: name -> bytes. It may raise anything on a file that it refuses.
Official = Callable[[Path], Mapping[str, bytes]]


class Check:
    """Checks of one file."""

    quick = settings(
        max_examples=rounds(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )

    @staticmethod
    def reads(source: Path | list[Path], wanted: Mapping[str, bytes]) -> WeightSet:
        """Both ways of access give these bytes, and their digests; the set by map."""
        for access in ("read", "mmap"):
            weights = open_weights(source, access=access)  # type: ignore[arg-type]
            assert set(weights) == set(wanted)
            for name, data in wanted.items():
                weight = weights[name]
                assert bytes(weight.raw()) == data, name
                assert weight.nbytes == len(data)
                assert weight.digest() == digest_bytes(data)
                assert weight.private().tobytes() == data
                assert weight.read().tobytes() == data
                place = weight.place()
                if place is not None and data:
                    with place.path.open("rb") as file:
                        file.seek(place.offset)
                        assert file.read(place.nbytes) == data
        return weights

    @staticmethod
    def rewrite(path: Path, data: bytes) -> None:
        """Other bytes under the name, in a new file: ext4 writes one to the disk at once that was cut to nothing."""
        path.unlink(missing_ok=True)
        path.write_bytes(data)

    @staticmethod
    def cuts(path: Path, wanted: Mapping[str, bytes], padding: int | None = None) -> None:
        """Cut anywhere, the file is refused, or nothing but padding is missing.

        padding: where nothing but padding begins, of which a few cuts are enough.
        """
        whole = path.read_bytes()
        refused = 0
        end = len(whole) if padding is None else padding
        for size in (*range(end), *range(end, len(whole), 61)):
            Check.rewrite(path, whole[:size])
            try:
                weights = open_weights(path)
            except CheckpointError as error:
                refused += 1
                assert str(path) in str(error)  # noqa: PT017
            else:
                assert {name: bytes(weight.raw()) for name, weight in weights.items()} == wanted
        assert refused
        Check.rewrite(path, whole)

    @staticmethod
    def agrees(path: Path, official: Official, *, is_good: bool = False) -> bool:
        """Whether the file is accepted; then nothing that the library reads is read otherwise.

        is_good: the library has to accept it too.
        """
        try:
            weights = open_weights(path)
        except CheckpointError as error:
            assert str(path) in str(error)  # noqa: PT017
            return False
        found = {name: bytes(weight.raw()) for name, weight in weights.items() if weight.nbytes < 1 << 24}
        try:
            library = official(path)
        except Exception:
            if is_good:
                raise
            return True  # stricter than we are: a checksum, a name
        for name, data in found.items():
            assert library[name] == data, name
        return True

    @staticmethod
    def mutated(original: bytes, edits: list[tuple[int, int, bytes]], suffix: str, official: Official) -> bool:
        """``agrees`` for the file with the edits (where, bytes cut, bytes put)."""
        for at, cut, put in edits:
            at %= len(original) + 1
            original = original[:at] + put + original[at + cut :]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"m{suffix}"
            path.write_bytes(original)
            return Check.agrees(path, official, is_good=not edits)


@pytest.fixture(scope="session")
def check() -> type[Check]:
    """The checks."""
    return Check
