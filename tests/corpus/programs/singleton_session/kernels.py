import cachec
from session import Session

cache = cachec.Cache()


@cache.stage
def compile_kernel(name):
    session = Session.get_instance()
    return session.target(name)
