"""Words in a source that make a result depend on more than the files that are named, however they are spelt.

``__TIME__`` can be written over two lines, with a trigraph, or be pasted by ``##``; a string that the assembler gets
may hold ``\\x2eincbin``, be put together of several, or of macros. Where a spelling can't be followed, the pieces that
it would take are looked for: a text that has them is refused, though it may mean something else.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from cachec.launcher.command import Command

#: A line that goes on in the next one; ``??/`` is a trigraph for the backslash.
_SPLICE = re.compile(rb"(?:\\|\?\?/)[ \t\v\f]*\r?\n")

#: Escapes of C strings, and those of LLVM's and MLIR's (two digits).
_C_ESCAPE = re.compile(
    rb"\\(?:x([0-9A-Fa-f]+)|([0-7]{1,3})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|[uxo]\{([0-9A-Fa-f]+)\})"
)
_LLVM_ESCAPE = re.compile(rb"\\([0-9A-Fa-f]{2})")

#: Between two string literals that are one, or two tokens that are pasted (``%:%:`` and ``??=??=`` are ``##`` too).
_JOINT = re.compile(rb"\"\s*(?:L|u8|u|U)?\"|\s*(?:##|%:%:|\?\?=\?\?=)\s*")
_PASTE = re.compile(rb"##|%:%:|\?\?=\?\?=")

#: Comments and literals, in which no token is; and tokens.
_NO_TOKENS = re.compile(
    rb"//[^\n]*|/\*.*?\*/|R\"([^\s()\\]{0,16})\(.*?\)\1\"|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'", re.DOTALL
)
_TOKEN = re.compile(rb"[A-Za-z_$][\w$]*")

#: A directive of the preprocessor, with what may stand in it.
_HASH = rb"(?:#|%:|\?\?=)[ \t\v\f]*"

#: The template of an ``asm`` that is not of strings alone.
_ASM_OF_MACROS = re.compile(
    rb"\b(?:asm|__asm|__asm__)\b\s*(?:(?:volatile|__volatile__|__volatile|goto|inline|__inline__|__inline)\b\s*)*"
    rb"\(\s*(?:(?:L|u8|u|U)?\"(?:[^\"\\]|\\.)*\"\s*)*(?!(?:L|u8|u|U)?\")[A-Za-z_]"
)


#: The beginning of a file of LLVM's bitcode.
_BITCODE = b"BC\xc0\xde"

#: A directive in any case, as assemblers take it; and what makes new ones of its parameters.
_ANY_CASE = rb"(?i:%b)\s*(?:\\+\w+\s*)*[\"\\]"
_ASM_MACROS = re.compile(rb"\.(?:macro|irpc?|altmacro)\b", re.IGNORECASE)
_ASM_TOKEN = re.compile(rb"\.?[a-z_]\w*|\.")
_ONE_BY_ONE = b".irpc"
_LINE_ESCAPE = re.compile(rb"\\([nrt\\\"])")


#: What a compiler prints that takes the time from SOURCE_DATE_EPOCH=0. (clang 14 does not, and clang 16 does.)
_AT_ZERO = {
    "__TIME__": b'"00:00:00"',
    "__DATE__": b'"Jan  1 1970"',
    "__TIMESTAMP__": b'"Thu Jan  1 00:00:00 1970"',
}
_EPOCH = "SOURCE_DATE_EPOCH"

#: What is followed where it stands as it is (``headers``).
_ASKS = {"__has_include": "asks for a file"}


class VolatileWords:
    """The words of an adapter, for one command. environ: of the command."""

    def __init__(self, command: Command, environ: Mapping[str, str]) -> None:
        self._command = command
        self._environ = environ
        adapter = command.adapter
        self._words = {} if adapter is None else adapter.volatile
        self._unless_set = {} if adapter is None else adapter.unless_set
        self._spelling = "" if adapter is None else adapter.spelling
        language = next((piece.text or "" for piece in command.pieces if piece.means == "language"), "")
        self._assembles = language.startswith("assembler") or any(
            each.main and each.path.endswith((".s", ".S")) for each in command.inputs
        )

    def in_file(self, path: str, *, is_system: bool = False) -> str:
        """What a file says, and what that means; empty for nothing. is_system: it is not written to hide a word."""
        spelling = "llvm" if path.endswith((".ll", ".bc")) else "assembly" if self._assembles else self._spelling
        spelling = spelling if self._spelling and not is_system else ""
        return self._first(lambda words: volatile_word(path, words, spelling))

    def in_text(self, text: str) -> str:
        """The same for a definition on the command line."""
        return self._first(lambda words: _said(text.encode(), words | _ASKS if self._spelling == "c" else words))

    def pasted(self, texts: Sequence[bytes], own: Sequence[bytes]) -> str:
        """The same for what all texts of one compilation can be made into. own: those that are not the system's."""
        if self._spelling != "c":
            return ""
        is_assembly = self._assembles or any(map(_ASM_OF_MACROS.search, own))
        directives = self._first(lambda words: pasted_word(own, _directives(words))) if is_assembly else ""
        return directives or self._first(lambda words: pasted_word(texts, words | _ASKS))

    def _first(self, find: Callable[[dict[str, str]], Said]) -> str:
        words = dict(self._words)
        while (said := find(words)) is not None:
            word, why = said
            if not self._is_fixed(word):
                return why
            del words[word]
        return ""

    def _is_fixed(self, word: str) -> bool:
        """Whether a variable makes the word harmless."""
        variable = self._unless_set.get(word, "")
        return bool(self._environ.get(variable)) and (variable != _EPOCH or self._honours_epoch(word))

    def _honours_epoch(self, word: str) -> bool:
        """Ask the compiler: what it prints for the word with SOURCE_DATE_EPOCH=0."""
        import tempfile

        from cachec.commands.process import run_process

        command = self._command
        with tempfile.NamedTemporaryFile(suffix=".c") as file:
            file.write(word.encode() + b"\n")
            file.flush()
            line = [command.argv[0], "-E", "-P", "-x", "c", file.name]
            environ = {**self._environ, _EPOCH: "0"}
            ended = run_process(line, command.program, environ=environ, cwd=command.cwd, timeout=60)
        return ended.returncode == 0 and ended.stdout.strip() == _AT_ZERO.get(word)


