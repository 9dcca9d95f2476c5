import io
import pprint
import textwrap
from contextlib import redirect_stdout

import cachec

cache = cachec.Cache()


def dump(tree):
    prefix = "| "
    print(textwrap.indent(pprint.pformat(tree, width=30), prefix))


@cache.stage
def text(tree):
    with redirect_stdout(io.StringIO()) as captured:
        dump(tree)
    print("dumped", len(captured.getvalue()) > 0)
    return captured.getvalue()


if __name__ == "__main__":
    print("RESULT", repr(text({"ops": ["conv", "relu"], "shapes": {"x": (1, 2, 3)}})))
