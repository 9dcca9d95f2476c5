"""What a Python process does at its start where ``CACHEC_INSTALL`` is set: ``cachec-startup.pth`` calls ``start``.

A package of its own, because every such process imports it, also one that never compiles: it imports next to nothing.
cachec itself is imported once a framework of ``CACHEC_INSTALL`` is.
"""

#: Names of plugins, commas between; each is also the name of the framework's module.
VARIABLE = "CACHEC_INSTALL"

#: What ``cachec python`` sets it to.
DEFAULT = "jax,torch"


def start() -> None:
    """Have the plugins that the variable names installed when their frameworks are imported.

    Called again, it does nothing; nor in a command of ``cachec exec``, which is stored as a whole. The program goes on
    whatever fails here or later: that is one line on stderr.
    """
    import os

    names = [name for name in map(str.strip, os.environ.get(VARIABLE, "").split(",")) if name]
    if not names or "CACHEC_DEPTH" in os.environ:
        return
    from cachec_startup import import_hooks, installing, summary

    if not import_hooks.is_watching():
        import_hooks.watch(dict.fromkeys(names, installing.install_plugin))
        import_hooks.watch({"cachec.base.call_hooks": summary.start()})
