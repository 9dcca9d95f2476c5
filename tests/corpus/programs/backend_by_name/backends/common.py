def mangle(name):
    return name.replace("/", "_")
