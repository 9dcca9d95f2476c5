MODELS = {}


def register(name):
    def decorate(build):
        add(name, build)
        return build

    return decorate


def add(name, build):
    MODELS[name] = build


def create(name, depth):
    try:
        return MODELS[name](depth)
    except KeyError:
        raise SystemExit(f"no model {name!r}; there are {sorted(MODELS)}")
