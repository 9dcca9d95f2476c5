from enum import Enum, Flag, IntEnum, auto
from typing import NamedTuple


class Kind(Enum):
    ADD = "add"
    MATMUL = "matmul"

    def short(self):
        return self.value[:3]


class Level(IntEnum):
    O0 = 0
    O2 = 2


class Options(Flag):
    NONE = 0
    FUSE = auto()
    VECTORIZE = auto()


class Type(NamedTuple):
    shape: tuple
    dtype: str = "f32"


class Op(NamedTuple):
    kind: Kind
    type: Type

    def text(self):
        shape = "x".join(map(str, self.type.shape))
        return f"{self.kind.value} : tensor<{shape}x{self.type.dtype}>"
