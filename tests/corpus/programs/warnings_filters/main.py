import warnings

import cachec
import convert

cache = cachec.Cache()


@cache.stage
def convert_all(values):
    return [convert.convert(value) for value in values]


if __name__ == "__main__":
    warnings.simplefilter("error", convert.PrecisionWarning)
    print("RESULT", convert_all([10, 300, 900]))
