from backends.common import mangle

SUFFIX = ".o"


def output(name):
    return mangle(name) + SUFFIX
