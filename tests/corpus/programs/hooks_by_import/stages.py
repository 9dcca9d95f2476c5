import cachec
import model

cache = cachec.Cache()


@cache.stage
def total(ops):
    return model.total(ops)
