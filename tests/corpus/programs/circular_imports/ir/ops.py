from ir import types

NAMES = {"add": "addf"}


class Op:
    def __init__(self, name, args):
        self.name, self.args = name, args

    def result(self):
        return types.Tensor(self.args[0].shape)

    def text(self):
        shape = "x".join(map(str, self.result().shape))
        return f"{NAMES[self.name]} : {shape}"
