"""A worker makes ``__main__`` again: two processes each, the caller and one that replays what it sent."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path
from typing import Any

import pytest

from cachec.base.hashing import FileDigests
from cachec.key import source_parts
from cachec.model import Read
from cachec.worker import main_replay

#: Imported by the caller's script: `send` stands for a call of a stage, `trained` for work that must not run again.
PROBE = """
import pickle, sys
from cachec.worker import main_replay

runs = []

def train():
    runs.append(1)
    print("trained")
    return 7

def send():
    try:
        main = main_replay.main_of(lambda path: "site-packages" not in path)
    except main_replay.ReplayError as error:
        main = str(error)
    values = {}
    for name in () if main is None or isinstance(main, str) else main.needed:
        try:
            values[name] = pickle.dumps(vars(sys.modules["__main__"])[name])
        except TypeError:
            pass  # it can't be sent
    with open(FOLDER + "/sent", "wb") as file:
        pickle.dump((main, values), file)

def register(name):
    def decorate(function):
        REGISTRY[name] = function
        return function
    return decorate

REGISTRY = {}
"""

WORKER = """
import contextlib, json, os, pickle, sys
sys.path.insert(0, FOLDER)
from cachec.worker import main_replay
from cachec.worker.import_recorder import ImportRecorder
imports = ImportRecorder(lambda path: path.startswith(FOLDER), contextlib.nullcontext)
imports.install()
with open(FOLDER + "/sent", "rb") as file:
    main, values = pickle.load(file)
try:
    replayed = main_replay.replay(main, lambda name: pickle.loads(values[name]), imports)
except main_replay.ReplayError as error:
    print(json.dumps(str(error)))
    sys.exit()
import __main__
imports.begin_run()
exec(sys.argv[2], vars(__main__))
value = eval(sys.argv[1], vars(__main__))
reads = [(read.kind, read.where, read.name, read.digest) for read in (each.read() for each in imports.imported_files())]
print(json.dumps([sorted(replayed.defined), sorted(replayed.open), list(main.needed), value, reads]))
"""


class Result:
    """What the worker found. value: of the expression. error: where replaying failed."""

    def __init__(self, output: str) -> None:
        last = json.loads(output.splitlines()[-1])
        self.output = output.splitlines()[:-1]
        self.error = last if isinstance(last, str) else ""
        if not self.error:
            self.defined, self.open, self.needed, self.value, reads = last
            self.reads = [Read(*each) for each in reads]


class Scripts:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "probe.py").write_text(PROBE + f"\nFOLDER = {str(folder)!r}\n")

    def call(self, words: list[str], text: str = "") -> str:
        run = subprocess.run(
            [sys.executable, *words], input=text, capture_output=True, text=True, check=False, cwd=self.folder
        )
        assert not run.stderr, run.stderr
        return run.stdout

    def sent(self) -> Any:
        with (self.folder / "sent").open("rb") as file:
            return pickle.load(file)  # noqa: S301 - of this test

    def replay(self, expression: str = "None", helpers: str = "") -> Result:
        return Result(self.call(["-c", f"FOLDER = {str(self.folder)!r}\n{WORKER}", expression, helpers]))

    def run(self, text: str, expression: str = "None", helpers: str = "") -> Result:
        """Run a script, and evaluate an expression in a worker's ``__main__``, after the functions that it calls."""
        (self.folder / "main.py").write_text(textwrap.dedent(text))
        self.call(["main.py"])
        return self.replay(expression, helpers)


@pytest.fixture
def scripts(tmp_path: Path) -> Scripts:
    return Scripts(tmp_path)


def test_definitions_are_made_again_and_work_is_not(scripts: Scripts) -> None:
    result = scripts.run(
        """
        from __future__ import annotations
        import probe
        SCALE = 2
        @probe.register("f")
        def f(x: Missing) -> int:
            return x * SCALE
        class Config:
            width: int = 3
        state = probe.train()
        for step in range(3):
            probe.train()
        probe.send()
        def later(): return 1
        """,
        "[f(4), __name__, Config.__module__, list(probe.REGISTRY), probe.runs, f.__annotations__['x']]",
    )
    assert result.value == [8, "__main__", "__main__", ["f"], [], "Missing"]
    assert set(result.defined) == {"annotations", "probe", "SCALE", "f", "Config"}
    assert set(result.open) == {"state", "step"}
    assert not result.output


def test_open_names_that_definitions_need_are_sent(scripts: Scripts) -> None:
    result = scripts.run(
        """
        import probe
        PREFIX = probe.train() * 2
        UNUSED = probe.train()
        def named(function):
            function.label = f"{PREFIX}/{function.__name__}"
            return function
        @named
        def f(): return UNUSED
        def g(x=PREFIX): return x
        probe.send()
        """,
        "[f.label, g(), 'UNUSED' in globals()]",
    )
    assert result.needed == ["PREFIX"]
    assert result.value == ["14/f", 14, False]
    assert set(result.open) == {"PREFIX", "UNUSED"}


