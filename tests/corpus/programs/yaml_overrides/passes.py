def fuse(ops):
    out = []
    for op in ops:
        if op == "relu" and out and out[-1] == "matmul":
            out[-1] = "matmul_relu"
        else:
            out.append(op)
    return out


def dce(ops):
    return [op for op in ops if op != "nop"]
