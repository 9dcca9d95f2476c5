import ast
import inspect
import textwrap


class Emit(ast.NodeVisitor):
    OPS = {ast.Add: "addf", ast.Mult: "mulf", ast.Sub: "subf"}

    def __init__(self, constants):
        self.constants, self.lines = constants, []

    def emit(self, text):
        self.lines.append(f"%{len(self.lines)} = {text}")
        return f"%{len(self.lines) - 1}"

    def visit_BinOp(self, node):
        left, right = self.visit(node.left), self.visit(node.right)
        return self.emit(f"{self.OPS[type(node.op)]} {left}, {right}")

    def visit_Name(self, node):
        return self.emit(f"constant {self.constants[node.id]}") if node.id in self.constants else f"%{node.id}"

    def visit_Constant(self, node):
        return self.emit(f"constant {node.value}")

    def visit_Return(self, node):
        self.lines.append(f"return {self.visit(node.value)}")


def compile_function(function):
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    constants = {name: value for name, value in function.__globals__.items() if isinstance(value, (int, float))}
    emit = Emit(constants)
    for statement in tree.body[0].body:
        emit.visit(statement)
    return emit.lines
