import cachec
from ir import Tensor

cache = cachec.Cache()


@cache.stage
def lower(tensor):
    return (tensor + tensor).text(), tensor.size()


if __name__ == "__main__":
    print("RESULT", lower(Tensor((4, 8))))
