import json
from pathlib import Path

import cachec

cache = cachec.Cache()
OUT = Path("out")
RATE = 3


@cache.stage
def begin(seed):
    return {"step": 0, "value": seed * RATE}


@cache.stage
def resume(path):
    state = json.loads(Path(path).read_text())
    return {"step": state["step"] + 1, "value": state["value"] * RATE}


def save(state):
    OUT.mkdir(exist_ok=True)
    path = OUT / f"state-{state['step']}.json"
    path.write_text(json.dumps(state))
    return path


def main():
    state = begin(2)
    for _ in range(3):
        path = save(state)
        state = resume(str(path))
        print("RESULT", state)


if __name__ == "__main__":
    main()
