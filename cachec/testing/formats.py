"""The tests that every format of checkpoints inherits.

    class TestMine(FormatConformance):
        suffix = ".mine"
        def write(self, path, arrays): ...      # by the format's own software, not by cachec
        def official(self, path): ...           # what that software reads, if there is any

Run with pytest. Everything is opened by ``cachec.open_weights``, so the format has to be known: one of those that ship
with cachec, or an entry point of the group ``cachec.formats`` of an installed distribution.
"""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from cachec.base.hashing import digest_bytes
from cachec.errors import CheckpointError, UsageError, WeightsChanged
from cachec.weights import WeightSet, open_weights
from cachec.weights.formats import format_to_write

#: What other software reads: name -> bytes. It may raise anything on a file that it refuses.
Official = Callable[[Path], Mapping[str, bytes] | None]

#: A tensor that must not be read to open its file, and how much memory opening may take.
_LARGE, _LITTLE = 32 << 20, 4 << 20


class Check:
    """Checks of one file."""

    @staticmethod
    def reads(source: Path | list[Path], wanted: Mapping[str, bytes]) -> WeightSet:
        """Both ways of access give these bytes, and their digests; the set by map."""
        for access in ("read", "mmap"):
            weights = open_weights(source, access=access)
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
                assert str(path) in str(error)  # noqa: PT017 - only some are refused
            else:
                assert {name: bytes(weight.raw()) for name, weight in weights.items()} == wanted
        assert refused
        Check.rewrite(path, whole)

    @staticmethod
    def agrees(path: Path, official: Official, *, is_good: bool = False) -> bool:
        """Whether the file is accepted; then nothing that the other software reads is read otherwise.

        is_good: that has to accept it too.
        """
        try:
            weights = open_weights(path)
        except CheckpointError as error:
            assert str(path) in str(error)  # noqa: PT017 - only some are refused
            return False
        contents = {name: bytes(weight.raw()) for name, weight in weights.items() if weight.nbytes < 1 << 24}
        try:
            library = official(path)
        except Exception:  # whatever it raises on a damaged file: stricter than we are, by a checksum or a name
            if is_good:
                raise
            return True
        for name, data in contents.items() if library is not None else ():
            assert library is not None
            assert library[name] == data, name
        return True


