from absl import flags

DEFAULT_WIDTH = 4

flags.DEFINE_integer("vector_width", None, "lanes of a vector")
FLAGS = flags.FLAGS


def width():
    return FLAGS.vector_width or DEFAULT_WIDTH
