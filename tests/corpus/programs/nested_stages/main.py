from pathlib import Path

import cachec

cache = cachec.Cache()


@cache.stage
def lex(text):
    return text.split()


@cache.stage
def load(name):
    words = lex((Path("lib") / f"{name}.txt").read_text())
    if words[0] == "include":
        return load(words[1]) + words[2:]
    return words


@cache.stage
def count(names):
    result = {}
    for name in names:
        words = load(name)
        result[name] = (words[0], len(set(words)))
    return result


if __name__ == "__main__":
    print("RESULT", count(["one", "two"]))
    print("RESULT", load("one"))
