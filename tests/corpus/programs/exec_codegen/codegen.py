import templates


def unrolled(n):
    lines = ["def dot(x, y):", "    total = 0"]
    lines += [f"    total += x[{i}] * y[{i}]" for i in range(n)]
    lines += ["    return total"]
    namespace = {}
    exec(compile("\n".join(lines), f"<dot{n}>", "exec"), namespace)
    return namespace["dot"]


def clamp(low):
    namespace = {}
    exec(templates.CLAMP.format(low=low), namespace)
    return namespace["clamp"]
