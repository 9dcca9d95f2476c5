from concurrent.futures import ProcessPoolExecutor

import cachec

cache = cachec.Cache()
MODULUS = 251


def checksum(text):
    total = 0
    for letter in text:
        total = (total * 31 + ord(letter)) % MODULUS
    return total


@cache.stage
def checksums(names):
    with ProcessPoolExecutor(max_workers=2) as executor:
        return dict(zip(names, executor.map(checksum, names)))


if __name__ == "__main__":
    print("RESULT", checksums(["conv", "matmul", "attention"]))
