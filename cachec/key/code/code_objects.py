"""Compares code objects: whether two were compiled from the same program, and the digest of one without source.

Positions and line tables are looked at where that is said, file names never. Fields are those of the documentation of
``types.CodeType``.
"""

from __future__ import annotations

import sys
from types import CodeType

from cachec.base.hashing import Hasher
from cachec.key.code.scopes import Chain, ImportUse, Uses

_NAMES = ("co_names", "co_varnames", "co_freevars", "co_cellvars")
_NUMBERS = ("co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_flags")


def same_code(one: CodeType, other: CodeType) -> bool:
    """Whether two code objects of this Python run the same instructions on the same constants and names."""
    if one is other:
        return True
    return (
        one.co_code == other.co_code
        and one.co_name == other.co_name
        and one.co_exceptiontable == other.co_exceptiontable
        and all(getattr(one, name) == getattr(other, name) for name in (*_NAMES, *_NUMBERS))
        and _same_constant(one.co_consts, other.co_consts)
    )


def _same_constant(one: object, other: object) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, CodeType) and isinstance(other, CodeType):
        return same_code(one, other)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_same_constant, one, other))
    if isinstance(one, frozenset) and isinstance(other, frozenset):
        return sorted(map(_constant_text, one)) == sorted(map(_constant_text, other))
    return _constant_text(one) == _constant_text(other)


def _constant_text(value: object) -> str:
    """Tells 1, 1.0, True, -0.0 and NaN apart. The constants that a code object may hold have exact ``repr``s."""
    if isinstance(value, int):
        return f"{type(value).__name__} {value:x}"
    if isinstance(value, frozenset):
        return f"frozenset {sorted(map(_constant_text, value))}"
    if isinstance(value, tuple):
        return f"tuple {list(map(_constant_text, value))}"
    return f"{type(value).__name__} {value!r}"


def code_digest(code: CodeType) -> str:
    """The digest of a code object without positions: for this version of Python only, as bytecode is."""
    hasher = Hasher("code object")
    _feed(hasher, code)
    return hasher.digest()


def placed_digest(code: CodeType) -> bytes:
    """The digest (32 bytes) of a code object with its qualified name and the places of its own instructions."""
    hasher = Hasher("placed code object")
    hasher.part("qualname", code.co_qualname.encode())
    hasher.part("line", str(code.co_firstlineno).encode())
    hasher.part("places", code.co_linetable)
    _feed(hasher, code)
    return bytes.fromhex(hasher.digest())


def _feed(hasher: Hasher, code: CodeType) -> None:
    hasher.part("python", str(sys.implementation.cache_tag).encode())
    hasher.part("name", code.co_name.encode())
    hasher.part("code", code.co_code)
    hasher.part("exceptions", code.co_exceptiontable)
    for name in _NAMES:
        hasher.part(name, "\0".join(getattr(code, name)).encode())
    for name in _NUMBERS:
        hasher.part(name, str(getattr(code, name)).encode())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _feed(hasher, constant)
        else:
            hasher.part("constant", _constant_text(constant).encode("utf-8", "surrogatepass"))
    hasher.part("end", b"")


def nested_code(code: CodeType) -> list[CodeType]:
    """This code object and every one inside it, outermost first."""
    found = [code]
    for one in found:
        found.extend(constant for constant in one.co_consts if isinstance(constant, CodeType))
    return found


def code_words(code: CodeType) -> set[str]:
    """The names and texts in a code object and those inside it."""
    texts = {each for one in nested_code(code) for each in one.co_consts if isinstance(each, str)}
    return texts | {name for one in nested_code(code) for name in one.co_names}


def code_uses(code: CodeType) -> Uses:
    """What a code object takes from outside, read from its instructions: the fallback where there is no syntax.

    Attributes of names that an import inside the code binds are not told apart: the whole module counts as used.
    """
    import dis  # 2 ms, and needed only here

    refs: dict[Chain, None] = {}
    imports: dict[ImportUse, None] = {}
    computed: list[str] = []
    own = set(code.co_varnames) | set(code.co_cellvars)
    for one in nested_code(code):
        chain: Chain = ()
        constants: list[object] = []
        module: tuple[str, int] = ("", 0)
        for step in dis.get_instructions(one):
            name = step.opname
            if name in ("LOAD_ATTR", "LOAD_METHOD") and chain:
                chain = (*chain, str(step.argval))
                continue
            if chain:
                refs[chain] = None
                chain = ()
            if name in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"):
                if name.startswith(("LOAD_GLOBAL", "LOAD_NAME")) or (one is code and step.argval in code.co_freevars):
                    chain = (str(step.argval),)
                elif step.argval not in own:
                    chain = (str(step.argval),) if step.argval in code.co_freevars else ()
                if step.argval in ("__import__", "import_module"):
                    computed.append("imports a module by a name that only its bytecode knows")
            elif name == "LOAD_CONST":
                constants.append(step.argval)
            elif name == "IMPORT_NAME":
                level = constants[-2] if len(constants) > 1 else 0
                module = (str(step.argval), level if isinstance(level, int) else 0)
                if not constants[-1]:
                    imports[ImportUse(*module, "", (), False)] = None
            elif name == "IMPORT_FROM":
                imports[ImportUse(*module, str(step.argval), (), False)] = None
        if chain:
            refs[chain] = None
    return Uses(tuple(refs), tuple(imports), tuple(computed))
