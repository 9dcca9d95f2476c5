from kernels import compile_kernel
from session import Session


def main():
    session = Session.get_instance("gpu")
    session.precision = "bf16"
    print("RESULT", compile_kernel("softmax"))
    print("RESULT", compile_kernel("gelu"))


if __name__ == "__main__":
    main()
