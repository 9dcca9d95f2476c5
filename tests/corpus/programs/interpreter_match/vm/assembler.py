from .opcodes import Instruction, Opcode


def assemble(text):
    for line in text.splitlines():
        match line.split():
            case [name, value]:
                yield Instruction(Opcode[name.upper()], int(value))
            case [name]:
                yield Instruction(Opcode[name.upper()])


def encode(program):
    return bytes(byte for each in program for byte in (each.opcode, each.operand))
