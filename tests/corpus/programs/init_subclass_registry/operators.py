from base import Operator


class Add(Operator, symbol="+"):
    def apply(self, a, b):
        return a + b


class Mul(Operator, symbol="*"):
    def apply(self, a, b):
        return a * b


class Neg(Operator, symbol="neg", arity=1):
    def apply(self, a):
        return -a
