"""Registries of the standard library that its functions fill: an entry of the program replaces files and code."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from types import BuiltinFunctionType, FunctionType
from typing import Any, NamedTuple

from cachec.base.display_text import module_of
from cachec.base.hashing import digest_bytes
from cachec.base.instances import attribute, is_instance

#: Deeper than this, a value of a table counts by its type alone.
_DEPTH = 6


class _RegistrySpec(NamedTuple):
    """Names of tables in a module, and names by which code asks for what is in them, beside that of the module."""

    tables: tuple[str, ...]
    names: frozenset[str] = frozenset()


_ALIASES = "encodings.aliases"
#: By module.
_TABLES: Mapping[str, _RegistrySpec] = {
    "mimetypes": _RegistrySpec(("types_map", "common_types", "encodings_map", "suffix_map"), frozenset({"urlopen"})),
    _ALIASES: _RegistrySpec(("aliases",), frozenset({"encode", "decode", "codecs", "encodings", "open", "str"})),
    "gettext": _RegistrySpec(("_translations", "_localedirs", "_current_domain")),
    "email.charset": _RegistrySpec(
        ("CHARSETS", "ALIASES", "CODEC_MAP"), frozenset({"email", "MIMEText", "EmailMessage"})
    ),
    "locale": _RegistrySpec(("locale_alias", "locale_encoding_alias")),
    "shutil": _RegistrySpec(("_ARCHIVE_FORMATS", "_UNPACK_FORMATS")),
    "sqlite3": _RegistrySpec(("adapters", "converters")),
    "xml.etree.ElementTree": _RegistrySpec(("_namespace_map",), frozenset({"xml", "ElementTree", "tostring"})),
}
_STATE = "tables of "
#: The states that stand for them.
TABLES = tuple(f"{_STATE}{module}" for module in _TABLES)


#: The states that code with a name may ask for.
_ASKED: dict[str, list[str]] = {}
for _module, (_, _names) in _TABLES.items():
    for _name in (_module, *_names):
        _ASKED.setdefault(_name, []).append(f"{_STATE}{_module}")


def tables_asked(names: Iterable[str]) -> Iterator[str]:
    """The states of tables that code with these names may have asked for."""
    for name in names:
        yield from _ASKED.get(name, ())


def tables_of(state: str) -> list[Any]:
    """What is in the tables of a state now, as copies; nothing for other states, and of what is not imported."""
    module = state.removeprefix(_STATE)
    if module not in _TABLES or module not in sys.modules:
        return []
    tables = [vars(sys.modules[module]).get(name) for name in _TABLES[module].tables]
    if module == _ALIASES:
        return [_set(tables[0], _aliases())]  # each Python has its own: what the program set counts
    return [dict(each) if type(each) is dict else each for each in tables]


def _set(table: Any, own: dict[str, str]) -> dict[Any, Any]:
    """What differs in a table from what Python has in it; None for what is gone."""
    if table == own:
        return {}
    return {name: table.get(name) for name in {*table, *own} if table.get(name) != own.get(name)}


@cache
def _aliases() -> dict[str, str]:
    """The table as its module makes it: that holds nothing else."""
    namespace: dict[str, Any] = {}
    spec = sys.modules[_ALIASES].__spec__
    exec(spec.loader.get_code(_ALIASES), namespace)  # type: ignore[union-attr]
    aliases: dict[str, str] = namespace["aliases"]
    return aliases


def tables_text(tables: list[Any]) -> str:
    """What stands for tables; empty for none."""
    return repr([_text(each, _DEPTH) for each in tables]) if tables else ""


def _text(value: Any, depth: int) -> Any:
    """What stands for a value: libraries fill such tables as they are imported, so their functions don't count."""
    again = depth - 1
    if type(value) is dict and {*map(type, value), *map(type, value.values())} == {str}:
        return _digest(tuple(value), tuple(value.values()))
    if type(value) is dict and depth:
        items = [(_text(key, again), _text(each, again)) for key, each in value.items() if not _is_library(each)]
        return sorted(items, key=repr)
    if type(value) in (list, tuple) and depth:
        return [_text(each, again) for each in value]
    if type(value) in (str, bytes, int, float, bool, type(None)):
        return value
    kind = type(value)
    if issubclass(kind, FunctionType | BuiltinFunctionType | type):
        name = f"{module_of(value)}.{value.__qualname__}"
        code = None if _is_library(value) else attribute(value, "__code__")
        return name if code is None else (name, _text(code.co_consts, again), code.co_code, code.co_names)
    return f"{module_of(kind)}.{kind.__qualname__}", _text(attribute(value, "__dict__") if depth else None, again)


@lru_cache(maxsize=32)
def _digest(keys: tuple[str, ...], values: tuple[str, ...]) -> str:
    """What stands for a large table of texts: each hit asks again."""
    return digest_bytes(repr(sorted(zip(keys, values, strict=True))).encode("utf-8", "surrogatepass"))


def _is_library(value: object) -> bool:
    """Whether this is a function or class of an installed package or of Python, or a compiled one."""
    if is_instance(value, FunctionType):
        file = value.__code__.co_filename
        return "-packages/" in file or file.startswith((sys.base_prefix, "<frozen"))
    return is_instance(value, BuiltinFunctionType) or (is_instance(value, type) and not value.__flags__ & 1 << 9)
