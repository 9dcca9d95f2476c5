import hashlib
import os
import sys

import cachec

cache = cachec.Cache()
SALT = os.path.join(os.path.dirname(__file__), "salt.txt")


def salt():
    with open(SALT, "rb") as f:
        return f.read()


@cache.stage
def digests(folder):
    base = os.path.join(os.getcwd(), folder)
    found = {}
    for name in sorted(os.listdir(base)):
        with open(os.path.join(base, name), "rb") as f:
            found[os.path.relpath(os.path.join(base, name))] = hashlib.sha256(salt() + f.read()).hexdigest()[:12]
    return found


if __name__ == "__main__":
    print("RESULT", digests(sys.argv[1]))
