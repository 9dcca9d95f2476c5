"""Constructs of libraries that make classes and values, attrs, msgspec and numpy, and of rarer ways of Python and its
library: what strangers tried against the generator. In the words of ``constructs.py``.
"""

# Programs are easier to read as they are.
# ruff: noqa: E501

from __future__ import annotations

from tests.soundness.constructs import Construct

LIBRARY_CONSTRUCTS = [
    Construct("attrs default", "import attrs\n@attrs.define\nclass A:\n    x: int = $S\n", "@A().x"),
    Construct("attrs factory", "import attrs\n@attrs.define\nclass A:\n    x: list = attrs.field(factory=lambda: [$S])\n", "@A().x"),
    Construct("attrs converter", "import attrs\ndef conv(v): return v * $S\n@attrs.define\nclass A:\n    x: int = attrs.field(default=2, converter=conv)\n", "@A().x"),
    Construct("attrs validator", "import attrs\ndef val(i, a, v):\n    if v > $S: raise ValueError\n@attrs.define\nclass A:\n    x: int = attrs.field(validator=val)\ndef f():\n    out = []\n    for n in range(10):\n        try: out.append(A(n).x)\n        except ValueError: pass\n    return out\n", "@f()"),
    Construct("attrs default decorator", "import attrs\n@attrs.define\nclass A:\n    x: int = attrs.field()\n    @x.default\n    def _d(self): return $S\n", "@A().x"),
    Construct("attrs post init", "import attrs\n@attrs.define\nclass A:\n    x: int = 1\n    def __attrs_post_init__(self): self.x += $S\n", "@A().x"),
    Construct("attrs evolve", "import attrs\n@attrs.frozen\nclass A:\n    x: int = 1\na = attrs.evolve(A(), x=$S)\n", "@a.x"),
    Construct("attrs hook", "import attrs\ndef hook(cls, fs): return [f.evolve(default=$S) for f in fs]\n@attrs.define(field_transformer=hook)\nclass A:\n    x: int = 1\n", "@A().x"),
    Construct("attrs on_setattr", "import attrs\ndef h(i, a, v): return v * $S\n@attrs.define(on_setattr=h)\nclass A:\n    x: int = 1\ndef f():\n    a = A()\n    a.x = 2\n    return a.x\n", "@f()"),
    Construct("attrs order eq key", "import attrs\n@attrs.define(eq=True)\nclass A:\n    x: int = attrs.field(eq=lambda v: v % $S)\n", "[@A(1) == @A(n) for n in range(10)]"),
    Construct("attrs repr", "import attrs\n@attrs.define\nclass A:\n    x: int = attrs.field(default=1, repr=lambda v: 'r$S')\n", "repr(@A())"),
    Construct("attrs metadata", "import attrs\n@attrs.define\nclass A:\n    x: int = attrs.field(default=1, metadata={'k': $S})\n", "__import__('attrs').fields(@A).x.metadata['k']"),
    Construct("msgspec factory", "import msgspec\nclass A(msgspec.Struct):\n    x: list = msgspec.field(default_factory=lambda: [$S])\n", "@A().x"),
    Construct("msgspec rename", "import msgspec\nclass A(msgspec.Struct, rename=lambda n: n + '$S'):\n    x: int = 1\n", "__import__('msgspec').json.encode(@A())"),
    Construct("msgspec rename by dict", "import msgspec\nclass A(msgspec.Struct, rename={'x': 'y$S'}):\n    x: int = 1\n", "__import__('msgspec').json.encode(@A())"),
    Construct("msgspec tag", "import msgspec\nclass A(msgspec.Struct, tag='t$S'):\n    x: int = 1\n", "__import__('msgspec').json.encode(@A())"),
    Construct("msgspec tag function", "import msgspec\nclass A(msgspec.Struct, tag=lambda n: n + '$S'):\n    x: int = 1\n", "__import__('msgspec').json.encode(@A())"),
    Construct("msgspec post init", "import msgspec\nclass A(msgspec.Struct):\n    x: int = 1\n    def __post_init__(self): self.x += $S\n", "@A().x"),
    Construct("msgspec meta", "import msgspec, typing\nP = typing.Annotated[int, msgspec.Meta(le=$S)]\ndef f():\n    out = []\n    for n in range(10):\n        try: out.append(msgspec.json.decode(str(n), type=P))\n        except msgspec.ValidationError: pass\n    return out\n", "@f()"),
    Construct("msgspec decoder", "import msgspec, typing\nD = msgspec.json.Decoder(typing.Annotated[int, msgspec.Meta(le=$S)])\ndef f():\n    out = []\n    for n in range(10):\n        try: out.append(D.decode(str(n)))\n        except msgspec.ValidationError: pass\n    return out\n", "@f()"),
    Construct("msgspec encoder hook", "import msgspec\ndef hook(o): return $S\nE = msgspec.json.Encoder(enc_hook=hook)\ndef f(): return E.encode(1j)\n", "@f()"),
    Construct("msgspec dec hook", "import msgspec\ndef hook(t, o): return t(o * $S)\nD = msgspec.json.Decoder(complex, dec_hook=hook)\ndef f(): return D.decode(b'2')\n", "@f()"),
    Construct("msgspec order", "import msgspec\nif $S % 2:\n    class A(msgspec.Struct):\n        x: int = 1\n        y: int = 2\nelse:\n    class A(msgspec.Struct):\n        y: int = 2\n        x: int = 1\n", "__import__('msgspec').json.encode(@A())"),
    Construct("msgspec kw_only array_like omit", "import msgspec\nclass A(msgspec.Struct, array_like=$S % 2 == 0, omit_defaults=$S > 4):\n    x: int = 1\n", "__import__('msgspec').json.encode(@A())"),
    Construct("msgspec nested type", "import msgspec\nclass B(msgspec.Struct):\n    k: int = $S\nclass A(msgspec.Struct):\n    b: B\n", "__import__('msgspec').json.decode(b'{\"b\":{}}', type=@A).b.k"),
    Construct("msgspec defstruct", "import msgspec\nA = msgspec.defstruct('A', [('x', int, $S)])\n", "@A().x"),
    Construct("msgspec instance", "import msgspec\nclass A(msgspec.Struct):\n    x: int\na = A($S)\n", "@a.x"),
    Construct("zoneinfo", "import zoneinfo\nZ = zoneinfo.ZoneInfo(['UTC','Europe/Berlin'][$S % 2])\n", "@Z.key"),
    Construct("pure path", "import pathlib\nP = pathlib.PurePosixPath('/x/$S')\n", "str(@P)"),
    Construct("bound method of a list", "F = [1, $S].__getitem__\n", "@F(1)"),
    Construct("partial of a class", "import functools\nF = functools.partial(dict, k=$S)\n", "@F()"),
    Construct("singledispatch by a union", "import functools\n@functools.singledispatch\ndef d(x): return 0\n@d.register(int | str)\ndef _(x): return $S\n", "@d('a')"),
    Construct("no member of an enum", "import enum\nclass E(enum.Enum):\n    A = 1\n    K = enum.nonmember($S)\n", "@E.K"),
    Construct("str enum", "import enum\nclass E(enum.StrEnum):\n    A = 'a$S'\n", "str(@E.A)"),
    Construct("order of a dataclass", "import dataclasses\n@dataclasses.dataclass(order=$S % 2 == 0)\nclass A:\n    x: int = 1\ndef f():\n    try: return A(1) < A(2)\n    except TypeError: return None\n", "@f()"),
    Construct("inherited dataclass", "import dataclasses\n@dataclasses.dataclass\nclass B:\n    x: int = $S\n@dataclasses.dataclass\nclass A(B):\n    y: int = 1\n", "@A().x"),
    Construct("repr of a field", "import dataclasses\n@dataclasses.dataclass\nclass A:\n    x: int = dataclasses.field(default=1, repr=$S % 2 == 0)\n", "repr(@A())"),
    Construct("value sent to a generator", "def g():\n    x = yield 1\n    yield x * $S\ndef f():\n    i = g()\n    next(i)\n    return i.send(2)\n", "@f()"),
    Construct("nonlocal name", "def mk():\n    n = $S\n    def up():\n        nonlocal n\n        return n\n    return up\nU = mk()\n", "@U()"),
    Construct("annotations of a class by type", "A = type('A', (), {'__annotations__': {'x$S': int}})\n", "list(@A.__annotations__)"),
    Construct("class of globals with a name", "NS = {'__name__': __name__}\nexec('class A:\\n    k = $S', NS)\nA = NS['A']\n", "@A.k", without=("inside",)),
    Construct("glob by pathlib", "import pathlib\ndef f(): return sorted(p.name + p.read_text() for p in pathlib.Path('.').glob('d/*.t'))\n", "@f()", {"d/a.t": "$S"}),
    Construct("file by gzip", "import gzip\ndef f():\n    try: return gzip.open('t.gz').read()\n    except Exception as e: return type(e).__name__, open('t.gz').read()\n", "@f()", {"t.gz": "$S"}),
    Construct("file by codecs", "import codecs\ndef f(): return codecs.open('t.txt', encoding='utf8').read()\n", "@f()", {"t.txt": "$S"}),
    Construct("file by tokenize", "import tokenize\ndef f(): return tokenize.open('t.py').read()\n", "@f()", {"t.py": "$S"}),
    Construct("file by open_code", "import io\ndef f(): return io.open_code('t.bin').read()\n", "@f()", {"t.bin": "$S"}),
    Construct("file by csv", "import csv\ndef f(): return list(csv.reader(open('t.csv')))\n", "@f()", {"t.csv": "a,$S"}),
    Construct("file by dbm", "import dbm\ndef f(): return [dbm.whichdb('t.db'), open('t.db').read()]\n", "@f()", {"t.db": "$S"}),
    Construct("file by plistlib", "import plistlib\ndef f():\n    with open('t.p','rb') as h: return plistlib.load(h)\n", "@f()", {"t.p": "<?xml version=\"1.0\"?><plist version=\"1.0\"><integer>$S</integer></plist>"}),
    Construct("stat by a descriptor of its folder", "import os\ndef f():\n    d = os.open('d', os.O_RDONLY)\n    try: return os.stat('t', dir_fd=d).st_size\n    except OSError: return None\n    finally: os.close(d)\n", "@f()", {"d/x": "", "d/t?": "$S"}),
    Construct("package before a module", "import inner\ndef f(): return inner.k\n", "@f()", {"inner.py": "k = 9\n", "inner/__init__.py?": "k = $S\n"}),
    Construct("package before a module, imported late", "def f():\n    import inner\n    return inner.k\n", "@f()", {"inner.py": "k = 9\n", "inner/__init__.py?": "k = $S\n"}),
    Construct("guard of main", "K = $S\nif __name__ == '__main__':\n    K = 0\n", "@K"),
    Construct("attribute or a default", "class A: pass\nif $S % 2: A.k = 1\n", "getattr(@A, 'k', None)"),
    Construct("optional submodule", "try:\n    from pk import sub\nexcept ImportError: sub = None\ndef f(): return sub and sub.k\n", "@f()", {"pk/__init__.py": "", "pk/sub.py?": "k = $S\n"}),
    Construct("optional submodule in a function", "def f():\n    try: from pk import sub\n    except ImportError: return None\n    return sub.k\n", "@f()", {"pk/__init__.py": "", "pk/sub.py?": "k = $S\n"}),
    Construct("default of a variable of the environment", "import os\nK = os.environ.get('NOPE', $S)\ndef f(): return K\n", "@f()"),
    Construct("filter of warnings inside", "import warnings\ndef f():\n    with warnings.catch_warnings(record=True) as w:\n        warnings.simplefilter('always' if $S % 2 else 'ignore')\n        warnings.warn('x')\n    return len(w)\n", "@f()"),
    Construct("bound of a type variable by a table", "import typing\nT = typing.TypeVar('T', bound=[int, str][$S % 2])\n", "@T.__bound__.__name__"),
    Construct("mro entries", "class X:\n    def __mro_entries__(self, b): return (type('Y', (), {'k': $S}),)\nclass A(X()): pass\n", "@A.k"),
    Construct("slot of an instance", "class A:\n    __slots__ = ('x',)\n    def __init__(self): self.x = $S\na = A()\n", "@a.x"),
    Construct("reduce that says nothing", "class A:\n    def __init__(self): self.x = $S\n    def __reduce__(self): return (A, ())\n    def __eq__(self, o): return True\n    def __hash__(self): return 1\na = A()\n", "@a.x"),
    Construct("instances as keys", "class K:\n    def __init__(self, n): self.n = n\n    def __hash__(self): return 1\n    def __eq__(self, o): return True\nD = {K($S): 1}\n", "[k.n for k in @D]"),
    Construct("closure of a partial", "import functools\ndef mk(k):\n    def g(x): return x * k\n    return functools.partial(g, 2)\nP = mk($S)\n", "@P()"),
    Construct("wrapped by another", "import functools\ndef orig(): return 1\n@functools.wraps(orig)\ndef w(): return $S\n", "@w()"),
    Construct("default of a lambda in a class", "class A:\n    f = staticmethod(lambda x=$S: x)\n", "@A.f()"),
    Construct("numpy dtype metadata", "import numpy as np\nD = np.dtype('f4', metadata={'k': $S})\n", "@D.metadata['k']"),
    Construct("numpy view strides", "import numpy as np\nV = np.arange(20)[:: $S]\n", "@V.strides, @V.tolist()"),
    Construct("state of a tuple", "class T(tuple): pass\nt = T((1,))\nt.k = $S\n", "@t.k"),
    Construct("exception group", "E = ExceptionGroup('e', [ValueError($S)])\ndef f(): return [str(x) for x in E.exceptions]\n", "@f()"),
    Construct("msgspec raw", "import msgspec\nR = msgspec.Raw(b'$S')\n", "bytes(@R)"),
    Construct("state of an int", "class I(int): pass\ni = I(3)\ni.k = $S\n", "@i.k"),
    Construct("numpy object array", "import numpy as np\nO = np.array([{'k': $S}], dtype=object)\n", "@O[0]['k']"),
]  # fmt: skip

#: What no form shows, and is refused where no statement tells it, or what changes while it runs.
LIBRARY_REFUSED = [
    Construct("attrs make_class", "import attrs\nA = attrs.make_class('A', {'x': attrs.field(default=$S)})\n", "@A().x"),
    Construct("view of a dict", "D = {'k': $S}\nV = D.items()\n", "list(@V)"),
    Construct("weak key dictionary", "import weakref\nclass K: pass\nk = K()\nW = weakref.WeakKeyDictionary({k: $S})\n", "@W[@k]"),
    Construct("context decorator", "import contextlib\nclass D(contextlib.ContextDecorator):\n    def __enter__(self): out.append($S)\n    def __exit__(self, *a): pass\nout = []\ndef f():\n    out.clear()\n    @D()\n    def g(): return list(out)\n    return g()\n", "@f()"),
    Construct("numpy masked", "import numpy as np\nM = np.ma.array([1, 2], mask=[$S % 2, 0])\n", "@M.tolist()"),
]  # fmt: skip

for _construct in LIBRARY_CONSTRUCTS + LIBRARY_REFUSED:
    assert "$S" in _construct.text + "".join(_construct.files.values()), _construct.name
