import cachec
import generate

cache = cachec.Cache()


@cache.stage
def totals():
    messages = generate.load("schema.json")
    return {"conv": messages.Conv(stride=2).total(), "pool": messages.Pool().total()}


if __name__ == "__main__":
    print("RESULT", totals())
