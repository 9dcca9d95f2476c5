"""Programs that use what Pythons differ in: what their compilers, and the libraries beside them, make of a source."""

# Programs are easier to read as they are.
# ruff: noqa: E501

from __future__ import annotations

#: Files that the programs import.
HELPERS = {
    "helpers.py": """
        __all__ = ["scale", "OTHER"]
        OTHER = 7
        def scale(x, by=2):
            "Doc."
            return x * by
    """,
    "pack/__init__.py": "",
    "pack/inner.py": "from . import deep",
    "pack/deep.py": "def value(x): return x",
    "pack/registry.py": """
        TABLE = {}
        def register(name):
            def add(f):
                TABLE[name] = f
                return f
            return add
        @register("one")
        def one(x): return [x for x in range(x)]
    """,
    "pack/lazy.py": """
        from .deep import value
        class Thing:
            x = [i for i in range(3)]
        def thing(): return value(1), Thing
    """,
    "pack/other.py": """
        value = 3
        def __getattr__(name): return 1
    """,
}

#: Name -> source of a module with a ``stage``.
PROGRAMS = {
    "enum": """
        import enum
        class Color(enum.Enum):
            RED = 1
            GREEN = enum.auto()
            def other(self): return Color.RED
        def stage(): return Color.RED, Color
    """,
    "flag": """
        import enum
        class Level(enum.IntFlag):
            A = 1
            B = 2
        BOTH = Level.A | Level.B
        def stage(): return Level.A | BOTH
    """,
    "text_enum": """
        import enum
        class Word(enum.StrEnum):
            X = enum.auto()
        def stage(): return Word.X
    """,
    "enum_of_lists": """
        import enum
        class E(enum.Enum):
            X = [1]
        def stage(): return E.X
    """,
    "enum_of_records": """
        import dataclasses, enum
        @dataclasses.dataclass
        class D:
            a: int
        class E(D, enum.Enum):
            X = 1
        def stage(): return E.X
    """,
    "enum_by_call": """
        import enum
        E = enum.Enum("E", "A B")
        def stage(): return E.A
    """,
    "dataclass": """
        import dataclasses
        @dataclasses.dataclass
        class Plain:
            a: int
            b: list = dataclasses.field(default_factory=list)
            def total(self):
                self.c = 1
                return self.a
        def stage(): return Plain(1).total()
    """,
    "dataclass_frozen": """
        import dataclasses
        @dataclasses.dataclass(frozen=True, slots=True, kw_only=True, order=True)
        class F:
            x: int = 1
        V = F(x=2)
        def stage(): return F(), V
    """,
    "dataclass_own_repr": """
        import dataclasses
        @dataclasses.dataclass
        class F:
            x: int = 1
            def __repr__(self): return "F"
        V = F(x=2)
        def stage(): return F(), V
    """,
    "named_tuple": """
        import typing
        class Pair(typing.NamedTuple):
            left: int
            right: int = 2
            def swap(self): return Pair(self.right, self.left)
        V = Pair(1)
        def stage(): return Pair(1).swap(), V
    """,
    "named_tuple_by_call": """
        import collections
        Point = collections.namedtuple("Point", "x y", defaults=[0])
        V = Point(1)
        def stage(): return Point(1), V
    """,
    "named_tuple_as_base": """
        import collections
        class Point(collections.namedtuple("Point", "x y")):
            def norm(self): return self.x
        def stage(): return Point(1, 2).norm()
    """,
    "typed_dict": """
        import typing
        class Typed(typing.TypedDict, total=False):
            k: int
        def stage(): return Typed(k=1)
    """,
    "generic": """
        import typing
        T = typing.TypeVar("T")
        class Box(typing.Generic[T]):
            def __init__(self, item: T): self.item = item
            def get(self) -> T: return self.item
        def stage(): return Box[int](1).get()
    """,
    "type_variable": """
        import typing
        T = typing.TypeVar("T")
        def stage(x): return typing.cast(T, x)
    """,
    "protocol": """
        import typing
        class Speaks(typing.Protocol):
            name: str
            def speak(self) -> str: ...
        class Dog(Speaks):
            name = "d"
            def speak(self): return "w"
        def stage(): return Speaks, Dog().speak()
    """,
    "protocol_at_run_time": """
        import typing
        @typing.runtime_checkable
        class Runs(typing.Protocol):
            def run(self) -> int: ...
        def stage(x): return isinstance(x, Runs)
    """,
    "abstract": """
        import abc, functools
        class Base(abc.ABC):
            registry = []
            def __init_subclass__(cls, **kw):
                super().__init_subclass__(**kw)
                Base.registry.append(cls)
            @abc.abstractmethod
            def run(self): ...
            @property
            def prop(self): return [self.run() for _ in range(2)]
            @prop.setter
            def prop(self, value): self._v = value
            @staticmethod
            def st(x): return x
            @classmethod
            def cl(cls): return {k: cls for k in "ab"}
            @functools.cached_property
            def cp(self): return __class__
            pm = functools.partialmethod(st, 1)
        class Child(Base):
            __slots__ = ("a", "__b")
            def __init__(self):
                super().__init__()
                self.__b = 1
            def run(self): return super().prop
        def stage(): return Child().run(), Base.cl()
    """,
    "metaclass": """
        class Meta(type):
            def __new__(m, n, b, d, **k): return super().__new__(m, n, b, d)
        class W(metaclass=Meta, flag=1):
            x: int = 1
        def stage(): return W.x
    """,
    "class_documented": """
        class A:
            '''Said
               over two lines.'''
            __slots__ = ("y",)
            x = 1
            def f(self):
                '''Said
                   over two lines.'''
                self.y = 1
                return A.x
        def stage(): return A().f()
    """,
    "class_extended": """
        def add(cls):
            def made(self): return [cls for _ in range(2)]
            cls.made = made
            cls.count = 3
            return cls
        @add
        class A:
            pass
        def stage(): return A().made()
    """,
    "class_super": """
        class A:
            def f(self): return 1
        class B(A):
            def f(self): return super().f() + len([super(B, self).f() for _ in range(1)])
            @property
            def g(self): return __class__.__name__
        def stage(): return B().f()
    """,
    "decorators": """
        import functools
        def deco(n):
            def wrap(f):
                @functools.wraps(f)
                def inner(*a, **k): return f(*a, **k) * n
                return inner
            return wrap
        @deco(3)
        @functools.lru_cache(maxsize=8)
        def cached(x): return x
        @functools.cache
        def cached2(x): return x
        def stage(): return cached(1), cached2(2)
    """,
    "dispatch": """
        import functools
        @functools.singledispatch
        def dispatch(x): return 0
        @dispatch.register
        def _(x: int): return 1
        def stage(): return dispatch(1)
    """,
    "context_managers": """
        import contextlib
        @contextlib.contextmanager
        def cm(x):
            yield x
        class CM(contextlib.ContextDecorator):
            def __enter__(self): return self
            def __exit__(self, *a): pass
        def stage():
            with cm(1) as y, CM(): return y
    """,
    "total_ordering": """
        import functools
        @functools.total_ordering
        class V:
            def __lt__(self, o): return True
            def __eq__(self, o): return True
        def stage(): return V() < V()
    """,
    "comprehensions": """
        def stage(xs):
            n = 3
            return [x + n for x in xs], {x: [y for y in range(x) if y != n] for x in xs}, {(lambda q=n: q)() for x in xs}, sum(x for x in xs if (z := x))
    """,
    "closures": """
        import math
        SIZE = 4
        def closures(a):
            b = [a]
            def f(x=SIZE, *, y=math.pi):
                nonlocal a
                a += 1
                class Local:
                    v = b
                    def m(self): return __class__, a
                return lambda: (x, y, Local, b, [b for _ in range(2)])
            return f
        made = closures(3)
        lam = made()
        def stage(): return made, lam
    """,
    "partial": """
        import functools
        def f(a, b): return [a for a in b]
        P = functools.partial(f, [1, 2])
        def stage(): return P(1)
    """,
    "errors": """
        import os
        SIZE = 3
        def stage(x):
            try:
                with open(os.devnull) as f, open(os.devnull) as g:
                    return f"{x!r:>{SIZE}} {f.name=} {'a' 'b'}"
            except* (ValueError, KeyError) as group:
                raise
            finally:
                del x
    """,
    "match": """
        import dataclasses
        @dataclasses.dataclass
        class Plain:
            a: int
            b: list
        def stage(x):
            match x:
                case Plain(a=1, b=[*rest]): return rest
                case {"k": v, **more}: return v
                case _: return None
    """,
    "asynchronous": """
        async def stage(x):
            async with x as y:
                return [i async for i in y if await i]
    """,
    "generators": """
        def stage():
            got = yield 1
            yield from stage()
    """,
    "imports_inside": """
        def stage():
            from pack.lazy import thing
            import pack.other as o
            return thing() + o.value
    """,
    "imports": """
        from helpers import *
        from pack import inner as inside
        import helpers, math, os
        from pack.registry import TABLE
        SIZE = 3
        def stage(x):
            return helpers.scale(x) if 0 < x <= SIZE else inside.deep.value(x), TABLE, scale(x), OTHER, math.floor(x), os.path.join("a", "b")
    """,
    "annotations": """
        from __future__ import annotations
        import typing
        A = dict[str, int]
        def stage(x: "list[int]", *args: int, y: typing.Annotated[int, "z"] = 1, **kw: str) -> A:
            z: int = 1
            w: "str"
            return z
    """,
    "alias": "A = dict[str, int]\ndef stage(): return A",
    "optional": "import typing\nA = typing.Optional[int]\ndef stage(): return A",
    "union": "A = int | None\ndef stage(): return A",
    "pattern": "import re\nP = re.compile(r'a+', re.I)\ndef stage(x): return P.match(x)",
    "values": """
        import collections, datetime, decimal, fractions, types
        NESTED = {"a": [1, 2.5, None, True], "b": ("x", b"y"), "c": frozenset({1, 2}), 3: -0.0, "r": range(3), "s": slice(1), "e": ...}
        P = datetime.date(2020, 1, 1)
        D = decimal.Decimal("1.0")
        U = fractions.Fraction(1, 2)
        T = datetime.timedelta(seconds=1)
        O = collections.OrderedDict(a=1)
        DD = collections.defaultdict(list)
        NS = types.SimpleNamespace(a=1)
        C = collections.Counter("ab")
        def stage(): return NESTED, P, D, U, T, O, DD, NS, C
    """,
    "module_as_a_whole": """
        import helpers
        SIZE = 1
        L = [x for x in range(3)]
        def other(): return SIZE
        class K:
            z = [y for y in range(2)]
        def stage(x): return getattr(helpers, x), eval("1"), globals()["SIZE"]
    """,
    "callable_object": """
        class C:
            def __call__(self, x): return x
        stage = C()
    """,
    "bound_method": """
        class C:
            def __init__(self): self.v = 1
            def f(self, x): return [x for _ in range(self.v)]
        stage = C().f
    """,
    "lambdas": """
        F = (lambda x: x, lambda x: x + 1)
        stage = lambda x, y=[z for z in range(3)]: F[0](x)
    """,
    "names": """
        def stage(x):
            global COUNT
            COUNT = [y := x, y ** 2]
            assert x, "no"
            if __debug__: return COUNT
    """,
    "threads": """
        import logging, threading
        L = logging.getLogger("x")
        K = threading.Lock()
        def stage(x):
            L.info("a")
            with K: return 1
    """,
    "operators": """
        import itertools, operator
        ADD = operator.add
        def stage(x): return ADD(x, x), itertools.chain(x), operator.itemgetter(1)(x)
    """,
    "letters": "é = 1\ndef stage(ñ): return é + ñ",
}
