import cachec
import stats

cache = cachec.Cache()


def advance(x):
    stats.count("advance")
    return x + 1


@cache.stage
def simulate(x, rounds=3):
    for _ in range(rounds):
        x = advance(x)
    return x


if __name__ == "__main__":
    print("RESULT", simulate(1))
    print("RESULT", simulate(10))
    print("statistics:", dict(stats.COUNTS))
