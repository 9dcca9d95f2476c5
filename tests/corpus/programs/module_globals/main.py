import sys

import config
import stages


def main(argv):
    config.DTYPE = argv[1]
    if config.DTYPE == "fp16":
        config.EPSILON = 1e-3
    print("RESULT", stages.normalize(["a", "b"]))
    config.DTYPE = "fp64"
    print("RESULT", stages.normalize(["a", "b"]))


if __name__ == "__main__":
    main(sys.argv)
