import datetime
import locale

import cachec

cache = cachec.Cache()


@cache.stage
def column(values):
    return [locale.format_string("%10.2f", value, grouping=True) for value in values]


@cache.stage
def label(when: datetime.date) -> str:
    return when.strftime("%d.%m.%Y") + " " + locale.localeconv()["decimal_point"]


def main():
    locale.setlocale(locale.LC_ALL, "C")
    print("RESULT", column([1234.5, 0.126]))
    print("RESULT", label(datetime.date(2026, 1, 31)))


if __name__ == "__main__":
    main()
