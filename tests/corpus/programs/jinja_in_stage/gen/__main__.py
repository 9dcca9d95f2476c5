import cachec

from . import environment

cache = cachec.Cache()


@cache.stage
def render(name, values):
    return environment().get_template(name).render(values=values)


print("RESULT", repr(render("table.j2", [1, 10, 255])))
