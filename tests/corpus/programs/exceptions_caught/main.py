import cachec
from errors import CompileError, OutOfMemory

cache = cachec.Cache()
LIMIT = 48


@cache.stage
def compile_kernel(tile: int) -> dict:
    used = tile * tile * 4 // 64
    if used > LIMIT:
        raise OutOfMemory(tile, used)
    return {"tile": tile, "used": used}


@cache.stage
def parse(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise CompileError(f"{text!r} is no number") from error


def main():
    for tile in (64, 32, 16, 8):
        try:
            result = compile_kernel(tile)
        except OutOfMemory as error:
            print("RESULT", "too large:", error, error.needed)
            continue
        print("RESULT", result)
        break
    for text in ("12", "x"):
        try:
            print("RESULT", parse(text))
        except CompileError as error:
            print("RESULT", error, type(error.__cause__).__name__)


if __name__ == "__main__":
    main()
