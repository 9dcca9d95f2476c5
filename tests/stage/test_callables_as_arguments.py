"""Functions and classes of libraries as arguments of a stage: no two have one key."""

from __future__ import annotations

import functools
import json
import os.path
import statistics
import textwrap
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import numpy as np
import pytest

import cachec
from cachec import Reason

_MODULES = (functools, json, os.path, statistics, textwrap, np.linalg, click)


def _callables(module: ModuleType) -> list[Any]:
    found = [value for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
    return list({id(each): each for each in found}.values())


@pytest.mark.parametrize("module", _MODULES, ids=lambda each: each.__name__)
@pytest.mark.parametrize("wrap", [lambda each: each, lambda each: functools.partial(each, 1), lambda each: [each]])
def test_each_callable_of_a_library_has_a_result_of_its_own(tmp_path: Path, module: ModuleType, wrap: Any) -> None:
    cache = cachec.Cache(tmp_path, log="off", mode="on")

    @cache.stage
    def run(given: object) -> str:
        return repr(given)

    callables = _callables(module)
    outcomes = []
    for each in callables:
        with suppress(cachec.CachecError):  # it can't be an argument
            outcomes.append(run.call(wrap(each))[1].reason)
    assert Reason.HIT not in outcomes, callables[outcomes.index(Reason.HIT)]
    assert len(outcomes) > len(callables) // 2
