"""Which statements of a script are executed again, and which names that leaves open."""

from __future__ import annotations

import ast
import textwrap

import pytest

from cachec.key import script_statements, source_parts

BEGIN = """
import cachec, mlflow, os, sys, atexit, logging, functools, re
import jax, torch
from pathlib import Path
import project, absl.flags as flags
"""
REPLAYED = """
    import numpy
    from project import *
    def f(x=project.SIZE): return train()
    async def g(): pass
    class A(project.Base): x = 1
    LIMIT = 3
    SIZES = [1, 2.5, -3, "a", None, (4, {5: 6})]
    a, b = 1, 2
    AREA: int = 3 * 4
    TABLE = {}
    act = jax.nn.relu
    ACTIVATIONS = {"relu": jax.nn.relu, "id": lambda x: x}
    fast = jax.jit(project.forward)
    short = functools.partial(project.forward, n=3)
    both = jax.jit(jax.vmap(project.forward))
    compiled = torch.compile(project.model)
    pattern = re.compile("a+")
    HERE = Path(__file__).parent
    DATA = Path(__file__).resolve().parent / "data" / "x.txt"
    FOLDER = os.path.dirname(os.path.abspath(__file__))
    MISSING = object()
    memo = dict(a=1)
    log = logging.getLogger(__name__)
    jax.config.update("jax_enable_x64", True)
    torch.backends.cudn.benchmark = True
    torch.manual_seed(0)
    project.register("a", lambda x: train())
    project.register("a")(project.forward)
    logging.basicConfig(level=10)
    build = cache.stage(project.forward)
    store = cachec.Cache("folder")
    flags.DEFINE_integer("x", 1, "help")
    project.set_seed(1)
    "text"
    pass
    if sys.version_info >= (3, 11): import tomllib
    try:
        import yaml
    except ImportError:
        yaml = None
"""
LEFT = """
    x = project.load()
    y = train()
    for i in range(3): train()
    while True: break
    print("done")
    train()
    project.fit(1)
    with project.session() as s: import numpy
    project.register("a", project.load())
    os.environ["A"] = "1"
    sys.path.insert(0, "x")
    sys.stdout = project.stdout
    atexit.register(project.save)
    @atexit.register
    def save(): pass
    mlflow.set_experiment("a")
    project.setup("a")
    project.set_up()
    project.Cache()
    logging.basicConfig(filename="train.log")
    x += 1
    del os
    artifact = project.compile("model")
    z = unknown
    w = project.a + project.b
    v = [n for n in project.names]
    (u := 3)
    if project.ready(): import numpy
    if __name__ == "__main__": import numpy
    if True: train()
    try: train()
    except ImportError: pass
    assert project.ready
    project.items[0] = 1
    raise SystemExit
"""


def statements(text: str) -> list[str]:
    return [ast.unparse(node) for node in ast.parse(textwrap.dedent(text)).body]


def select(text: str) -> tuple[list[str], set[str]]:
    nodes, names = script_statements.select(ast.parse(textwrap.dedent(text)).body)
    return [ast.unparse(node) for node in nodes], names


@pytest.mark.parametrize("statement", statements(REPLAYED))
def test_a_statement_is_replayed(statement: str) -> None:
    assert select(BEGIN + statement) == ([*statements(BEGIN), *statements(statement)], set())


@pytest.mark.parametrize("statement", statements(LEFT))
def test_a_statement_is_left(statement: str) -> None:
    assert select(BEGIN + statement)[0] == statements(BEGIN)


def test_names_of_statements_that_are_left_are_open() -> None:
    text = """
    a, b = load()
    for c, d in a: e = 1
    with x() as f: pass
    G = 1
    G = load()
    H = load()
    H = 2
    I: int = load()
    """
    assert select(text)[1] == {"a", "b", "c", "d", "e", "f", "G", "I"}


@pytest.mark.parametrize(
    "text",
    [
        "X = load()\nY = X",
        "X = load()\nY = [X]",
        "import a\na = load()\nY = a.b",
        "from functools import partial\nX = load()\nY = partial(f, X)",
        "N = 3\nN = load()\nY = N * 2",
        "len = load()\nY = len",
        "def dict(): return train()\nY = dict()",
        "from atexit import register\nregister(print)",
    ],
)
def test_what_rests_on_an_open_name_is_left(text: str) -> None:
    assert statements(text)[-1] not in select(text)[0]


def test_names_that_a_statement_may_read() -> None:
    text = """
    def helper(x): return PREFIX + inner(x)
    def inner(x): return SUFFIX
    def unused(): return OTHER
    class Model(Base):
        width = WIDTH
        def run(self): return DEEP
    @decorate(helper)
    def f(x=DEFAULT): return BODY
    y = Model
    """
    body = ast.parse(textwrap.dedent(text)).body
    functions = {node.name: node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    read = [script_statements.read_names(node, dict(functions)) for node in body]
    assert read[4] == {"decorate", "helper", "DEFAULT", "PREFIX", "SUFFIX", "inner", "x"}
    assert read[3] == {"Base", "WIDTH"}
    assert read[5] == {"Model", "Base", "WIDTH", "DEEP"}


def test_a_script_counts_by_what_is_replayed() -> None:
    text = b"import a\nX = 1\ndata = load(%d)\ndef f(): return %d\nprint(f())\nY = %d\n"

    def digest(*numbers: int, names: list[str] | None = None, replayed: int = 4) -> str:
        return source_parts.table(text % numbers).digest(names or [], replayed)

    assert len(source_parts.table(text % (1, 2, 3)).replayed) == 4
    assert digest(1, 2, 3) == digest(9, 9, 3)
    assert digest(1, 2, 3) != digest(1, 2, 4)
    assert digest(1, 2, 3, replayed=3) == digest(1, 2, 4, replayed=3)
    assert digest(1, 2, 3, names=["f"]) != digest(1, 9, 3, names=["f"])
    assert digest(1, 2, 3) != digest(1, 2, 3, replayed=3)
