class Config(dict):
    _frozen = False

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name, value):
        if self._frozen:
            raise TypeError("the configuration is frozen")
        self[name] = value

    def freeze(self):
        object.__setattr__(self, "_frozen", True)

    def override(self, text):
        path, _, value = text.partition("=")
        *parents, last = path.split(".")
        node = self
        for parent in parents:
            node = node[parent]
        value = int(value) if value.isdigit() else value
        node[last] = value
