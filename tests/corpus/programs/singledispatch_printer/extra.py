from printer import show


@show.register
def _(value: bool):
    return "true" if value else "false"


@show.register(list)
@show.register(tuple)
def show_sequence(value):
    return f"[{', '.join(map(show, value))}]"