def test_a_definition_that_needs_what_cannot_be_sent_is_left(scripts: Scripts) -> None:
    result = scripts.run(
        """
        import probe, threading
        class App:
            def __init__(self): self.lock = threading.Lock()
            def command(self, function): return function
        app = App()
        @app.command
        def main(): return app
        def f(): return main
        def g(): return 1
        probe.send()
        """,
        "[g(), 'main' in globals()]",
    )
    assert result.value == [1, False]
    assert set(result.open) == {"app", "main"}
    assert set(result.defined) == {"probe", "threading", "App", "f", "g"}


def test_a_value_of_a_class_of_the_script_is_sent_when_the_class_is_there(scripts: Scripts) -> None:
    result = scripts.run(
        """
        import probe
        class Config:
            def __init__(self, width): self.width = width
        config = Config(probe.train())
        def f(x=config.width): return x
        probe.send()
        """,
        "[f(), type(config) is Config]",
    )
    assert result.value == [7, True]


def test_a_name_that_was_bound_again(scripts: Scripts) -> None:
    result = scripts.run(
        """
        import probe
        N = 1
        def before(x=N): return x
        N = probe.train()
        def after(x=N): return x
        N = 3
        def last(x=N): return x
        probe.send()
        """,
        "[before(), after(), last()]",
    )
    assert result.needed == ["N"]
    assert result.value == [1, 3, 3]  # the caller's value is that of now; comparing states finds the default of `after`


def test_functions_have_the_code_that_the_whole_text_has(scripts: Scripts) -> None:
    """The compiler makes other code for calls through names that a module imports, wherever it does."""
    result = scripts.run(
        """
        from __future__ import annotations
        import probe
        import os.path as early
        def f(x: int, y=3):
            return early.join(x), late.join(x), guarded.join(x), x.join(y), [y.join(z) for z in x]
        class A:
            def m(self): return super().m(), late.join(self)
        probe.send()
        import os.path as late
        if __name__ == "__main__":
            import os.path as guarded
        """,
        "[f.__code__, A.m.__code__] == whole(open(__file__).read(), __file__)",
        "def whole(text, path):\n"
        "    found = [each for each in compile(text, path, 'exec').co_consts if hasattr(each, 'co_consts')]\n"
        "    return [found[0], *(each for each in found[1].co_consts if hasattr(each, 'co_consts'))]\n",
    )
    assert result.value is True


def test_what_the_guard_holds_never_runs(scripts: Scripts) -> None:
    result = scripts.run(
        """
        import probe
        def main():
            probe.send()
        if __name__ == "__main__":
            probe.train()
            main()
        """,
        "[probe.runs, callable(main)]",
    )
    assert result.value == [[], True]


def test_a_loop_that_runs_now_is_left(scripts: Scripts) -> None:
    result = scripts.run(
        """
        import probe
        for step in range(2):
            def inside(): return step
            probe.send()
        """,
        "probe.runs",
    )
    assert (result.defined, result.open) == (["probe"], [])


def test_a_script_counts_by_what_was_replayed_and_ran(scripts: Scripts) -> None:
    text = """
    import probe
    def f(): return 1
    def g(): return 2
    lines = probe.train()
    probe.send()
    def later(): return 3
    """
    result = scripts.run(text, "f()")
    (read,) = (read for read in result.reads if read.where.endswith("main.py"))

    def holds(*replaced: tuple[str, str]) -> bool:
        changed = text
        for old, new in replaced:
            assert old in changed
            changed = changed.replace(old, new)
        (scripts.folder / "main.py").write_text(textwrap.dedent(changed))
        return source_parts.present(read, FileDigests()) == read.digest

    assert holds()
    assert holds(("probe.send()", "probe.send()  # here"))
    assert holds(("lines = probe.train()", "lines = probe.train() + 1"))
    assert holds(("def later()", "def latest()"))
    assert holds(("return 2", "return 4"))
    assert not holds(("return 1", "return 4"))
    assert not holds(("def f()", "def f(x=1)"))
    assert not holds(("import probe", "import probe, os"))


def test_python_m(scripts: Scripts) -> None:
    package = scripts.folder / "pkg"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "part.py").write_text("VALUE = 5")
    (package / "tool.py").write_text(
        '"""Doc."""\nfrom .part import VALUE\nimport probe\ndef f(): return VALUE\nprobe.send()\n'
    )
    scripts.call(["-m", "pkg.tool"])
    result = scripts.replay("[f(), __package__, __spec__.name, __name__, __file__, __doc__]")
    assert result.value == [5, "pkg", "pkg.tool", "__main__", str(package / "tool.py"), "Doc."]


def test_a_folder_with_main(scripts: Scripts) -> None:
    (scripts.folder / "app").mkdir()
    (scripts.folder / "app" / "__main__.py").write_text(
        f"import sys; sys.path.insert(0, {str(scripts.folder)!r})\nimport probe\ndef f(): return 1\nprobe.send()\n"
    )
    scripts.call(["app"])
    assert scripts.replay("[f(), __package__, __spec__.name]").value == [1, "", "__main__"]