class FormatConformance:
    """Hooks first; a format's test class fills them in."""

    #: What its files end with; ``write`` is given ``m`` with that suffix.
    suffix: str
    #: Whether a file is known by its first bytes, whatever it is called.
    has_magic: bool = False
    #: Whether the format keeps dtypes and shapes.
    is_typed: bool = True
    #: Whether ``WeightSet.save`` writes it.
    is_written: bool = False

    #: Of so many bytes, one has a bit changed: more than 1 for a format that is slow to open.
    stride: int = 1
    #: How many files with a few other bytes are tried.
    edits: int = 200

    def write(self, path: Path, arrays: Mapping[str, Any]) -> Path:
        """Write a checkpoint of these arrays, not by cachec; the file to open, ``path`` if that can be."""
        raise NotImplementedError

    def official(self, path: Path) -> Mapping[str, bytes] | None:
        """What other software reads, name -> bytes; None where there is none. May raise anything on a bad file."""
        return None

    def arrays(self) -> Mapping[str, Any]:
        """Small arrays of some types that the format has."""
        import numpy as np

        return {"w": np.arange(6, dtype="f4").reshape(2, 3), "h": np.ones((2, 2), "f2"), "i": np.arange(3, dtype="i4")}

    def end(self, path: Path) -> int:
        """The size of the file without padding at its end."""
        return path.stat().st_size

    # --- the suite

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        return self.write(tmp_path / f"m{self.suffix}", self.arrays())

    def expected_bytes(self) -> dict[str, bytes]:
        return {name: array.tobytes() for name, array in self.arrays().items()}

    def test_what_was_written_is_read_equal(self, file: Path) -> None:
        weights = Check.reads(file, self.expected_bytes())
        assert self.official(file) in (None, self.expected_bytes())
        for name, array in self.arrays().items() if self.is_typed else ():
            assert (weights[name].dtype, weights[name].shape) == (array.dtype.name, array.shape)
        assert Check.agrees(file, self.official, is_good=True)

    def test_it_is_recognized_by_name_and_first_bytes(self, file: Path) -> None:
        def contents(path: Path) -> list[bytes]:  # a format without names has that of the file
            return sorted(bytes(weight.raw()) for weight in open_weights(path).values())

        upper = file.rename(file.with_suffix(file.suffix.upper()))
        assert contents(upper) == sorted(self.expected_bytes().values())
        for name in ("m", "m.other") if self.has_magic else ():
            upper = upper.rename(file.with_name(name))
            assert contents(upper) == sorted(self.expected_bytes().values())

    def test_cut_anywhere_it_is_refused(self, file: Path) -> None:
        Check.cuts(file, self.expected_bytes(), self.end(file))

    def test_a_changed_bit_is_refused_or_read_alike(self, file: Path) -> None:
        whole = file.read_bytes()
        accepted = 0
        for at in range(0, self.end(file), self.stride):
            changed = bytearray(whole)
            changed[at] ^= 1 << (at % 8)
            Check.rewrite(file, bytes(changed))
            accepted += Check.agrees(file, self.official)
        assert accepted < len(whole), "whatever is in a file, it is accepted"

    def test_other_bytes_are_refused_or_read_alike(self, file: Path) -> None:
        whole, chance = file.read_bytes(), random.Random(0)
        for _ in range(self.edits):
            changed = whole
            for _ in range(chance.randint(1, 3)):
                at = chance.randrange(self.end(file))
                changed = changed[:at] + chance.randbytes(chance.randint(0, 4)) + changed[at + chance.randint(0, 4) :]
            Check.rewrite(file, changed)
            Check.agrees(file, self.official)

    def test_what_is_empty_or_no_file_is_refused(self, file: Path) -> None:
        Check.rewrite(file, b"")
        with pytest.raises(CheckpointError, match=file.name):
            open_weights(file)
        file.unlink()
        with pytest.raises(FileNotFoundError):
            open_weights(file)

    def test_opening_reads_no_weights(self, file: Path) -> None:
        import numpy as np

        open_weights(file).release()  # what is imported for it is no memory of the reader
        name = min(self.arrays())
        large = self.write(file.with_name(f"m{self.suffix}"), {name: np.zeros(_LARGE // 4, "f4")})
        tracemalloc.start()
        try:
            weights = open_weights(large)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert weights.nbytes == _LARGE
        assert peak < _LITTLE

    def test_a_replaced_file_is_noticed(self, file: Path) -> None:
        weights = open_weights(file)
        assert open_weights(file).revision == weights.revision
        name = min(weights)
        place = open_weights(file)[name].place()
        replaced = file if place is None else place.path
        Check.rewrite(replaced, replaced.read_bytes())
        assert open_weights(file).revision != weights.revision
        with pytest.raises(WeightsChanged, match=replaced.name):
            weights[name].read()

    def test_what_is_saved_is_read_equal(self, tmp_path: Path) -> None:
        arrays = self.arrays()
        path = tmp_path / f"m{self.suffix}"
        if not self.is_written:
            with pytest.raises(UsageError, match="save: "):
                WeightSet.from_arrays(arrays).save(path)
            assert not path.exists()
            return
        WeightSet.from_arrays(arrays).save(path)
        assert format_to_write(str(path)).writes
        Check.reads(path, self.expected_bytes())
        assert self.official(path) in (None, self.expected_bytes())
        WeightSet.from_arrays(dict(reversed(list(arrays.items())))).save(tmp_path / f"again{self.suffix}")
        assert (tmp_path / f"again{self.suffix}").read_bytes() == path.read_bytes()
