import csv
from decimal import ROUND_DOWN, ROUND_UP, Decimal, getcontext, localcontext

import cachec

cache = cachec.Cache()


def prices():
    with open("prices.csv") as f:
        return {name: Decimal(price) for name, price in csv.reader(f)}


@cache.stage
def hourly(seconds: int) -> dict[str, str]:
    return {name: str(price * seconds / 3600) for name, price in prices().items()}


@cache.stage
def ratio(a: str, b: str) -> str:
    with localcontext() as context:
        context.prec += 4
        return str(Decimal(a) / Decimal(b))


def main():
    getcontext().prec = 12
    getcontext().rounding = ROUND_DOWN
    print("RESULT", hourly(1000))
    print("RESULT", ratio("2", "3"))


if __name__ == "__main__":
    main()
