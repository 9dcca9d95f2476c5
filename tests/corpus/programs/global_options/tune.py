import argparse

import cachec

cache = cachec.Cache()
OPTIONS = None


def defines():
    return [f"-D{text}" for text in OPTIONS.define]


@cache.stage
def command(source):
    budget = 2 ** OPTIONS.level
    return ["opt", f"--budget={budget}", *defines(), *OPTIONS.flags, source]


def main():
    global OPTIONS
    parser = argparse.ArgumentParser()
    parser.add_argument("-O", dest="level", type=int, default=1)
    parser.add_argument("-D", dest="define", action="append", default=[])
    parser.add_argument("--flags", nargs="*", default=["WARN"])
    OPTIONS = parser.parse_args()
    for source in ["a.ll", "b.ll"]:
        print("RESULT", command(source))


main()