@pytest.mark.parametrize("words", [["-c"], ["-X", "utf8", "-Wignore", "-Bc"]])
def test_a_command(words: list[str], scripts: Scripts) -> None:
    scripts.call([*words, "import probe\ndef f(): return 1\nx = probe.train()\nprobe.send()", "argument"])
    result = scripts.replay("f()")
    assert (result.value, result.open) == (1, ["x"])


def test_a_text_that_python_did_not_keep_leaves_all_open(scripts: Scripts) -> None:
    scripts.call(["-"], "import probe\ndef f(): return 1\nprobe.send()\n")
    assert scripts.sent()[0].texts == ()
    assert scripts.replay("'f' in globals()").value is False


NOTEBOOK = """
import ast, linecache, sys, types, json
main = types.ModuleType("__main__")
main.__dict__.update(In=[""], Out={}, get_ipython=lambda: None)
sys.modules["__main__"] = main
for number, source in enumerate(json.loads(sys.argv[1])):
    name = f"/tmp/ipykernel_1/{number}.py"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    main.In.append(source)
    try:
        code = compile(source, name, "exec")
    except SyntaxError:
        continue
    exec(code, vars(main))
"""


def test_cells_of_a_notebook(scripts: Scripts) -> None:
    cells = [
        "import probe\nimport inspect\nSCALE = 2\n",
        "%magic\n",
        "def f(x):\n    return x * SCALE\n",
        "data = probe.train()",
        "def f(x):\n    return x * SCALE + 1\n",
        "y = probe.train()\nprobe.send()\ndef later(): pass",
    ]
    scripts.call(["-c", NOTEBOOK, json.dumps(cells)])
    result = scripts.replay("[f(1), inspect.getsource(f), f.__code__.co_filename, 'later' in globals()]")
    assert result.value == [3, cells[4], "/tmp/ipykernel_1/4.py", False]
    assert set(result.open) == {"data", "y"}
    assert [read.where for read in result.reads] == [str(scripts.folder / "probe.py")]


def test_a_notebook_counts_by_the_effects_of_its_cells() -> None:
    def digest(*cells: str) -> str:
        texts = tuple(main_replay.Text(f"<cell {place}>", cell.encode()) for place, cell in enumerate(cells))
        return main_replay.effects_of(main_replay.MainModule("", None, None, texts, None, ()))

    begin = "import jax\nfrom lib import register, Base\ndef f(x): return x\nSIZE = 2\n"
    register = "register(f, lambda x: x)"
    expected = digest(begin, register)
    assert digest(begin, register + "  # comment") == expected
    assert digest(begin, register, register) == expected
    assert digest(begin, register, "data = load()", "def g(): pass", "%magic") == expected
    assert digest(begin.replace("return x", "return -x").replace("2", "3"), register) == expected
    for more in ("register(f, lambda x: -x)", "class A(Base): x = 1", "@register\ndef g(): pass", "jax.x.y = 1"):
        assert digest(begin, register, more) != expected


def test_a_statement_that_fails_is_reported(scripts: Scripts) -> None:
    result = scripts.run(
        """
        import probe
        import sys
        sys.modules["absent"] = probe
        import absent
        probe.send()
        """
    )
    assert result.error == (
        f"{scripts.folder}/main.py:5: replaying it raised ModuleNotFoundError(\"No module named 'absent'\")"
    )


def test_a_script_that_is_gone(scripts: Scripts) -> None:
    (scripts.folder / "main.py").write_text("import os, probe\nos.remove(__file__)\nprobe.send()\n")
    scripts.call(["main.py"])
    assert scripts.sent()[0] == f"the script {scripts.folder}/main.py can't be read: No such file or directory"


def test_a_program_that_is_installed_has_no_main_of_the_project(scripts: Scripts) -> None:
    (scripts.folder / "test_it.py").write_text("import probe\ndef test_one():\n    probe.send()\n")
    scripts.call(["-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"])
    assert scripts.sent()[0] is None


def test_an_installed_program_is_not_replayed(scripts: Scripts) -> None:
    program = Path(sysconfig.get_path("scripts")) / "pytest"
    (scripts.folder / "test_it.py").write_text("import probe\ndef test_one():\n    probe.send()\n")
    scripts.call([str(program), "-q", "-p", "no:cacheprovider", "--rootdir", str(scripts.folder), "test_it.py"])
    assert scripts.sent()[0] is None


def test_a_call_in_a_thread(scripts: Scripts) -> None:
    result = scripts.run(
        """
        import probe
        import threading
        def f(): return 1
        thread = threading.Thread(target=probe.send)
        thread.start()
        thread.join()
        def later(): pass
        """,
        "f()",
    )
    assert result.value == 1
    assert "later" not in result.defined
