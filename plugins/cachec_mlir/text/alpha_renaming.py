"""Weights of a stripped text under names that say nothing but the order of use: equal layers are equal programs.

The text itself is rewritten, so what a compiler gets is what its key says; nothing is only left out of a hash.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from cachec.errors import UsageError
from cachec.weights.manifest import Manifest
from cachec_mlir.module_input import open_input
from cachec_mlir.text.references import reference_text, references
from cachec_mlir.text.scanner import NAME, STRING, apply_edits, key_literal, quote, unescape

#: What a weight is called, with its number behind it: legal as a key, a symbol and a parameter.
PREFIX = "alpha."

# A private global that is one whole line, in IREE's, ml_program's and memref's notation and in the generic one.
_GLOBAL = re.compile(
    rb"^[ \t]*+(?:(?:util\.global[ ]private|ml_program\.global[ ]private|memref\.global[ ]\"private\")(?:[ ][a-z]++)*+"
    rb"[ ]@(?P<symbol>" + NAME + rb")(?:[ ](?::[ ][^\n\"={}]++[ ])?=[ ]|\()[^\n]*+"
    rb"|\"(?:util|ml_program|memref)\.global\"\(\)[ ]<?\{(?=[^\n]*sym_visibility = \"private\")[^\n]*?"
    rb"sym_name = (?P<quoted>" + STRING + rb")[^\n]*+)$",
    re.MULTILINE,
)
_SYMBOL = re.compile(rb"//[^\n]*+|@(?P<name>" + NAME + rb")(?P<call>[ \t]*+\()?|" + STRING)
# A load of a global that is one whole line: it reads, and nothing else.
_LOAD = re.compile(
    rb"^[ \t]*+(?P<value>%[A-Za-z0-9_$.\-]++)[ ]=[ ]\"?(?:util\.global\.load|ml_program\.global_load(?:_const)?|"
    rb"memref\.get_global)\b[^\n@\"]*+(?:\"[^\n@\"]*+)?@(?P<symbol>" + NAME + rb")[^\n]*+$",
    re.MULTILINE,
)
_CONTINUED = re.compile(rb"\s*+[:={,]")


class Alpha(NamedTuple):
    """A text with renamed weights. names: new name -> old name."""

    ir: bytes
    names: dict[str, str]


def alpha(ir: bytes, *, to: str, scope: str, taken: Iterable[str] = ()) -> Alpha:
    """Weights as ``alpha.0``, ``alpha.1``, ... in the order of their first use; private globals that hold one likewise.
    Where several are declared, or loaded, in a row, they are in that order afterwards.

    to, scope: as of ``strip_text``. taken: names of weights that ``ir`` may not use, which stay theirs.

    A global's first use is that of its symbol; where that is a load, the first use of what is loaded. A symbol that is
    defined twice, called, or seen from outside the module keeps its name. Raises UsageError for references that are
    symbols themselves.
    """
    if to not in {"resource", "parameter"}:
        raise UsageError(f"symbols='alpha': references of to={to!r} are symbols of the linker, and keep their names")
    module = open_input(ir)
    used = references(module, ir, to, scope)
    globals_ = _globals(ir)
    uses = _uses(ir, globals_)
    order: dict[str, int] = {}
    symbols: dict[bytes, str] = {}
    for each in used:
        line = next((g for g in globals_ if g.start <= each.start < g.end), None)
        place = each.start
        if line is not None and line.symbol in uses:
            symbols.setdefault(line.symbol, each.name)
            place = uses[line.symbol]
        order[each.name] = min(order.get(each.name, place), place)
    prefix, others = PREFIX, tuple(taken)
    while prefix.encode() in ir or any(name.startswith(prefix) for name in others):
        prefix = prefix.replace(".", "_.")
    new = {old: f"{prefix}{number}" for number, old in enumerate(sorted(order, key=lambda name: (order[name], name)))}
    edits = [(each.start, each.end, reference_text(to, scope, new[each.name])) for each in used]
    edits += _symbol_edits(ir, {symbol: new[name] for symbol, name in symbols.items()}, globals_)
    return Alpha(_in_order(apply_edits(ir, edits), prefix), {each: old for old, each in new.items()})


def alpha_manifest(manifest: Manifest, names: Mapping[str, str]) -> Manifest:
    """The manifest under the new names, which says what the caller calls them. names: new name -> old.

    Weights that the IR does not use keep theirs. Ties follow.
    """
    new = {old: name for name, old in names.items()}
    renamed = {old: new.get(old, old) for old in manifest.weights}
    tied: dict[str, str] = {}
    for old, spec in manifest.weights.items():
        if spec.alias is not None:
            tied[spec.alias] = min(renamed[old], tied.get(spec.alias, renamed[old]))
    specs = {
        renamed[old]: msgspec.structs.replace(
            spec, name=renamed[old], alias=None if spec.alias is None else tied[spec.alias]
        )
        for old, spec in manifest.weights.items()
    }
    return Manifest.of(specs).with_callers(names).folding(manifest.folded)


class _Global(NamedTuple):
    start: int
    end: int
    symbol: bytes
    quoted: tuple[int, int] | None


def _globals(ir: bytes) -> list[_Global]:
    lines = []
    for each in _GLOBAL.finditer(ir):
        name = each["symbol"] or each["quoted"]
        if not _CONTINUED.match(ir, each.end()):
            lines.append(
                _Global(each.start(), each.end(), _plain(name), each.span("quoted") if each["quoted"] else None)
            )
    return lines


def _plain(name: bytes) -> bytes:
    """One spelling of a symbol: ``@"w"`` is ``@w``."""
    return unescape(open_input(name), name, 0).encode()


def _uses(ir: bytes, globals_: list[_Global]) -> dict[bytes, int]:
    """Where each global's symbol is first used; without those that must keep their names."""
    declared: dict[bytes, int] = {}
    for each in globals_:
        declared[each.symbol] = declared.get(each.symbol, 0) + 1
    first: dict[bytes, int] = {}
    fixed_names = {name for name, count in declared.items() if count > 1}
    starts = sorted((each.start, each.end) for each in globals_)
    loaded = _load_uses(ir)
    for name, start, is_call in _symbols(ir):
        if name not in declared:
            continue
        if is_call or ir[start - 2 : start] == b"::" or ir.count(b"sym_name = " + quote(name.decode()).encode()) > 1:
            fixed_names.add(name)
        if not any(begin <= start < end for begin, end in starts):
            first.setdefault(name, loaded.get(start, start))
    return {name: first.get(name, len(ir)) for name in declared if name not in fixed_names}


