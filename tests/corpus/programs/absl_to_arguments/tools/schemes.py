import enum


class Scheme(enum.Enum):
    SYMMETRIC = "symmetric"
    AFFINE = "affine"


def levels(bits):
    return 2 ** bits - 1
