from absl import app, flags, logging

import cachec
import lowering

FLAGS = flags.FLAGS
flags.DEFINE_integer("opt_level", 1, "how hard to try", lower_bound=0, upper_bound=3)
flags.DEFINE_integer("unroll", 4, "iterations to unroll")
flags.DEFINE_list("passes", [], "passes to run")
flags.DEFINE_bool("verbose", True, "say more")

cache = cachec.Cache()


@cache.stage
def pipeline():
    steps = [f"O{FLAGS.opt_level}"]
    steps += [f"pass:{name}" for name in FLAGS.passes]
    steps += [f"unroll:{FLAGS.unroll}", f"width:{lowering.width()}"]
    return steps


def main(argv):
    del argv
    if FLAGS.verbose:
        logging.info("compiling")
    print("RESULT", pipeline())


if __name__ == "__main__":
    app.run(main)