def _load_uses(ir: bytes) -> dict[int, int]:
    """Return offset of a symbol in a load -> offset of the first use of the loaded value."""
    places = {}
    for load in _LOAD.finditer(ir):
        use = re.compile(re.escape(load["value"]) + rb"(?![A-Za-z0-9_$.\-])").search(ir, load.end())
        places[load.start("symbol") - 1] = use.start() if use is not None else len(ir)
    return places


def _symbols(ir: bytes) -> Iterator[tuple[bytes, int, bool]]:
    for match in _SYMBOL.finditer(ir):
        if match["name"] is not None:
            yield _plain(match["name"]), match.start(), match["call"] is not None


def _symbol_edits(ir: bytes, new: dict[bytes, str], globals_: list[_Global]) -> Iterator[tuple[int, int, bytes]]:
    for match in _SYMBOL.finditer(ir):
        if match["name"] is not None and (name := new.get(_plain(match["name"]))) is not None:
            yield *match.span("name"), key_literal(name).encode()
    for each in globals_:
        if each.quoted is not None and each.symbol in new:
            yield *each.quoted, quote(new[each.symbol]).encode()


def _in_order(ir: bytes, prefix: str) -> bytes:
    """Globals of renamed weights that stand in a row, and loads of them, by number: their order means nothing."""
    number = re.compile(re.escape(prefix.encode()) + rb"([0-9]+)")
    globals_ = [(each.start, each.end) for each in _globals(ir)]
    loads = [load.span() for load in _LOAD.finditer(ir) if not _CONTINUED.match(ir, load.end())]
    for spans in (globals_, loads):
        ir = _sorted_rows(ir, [span for span in spans if number.search(ir, *span)], number)
    return ir


def _sorted_rows(ir: bytes, spans: list[tuple[int, int]], number: re.Pattern[bytes]) -> bytes:
    lines = {start: ir[start:end] for start, end in spans}
    rows: list[list[int]] = []
    for start in lines:
        if rows and rows[-1][-1] + len(lines[rows[-1][-1]]) + 1 == start:
            rows[-1].append(start)
        else:
            rows.append([start])
    edits = []
    for row in rows:
        ordered = sorted((lines[start] for start in row), key=lambda line: int(number.search(line)[1]))  # type: ignore[index]
        start, end = row[0], row[-1] + len(lines[row[-1]])
        edits.append((start, end, b"\n".join(ordered)))
    return apply_edits(ir, edits)
