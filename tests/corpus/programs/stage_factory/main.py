import cachec
from factory import make_compiler


def main():
    cache = cachec.Cache()
    cpu = make_compiler(cache, "cpu")
    cuda = make_compiler(cache, "cuda", lanes=32)
    for n in (10, 100):
        print("RESULT", cpu("add", n), cuda("add", n))

    @cache.stage
    def link(parts):
        return " | ".join(parts)

    print("RESULT", link([cpu("mul", 7), cuda("mul", 7)]))


if __name__ == "__main__":
    main()
