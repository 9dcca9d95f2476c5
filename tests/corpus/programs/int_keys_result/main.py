import cachec

cache = cachec.Cache()


def padded(n, to):
    return n + -n % to


@cache.stage
def sizes(widths):
    return {width: padded(100, width) for width in widths}


if __name__ == "__main__":
    print("RESULT", sizes([8, 16, 64]))
