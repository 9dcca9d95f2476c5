PRIORITY = 10


def apply(ops):
    out = []
    for op in ops:
        if op[0] == "add" and len(out) >= 2 and out[-1][0] == out[-2][0] == "const":
            b, a = out.pop(), out.pop()
            op = ("const", a[1] + b[1])
        out.append(op)
    return out
