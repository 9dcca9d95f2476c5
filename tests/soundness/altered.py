"""Modules that a stage imports inside, and changes of what they hold: bound again, in place, added, deleted.

Each: the module ``conf``, the body of the stage, and the change, after which the body has another value; ``sub`` is a
module beside it. A change counts where it came before the call or after one, and not in the next process.
"""

from __future__ import annotations

SUB = "class D:\n    n = 3\ndef make(): return D()\nclass S: pass\nstate = S(); state.n = 3\n"

#: name -> (conf.py, body, change)
CASES: dict[str, tuple[str, str, str]] = {
    "plain": (
        "class C:\n    def __init__(self): self.n=3\ncfg=C()",
        "from conf import cfg\nreturn cfg.n",
        "conf.cfg.n=7",
    ),
    "whole_subclass": (
        "import abc\nclass B(abc.ABC): pass\nclass C(B):\n    def __init__(self): self.n=3\ncfg=C()",
        "from conf import cfg\nreturn cfg.n",
        "conf.cfg.n=7",
    ),
    "whole_module_attr": (
        "import abc\nclass B: pass\nclass C(B):\n    def __init__(self): self.n=3\ncfg=C()",
        "import conf\nreturn conf.cfg.n",
        "conf.cfg.n=7",
    ),
    "getattr": (
        "class C:\n    def __init__(self): self.n=3\ncfg=C()",
        "import conf\nreturn getattr(conf,'c'+'fg').n",
        "conf.cfg.n=7",
    ),
    "via_function": (
        "class C:\n    def __init__(self): self.n=3\n_cfg=C()\ndef get(): return _cfg",
        "from conf import get\nreturn get().n",
        "conf._cfg.n=7",
    ),
    "via_function_global": (
        "_n=None\ndef put(v):\n    global _n\n    _n=v\ndef get(): return _n\nput(3)",
        "from conf import get\nreturn get()",
        "conf.put(7)",
    ),
    "rebind_literal": ("n=3\ndef get(): return n", "from conf import get\nreturn get()", "conf.n=7"),
    "class_attr": ("class C:\n    n=3", "from conf import C\nreturn C.n", "conf.C.n=7"),
    "class_attr_new": ("class C:\n    n=3", "from conf import C\nreturn getattr(C,'m',3)", "conf.C.m=7"),
    "list_append": ("t=[1,2]", "from conf import t\nreturn sum(t)", "conf.t.append(7)"),
    "dict_nested": ("t={'a':{'b':3}}", "from conf import t\nreturn t['a']['b']", "conf.t['a']['b']=7"),
    "loop_table": ("t={}\nfor i in range(3): t[i]=i", "from conf import t\nreturn sum(t.values())", "conf.t[0]=7"),
    "comp_table": ("t={i:i for i in range(3)}", "from conf import t\nreturn sum(t.values())", "conf.t[0]=7"),
    "numpy": ("import numpy as np\nt=np.zeros(3)", "from conf import t\nreturn float(t.sum())", "conf.t[0]=7"),
    "dataclass": (
        "from dataclasses import dataclass\n@dataclass\nclass C:\n    n:int=3\ncfg=C()",
        "from conf import cfg\nreturn cfg.n",
        "conf.cfg.n=7",
    ),
    "ns": (
        "from types import SimpleNamespace\ncfg=SimpleNamespace(n=3)",
        "from conf import cfg\nreturn cfg.n",
        "conf.cfg.n=7",
    ),
    "func_attr": ("def f(): return f.n\nf.n=3", "from conf import f\nreturn f()", "conf.f.n=7"),
    "func_attr_new": ("def f(): return getattr(f,'n',3)", "from conf import f\nreturn f()", "conf.f.n=7"),
    "func_replaced": ("def f(): return 3\ndef g(): return f()", "from conf import g\nreturn g()", "conf.f=lambda: 7"),
    "partial": (
        "from functools import partial\ndef h(n): return n\nf=partial(h,3)",
        "from conf import f\nreturn f()",
        "from functools import partial\nconf.f=partial(conf.h,7)",
    ),
    "import_module": (
        "class C:\n    def __init__(self): self.n=3\ncfg=C()",
        "import importlib\nreturn importlib.import_module('conf').cfg.n",
        "conf.cfg.n=7",
    ),
    "import_module_computed": (
        "class C:\n    def __init__(self): self.n=3\ncfg=C()",
        "import importlib\nreturn importlib.import_module('co'+'nf').cfg.n",
        "conf.cfg.n=7",
    ),
    "import_computed_literal": ("n=3", "import importlib\nreturn importlib.import_module('co'+'nf').n", "conf.n=7"),
    "registry": (
        "R={}\ndef reg(f):\n    R[f.__name__]=f\n    return f\n@reg\ndef a(): return 3",
        "from conf import R\nreturn R['a']()",
        "conf.reg(lambda: 7).__name__\nconf.R['a']=lambda: 7",
    ),
    "property_cfg": (
        "class C:\n    _n=3\n    @property\n    def n(self): return self._n\ncfg=C()",
        "from conf import cfg\nreturn cfg.n",
        "conf.C._n=7",
    ),
    "sub": ("import sub\ncfg=sub.make()", "from conf import cfg\nreturn cfg.n", "import sub\nsub.D.n=7"),
    "subfn": ("import sub\ndef get(): return sub.D.n", "from conf import get\nreturn get()", "import sub\nsub.D.n=7"),
    "substate": (
        "import sub\ndef get(): return sub.state.n",
        "from conf import get\nreturn get()",
        "import sub\nsub.state.n=7",
    ),
    "deque": ("import collections\nt=collections.deque([3])", "from conf import t\nreturn sum(t)", "conf.t.append(7)"),
    "counter": (
        "import collections\nt=collections.Counter('aab')",
        "from conf import t\nreturn t['a']",
        "conf.t['a']=7",
    ),
    "random": ("import random\nr=random.Random(0)", "from conf import r\nreturn r.random()", "conf.r.seed(5)"),
    "lock_holder": (
        "import threading\nclass C:\n    def __init__(self): self.n=3; self.l=threading.Lock()\ncfg=C()",
        "from conf import cfg\nreturn cfg.n",
        "conf.cfg.n=7",
    ),
    "lock_replaced": (
        "import threading\nclass C:\n    def __init__(self): self.n=3; self.l=threading.Lock()\ncfg=C()",
        "from conf import cfg\nreturn cfg.n",
        "conf.cfg=conf.C(); conf.cfg.n=7",
    ),
    "contextvar": (
        "import contextvars\nv=contextvars.ContextVar('v',default=3)",
        "from conf import v\nreturn v.get()",
        "conf.v.set(7)",
    ),
    "method_replaced": (
        "class C:\n    def m(self): return 3\ncfg=C()",
        "from conf import cfg\nreturn cfg.m()",
        "conf.C.m=lambda self: 7",
    ),
    "library_method": (
        "import string\ndef f(): return string.Template('$a').safe_substitute(a=3)",
        "from conf import f\nreturn f()",
        "import string\nstring.Template.safe_substitute=lambda self, a: 7",
    ),
    "library_method_inside": (
        "",
        "import fractions\nreturn fractions.Fraction(3).limit_denominator()",
        "import fractions\nfractions.Fraction.limit_denominator=lambda self: 7",
    ),
    "library_base": (
        "import configparser\ndef f(): return configparser.ConfigParser().sections()",
        "from conf import f\nreturn f()",
        "import configparser\nconfigparser.RawConfigParser.sections=lambda self: 7",
    ),
    "library_subclass": (
        "from string import Formatter\nclass E(Formatter): pass\ndef f(): return E().format('{}', 3)",
        "from conf import f\nreturn f()",
        "import string\nstring.Formatter.format=lambda self, *given: 7",
    ),
    "library_instance": (
        "import ipaddress\nT=ipaddress.ip_network('10.0.0.0/8')\ndef f(): return T.hosts is None or T.subnet_of(T)",
        "from conf import f\nreturn f()",
        "import ipaddress\nipaddress.IPv4Network.subnet_of=lambda self, other: 7",
    ),
    "inst_method": (
        "class C:\n    def m(self): return 3\ncfg=C()",
        "from conf import cfg\nreturn cfg.m()",
        "conf.cfg.m=lambda: 7",
    ),
    "star": ("n=3", "import conf2\nreturn conf2.n", "import conf2\nconf2.n=7"),
    "tryexc": (
        "try:\n    import json as j\n    n=3\nexcept ImportError:\n    n=4",
        "from conf import n\nreturn n",
        "conf.n=7",
    ),
    "ifelse": ("import sys\nif sys.platform:\n    n=3\nelse:\n    n=4", "from conf import n\nreturn n", "conf.n=7"),
    "tuple_assign": ("a,n=1,3", "from conf import n\nreturn n", "conf.n=7"),
    "aug": ("n=1\nn+=2", "from conf import n\nreturn n", "conf.n=7"),
    "env": ("import os\nn=int(os.environ.get('NN','3'))", "from conf import n\nreturn n", "conf.n=7"),
    "delattr": ("n=3", "import conf\nreturn getattr(conf,'n',0)", "del conf.n"),
    "addattr": ("n=3", "import conf\nreturn getattr(conf,'m',3)", "conf.m=7"),
    "addattr_hasattr": ("n=3", "import conf\nreturn 7 if hasattr(conf,'m') else 3", "conf.m=7"),
    "vars": ("n=3", "import conf\nreturn vars(conf).get('m',3)", "conf.m=7"),
    "from_try": ("n=3", "try:\n    from conf import m\nexcept ImportError:\n    m=3\nreturn m", "conf.m=7"),
    "typeddict_default": ("def f(a=[3]): return a[0]", "from conf import f\nreturn f()", "conf.f.__defaults__[0][0]=7"),
    "closure": (
        "def mk():\n    s={'n':3}\n    def f(): return s['n']\n    f.s=s\n    return f\nf=mk()",
        "from conf import f\nreturn f()",
        "conf.f.s['n']=7",
    ),
    "import_from_sub": ("from sub import D", "from conf import D\nreturn D.n", "class Z: n=7\nconf.D=Z"),
    "import_sub_mod": ("import sub", "from conf import sub\nreturn sub.D.n", "class Z:\n    class D: n=7\nconf.sub=Z"),
    "import_lib_const": ("from math import pi", "from conf import pi\nreturn pi", "conf.pi=7"),
    "import_lib_fn": (
        "from math import sqrt\ndef f(): return sqrt(9)",
        "from conf import f\nreturn f()",
        "conf.sqrt=lambda x: 7",
    ),
    "import_lib_mod": (
        "import math\ndef f(): return math.sqrt(9)",
        "from conf import f\nreturn f()",
        "class M:\n    @staticmethod\n    def sqrt(x): return 7\nconf.math=M",
    ),
    "regex": (
        "import re\np=re.compile('a')",
        "from conf import p\nreturn p.sub('x','ab')",
        "import re\nconf.p=re.compile('b')",
    ),
    "math_val": ("import math\nn=math.floor(3.5)", "from conf import n\nreturn n", "conf.n=7"),
    "typevar": ("import typing\nT=typing.TypeVar('T')", "from conf import T\nreturn str(T)", "conf.T=7"),
    "method_default": (
        "class C:\n    def m(self,a=3): return a",
        "from conf import C\nreturn C().m()",
        "conf.C.m.__defaults__=(7,)",
    ),
    "kwdefault": ("def f(*,a=3): return a", "from conf import f\nreturn f()", "conf.f.__kwdefaults__['a']=7"),
    "code_swap": (
        "def f(): return 3\ndef g(): return f()",
        "from conf import g\nreturn g()",
        "def z(): return 7\nconf.f.__code__=z.__code__",
    ),
    "staticmethod": (
        "class C:\n    @staticmethod\n    def m(): return 3",
        "from conf import C\nreturn C.m()",
        "conf.C.m=staticmethod(lambda: 7)",
    ),
    "classmethod": (
        "class C:\n    n=3\n    @classmethod\n    def m(cls): return cls.n",
        "from conf import C\nreturn C.m()",
        "conf.C.n=7",
    ),
    "property_replaced": (
        "class C:\n    @property\n    def n(self): return 3",
        "from conf import C\nreturn C().n",
        "conf.C.n=property(lambda s: 7)",
    ),
    "base_attr": ("class B:\n    n=3\nclass C(B): pass", "from conf import C\nreturn C.n", "conf.B.n=7"),
    "base_new": ("class B: pass\nclass C(B): pass", "from conf import C\nreturn getattr(C,'n',3)", "conf.B.n=7"),
    "dataclass_attr": (
        "from dataclasses import dataclass\n@dataclass\nclass C:\n    n:int=3",
        "from conf import C\nreturn C.n",
        "conf.C.n=7",
    ),
    "decorated": (
        "import functools\ndef d(f):\n    @functools.wraps(f)\n    def w(): return f()+w.k\n    w.k=0\n    return w\n@d\ndef f(): return 3",  # noqa: E501
        "from conf import f\nreturn f()",
        "conf.f.k=4",
    ),
    "decorated_nowrap": (
        "def d(f):\n    s={'k':0}\n    def w(): return f()+s['k']\n    w.s=s\n    return w\n@d\ndef f(): return 3",
        "from conf import f\nreturn f()",
        "conf.f.s['k']=4",
    ),
    "lru": (
        "import functools\n@functools.lru_cache\ndef f(): return [3]",
        "from conf import f\nreturn f()[0]",
        "conf.f()[0]=7",
    ),
    "cached_prop": (
        "import functools\nclass C:\n    @functools.cached_property\n    def n(self): return 3\nc=C()",
        "from conf import c\nreturn c.n",
        "conf.c.n=7",
    ),
    "class_list": ("class C:\n    t=[3]", "from conf import C\nreturn sum(C.t)", "conf.C.t.append(4)"),
    "class_dict_nested": (
        "class C:\n    t={'a':[3]}",
        "from conf import C\nreturn sum(C.t['a'])",
        "conf.C.t['a'].append(4)",
    ),
    "class_object": ("class D: pass\nclass C:\n    d=D()\nC.d.n=3", "from conf import C\nreturn C.d.n", "conf.C.d.n=7"),
    "nested_class": ("class C:\n    class D:\n        n=3", "from conf import C\nreturn C.D.n", "conf.C.D.n=7"),
    "nested_class_new": (
        "class C:\n    class D:\n        pass",
        "from conf import C\nreturn getattr(C.D,'n',3)",
        "conf.C.D.n=7",
    ),
    "slots_obj": (
        "class C:\n    __slots__=('n',)\n    def __init__(self): self.n=3\nc=C()",
        "from conf import c\nreturn c.n",
        "conf.c.n=7",
    ),
    "namedtuple": (
        "import collections\nC=collections.namedtuple('C','n')\nc=C(3)",
        "from conf import c\nreturn c.n",
        "conf.c=conf.C(7)",
    ),
    "typing_nt": (
        "import typing\nclass C(typing.NamedTuple):\n    n:int=3",
        "from conf import C\nreturn C().n",
        "conf.C.__new__.__defaults__=(7,)",
    ),
    "set_global": (
        "import os\nmode='a'\ndef get(): return mode\ndef use(m):\n    global mode\n    mode=m",
        "from conf import get\nreturn get()",
        "conf.use('b')",
    ),
    "global_statement_init": (
        "_on=False\ndef enable():\n    global _on\n    _on=True\ndef f(): return _on",
        "import conf\nreturn conf.f()",
        "conf.enable()",
    ),
    "stack_ctx": (
        "_s=[]\nclass Use:\n    def __init__(s,v): s.v=v\n    def __enter__(s): _s.append(s.v)\n    def __exit__(s,*a): pass\ndef cur(): return _s[-1] if _s else 3",  # noqa: E501
        "from conf import cur\nreturn cur()",
        "conf.Use(7).__enter__()",
    ),
    "threadlocal": (
        "import threading\n_l=threading.local()\ndef get(): return getattr(_l,'n',3)",
        "from conf import get\nreturn get()",
        "conf._l.n=7",
    ),
    "weakset": (
        "import weakref\nclass A: pass\nw=weakref.WeakSet()",
        "from conf import w\nreturn len(w)",
        "a=conf.A(); conf.w.add(a)",
    ),
    "defaultdict": (
        "import collections\nt=collections.defaultdict(int)",
        "from conf import t\nreturn t['a']",
        "conf.t['a']=7",
    ),
    "ordered": (
        "import collections\nt=collections.OrderedDict(a=3)",
        "from conf import t\nreturn t['a']",
        "conf.t['a']=7",
    ),
    "chainmap": (
        "import collections\nt=collections.ChainMap({'a':3})",
        "from conf import t\nreturn t['a']",
        "conf.t.maps[0]['a']=7",
    ),
    "configparser": (
        "import configparser\nt=configparser.ConfigParser()\nt.read_string('[a]\\nb=3')",
        "from conf import t\nreturn t['a']['b']",
        "conf.t['a']['b']='7'",
    ),
    "argparse_ns": ("import argparse\nt=argparse.Namespace(a=3)", "from conf import t\nreturn t.a", "conf.t.a=7"),
    "decimal_ctx": (
        "import decimal\nc=decimal.Context(prec=3)",
        "from conf import c\nreturn str(c.divide(1,3))",
        "conf.c.prec=7",
    ),
    "np_table": (
        "import numpy as np\nt={'a':np.arange(3)}",
        "from conf import t\nreturn int(t['a'].sum())",
        "conf.t['a'][0]=7",
    ),
    "itertools": ("import itertools\nc=itertools.count()", "from conf import c\nreturn next(c)", "next(conf.c)"),
    "gen": (
        "def g():\n    n=0\n    while True:\n        yield n\n        n+=1\nc=g()",
        "from conf import c\nreturn next(c)",
        "next(conf.c)",
    ),
    "counter_fn": (
        "n=0\ndef nxt():\n    global n\n    n+=1\n    return n",
        "from conf import nxt\nreturn nxt()",
        "conf.n=7",
    ),
    "environ_copy": ("import os\ne=dict(os.environ)", "from conf import e\nreturn e.get('QQ','3')", "conf.e['QQ']='7'"),
    "module_dunder": ("__version__='3'", "import conf\nreturn conf.__version__", "conf.__version__='7'"),
    "module_doc": ("'doc'", "import conf\nreturn conf.__doc__", "conf.__doc__='7'"),
    "all_list": ("__all__=['a']\na=3\nb=4", "import conf\nreturn list(conf.__all__)", "conf.__all__.append('b')"),
    "subclass_registry": (
        "class B:\n    R=[]\n    def __init_subclass__(cls): B.R.append(cls.__name__)\nclass X(B): pass",
        "from conf import B\nreturn B.R",
        "class Y(conf.B): pass",
    ),
    "subclasses_call": (
        "class B: pass\nclass X(B): pass",
        "from conf import B\nreturn [c.__name__ for c in B.__subclasses__()]",
        "class Y(conf.B): pass",
    ),
    "abc_register": (
        "import abc\nclass B(abc.ABC): pass",
        "from conf import B\nreturn isinstance(3,B)",
        "conf.B.register(int)",
    ),
    "singledispatch": (
        "import functools\n@functools.singledispatch\ndef f(x): return 3",
        "from conf import f\nreturn f(1)",
        "conf.f.register(int)(lambda x: 7)",
    ),
    "enum_alias": (
        "import enum\nclass E(enum.IntEnum):\n    A=3",
        "from conf import E\nreturn int(getattr(E,'k',3))",
        "E=conf.E\ntype.__setattr__(E,'k',7)",
    ),
    "json_table": ("import json\nt=json.loads('{\"a\": 3}')", "from conf import t\nreturn t['a']", "conf.t['a']=7"),
    "pathlib": (
        "import pathlib\np=pathlib.Path('a')",
        "from conf import p\nreturn str(p)",
        "import pathlib\nconf.p=pathlib.Path('b')",
    ),
    "type_alias": ("T=dict[str,int]", "from conf import T\nreturn str(T)", "conf.T=list[int]"),
    "string_fmt": ("F=f'{1+2}'", "from conf import F\nreturn F", "conf.F='7'"),
    "cond_expr": ("n=3 if __name__ else 4", "from conf import n\nreturn n", "conf.n=7"),
    "walrus": ("t=[y:=3,y]", "from conf import y\nreturn y", "conf.y=7"),
    "for_var": ("for q in range(4): pass", "from conf import q\nreturn q", "conf.q=7"),
    "with_var": ("import io\nwith io.StringIO('3') as f: q=f.read()", "from conf import q\nreturn q", "conf.q='7'"),
    "del_fn": ("def f(): return 3", "import conf\nreturn conf.f() if hasattr(conf,'f') else 7", "del conf.f"),
    "lambda_": ("f=lambda: 3", "from conf import f\nreturn f()", "conf.f=lambda: 7"),
    "lambda_default": ("f=lambda a=[3]: a[0]", "from conf import f\nreturn f()", "conf.f.__defaults__[0][0]=7"),
    "dict_of_fns": ("def a(): return 3\nt={'a':a}", "from conf import t\nreturn t['a']()", "conf.t['a']=lambda: 7"),
    "dict_of_fns_swap": (
        "def a(): return 3\ndef b(): return 4\nt={'a':a,'b':b}",
        "from conf import t\nreturn t['a']()",
        "conf.t['a']=conf.b",
    ),
    "list_of_classes": ("class A: n=3\nclass B: n=4\nt=[A,B]", "from conf import t\nreturn t[0].n", "conf.t.reverse()"),
    "operator_alias": (
        "import operator\nadd=operator.add",
        "from conf import add\nreturn add(1,2)",
        "import operator\nconf.add=operator.mul",
    ),
    "bound_method": (
        "class C:\n    def __init__(self): self.n=3\n    def m(self): return self.n\nm=C().m",
        "from conf import m\nreturn m()",
        "conf.m.__self__.n=7",
    ),
    "exception_cls": ("class E(Exception):\n    code=3", "from conf import E\nreturn E.code", "conf.E.code=7"),
    "meta": ("class M(type):\n    n=3\nclass C(metaclass=M): pass", "from conf import C\nreturn C.n", "conf.M.n=7"),
    "meta_new": (
        "class M(type): pass\nclass C(metaclass=M): pass",
        "from conf import C\nreturn getattr(C,'n',3)",
        "conf.M.n=7",
    ),
    "descriptor": (
        "class D:\n    n=3\n    def __get__(s,o,t): return s.n\nclass C:\n    d=D()",
        "from conf import C\nreturn C.d",
        "vars(conf.C)['d'].n=7",
    ),
    "bases": (
        "class A:\n    n = 3\nclass B:\n    n = 7\nclass C(A): pass",
        "from conf import C\nreturn C.n",
        "conf.C.__bases__ = (conf.B,)",
    ),
    "optional_import": (
        "try:\n    import nowhere_q\n    HAS = True\nexcept ImportError:\n    HAS = False",
        "import conf\nreturn conf.HAS",
        "conf.HAS = True",
    ),
    "memo": (
        "import functools\n@functools.lru_cache\ndef get(): return {'a': 3}",
        "from conf import get\nreturn dict(get())",
        "conf.get()['a'] = 7",
    ),
    "constant_table": (
        "class A: pass\nclass B(A): pass\nT=[('a','b')]",
        "from conf import T\nreturn len(T)",
        "conf.T.append(len)",
    ),
    "loop_filled": ("t={}\nfor i in range(3): t[i]=i", "from conf import t\nreturn t[1]", "conf.t[1]=7"),
    "loop_table_added": ("t={}\nfor i in range(3): t[i]=i", "from conf import t\nreturn len(t)", "conf.t[7]=7"),
    "loop_list": ("t=[]\nfor i in range(3): t.append(i)", "from conf import t\nreturn t[0]", "conf.t.reverse()"),
    "updated_table": ("t={'a':3}\nt.update(b=4)", "from conf import t\nreturn t['a']", "conf.t['a']=7"),
    "updated_emptied": ("t={'a':3}\nt.update(b=4)", "from conf import t\nreturn t.get('a')", "conf.t.clear()"),
    "updated_as_said": ("t={'a':3}\nt.update(b=4)", "from conf import t\nreturn t.get('b')", "del conf.t['b']"),
    "grown_set": ("t={3}\nt.add(4)", "from conf import t\nreturn 4 in t", "conf.t.discard(4)"),
    "grown_registry": (
        "t={}\ndef reg(f): t[f.__name__]=f; return f\n@reg\ndef a(): return 3\n@reg\ndef b(): return 4",
        "from conf import t\nreturn t['a']()",
        "conf.t['a']=conf.t['b']",
    ),
    "grown_read_by_function": (
        "t={}\nfor i in range(3): t[i]=i\ndef f(): return t[1]",
        "from conf import f\nreturn f()",
        "conf.t[1]=7",
    ),
}
