import os
import shutil
import tempfile

import cachec

cache = cachec.Cache()


def unpack(folder, target):
    shutil.copytree(folder, target)
    for root, _, names in os.walk(target):
        for name in names:
            path = os.path.join(root, name)
            with open(path) as f:
                text = f.read()
            with open(path, "w") as f:
                f.write(text.title())


@cache.stage
def collect(folder):
    with tempfile.TemporaryDirectory() as scratch:
        target = os.path.join(scratch, "copy")
        unpack(folder, target)
        result = []
        for root, folders, names in os.walk(target):
            folders.sort()
            for name in sorted(names):
                with open(os.path.join(root, name)) as f:
                    result.append((os.path.relpath(os.path.join(root, name), target), f.read()))
        return result


print("RESULT", collect("tree"))
