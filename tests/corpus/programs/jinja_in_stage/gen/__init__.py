import jinja2


def hexadecimal(value):
    return f"0x{value:02x}"


def environment():
    env = jinja2.Environment(loader=jinja2.PackageLoader("gen"), undefined=jinja2.StrictUndefined)
    env.filters["hexadecimal"] = hexadecimal
    return env
