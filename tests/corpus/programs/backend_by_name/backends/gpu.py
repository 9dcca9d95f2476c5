from .common import mangle

SUFFIX = ".ptx"


def output(name):
    return "gpu-" + mangle(name) + SUFFIX
