import os
import stat
import tempfile

import cachec

cache = cachec.Cache()


@cache.stage
def modes():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "x")
        with open(path, "w") as f:
            f.write("x")
        return stat.filemode(os.stat(path).st_mode)


@cache.stage
def names():
    with open("list.txt") as f:
        return f.read().split()


def main():
    os.umask(0o027)
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "work"))
    print("RESULT", modes())
    print("RESULT", names())


main()
