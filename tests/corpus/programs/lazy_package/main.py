import cachec
import kernels

cache = cachec.Cache()


@cache.stage
def plan_gemm(m, n, k):
    return kernels.gemm(m, n, k)


@cache.stage
def plan_dot(n):
    return kernels.dot(n)


if __name__ == "__main__":
    print("RESULT", plan_gemm(128, 128, 32))
    print("RESULT", plan_dot(256))
