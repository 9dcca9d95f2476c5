from printer import show


@show.register
def _(value: str):
    return f'"{value}"'
