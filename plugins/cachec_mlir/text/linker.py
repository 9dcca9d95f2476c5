"""Linking of MLIR text: the names that lack bytes, and the text with the bytes. All else stays byte for byte."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from cachec.errors import UsageError
from cachec_mlir.file_writer import Piece
from cachec_mlir.module_input import Source, open_input
from cachec_mlir.text.references import reference_text, types
from cachec_mlir.text.references import references as find_references
from cachec_mlir.text.scanner import key_literal, name_of, scan
from cachec_mlir.text.skeleton import Skeleton
from cachec_mlir.text.stripper import SCOPE, TARGETS, Target
from cachec_mlir.weight_binding import BoundResource


class UnlinkedText:
    """A text and its references without bytes; see ``UnlinkedBytecode``."""

    digits = True

    def __init__(self, ir: Source, references: Target = "resource", scope: str = SCOPE) -> None:
        """references: the form of weights in the module (see ``strip_text``); each becomes a resource again. scope: of
        parameters. Raises CheckpointError, OSError, UsageError.
        """
        if references not in TARGETS:
            raise UsageError(f"link: references expected one of {', '.join(TARGETS)}, found {references!r}")
        self._module = open_input(ir)
        self._marks = scan(self._module)
        self._skeleton = Skeleton(self._module, self._marks)
        self._references = references
        self._used = find_references(self._module, self._skeleton.text, references, scope)
        self.there = {name_of(entry) for entry in self._marks.resources()}
        taken = self.there if references == "resource" else set()
        self.wanted = {name: kinds for name, kinds in types(self._used).items() if name not in taken}

    def pieces(self, bound: Mapping[str, BoundResource], inline: Collection[str]) -> list[Piece]:
        """The text with these bytes, blobs as digits. inline: names that become ``dense<"0x...">``."""
        skeleton, text = self._skeleton, self._skeleton.text
        edits: list[tuple[int, int, list[Piece]]] = []
        for each in self._used:
            if each.name in inline:
                new: list[Piece] = [each.before + b'dense<"0x', bound[each.name].blob, b'">' + each.after]
                edits.append((each.start, each.end, new))
            elif self._references != "resource":
                resource = reference_text("resource", "", each.name)
                edits.append((each.start, each.end, [each.before + resource + each.after]))
        for trailer, offset in zip(self._marks.trailers, skeleton.trailers, strict=True):
            edits.append((offset, offset, [bytes(self._module.view()[trailer.start : trailer.end])]))
        pieces: list[Piece] = []
        at = 0
        for start, end, new in sorted(edits, key=lambda edit: edit[:2]):
            pieces += [skeleton.whole(text[at:start]), *new]
            at = end
        pieces.append(skeleton.whole(text[at:]))
        self._module.check()
        return pieces + _trailer({name: each for name, each in bound.items() if name not in inline})


def _trailer(bound: Mapping[str, BoundResource]) -> list[Piece]:
    pieces: list[Piece] = []
    for name, each in bound.items():
        head = each.alignment.to_bytes(4, "little").hex().upper()
        before = ",\n      " if pieces else "\n{-#\n  dialect_resources: {\n    builtin: {\n      "
        pieces += [f'{before}{key_literal(name)}: "0x{head}'.encode(), each.blob, b'"']
    if pieces:
        pieces.append(b"\n    }\n  }\n#-}\n")
    return pieces
