"""MLIR text without the bytes of its weights: each becomes a reference of the kind that the consumer takes."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import Literal as Choice
from typing import NamedTuple

from cachec.errors import UsageError
from cachec.weights.dtypes import SIZES
from cachec_mlir.blobs import ELIDED, Blob, Resource, Resources, element_type
from cachec_mlir.file_writer import StripResult
from cachec_mlir.module_input import ModuleInput, Source, open_input
from cachec_mlir.text.dense_elements import parse_elements
from cachec_mlir.text.references import reference_text, references
from cachec_mlir.text.regions import Structure, TextPlace
from cachec_mlir.text.scanner import (
    Trailer,
    apply_edits,
    blob_of,
    check_digits,
    find,
    name_of,
    scan,
    unescape,
)
from cachec_mlir.text.skeleton import Skeleton
from cachec_mlir.text.weight_sites import CONSTANT, GLOBAL, MEMREF_GLOBAL, PROGRAM_GLOBAL, Site, sites

#: The form of a weight in a stripped text.
Target = Choice["resource", "parameter", "external", "undefined"]
TARGETS = ("resource", "parameter", "external", "undefined")

#: Bytes from which a constant is a weight: MLIR itself prints fewer elements as numbers.
MINIMUM = 256
#: IREE's scope of parameters that ``cachec_iree`` binds.
SCOPE = "model"

_SYMBOL = re.compile(rb'@([A-Za-z_][A-Za-z0-9_$.\-]*+|"(?:[^"\\\n]++|\\[^\n])*+")')
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_$.]*")
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_$.]")
#: What each kind of reference can stand in.
_FORMS: Mapping[str, frozenset[str]] = {
    "parameter": frozenset({GLOBAL, CONSTANT}),
    "external": frozenset({PROGRAM_GLOBAL}),
    "undefined": frozenset({MEMREF_GLOBAL}),
}


def strip_text(
    source: Source, *, to: Target = "resource", scope: str = SCOPE, minimum: int = MINIMUM, checked: bool = True
) -> StripResult:
    """The module with references in place of its weights, and these where they were. ``to`` says what a reference is:

    - ``resource``: ``dense_resource<NAME>`` without bytes. Weights are all resources of ``builtin``, and constants.
    - ``parameter``: ``#flow.parameter.named<"scope"::"NAME">`` (IREE), the initial value of a ``util.global``. A
      constant of a function (a tensor, in its body itself) becomes a private ``util.global`` and a load of it.
    - ``external``: ``#ml_program.extern``, the value of an ``ml_program.global``.
    - ``undefined``: a ``memref.global`` without initialiser, which is public then: an undefined symbol for the linker.
      One that is not ``constant`` may be written to by the program: map its bytes privately.

    A constant is a weight from ``minimum`` bytes (and 64 characters) on, as hexadecimal digits or as a list of numbers,
    where it is the value of an operation: a constant, a global. What stays in the text, and is in a hash by value:
    smaller constants, splats, packed bits (``i1`` as digits, ``i4``), lists whose bytes are not certain (see
    ``dense_elements``), attributes that are settings, and all for which ``to`` has no reference where they stand.

    Names: of a resource its key, of a global its symbol (always, where the symbol is the reference). A constant in a
    function is ``FUNCTION.TYPE.N``, numbered among those of one function and type, so that changes elsewhere keep its
    name; a name that is taken gets a number too.

    Digits stay in place and are decoded when they are read; lists are converted now, in memory. Raises
    CheckpointError (naming the byte; also for a text that was printed with elided constants, unless ``to`` is
    ``resource``), OSError, UsageError.

    checked: whether digits are checked now; otherwise a read of the weight finds a bad one.

    IREE 3.13 turns f64 into f32 by default, and takes the bytes of an f64 *resource* for floats then, silently; it
    refuses an f64 parameter. Give it ``--iree-input-demote-f64-to-f32=false``.
    """
    if to not in TARGETS:
        raise UsageError(f"strip: to expected one of {', '.join(TARGETS)}, found {to!r}")
    module = open_input(source)
    marks = scan(module, checked=checked)
    stripper = _Stripper(module, marks.trailers, Skeleton(module, marks), to, scope, minimum)
    stripped = stripper.run()
    module.check()
    return stripped


class _WeightSite(NamedTuple):
    """A site that is a weight. given: whether its name was in the module."""

    site: Site
    name: str
    resource: Resource | None
    place: TextPlace


class _Stripper:
    """One text on its way to be stripped."""

    def __init__(
        self,
        module: ModuleInput,
        trailers: tuple[Trailer, ...],
        skeleton: Skeleton,
        to: Target,
        scope: str,
        minimum: int,
    ) -> None:
        self._module = module
        self._trailers = trailers
        self._skeleton = skeleton
        self._to = to
        self._scope = scope
        self._minimum = minimum
        self._edits: list[tuple[int, int, bytes]] = []
        self._blobs = {
            name_of(entry): resource
            for trailer in trailers
            for entry in trailer.entries
            if entry.group == "builtin" and (resource := blob_of(module, entry, name_of(entry))) is not None
        }
        self._taken: set[str] = set(self._blobs)
        self._symbols: set[str] = set()
        self._declared: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._numbers: Counter[str] = Counter()
        self._globals: dict[tuple[str, str, int], bytes] = {}

    def run(self) -> StripResult:
        text = self._skeleton.text
        every = list(sites(text))
        self._taken.update(self._key(site) for site in every if site.literal < 0)
        self._declared.update(self._text(site.symbol) for site in every if site.symbol)
        stripped: set[str] = set()
        if self._to == "parameter":  # of a module that was stripped in part
            stripped.update(each.name for each in references(self._module, text, "parameter", self._scope))
            self._taken |= stripped
        if ELIDED in self._taken and ELIDED not in self._blobs and self._to != "resource":
            at = find(self._module.view(), ELIDED.encode(), 0)
            raise self._module.error(at, "a constant was elided when this was printed, and is lost; print it in full")
        structure = Structure(text) if any(site.form not in _GLOBALS for site in every) else None
        nowhere = TextPlace("", False, 0)
        places = [nowhere if structure is None else structure.place(site.whole[0]) for site in every]
        unreplaced = self._unreplaced(every, places)
        double = stripped.intersection(self._key(site) for site in every if site.literal < 0) - unreplaced
        if double:
            raise UsageError(
                f"strip: the module has a parameter {min(double)!r} of scope {self._scope!r} and a resource of that "
                "name, which would become one weight; say another scope="
            )
        taken_out: dict[str, Resource] = {}
        lifted: list[str] = []
        types: dict[str, set[str]] = {}
        if self._to == "parameter":
            self._symbols.update(self._text(each[1]) for each in _SYMBOL.finditer(text))
        for site, place in zip(every, places, strict=True):
            weight = self._weight(site, place, unreplaced)
            if weight is None:
                continue
            if weight.resource is not None:
                taken_out[weight.name] = weight.resource
                if site.literal >= 0:
                    lifted.append(weight.name)
            types.setdefault(weight.name, set()).add(site.type)
            self._replace(weight)
        if self._to == "resource":
            taken_out = {**self._blobs, **taken_out}
        resources = self._with_types(taken_out, types)
        for trailer, offset in zip(self._trailers, self._skeleton.trailers, strict=True):
            gone = (
                {name for name in self._blobs if name not in unreplaced} if self._to != "resource" else set(self._blobs)
            )
            remaining = _remaining(self._module, trailer, gone)
            if b"\0" in remaining:  # it would be taken for a literal's marker
                raise self._module.error(trailer.start, "text expected, found a NUL in what begins here")
            self._edits.append((offset, offset, remaining))
        ir = self._skeleton.whole(apply_edits(text, self._edits))
        numbers = {name: number for number, name in enumerate(resources)}
        return StripResult(ir, Resources(numbers, list(resources.values()).__getitem__), tuple(lifted))

    # --- what is a weight

    def _unreplaced(self, every: list[Site], places: list[TextPlace]) -> set[str]:
        """Resources that stay as they are: a use of theirs has no reference of this kind, or they have none at all."""
        if self._to == "resource":
            return set()
        used: set[str] = set()
        unreplaced: set[str] = set()
        for site, place in zip(every, places, strict=True):
            if site.literal < 0:
                name = self._key(site)
                used.add(name)
                if not self._fits(site, place):
                    unreplaced.add(name)
        return unreplaced | (set(self._blobs) - used)

    def _fits(self, site: Site, place: TextPlace) -> bool:
        """Whether a reference can stand in place of a value."""
        if self._to == "resource":
            return site.literal < 0 or not site.setting
        if site.form not in _FORMS[self._to] or "," in site.type or not site.type:
            return False
        if site.form == CONSTANT:
            return place.direct and site.type.startswith("tensor") and site.out in {"", site.type}
        return site.form == GLOBAL or self._declared[self._text(site.symbol)] == 1

    def _weight(self, site: Site, place: TextPlace, unreplaced: set[str]) -> _WeightSite | None:
        """The site as a weight, None where it stays as it is."""
        if not self._fits(site, place):
            return None
        if site.literal < 0:
            key = self._key(site)
            if key in unreplaced:
                return None
            blob = self._blobs.get(key)
            name = key if self._to in {"resource", "parameter"} else self._text(site.symbol)
            return _WeightSite(site, name, None if blob is None else blob._replace(name=name, key=name), place)
        constant = self._constant(site)
        if constant is None:
            return None
        alignment, blob_ = constant
        wanted = self._text(site.symbol) if site.symbol else ""
        name = wanted if self._to in {"external", "undefined"} else self._name(wanted, site, place)
        return _WeightSite(site, name, Resource(name, "builtin", name, alignment, blob_, _as_tensor(site.type)), place)

    def _constant(self, site: Site) -> tuple[int, Blob] | None:
        """Alignment and bytes of a literal, None where it stays inline."""
        known = element_type(_as_tensor(site.type))
        literal = self._skeleton.literals[site.literal]
        if known is None and not literal.hexadecimal:
            return None
        what = f"constant at byte {literal.start}"
        nbytes = 0 if known is None else math.prod(known[1]) * SIZES[known[0]]
        if literal.hexadecimal:
            digits = literal.end - literal.start - 4
            if digits < 2 * self._minimum:
                return None
            check_digits(self._module, literal.start, literal.end, what, digits_only=literal.digits_only)
            if known is None or known[0] == "bool" or 2 * nbytes != digits:
                return None  # packed bits, a splat, a type of another dialect: by value
            first = literal.start + 3
            where = f"{self._module.label}: {what}"
            return SIZES[known[0]], Blob(self._module.range(first, digits), hexadecimal=True, where=where)
        assert known is not None
        if nbytes < self._minimum or (known[0] == "bool" and self._to != "parameter"):
            return None
        data = parse_elements(self._module.view(), literal.start, literal.end, *known)
        return None if data is None else (SIZES[known[0]], Blob(memoryview(data), where=self._module.label))

    # --- names

    def _key(self, site: Site) -> str:
        return self._text(site.key)

    def _text(self, raw: bytes) -> str:
        return unescape(self._module, raw, 0)

    def _name(self, wanted: str, site: Site, place: TextPlace) -> str:
        """A name for a constant: of its global, or invented."""
        if not wanted:
            kind = re.sub(r"[^A-Za-z0-9]+", "_", site.type.partition("<")[2].removesuffix(">")).strip("_")
            base = f"{_NOT_PLAIN.sub('_', place.function) or 'module'}.{kind}"
            wanted = f"{base}.{self._counts[base]}"
            self._counts[base] += 1
        return self._free(wanted, self._taken)

    def _free(self, wanted: str, taken: set[str]) -> str:
        """``wanted``, or that with the next number that is free; taken from now on."""
        name = wanted
        while name in taken:
            self._numbers[wanted] += 1
            name = f"{wanted}.{self._numbers[wanted] + 1}"
        taken.add(name)
        return name

    # --- what takes its place

    def _replace(self, weight: _WeightSite) -> None:
        site, name = weight.site, weight.name
        if self._to == "resource":
            if site.literal >= 0:
                self._edits.append((*site.value, reference_text("resource", "", name)))
        elif self._to == "external":
            self._edits.append((*site.value, b"#ml_program.extern"))
        elif self._to == "undefined":
            self._edits.append((*site.whole, b""))
            if site.visibility[1]:
                self._edits.append((*site.visibility, b""))
        elif site.form == GLOBAL:
            self._edits.append((*site.value, reference_text("parameter", self._scope, name)))
        else:
            symbol = self._global(name, site.type, weight.place.insert)
            self._edits.append((*site.whole, b"util.global.load immutable " + symbol + b" : " + site.type.encode()))

    def _global(self, name: str, kind: str, insert: int) -> bytes:
        """Return the symbol of a global for a constant of a function, and make the global if needed."""
        known = self._globals.get((name, kind, insert))
        if known is not None:
            return known
        plain = name if _PLAIN.fullmatch(name) else _NOT_PLAIN.sub("_", f"_{name}")
        symbol = self._free(plain, self._symbols)
        made = (
            f"util.global private @{symbol} = ".encode()
            + reference_text("parameter", self._scope, name)
            + f" : {kind}".encode()
        )
        in_module = self._skeleton.text[insert - 1 : insert] == b"{"
        self._edits.append((insert, insert, b"\n  " + made if in_module else made + b"\n"))
        self._globals[name, kind, insert] = b"@" + symbol.encode()
        return b"@" + symbol.encode()

    def _with_types(self, resources: Mapping[str, Resource], types: Mapping[str, set[str]]) -> dict[str, Resource]:
        """The resources with the types that they are used with; none for one that is used with several."""
        out: dict[str, Resource] = {}
        for name, resource in resources.items():
            kinds = types.get(name, set())
            only = _as_tensor(next(iter(kinds))) if len(kinds) == 1 else ""
            out[name] = resource._replace(type=only or None)
            out[name].spec()
        return out


_GLOBALS = frozenset({GLOBAL, PROGRAM_GLOBAL, MEMREF_GLOBAL})


def _as_tensor(kind: str) -> str:
    """Return the tensor type of a memref's initial value; a memref with a layout or a memory space has none."""
    if not kind.startswith("memref"):
        return kind
    return "" if "," in kind else "tensor" + kind.removeprefix("memref")


def _remaining(module: ModuleInput, trailer: Trailer, gone: set[str]) -> bytes:
    """The trailer without builtin's blobs of these names; empty, if nothing is left, as it is, if none was there."""
    text = module.view()
    unreplaced: dict[bytes, dict[bytes, list[bytes]]] = {}
    count = 0
    for entry in trailer.entries:
        if entry.section == "dialect_resources" and entry.group == "builtin" and name_of(entry) in gone:
            count += 1
            continue
        item = entry.raw_key + b": " + bytes(text[entry.start : entry.end])
        unreplaced.setdefault(entry.raw_section, {}).setdefault(entry.raw_group, []).append(item)
    if not count:
        return bytes(text[trailer.start : trailer.end])
    if not unreplaced:
        return b""
    sections = [
        _dictionary(section, [_dictionary(group, items, b"    ") for group, items in groups.items()], b"  ")
        for section, groups in unreplaced.items()
    ]
    return b"{-#\n  " + b",\n  ".join(sections) + b"\n#-}"


def _dictionary(key: bytes, items: list[bytes], indent: bytes) -> bytes:
    inner = b"\n  " + indent
    return key + b": {" + inner + (b"," + inner).join(items) + b"\n" + indent + b"}"
