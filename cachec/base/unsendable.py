"""What stands in a worker for a global of the caller that can't be sent."""

from __future__ import annotations

from typing import Final

#: What code may do with a value. ``is``, ``type`` and handing it on are no use: a result that holds it can't be stored.
_USES: Final = (
    *("__getattribute__", "__setattr__", "__delattr__", "__call__", "__bool__", "__len__", "__iter__", "__next__"),
    *("__getitem__", "__setitem__", "__delitem__", "__contains__", "__enter__", "__exit__", "__await__", "__aiter__"),
    *("__anext__", "__aenter__", "__aexit__", "__hash__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"),
    *("__str__", "__repr__", "__format__", "__bytes__", "__int__", "__float__", "__complex__", "__index__"),
    "__round__",
    *("__neg__", "__pos__", "__abs__", "__invert__", "__reversed__", "__fspath__", "__buffer__"),
    *(
        f"__{prefix}{operator}__"
        for operator in (
            *("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "divmod", "pow"),
            *("lshift", "rshift", "and", "or", "xor"),
        )
        for prefix in ("", "r")
    ),
)


class ForbiddenUseError(Exception):
    """Code has used a global that a worker can't be given."""


class Unsendable:
    """The type of all stand-ins. Ask ``issubclass(type(value), Unsendable)``: ``isinstance`` is a use."""


def stand_in(words: str, used: list[str]) -> object:
    """Return an object that any use of raises ForbiddenUseError. used: gets ``words`` at each use."""

    def refuse(*_arguments: object, **_options: object) -> None:
        used.append(words)
        raise ForbiddenUseError(words)

    return type("Unsent", (Unsendable,), dict.fromkeys(_USES, refuse))()
