"""Stub."""
import sys
from cachec.base.hashing import FileDigests
from cachec.key import sources
class Imports:
    def __init__(self, is_project, hidden): self.p=is_project
    def install(self): pass
    def _mods(self): return [m for n,m in list(sys.modules.items()) if getattr(m,"__file__",None) and self.p(m.__file__)]
    def reads(self): return [sources.read(m.__file__, None, FileDigests()) for m in self._mods()]
    def names(self):
        out=set()
        def walk(c):
            out.update(c.co_names)
            for k in c.co_consts:
                if hasattr(k,"co_names"): walk(k)
        for m in self._mods(): walk(compile(open(m.__file__).read(), m.__file__, "exec"))
        return out
