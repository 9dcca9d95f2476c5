"""What cachec's own functions say of paths that their callers name: audit events (PEP 578), with the path, and
whether it was named from the current folder.

A run that records passes over what cachec itself opens, which is its store and what is keyed already. A path that a
stage names to ``open_weights``, say, is the stage's own look, and is told as one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

#: The content of a file counts; of a folder the names in it.
READS = "cachec.reads"
#: The same of a file, and of a folder the names in it, that goes into a result and was there before the run.
KEEPS = "cachec.keeps"
#: A thread that belongs to no known run queries the machine, or a command's output.
ASKS = "cachec.asks"


def tell_read(paths: Iterable[str | os.PathLike[str]], *, like: object = None) -> None:
    """These files are read, or looked for: called before that, so that it counts also where it raises. like: what the
    caller named: where that is relative, they are told as such, for in another current folder it names others."""
    named = like if isinstance(like, list | tuple) else [like]
    is_relative = any(isinstance(each, str | os.PathLike) and not os.path.isabs(each) for each in named)
    for path in paths:
        sys.audit(READS, os.fspath(path), is_relative)


def announce_output(path: str | os.PathLike[str]) -> None:
    """This goes into a result."""
    sys.audit(KEEPS, os.fspath(path), False)
