import cachec
import kernels
from jit import compile_function

cache = cachec.Cache()


@cache.stage
def lower(function):
    return compile_function(function)


if __name__ == "__main__":
    print("RESULT", lower(kernels.fma))
    print("RESULT", lower(kernels.scaled))
