import cachec
from scopes import full_name, scope

cache = cachec.Cache()


@cache.stage
def parameters(layers: int) -> list[str]:
    names = []
    for i in range(layers):
        with scope(f"layer{i}"):
            names += [full_name("w"), full_name("b")]
    return names


def main():
    print("RESULT", parameters(1))
    with scope("encoder"):
        print("RESULT", parameters(2))


main()
