from passes.manager import pass_


@pass_("lower", after=["simplify"])
def lower(expr):
    return f"({expr})"
