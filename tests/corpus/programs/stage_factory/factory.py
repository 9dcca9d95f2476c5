def make_compiler(cache, target, *, lanes=4):
    prefix = target + "."

    @cache.stage
    def compile_op(op, n):
        chunks = -(-n // lanes)
        return f"{prefix}{op}[{chunks}x{lanes}]"

    return compile_op
