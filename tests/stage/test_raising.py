"""Objects whose own code raises, whatever of it cachec might run: a call gives what it gives without a cache."""

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
#: Where a stage finds such an object.
PLACES = {
    "a global": "from held_{name} import O, {name}\ndef stage(): return {name}.m(O)",
    "in a table": "from held_{name} import O, {name}\nT = {{1: [O]}}\ndef stage(): return {name}.m(T[1][0])",
    "an attribute": "from held_{name} import O, {name}\nclass C: o = O\ndef stage(): return {name}.m(C.o)",
    "a default": "from held_{name} import O, {name}\ndef f(o=O): return {name}.m(o)\ndef stage(): return f()",
    "imported inside": "def stage():\n    import held_{name} as held\n    return held.{name}.m(held.O)",
}
SHORT = ("a global", "imported inside")
COUNT = itertools.count()


def _outcome(call: Callable[[], object]) -> tuple[object, str]:
    """What a call gives: its value, or what it raises, with the place."""
    try:
        return call(), ""
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        return repr(error), " > ".join(f"{Path(each.filename).name}:{each.lineno}" for each in frames[-4:])


@pytest.mark.parametrize(
    "place", [each if each in SHORT else pytest.param(each, marks=pytest.mark.long) for each in PLACES]
)
@pytest.mark.parametrize("kind", KINDS)
def test_an_object_whose_code_raises_ends_no_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, place: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    wrong = {}
    with closing(cachec.Cache(tmp_path / "store", log="off", mode="on")) as cache:
        for special in SPECIAL:
            name = f"R{next(COUNT)}"
            (tmp_path / f"held_{name}.py").write_text(KINDS[kind].format(name=name, special=special))
            (tmp_path / f"stage_{name}.py").write_text(PLACES[place].format(name=name))
            importlib.invalidate_caches()
            try:
                function = importlib.import_module(f"stage_{name}").stage
            except (RuntimeError, TypeError):
                continue  # Python itself asks
            stage = cache.stage(function, name=name)
            (answer, where), (wanted, _) = _outcome(stage.call), _outcome(function)
            if answer != wanted if where else answer[0] != wanted or not (answer[1].stored or answer[1].detail):
                wrong[special] = (answer, where)
    print("WRONG", wrong)
    assert not wrong
