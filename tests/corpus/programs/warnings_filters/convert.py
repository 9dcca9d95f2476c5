import warnings

LIMIT = 256


class PrecisionWarning(UserWarning):
    pass


def narrow(value):
    if value > LIMIT:
        warnings.warn(f"{value} does not fit", PrecisionWarning, stacklevel=2)
        return LIMIT
    return value


def convert(value):
    try:
        return narrow(value)
    except PrecisionWarning:
        return value // 2
