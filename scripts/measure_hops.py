#!/usr/bin/env python3
"""Count the files that a reader passes through who follows one miss of a small stage: ``scripts/measure_hops.py``.

Files of ``cachec/`` whose functions run, and switches from one of these files to another, by ``sys.setprofile``. The
miss before the measured one does the imports, so they are not counted.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import FrameType

import cachec

PACKAGE = f"{Path(cachec.__file__).parent}/"


class Hops:
    """What a profile function saw: calls into each file, and the switches between files."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.switches = 0
        self._current = ""

    def observe(self, frame: FrameType, event: str, _argument: object) -> None:
        """Count a call or a return; to be given to ``sys.setprofile``."""
        file = frame.f_code.co_filename
        if event not in {"call", "return"} or not file.startswith(PACKAGE):
            return
        self.calls[file] += event == "call"
        if file != self._current:
            self.switches += 1
            self._current = file


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        cache = cachec.Cache(folder)

        @cache.stage(isolated="--isolated" in sys.argv)
        def double(number: int) -> int:
            return 2 * number

        double(1)
        hops = Hops()
        sys.setprofile(hops.observe)
        double(2)
        sys.setprofile(None)
    print(f"files     {len(hops.calls):6}\nswitches  {hops.switches:6}")
    if "-v" in sys.argv:
        for file, count in hops.calls.most_common():
            print(f"  {count:6}  {file.removeprefix(PACKAGE)}")


if __name__ == "__main__":
    main()
