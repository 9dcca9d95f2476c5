"""A dictionary with attributes, as many projects have one."""


class ConfigDict(dict):
    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    __setattr__ = dict.__setitem__

    def override(self, text):
        path, _, value = text.partition("=")
        *parents, last = path.split(".")
        node = self
        for name in parents:
            node = node[name]
        node[last] = type(node[last])(value)
        return self


def get_config():
    return ConfigDict(
        model=ConfigDict(units=6, act="tanh"),
        data=ConfigDict(seed=0, rows=3),
        scale=1.0,
    )
