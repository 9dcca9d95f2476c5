import argparse

import cachec


def triple(target):
    return {"arm": "aarch64", "x86": "x86_64"}[target] + "-linux-gnu"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", default="x86")
    parser.add_argument("--cpu", default="generic")
    args = parser.parse_args()
    cache = cachec.Cache()

    @cache.stage
    def flags(kernel):
        return [f"--target={triple(args.target)}", f"--cpu={args.cpu}", kernel]

    print("RESULT", flags("gemm"))
    print("RESULT", flags("conv"))
