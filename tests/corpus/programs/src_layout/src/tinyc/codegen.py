from .ast import Add, Const, Name

ADD = "addl"


def generate(node):
    match node:
        case Const(value):
            return [f"push ${value}"]
        case Name(id):
            return [f"push {id}"]
        case Add(left, right):
            return [*generate(left), *generate(right), ADD]
