#!/usr/bin/env python
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "src"))

from tinyformer.cli import main

if __name__ == "__main__":
    sys.exit(main())
