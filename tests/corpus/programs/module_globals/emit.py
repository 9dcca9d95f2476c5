import config


def cast(name):
    return f"({config.DTYPE}){name}"
