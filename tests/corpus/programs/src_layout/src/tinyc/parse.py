from .ast import Add, Const, Name


def parse(text):
    head, _, tail = text.rpartition("+")
    if head:
        left, right = parse(head), parse(tail)
        return Add(left, right)
    return Const(int(text)) if text.isdigit() else Name(text)
