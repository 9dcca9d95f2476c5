from functools import singledispatch


@singledispatch
def show(value):
    return repr(value)


@show.register
def _(value: int):
    return f"{value} : i64"


@show.register(float)
def show_float(value):
    return f"{value:e} : f64"
