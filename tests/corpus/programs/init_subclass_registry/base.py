class Operator:
    registry = {}

    def __init_subclass__(cls, symbol, arity=2, commutes=False, **kwargs):
        super().__init_subclass__(**kwargs)
        cls.symbol = symbol
        cls.arity = arity
        cls.commutes = commutes
        Operator.registry[symbol] = cls

    def apply(self, *args):
        raise NotImplementedError
