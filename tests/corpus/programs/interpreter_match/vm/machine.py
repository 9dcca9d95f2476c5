from .opcodes import Instruction, Opcode


class Machine:
    def __init__(self):
        self.stack = []

    def run(self, program):
        for instruction in program:
            match instruction:
                case Instruction(Opcode.PUSH, value):
                    self.stack.append(value)
                case Instruction(Opcode.ADD):
                    a, b = self.stack.pop(), self.stack.pop()
                    self.stack.append(a + b)
                case Instruction(Opcode.MUL):
                    a, b = self.stack.pop(), self.stack.pop()
                    self.stack.append(a * b)
                case Instruction(Opcode.DUP):
                    self.stack.append(self.stack[-1])
        return self.stack
