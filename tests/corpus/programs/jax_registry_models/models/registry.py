_MODELS = {}


def register(name):
    def wrap(cls):
        _MODELS[name] = cls
        return cls

    return wrap


def create(name, **options):
    return _MODELS[name](**options)


def names():
    return sorted(_MODELS)
