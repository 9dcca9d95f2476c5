import cachec
from types_ import Type

cache = cachec.Cache()


def compare(a, b):
    return "same" if a is b else "different"


@cache.stage
def check(a, b):
    return compare(a, b), repr(a), a.size() + b.size()


@cache.stage
def sizes(names):
    return [Type(name[0], int(name[1:])).size() for name in names]


if __name__ == "__main__":
    word = Type("i", 32)
    print("RESULT", check(word, Type("i", 32 + 0)) if word is Type("i", 32 + 0) else None)
    print("RESULT", check(word, Type("f", 16)))
    print("RESULT", sizes(["i8", "f64"]))
