"""Objects with code that raises: a call gives the same result as without a cache."""

from __future__ import annotations

import builtins
import enum
import importlib
import itertools
import traceback
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType

import pytest

import cachec

#: What Python or a library looks for in an object or its class, less what a class statement or a call of it needs.
SPECIAL = sorted(
    {
        name
        for kind in (
            *vars(builtins).values(),
            CodeType,
            FunctionType,
            MethodType,
            ModuleType,
            enum.Flag,
        )
        if isinstance(kind, type)
        for name in dir(kind)
        if name.startswith("__")
    }
    | {"__getattr__", "__fspath__", "__wrapped__", "__array__", "__await__", "__dataclass_fields__", "__attrs_attrs__"}
    | {"__cachec_stage__", "__slots_of__", "__set_name__", "__path__", "__file__", "__origin__", "__args__"}
    | {"__getnewargs__", "__getnewargs_ex__", "__copy__", "__deepcopy__", "__torch_function__", "__jax_array__"}
    - {"__new__", "__init__", "__init_subclass__", "__build_class__", "__debug__", "__import__", "__del__", "__slots__"}
)

#: What it is that raises: a method, a property, or a method of the class of the class.
KINDS = {
    "method": """
class {name}:
    def {special}(self, *args, **kwargs): raise RuntimeError("{special}")
    def m(self): return 3
O = {name}()
""",
    "property": """
class {name}:
    @property
    def {special}(self): raise RuntimeError("{special}")
    def m(self): return 3
O = {name}()
""",
    "metaclass": """
class Of{name}(type):
    def {special}(cls, *args, **kwargs): raise RuntimeError("{special}")
class {name}(metaclass=Of{name}):
    def m(self): return 3
O = object.__new__({name})
""",
}
#: Where a stage finds such an object: what its module does for it, what the stage does first, and how it is used.
PLACES = {
    "a global": ("from held_{name} import O as O{name}, {name}", "", "{name}.m(O{name})"),
    "in a table": (
        "from held_{name} import O as O{name}, {name}\nT{name} = {{1: [O{name}]}}",
        "",
        "{name}.m(T{name}[1][0])",
    ),
    "an attribute": (
        "from held_{name} import O as O{name}, {name}\nclass C{name}: o = O{name}",
        "",
        "{name}.m(C{name}.o)",
    ),
    "a default": (
        "from held_{name} import O as O{name}, {name}\ndef f{name}(o=O{name}): return {name}.m(o)",
        "",
        "f{name}()",
    ),
    "imported inside": ("", "    import held_{name}", "held_{name}.{name}.m(held_{name}.O)"),
}
#: How many objects one stage uses: its call costs little more than with one of them.
TOGETHER = 8
#: What `make test` runs.
SHORT = {("method", "imported inside"), ("property", "a global"), ("metaclass", "imported inside")}
COUNT = itertools.count()


def _outcome(call: Callable[[], object]) -> tuple[object, str]:
    """What a call gives: its value, or what it raises, with the place."""
    try:
        return call(), ""
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        return repr(error), " > ".join(f"{Path(each.filename).name}:{each.lineno}" for each in frames[-4:])


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        pair if pair in SHORT else pytest.param(*pair, marks=pytest.mark.long)
        for pair in itertools.product(KINDS, PLACES)
    ],
)
def test_an_object_whose_code_raises_ends_no_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, place: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    wrong = {}

    def check(specials: list[str]) -> None:
        """Call a stage that uses all of them; where one raises, call a stage for each half."""
        names = [f"R{next(COUNT)}" for _ in specials]
        for name, special in zip(names, specials, strict=True):
            (tmp_path / f"held_{name}.py").write_text(KINDS[kind].format(name=name, special=special))
        module, inside, used = ([text for name in names if (text := each.format(name=name))] for each in PLACES[place])
        lines = [*module, "def stage():", *inside, f"    return [{', '.join(used)}]"]
        (tmp_path / f"stage_{names[0]}.py").write_text("\n".join(lines))
        importlib.invalidate_caches()
        try:
            function = importlib.import_module(f"stage_{names[0]}").stage
        except (RuntimeError, TypeError):  # Python itself asks
            function = None
        if function is not None:
            stage = cache.stage(function, name=names[0])
            (answer, where), (wanted, raised) = _outcome(stage.call), _outcome(function)
            fine = answer == wanted if where else answer[0] == wanted and bool(answer[1].stored or answer[1].detail)
            if fine and (not raised or len(specials) == 1):
                return
            if len(specials) == 1:
                wrong[specials[0]] = (answer, where)
        if len(specials) > 1:
            check(specials[: len(specials) // 2])
            check(specials[len(specials) // 2 :])

    with closing(cachec.Cache(tmp_path / "store", log="off", mode="on")) as cache:
        for first in range(0, len(SPECIAL), TOGETHER):
            check(SPECIAL[first : first + TOGETHER])
    print("WRONG", wrong)
    assert not wrong
