"""What a caller of a compiled program has to know, and the checks of what it is called with.

Imports neither torch nor numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from cachec.errors import UsageError
from cachec_torch.trees import SpecNode

if TYPE_CHECKING:
    from cachec_torch.shim import Block


class SizeForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A dynamic size: ``factor`` times a symbol, and ``offset``."""

    symbol: str
    factor: int
    offset: int


class InputForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="tensor"):
    """A tensor that goes in. order: its axes, from the largest stride to the smallest; it is dense in that order."""

    dtype: str
    sizes: tuple[int | SizeForm, ...]
    order: tuple[int, ...]


class ValueForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="value"):
    """What is no tensor, and part of the program: an input that has to be this, an output that is."""

    value: bool | int | float | str | None


class OutputForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="result"):
    """A tensor that comes out: the next one."""


class CallForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What goes in and comes out. ranges: of symbols, None for no upper end. arguments, results: the trees, where they
    need no torch."""

    inputs: tuple[InputForm | ValueForm, ...]
    outputs: tuple[OutputForm | ValueForm, ...]
    ranges: dict[str, tuple[int, int | None]]
    arguments: SpecNode | None = None
    results: SpecNode | None = None


def taken_inputs(form: CallForm, leaves: Sequence[Any], take: Callable[..., Block]) -> Iterator[Block]:
    """Each tensor that goes in, as the library takes it. Raises UsageError for what does not fit."""
    symbols: dict[str, int] = {}
    for number, (expected, value) in enumerate(zip(form.inputs, leaves, strict=True)):
        if isinstance(expected, ValueForm):
            if type(value) is not type(expected.value) or value != expected.value:
                raise UsageError(
                    f"input {number} is {value!r}; the program was made for {expected.value!r}, which is part of it"
                )
            continue
        block = take(value, expected.order, number)
        if block.dtype != expected.dtype or not _fits(expected, block.shape, symbols, form):
            raise UsageError(
                f"input {number} expected {expected.dtype}{_in_words(expected, form)}, found "
                f"{block.dtype}{list(block.shape)}"
            )
        yield block


def _fits(expected: InputForm, shape: Sequence[int], symbols: dict[str, int], form: CallForm) -> bool:
    """symbols: those that earlier sizes have settled, and this input's."""
    if len(shape) != len(expected.sizes):
        return False
    for size, found in zip(expected.sizes, shape, strict=True):
        if isinstance(size, int):
            if size != found:
                return False
            continue
        value, rest = divmod(found - size.offset, size.factor)
        least, most = form.ranges.get(size.symbol, (0, None))
        if rest or symbols.setdefault(size.symbol, value) != value or value < least or value > (most or value):
            return False
    return True


def _in_words(expected: InputForm, form: CallForm) -> str:
    words = []
    for size in expected.sizes:
        if isinstance(size, int):
            words.append(str(size))
            continue
        least, most = form.ranges.get(size.symbol, (0, None))
        times = "" if size.factor == 1 else f"{size.factor}*"
        plus = f"+{size.offset}" if size.offset else ""
        words.append(f"{times}{size.symbol}{plus} ({size.symbol} from {least} to {'any' if most is None else most})")
    return f"[{', '.join(words)}]"
