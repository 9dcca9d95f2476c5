"""What the tests of the command line share: a store with known entries, and a way to run commands."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from cachec.cli import main
from cachec.model import Leaf, Part, Read, Trace
from cachec.store.store import Store


class Shell:
    """Runs ``cachec --dir STORE ...`` and holds the store that it looks into."""

    def __init__(self, store: Path) -> None:
        self.dir = store
        self.store = Store(store)

    def run(self, *args: str, terminal_width: int | None = None) -> Result:
        """Run a command; an exception that is not a clean exit fails the test. terminal_width: columns of a help."""
        words = ["--dir", str(self.dir), *args]
        result = CliRunner().invoke(main, words, prog_name="cachec", terminal_width=terminal_width)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert "Traceback" not in result.output
        return result

    def json(self, *args: str, code: int = 0) -> Any:
        """Run a command with ``--json``: exactly one document on stdout."""
        result = self.run(*args, "--json")
        assert result.exit_code == code, result.output
        return json.loads(result.stdout)

    def publish(
        self,
        key: str,
        parts: Sequence[Part],
        *,
        stage: str = "pkg.build",
        content: bytes = b"artifact",
        ago: float = 5.0,
    ) -> str:
        """Store an entry with one artifact of ``content``; returns its key, ``key`` filled up to 64 characters."""
        key = key + "0" * (64 - len(key))
        ref = self.store.objects.add_bytes(content)
        trace = Trace(
            reads=(Read("weight", "weights", "scale", "1" * 64),),
            value=Leaf("bytes", (ref,)),
            seconds=1.5,
            created=time.time() - ago,
        )
        kept = self.store.objects.add_bytes(msgspec.json.encode(parts))
        self.store.publish(key, stage, ("nightly",), kept, trace)
        return key


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A shell in an empty folder, whose store is not made yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return Shell(tmp_path / "store")