Said = tuple[str, str] | None


def volatile_word(path: str, words: Mapping[str, str], spelling: str = "") -> Said:
    """Which of the words (word -> what it means) is in a file, or may be, and how to say so; None for none.

    spelling: ``c``, ``assembly`` or ``llvm``, how else a word may be written there; empty: not at all. Raises OSError.
    """
    if not words or not os.path.getsize(path):
        return None
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for word, why in words.items():
            if data.find(word.encode()) >= 0:
                return word, f"says {word.strip()!r}: {why}"
        if spelling == "llvm" and data[: len(_BITCODE)] != _BITCODE and data.find(b"asm") < 0:
            return None
        return _spelt(bytes(data), words, spelling) if spelling else None


def pasted_word(texts: Iterable[bytes], words: Mapping[str, str]) -> Said:
    """Which word can be pasted of the tokens in all that is compiled together; None for none."""
    whole = [spliced(text) for text in texts]
    if not any(_PASTE.search(text) for text in whole):
        return None
    names = {word.encode(): why for word, why in words.items() if word.isidentifier()}
    parts = _parts(names)
    # First with what comments and strings hold: to leave them out takes longer than all the rest. Without them a text
    # has no token that it had not, unless it is cut at a raw string, whose prefix looks like the end of one.
    found = [parts.intersection(_TOKEN.findall(text)) for text in whole]
    if any(_are_made_of(names, found)):
        likely = (text for text, pieces in zip(whole, found, strict=True) if pieces or b'R"' in text)
        for name in _are_made_of(names, [parts.intersection(_TOKEN.findall(_NO_TOKENS.sub(b" ", t))) for t in likely]):
            return name.decode(), f"can paste {name.decode()!r} of pieces: {names[name]}"
    return None


def _parts(names: Collection[bytes]) -> set[bytes]:
    """What the names can be put together of."""
    return {name[i:j] for name in names for i in range(len(name)) for j in range(i + 1, len(name) + 1)} - {*names}


def _are_made_of(names: Collection[bytes], found: Iterable[Collection[bytes]]) -> Iterator[bytes]:
    """The names that can be tokens one behind the other, more than one. found: those of their parts that are tokens."""
    pieces = {piece for some in found for piece in some}
    for name in names:
        ends = {0}
        for end in range(1, len(name) + 1):
            if any(name[start:end] in pieces for start in ends):
                ends.add(end)
        if len(name) in ends:
            yield name


def spliced(data: bytes) -> bytes:
    """A text with its lines as the preprocessor has them: one goes on in the next behind a backslash."""
    if any(odd in data for odd in (b"\\ ", b"\\\t", b"\\\r", b"\\\v", b"\\\f", b"??/")):
        return _SPLICE.sub(b"", data)
    return data.replace(b"\\\n", b"")


