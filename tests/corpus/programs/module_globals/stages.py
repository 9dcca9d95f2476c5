import cachec
import config
import emit

cache = cachec.Cache()


@cache.stage
def normalize(names):
    body = " + ".join(emit.cast(name) for name in names)
    return f"({body}) / ({config.EPSILON:g} + norm)  /* align {config.ALIGN} */"
