from pathlib import Path

import cachec

cache = cachec.Cache()


@cache.stage
def preprocess(source: Path, defines: tuple = ()) -> str:
    done = cachec.run(["gcc", "-E", "-P", "-Iinclude", *defines, source])
    return done.stdout.decode()


print("RESULT", repr(preprocess(Path("kernel.c"))))
print("RESULT", repr(preprocess(Path("kernel.c"), ("-DFAST",))))
