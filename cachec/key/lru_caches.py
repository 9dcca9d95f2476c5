"""The results in ``functools.lru_cache`` of a process: those of the caller may be outdated.

A memo is filled again by a worker, and its content counts for nothing. But where the caller's remembers another result
than a run had for the same arguments, the run is none of the caller's.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from types import ModuleType
from typing import Any, Final

from cachec.base.display_text import module_of
from cachec.key.canonical_forms import Forms

#: Characters of a digest in a read.
_SHORT: Final = 20
#: Of a memo with more results nothing is compared.
_MOST: Final = 1000
_KIND: Final = functools._lru_cache_wrapper


def recorded_contents(
    modules: Mapping[str, ModuleType], names: Collection[str], forms: Callable[[object], Forms]
) -> dict[str, dict[str, str]]:
    """Module -> memo -> what it remembers, as text, of the memos that code names. forms: of a module's values."""
    found: dict[str, dict[str, str]] = {}
    for module, live in modules.items():
        for path, memo in _memos(live, names):
            results = _results(memo, forms(live))
            if results:
                found.setdefault(module, {})[path] = " ".join(
                    f"{key}:{value}" for key, value in sorted(results.items())
                )
    return found


def agrees(module: str, path: str, text: str, forms: Callable[[object], Forms]) -> bool:
    """Whether a memo of this process remembers nothing else than ``recorded_contents`` told of it in another."""
    live = sys.modules.get(module)
    memo: object = live
    for name in path.split("."):
        memo = _unwrap(vars(memo).get(name)) if hasattr(memo, "__dict__") else None
    if type(memo) is not _KIND:
        return True  # the module is imported anew, or counts as another
    theirs = dict(each.split(":") for each in text.split())
    return all(theirs.get(key, value) == value for key, value in _results(memo, forms(live)).items())


def _memos(module: ModuleType, names: Collection[str]) -> Iterator[tuple[str, Any]]:
    for name, value in list(vars(module).items()):
        if type(value) is _KIND and name in names:
            yield name, value
        elif issubclass(type(value), type) and module_of(value) == module.__name__:
            for part in names & vars(value).keys():
                memo = _unwrap(vars(value)[part])
                if type(memo) is _KIND:
                    yield f"{name}.{part}", memo


def _unwrap(value: Any) -> Any:
    kind = type(value)
    if kind is property:
        return value.fget
    return value.__func__ if kind in {staticmethod, classmethod} else value


def _results(memo: functools._lru_cache_wrapper[Any], forms: Forms) -> dict[str, str]:
    """Digest of arguments -> digest of the result, of those that have both."""
    count = memo.cache_info().currsize
    if not 0 < count <= _MOST:
        return {}
    # Its C code shows the garbage collector: its type, key and result and maybe a type of each, the dictionary.
    shown = gc.get_referents(memo)
    place = max(number for number, each in enumerate(shown) if type(each) is dict and each is not vars(memo))
    results = shown[place]
    if memo.cache_parameters()["maxsize"] is None:
        pairs = list(results.items())
    else:
        links = [each for each in shown[:place] if each is not type(memo)]
        step = len(links) // count
        pairs = list(zip(links[::step], links[1::step], strict=True))
    found = {forms.digest(key)[:_SHORT]: forms.digest(value)[:_SHORT] for key, value in pairs}
    return {key: value for key, value in found.items() if key and value}
