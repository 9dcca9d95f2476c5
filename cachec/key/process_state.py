"""Stub."""
def digests(): return {}
def snapshot(_=None): return {}
def apply(x): pass
def generators(): return {}
def moved(b): return ""
def digest(name): return ""
def counting(owners): return ()
