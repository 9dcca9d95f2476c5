"""Constructs in which a module that is loaded by a computed name fills a registry, from which the value is taken by
name: each way to load such a module with each kind of registry, imported at the top or inside of the function."""

# Programs are easier to read as they are.

from __future__ import annotations

from itertools import product

from tests.soundness.constructs import Construct

#: What loads the module, and where it is.
_LOADERS = {
    "import_module": ("importlib.import_module('pl' + 'ug')", "plug.py"),
    "exec_module": (
        "s = u.spec_from_file_location('loose', 'plug.py'); m = u.module_from_spec(s); s.loader.exec_module(m)",
        "plug.py",
    ),
    "dunder import": ("__import__('pl' + 'ug')", "plug.py"),
    "the registry": ("reg.load('pl' + 'ug')", "plug.py"),
    "iter_modules": (
        "import plugs; [importlib.import_module('plugs.' + m.name) for m in pkgutil.iter_modules(plugs.__path__)]",
        "plugs/one.py",
    ),
    "entry points": ("[e.load() for e in importlib.metadata.entry_points(group='soundness.registries')]", "plug.py"),
}
#: What the module fills, and how the value is taken from that.
_REGISTRIES = {
    "table": ("R = {}\n", "reg.R['go'] = go\n", "reg.R['go'](2)"),
    "list": ("R = []\n", "reg.R.append(go)\n", "reg.R[0](2)"),
    "hook": ("hook = None\n", "reg.hook = go\n", "reg.hook(2)"),
    "decorator": (
        "R = {}\ndef register(f):\n    R[f.__name__] = f\n    return f\n",
        "reg.register(go)\n",
        "reg.R['go'](2)",
    ),
    "subclass": ("class B: pass\n", "class C(reg.B):\n    go = staticmethod(go)\n", "reg.B.__subclasses__()[0].go(2)"),
}
_METADATA = {
    "ed/registered-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: registered\nVersion: 1.0\n",
    "ed/registered-1.0.dist-info/entry_points.txt": "[soundness.registries]\na = plug\n",
}
#: Loaders with which all modules that are imported count, or all distributions: another project beside is a change.
_OF_ALL_MODULES = ("dunder import", "entry points")


def _construct(loader: str, registry: str, *, is_local: bool, is_deep: bool) -> Construct:
    load, path = _LOADERS[loader]
    table, fill, take = _REGISTRIES[registry]
    libraries = "import importlib, importlib.metadata, importlib.util as u, os, pkgutil, sys\n"
    top, inside = ("", "    import reg\n") if is_local else ("import reg\n", "")
    files = {
        "reg.py": f"import importlib\ndef load(n): importlib.import_module(n)\n{table}",
        path: f"import reg\nimport deep\ndef go(x): return x * {'deep.K' if is_deep else '$S'}\n{fill}",
        "deep.py": "K = $S\n",
    }
    if "/" in path:
        files["plugs/__init__.py"] = ""
    if loader == "entry points":
        files |= _METADATA
        libraries += "sys.path.insert(0, os.path.abspath('ed'))\n"
    text = f"{libraries}{top}def f():\n{inside}    {load}\n    return {take}\n"
    where = "inside" if is_local else "at the top"
    # A registry that was imported before the run, and is filled by it, is a changed input: the result is not stored.
    without = ("inside",) if loader in _OF_ALL_MODULES else () if is_local else ("top", "names", "main", "cell")
    return Construct(f"{registry} filled by {loader}, imported {where}", text, "@f()", files, without)


REGISTRIES = [
    _construct(loader, registry, is_local=number % 2 == 0 or loader in _OF_ALL_MODULES, is_deep=number % 3 == 0)
    for number, (loader, registry) in enumerate(product(_LOADERS, _REGISTRIES))
]
