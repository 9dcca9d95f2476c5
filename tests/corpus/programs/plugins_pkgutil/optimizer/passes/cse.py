PRIORITY = 20


def apply(ops):
    seen = []
    for op in ops:
        if op not in seen:
            seen.append(op)
    return seen
