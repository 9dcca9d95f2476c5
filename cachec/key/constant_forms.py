"""The canonical bytes of code objects and of many plain values, for which ``canonical_forms`` needs no walk.

Of code, file names, line numbers and docstrings don't count. Bytecode is compared, not text: a function may have been
made by ``exec``, or its file edited after the import. So forms are only equal between processes of one Python version.
"""

from __future__ import annotations

import dis
import io
import pickle
from collections.abc import Iterator, Sequence
from types import CodeType
from typing import Final
from weakref import WeakKeyDictionary

from cachec.base.hashing import digest_bytes
from cachec.key.option_encoding import SCALARS, encode

#: ``CO_HAS_DOCSTRING`` of Python 3.13 (Include/cpython/code.h).
_HAS_DOCSTRING: Final = 0x4000000

#: What the body of a class statement stores of its text: no constant that is stored under these names counts.
_OF_TEXT: Final = frozenset({"__doc__", "__firstlineno__", "__static_attributes__"})

_STORE_NAME: Final = dis.opmap["STORE_NAME"]
_EXTENDED: Final = dis.opmap["EXTENDED_ARG"]
_LOAD_CONST: Final = dis.opmap["LOAD_CONST"]
_CONSTANTS: Final = frozenset(dis.hasconst)

#: What loads a number below 256 on Python 3.14; None on older ones.
_SMALL_INT: Final = dis.opmap.get("LOAD_SMALL_INT")

#: Code object -> its form; a code object never changes.
_known: WeakKeyDictionary[CodeType, bytes] = WeakKeyDictionary()


def code_form(code: CodeType) -> bytes:
    """The form of a code object and of those in it."""
    known = _known.get(code)
    if known is not None:
        return known
    instructions, constants = bytearray(code.co_code), []
    for offset, number in _loaded_constants(code):
        # The number of a constant depends on whether there is a docstring, so the constants themselves take its place.
        if instructions[offset] == _SMALL_INT:
            instructions[offset] = _LOAD_CONST  # as of line 256
        instructions[offset + 1] = 0
        constant = None if _is_of_text(code, offset + 2) else code.co_consts[number]
        constants.append(code_form(constant) if type(constant) is CodeType else encode(constant, _nothing))
    signature = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & ~_HAS_DOCSTRING)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_qualname)
    head = encode((signature, names, bytes(instructions), code.co_exceptiontable), _nothing)
    _known[code] = form = b"".join((b"k", len(constants).to_bytes(4, "little"), head, *constants))
    return form


def _loaded_constants(code: CodeType) -> Iterator[tuple[int, int]]:
    """Where an instruction loads a constant, or a number that only tells of the text: its offset, and its argument."""
    raw, argument = code.co_code, 0
    for offset in range(0, len(raw), 2):
        operation = raw[offset]
        argument = argument << 8 | raw[offset + 1]
        if operation == _EXTENDED:
            continue
        if operation in _CONSTANTS or (operation == _SMALL_INT and _is_of_text(code, offset + 2)):
            yield offset, argument
        argument = 0


def _is_of_text(code: CodeType, offset: int) -> bool:
    """Whether the instruction there stores what only tells of the text."""
    raw = code.co_code
    return offset < len(raw) and raw[offset] == _STORE_NAME and code.co_names[raw[offset + 1]] in _OF_TEXT


def _nothing(_value: object, _path: str) -> None:
    """``canonical.encode`` asks nothing else about constants."""


#: So many values are worth a look at their types.
_MANY: Final = 64


def scalars_form(values: Sequence[object]) -> bytes | None:
    """The form of many exact plain scalars together; None where they are few, or others are among them.

    A pickle without memo says the same of the same values in every process, and is written by compiled code.
    """
    if len(values) < _MANY or not SCALARS.keys() >= set(map(type, values)):
        return None
    file = io.BytesIO()
    pickler = pickle.Pickler(file, protocol=4)
    pickler.fast = True
    pickler.dump(list(values))
    return b"p" + bytes.fromhex(digest_bytes(file.getbuffer()))
