def constant(name):
    return name.upper()
