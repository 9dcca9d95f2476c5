import sys
from pathlib import Path

import cachec
from models import Deployment

cache = cachec.Cache()


@cache.stage
def placement(deployment: Deployment) -> dict[str, int]:
    used = {}
    for replica in deployment.replicas:
        used[replica.device] = used.get(replica.device, 0) + replica.threads
    return {f"{deployment.name}/{device}": count for device, count in sorted(used.items())}


@cache.stage
def parse(text: str) -> dict:
    return Deployment.model_validate_json(text).model_dump()


if __name__ == "__main__":
    text = Path(sys.argv[1]).read_text()
    print("RESULT", placement(Deployment.model_validate_json(text)))
    print("RESULT", parse(text))
