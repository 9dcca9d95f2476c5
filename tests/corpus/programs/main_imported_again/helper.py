def scaled(x):
    import main

    return main.FACTOR * x


def mode():
    import main

    return main.MODE
