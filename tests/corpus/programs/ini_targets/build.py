import sys

import cachec
import settings

cache = cachec.Cache()


@cache.stage
def command_line(target, source):
    return ["cc", *settings.flags(target), f"-DWIDTH={settings.width(target)}", "-c", source]


def main():
    target = sys.argv[1]
    for source in ("gemm.c", "conv.c"):
        print("RESULT", command_line(target, source))


if __name__ == "__main__":
    main()
