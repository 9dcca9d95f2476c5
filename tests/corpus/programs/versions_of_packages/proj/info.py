import sys
from importlib import metadata

import cachec
import proj

cache = cachec.Cache()
PACKAGES = ["numpy", "click"]


def stamp():
    return {"proj": proj.__version__, "python": f"{sys.version_info.major}.{sys.version_info.minor}"}


@cache.stage
def versions():
    found = stamp()
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


@cache.stage
def user_agent(product):
    return f"{product}/{proj.__version__}"


print("RESULT", versions())
print("RESULT", user_agent("compiler"))
