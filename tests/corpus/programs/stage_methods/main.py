from compiler import Compiler

if __name__ == "__main__":
    for target in ("cpu", "gpu"):
        print("RESULT", Compiler(target).compile("add;mul"))
    print("RESULT", Compiler.parse("neg;exp"))
