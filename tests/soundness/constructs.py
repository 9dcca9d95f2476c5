"""What the generator makes projects of. A construct is a line: its name, the text of a module, an expression that uses
it, and more files where it needs them.

In a text ``$S`` is a number that decides the result (its edit must miss), ``$N`` one that decides nothing (its edit must
hit). A file whose name ends in ``?`` is there where ``$S`` is odd. In an expression ``@name`` is a name of the module.
"""

# Programs are easier to read as they are.
# ruff: noqa: E501

from __future__ import annotations

from typing import NamedTuple


class Construct(NamedTuple):
    name: str
    text: str
    use: str
    files: dict[str, str] = {}  # noqa: RUF012 - never changed
    #: Kinds of cases that this can't be part of: places (``inside``: what a module makes of its own values by calls while
    #: it is imported can't be told from its text, and is not stored), ``stale`` (edited while it runs),
    #: ``comment`` (which a comment beside it does not change).
    without: tuple[str, ...] = ()


CONSTRUCTS = [
    Construct("function", "def f(x): return x * $S\n", "@f(2)"),
    Construct("default", "def f(x, by=$S): return x * by\n", "@f(2)"),
    Construct("global", "K = $S\nU = $N\ndef f(x): return x * K\n", "@f(2)"),
    Construct("computed global", "def c(n): return n * 2\nK = c($S)\n", "@K"),
    Construct("global by condition", "if $S > 3:\n    K = 'big'\nelse:\n    K = $S\n", "@K"),
    Construct("lambda", "f, g = lambda x: x + $S, lambda x: x + $N\n", "@f(2)"),
    Construct("closure", "def make(k):\n    def g(x): return x * k\n    return g\nf = make($S)\nu = make($N)\n", "@f(2)"),
    Construct("decorator", "import functools\ndef times(k):\n    def decorate(f):\n        @functools.wraps(f)\n        def inner(x): return f(x) * k\n        return inner\n    return decorate\n@times($S)\ndef f(x): return x\n", "@f(2)"),
    Construct("method", "class A:\n    def m(self): return self.n()\n    def n(self): return $S\n", "@A().m()"),
    Construct("base class", "class B:\n    def m(self): return $S\nclass A(B): pass\n", "@A().m()"),
    Construct("class value", "class A:\n    k = $S\n", "@A.k"),
    Construct("class value by call", "def c(): return $S\nclass A:\n    k = c()\n", "@A.k"),
    Construct("default_factory", "import dataclasses\ndef make(): return [$S]\n@dataclasses.dataclass\nclass H:\n    x: list = dataclasses.field(default_factory=make)\n", "@H().x"),
    Construct("default_factory lambda", "import dataclasses\n@dataclasses.dataclass\nclass H:\n    x: list = dataclasses.field(default_factory=lambda: [$S])\n", "@H().x"),
    Construct("default_factory partial", "import dataclasses, functools\ndef make(n): return [n]\n@dataclasses.dataclass\nclass H:\n    x: list = dataclasses.field(default_factory=functools.partial(make, $S))\n", "@H().x"),
    Construct("dataclass slots", "import dataclasses\nK = $S\n@dataclasses.dataclass(slots=True)\nclass H:\n    x: int = K\n", "@H().x"),
    Construct("dataclass post init", "import dataclasses\n@dataclasses.dataclass\nclass H:\n    x: int = 1\n    def __post_init__(self): self.x += $S\n", "@H().x"),
    Construct("property of cache", "import functools\ndef f(self): return $S\nclass A:\n    p = property(functools.lru_cache(f))\n", "@A().p"),
    Construct("staticmethod of cache", "import functools\ndef f(x): return x * $S\nclass A:\n    s = staticmethod(functools.lru_cache(maxsize=4)(f))\n", "@A.s(2)"),
    Construct("classmethod of cache", "import functools\ndef f(cls, x): return x * $S\nclass A:\n    s = classmethod(functools.lru_cache(f))\n", "@A.s(2)"),
    Construct("cached_property of cache", "import functools\ndef f(self): return $S\nclass A:\n    c = functools.cached_property(functools.lru_cache(f))\n    c.__set_name__(None, 'c')\n", "@A().c"),
    Construct("cached_property", "import functools\nclass A:\n    @functools.cached_property\n    def c(self): return $S\n", "@A().c"),
    Construct("partialmethod", "import functools\ndef f(self, x, y): return x * y\nclass A:\n    p = functools.partialmethod(functools.lru_cache(f), $S)\n", "@A().p(2)"),
    Construct("partialmethod function", "import functools\ndef f(self, x): return x * $S\nclass A:\n    p = functools.partialmethod(f, 3)\n", "@A().p()"),
    Construct("singledispatchmethod", "import functools\nclass A:\n    @functools.singledispatchmethod\n    def d(self, x): return 0\n    @d.register\n    def _(self, x: int): return x * $S\n", "@A().d(2)"),
    Construct("singledispatch", "import functools\n@functools.singledispatch\ndef d(x): return 0\n@d.register\ndef _(x: int): return x * $S\n", "@d(2)"),
    Construct("dunder table", "K = $S\nclass A:\n    __table__ = {'k': K}\n", "@A.__table__['k']"),
    Construct("dunder table by call", "def c(): return $S\nclass A:\n    __table__ = c()\n", "@A.__table__"),
    Construct("slots", "NAMES = ('a', 'b$S')\nclass A:\n    __slots__ = NAMES\n", "@A.__slots__"),
    Construct("class value without a form", "import threading\ndef c():\n    t = threading.local()\n    t.x = $S\n    return t\nclass A:\n    t = c()\n", "@A.t.x"),
    Construct("nested class", "class A:\n    class B:\n        k = $S\n", "@A.B.k"),
    Construct("class in a function", "def c():\n    class A:\n        k = $S\n        def m(self): return self.k\n    return A\nA = c()\n", "@A().m()"),
    Construct("metaclass", "class M(type):\n    def size(cls): return $S\nA = M('A', (), {})\n", "@A.size()"),
    Construct("metaclass statement", "class M(type):\n    def __call__(cls, *a): return $S\nclass A(metaclass=M): pass\n", "@A()"),
    Construct("init_subclass", "class B:\n    known = {}\n    def __init_subclass__(cls): B.known[cls.__name__] = cls\nclass C(B):\n    k = $S\n", "@B.known['C'].k"),
    Construct("descriptor", "class D:\n    def __get__(self, o, t=None): return $S\nclass A:\n    d = D()\n", "@A.d"),
    Construct("named tuple", "import typing\nclass P(typing.NamedTuple):\n    a: int\n    b: int = $S\n", "@P(1).b"),
    Construct("enum", "import enum\nclass E(enum.Enum):\n    A = $S\n    B = 99\n", "@E.A.value"),
    Construct("enum by computed value", "import enum\ndef c(): return $S\nclass E(enum.Enum):\n    A = c()\n", "@E.A.value"),
    Construct("dict", "T = {'a': $S, 'b': 2}\n", "@T['a']"),
    Construct("order of a dict", "T = {'k$S': 0, 'm': 1}\nT = dict(sorted(T.items(), key=lambda kv: (kv[1] * (-1) ** $S)))\n", "list(@T)"),
    Construct("order of a counter", "import collections\nC = collections.Counter('ab' if $S % 2 else 'ba')\n", "list(@C)"),
    Construct("order of an ordered dict", "import collections\nO = collections.OrderedDict.fromkeys('ab' if $S % 2 else 'ba')\n", "list(@O)"),
    Construct("order in an instance", "class A:\n    def __init__(self, names):\n        for n in names: setattr(self, n, 0)\nX = A('ab' if $S % 2 else 'ba')\n", "list(vars(@X))"),
    Construct("order of a namespace", "import types\nX = types.SimpleNamespace(**dict.fromkeys('ab' if $S % 2 else 'ba', 0))\n", "list(vars(@X))"),
    Construct("set", "X = {'a', 'b', $S}\n", "sorted(map(str, @X))"),
    Construct("partial", "import functools\ndef g(x, y): return x * y\nf = functools.partial(g, $S)\n", "@f(2)"),
    Construct("partial of a partial", "import functools\ndef g(x, y): return x * y * $S\nf = functools.partial(functools.partial(g, 3), 4)\n", "@f()"),
    Construct("cmp_to_key", "import functools\ndef c(a, b): return (a - b) * (-1) ** $S\nK = functools.cmp_to_key(c)\n", "sorted([2, 1, 3], key=@K)"),
    Construct("lru_cache", "import functools\n@functools.lru_cache(maxsize=8)\ndef f(x): return x * $S\n", "@f(2)"),
    Construct("lru_cache of a helper", "import functools\ndef h(x): return x * $S\nf = functools.cache(h)\n", "@f(2)"),
    Construct("lru_cache of a global", "import functools\nK = $S\n@functools.cache\ndef f(x): return x * K\n", "@f(2)"),
    Construct("operator", "import operator\nG = operator.itemgetter($S % 3)\n", "@G([7, 8, 9])"),
    Construct("bound method", "class A:\n    def __init__(self, k): self.k = k\n    def m(self, x): return x * self.k\nf = A($S).m\n", "@f(2)"),
    Construct("callable instance", "class A:\n    def __init__(self, k): self.k = k\n    def __call__(self, x): return x * self.k\nf = A($S)\n", "@f(2)"),
    Construct("table of functions", "def a(x): return x * $S\ndef b(x): return x\nT = {'a': a, 'b': b}\n", "@T['a'](2)"),
    Construct("table of lambdas", "T = [lambda x: x * $S, lambda x: x]\n", "@T[0](2)"),
    Construct("registry", "R = {}\ndef register(f):\n    R[f.__name__] = f\n    return f\n@register\ndef a(x): return x * $S\n", "@R['a'](2)"),
    Construct("docstring", "def f():\n    '''said $S'''\n", "@f.__doc__"),
    Construct("docstring by getdoc", "import inspect\ndef f():\n    '''said $S'''\ndef d(g): return inspect.getdoc(g)\n", "@d(@f)"),
    Construct("docstring by self", "class A:\n    '''said $S'''\n    def d(self): return self.__doc__\n", "@A().d()"),
    Construct("docstring by cls", "class A:\n    '''said $S'''\n    @classmethod\n    def d(cls): return cls.__doc__\n", "@A.d()"),
    Construct("docstring of a method", "class A:\n    def m(self): '''said $S'''\n    def d(self): return type(self).m.__doc__\n", "@A().d()"),
    Construct("docstring by getattr", "def f():\n    '''said $S'''\ndef d(g): return getattr(g, '__doc__')\n", "@d(@f)"),
    Construct("docstring of a module", "'''said $S'''\ndef d(): return __doc__\n", "@d()", without=("main",)),
    Construct("source", "import inspect\ndef f():\n    return 1  # said $S\ndef d(g): return inspect.getsource(g)\n", "@d(@f)", without=("comment",)),
    Construct("unread docstring", "def f():\n    '''said $N'''\n    return $S\n", "@f()"),
    Construct("subclasses", "class B: pass\nclass C(B):\n    k = $S\ndef f(): return [c.k for c in B.__subclasses__()]\n", "@f()"),
    Construct("import in a function", "def f():\n    import inner\n    return inner.k\n", "@f()", {"inner.py": "k = $S\nu = $N\n"}),
    Construct("import at the top", "import inner\ndef f(): return inner.k\n", "@f()", {"inner.py": "k = $S\nu = $N\n"}),
    Construct("from import", "from inner import k\ndef f(): return k\n", "@f()", {"inner.py": "k = $S\nu = $N\n"}),
    Construct("star import", "from inner import *\ndef f(): return k\n", "@f()", {"inner.py": "k = $S\n"}),
    Construct("package", "from pkg import value\ndef f(): return value()\n", "@f()", {"pkg/__init__.py": "from .deep import value\n", "pkg/deep.py": "from . import more\ndef value(): return more.k\n", "pkg/more.py": "k = $S\nu = $N\n"}),
    Construct("sets a value elsewhere", "import cfg\ncfg.X = $S\ndef f(): return cfg.X\n", "@f()", {"cfg.py": "X = 0\n"}),
    Construct("set by a sibling", "import cfg, setter\ndef f(): return cfg.X\n", "@f()", {"cfg.py": "X = 0\n", "setter.py": "import cfg\ncfg.X = $S\n"}),
    Construct("optional import", "try:\n    import fast\n    HAVE = True\nexcept ImportError:\n    HAVE = False\n", "@HAVE", {"fast.py?": "k = $S\n"}),
    Construct("try", "try:\n    K = [1, 2, 3][$S]\nexcept IndexError:\n    K = 'none $S'\n", "@K"),
    Construct("with", "import contextlib\nwith contextlib.nullcontext($S) as K:\n    pass\n", "@K"),
    Construct("loop", "K = 0\nfor i in range(3):\n    K += $S\n", "@K"),
    Construct("augmented", "K = 1\nK += $S\n", "@K"),
    Construct("unpacked", "a, (b, *c) = 1, ($S, 3, 4)\n", "@b"),
    Construct("globals", "K = $S\ndef f(): return globals()['K']\n", "@f()"),
    Construct("eval", "K = $S\ndef f(): return eval('K')\n", "@f()"),
    Construct("getattr of a module", "import inner\ndef f(n): return getattr(inner, n)\n", "@f('k')", {"inner.py": "k = $S\n"}),
    Construct("generator", "def g():\n    for i in range($S): yield i\n", "list(@g())"),
    Construct("context manager", "import contextlib\n@contextlib.contextmanager\ndef c(): yield $S\ndef f():\n    with c() as x: return x\n", "@f()"),
    Construct("total ordering", "import functools\n@functools.total_ordering\nclass A:\n    def __eq__(self, o): return False\n    def __lt__(self, o): return $S > 3\n", "@A() >= @A()"),
    Construct("string constant", "K = 'text $S'\ndef f(): return K\n", "@f()"),
    Construct("f-string", "def f(x): return f'{x:>{$S}}'\n", "@f(1)"),
    Construct("deque", "import collections\nD = collections.deque([1, $S], maxlen=3)\n", "list(@D)"),
    Construct("defaultdict", "import collections\nD = collections.defaultdict(lambda: $S, a=1)\n", "@D.default_factory(), dict(@D)['a']"),
    Construct("mapping proxy", "import types\nM = types.MappingProxyType({'a': $S})\n", "@M['a']"),
    Construct("namespace of functions", "import types\nM = types.SimpleNamespace(f=lambda x: x * $S)\n", "@M.f(2)"),
    Construct("dict subclass", "class D(dict):\n    def __missing__(self, k): return $S\nM = D(a=1)\n", "@M['z']"),
    Construct("list subclass", "class L(list):\n    def total(self): return sum(self)\nM = L([1, $S])\n", "@M.total()"),
    Construct("random", "import random\nR = random.Random($S)\n", "@R.getstate()[1][0]"),
    Construct("random function", "import random\nK = $S\ndef f(): return random.Random(K).random()\n", "@f()"),
    Construct("pattern", "import re\nP = re.compile('a{$S}')\n", "bool(@P.match('aaaa')), @P.pattern"),
    Construct("date", "import datetime\nD = datetime.date(2020, 1, $S)\n", "@D"),
    Construct("exception class", "class E(ValueError):\n    code = $S\ndef f():\n    try: raise E\n    except E as e: return e.code\n", "@f()"),
    Construct("attribute of a function", "def f(): return f.k\nf.k = $S\n", "@f()"),
    Construct("abstract", "import abc\nclass B(abc.ABC):\n    @abc.abstractmethod\n    def m(self): ...\nclass A(B):\n    def m(self): return $S\n", "@A().m()"),
    Construct("generic", "import typing\nT = typing.TypeVar('T')\nclass A(typing.Generic[T]):\n    def m(self): return $S\n", "@A[int]().m()"),
    Construct("chain of helpers", "def a(): return b()\ndef b(): return c()\ndef c(): return $S\n", "@a()"),
    Construct("recursion", "def a(n): return a(n - 1) if n else $S\n", "@a(3)"),
    Construct("weights of a walrus", "def f(): return (y := $S) + y\n", "@f()"),
    Construct("type alias value", "A = {'k': int}\nB = $S\ndef f(): return A['k'](B)\n", "@f()"),
    Construct("monkeypatch of a class", "class A:\n    def m(self): return 0\ndef n(self): return $S\nA.m = n\n", "@A().m()"),
    Construct("copied function", "import types\ndef g(): return $S\nf = types.FunctionType(g.__code__, globals())\n", "@f()"),
    Construct("exec", "NS = {}\nexec('def f(): return $S', NS)\nf = NS['f']\n", "@f()", without=("inside",)),
    Construct("module level function call", "T = []\ndef fill(n): T.append(n)\nfill($S)\n", "@T", without=("inside",)),
    Construct("itertools", "import itertools\ndef f(): return list(itertools.islice(itertools.count($S), 2))\n", "@f()"),
    Construct("reduce", "import functools, operator\ndef f(): return functools.reduce(operator.mul, [1, 2, $S])\n", "@f()"),
    Construct("match", "def f(x):\n    match x:\n        case [a, b]: return a * $S\n        case _: return 0\n", "@f([1, 2])"),
]  # fmt: skip

for _construct in CONSTRUCTS:
    assert "$S" in _construct.text + "".join(_construct.files.values()), _construct.name
