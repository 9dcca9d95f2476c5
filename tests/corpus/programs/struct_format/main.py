import binfmt
import cachec

cache = cachec.Cache()


@cache.stage
def write(records: list) -> bytes:
    return binfmt.dump(records)


@cache.stage
def read(data: bytes):
    return binfmt.load(data)


if __name__ == "__main__":
    data = write([("conv", 7), ("relu", 2)])
    print("RESULT", data.hex())
    print("RESULT", read(data))