def _spelt(data: bytes, words: Mapping[str, str], spelling: str) -> Said:
    """See ``volatile_word``: what is not there as it stands."""
    if spelling == "llvm":
        if data.startswith(_BITCODE):
            return _in_bitcode(data, words)
        text = _LLVM_ESCAPE.sub(lambda match: bytes.fromhex(match[1].decode()), data)
        return _said(text, words) or _in_any_case(text, words) or _of_assembler_macros(text, words)
    text = spliced(data)
    said = _said(text, words) if len(text) != len(data) else None
    if spelling == "assembly":
        directives = {word: why for word, why in words.items() if word.startswith(".")}
        said = said or _said(text.lower(), directives) or _of_assembler_macros(text, words)
    for word, why in words.items():
        name = re.escape(word[1:].encode())
        if word.startswith("#") and name in text and re.search(_HASH + name + rb"\b", text):
            said = said or (word, f"says {word!r}: {why}")
    said = said or _in_any_case(text, words)
    if said or (b"asm" not in text and not _ASM_MACROS.search(text)):
        return said
    plain = _JOINT.sub(b"", _C_ESCAPE.sub(_decoded, text))
    lines = _LINE_ESCAPE.sub(lambda match: b"\n" if match[1] in b"nrt" else match[1], plain)
    said = _said(plain, words) or _in_any_case(plain, words)
    return said or _of_assembler_macros(lines, words) or _of_c_macros(text, words)


def _said(text: bytes, words: Mapping[str, str]) -> Said:
    for word, why in words.items():
        if word.encode() in text:
            return word, f"says {word.strip()!r}: {why}"
    return None


def _in_bitcode(data: bytes, words: Mapping[str, str]) -> Said:
    """In LLVM's bitcode, where a character of assembly takes two groups of six bits, at any bit."""
    for word, why in words.items():
        for text in (word.encode(), word.upper().encode(), b".macro", b".irp", b".altmacro"):
            bits = sum(((char & 31) | 32 | char >> 5 << 6) << 12 * at for at, char in enumerate(text))
            for shift in range(8):
                whole = (bits << shift).to_bytes(len(text) * 12 // 8 + 2, "little")
                if whole[1 : (len(text) * 12 + shift) // 8] in data:
                    return word, f"has an assembler's {text.decode()!r}: {why}"
    return None


def _directives(words: Mapping[str, str]) -> dict[str, str]:
    return {word[1:]: why for word, why in words.items() if word.startswith(".")}


def _in_any_case(text: bytes, words: Mapping[str, str]) -> Said:
    for name, why in _directives(words).items():
        if re.search(_ANY_CASE % re.escape(b"." + name.encode()), text):
            return f".{name}", f"says '.{name}' in some case: {why}"
    return None


def _of_assembler_macros(text: bytes, words: Mapping[str, str]) -> Said:
    """``.\\a\\b`` in a ``.macro``, and ``\\a\\b`` of ``.inc`` and ``bin``."""
    if not _ASM_MACROS.search(text):
        return None
    low = text.lower()
    names = {f".{name}".encode(): why for name, why in _directives(words).items()}
    if _ONE_BY_ONE in low:
        made: Iterable[bytes] = names
    else:
        made = _are_made_of(names, [_parts(names).intersection(_ASM_TOKEN.findall(low))])
    for name in made:
        return name.decode(), f"may put {name.decode()!r} together by a macro: {names[name]}"
    return None


def _of_c_macros(text: bytes, words: Mapping[str, str]) -> Said:
    """``asm(A B)``, with pieces of a directive somewhere."""
    if not _ASM_OF_MACROS.search(text):
        return None
    for word, why in words.items():
        if word.startswith(".") and re.search(rb"(?i)\.(?:\"|(?:%b)(?:\"|[\s,)]))" % _begins(word), text):
            return word, f"may put {word!r} together for asm: {why}"
    return None


def _begins(word: str) -> bytes:
    """The beginnings of a directive behind its dot, the longest first."""
    return b"|".join(re.escape(word[1:length].encode()) for length in range(len(word), 1, -1))


def _decoded(match: re.Match[bytes]) -> bytes:
    digits = next(group for group in match.groups() if group is not None)
    number = int(digits, 8 if match[2] is not None else 16)
    return bytes([number]) if number < 128 else b"?"
