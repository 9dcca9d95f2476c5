import subprocess
from pathlib import Path

import cachec

cache = cachec.Cache()


@cache.stage
def substitute(source: Path) -> str:
    done = subprocess.run(["sed", "-f", "names.sed", source], capture_output=True, text=True, check=True)
    return done.stdout


if __name__ == "__main__":
    print("RESULT", repr(substitute(Path("kernel.c.in"))))
