import enum
from dataclasses import dataclass


class Opcode(enum.IntEnum):
    PUSH = 1
    ADD = 2
    MUL = 3
    DUP = 4


@dataclass(frozen=True, slots=True)
class Instruction:
    opcode: Opcode
    operand: int = 0
