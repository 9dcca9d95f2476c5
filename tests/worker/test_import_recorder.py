"""What imports look for, which code runs, and what stays visible to the tracer. Each program is a new process."""

from __future__ import annotations

import json
import os
import py_compile
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from cachec.base.hashing import FileDigests, digest_bytes
from cachec.key import source_parts
from cachec.model import Read

#: The audit hook stands for the tracer: it reports files that are opened and folders that are listed.
PRELUDE = """
import contextlib, json, os, sys
root, depth, visible = sys.argv[1], [0], []

@contextlib.contextmanager
def hidden():
    depth[0] += 1
    try:
        yield
    finally:
        depth[0] -= 1

def audit(event, args):
    if event in ("open", "os.listdir", "os.scandir") and not depth[0] and isinstance(args[0], str):
        if args[0].startswith(root):
            visible.append([event, args[0][len(root):]])

def report():
    reads = [[each.kind, each.where, each.name, each.digest] for each in imports.reads()]
    files = imports.imported_files()
    used = {each.path[len(root) + 1:]: None if each.names is None else sorted(each.names) for each in files}
    print(json.dumps([reads, used, sorted(imports.names()), visible]))

from cachec.worker.import_recorder import ImportRecorder
imports = ImportRecorder(lambda path: path.startswith(root), hidden)
sys.addaudithook(audit)
imports.install()
sys.path.insert(0, root)
"""


class Report:
    """What one program reported. used: the functions that ran, by file. visible: what the tracer saw."""

    def __init__(self, root: Path, output: str) -> None:
        reads, used, names, visible = json.loads(output)
        self.root = root
        self.reads = [Read(*each) for each in reads]
        self.imported_files: dict[str, list[str] | None] = used
        self.names = set(names)
        self.visible = [tuple(each) for each in visible]

    def modules(self, folder: str = "") -> set[str]:
        """The names that imports looked for in a folder of the project."""
        where = str(self.root / folder)
        return {
            name
            for read in self.reads
            if (read.kind, read.where) == ("modules", where)
            for name in json.loads(read.name)
        }

    def changed(self) -> set[str]:
        """The kind and path of each read that does not hold any more."""
        digests = FileDigests()
        now = {"source": lambda read: source_parts.present(read, digests), "modules": source_parts.present_modules}
        paths = {read: Path(read.where).relative_to(self.root).as_posix() for read in self.reads}
        return {f"{read.kind} {paths[read]}" for read in self.reads if now[read.kind](read) != read.digest}


class Project:
    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, **files: str) -> None:
        """Modules by name; ``IN`` stands for a slash, ``INIT`` for ``__init__``."""
        for name, text in files.items():
            path = self.root / (name.replace("IN_", "/").replace("INIT", "__init__") + ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))

    def run(self, program: str, before: str = "") -> Report:
        """Run a program with ``imports`` installed; ``before`` runs before that."""
        script = before + PRELUDE + textwrap.dedent(program) + "\nreport()\n"
        words = [sys.executable, "-c", script, str(self.root)]
        run = subprocess.run(words, capture_output=True, text=True, check=False, cwd="/")
        assert not run.stderr, run.stderr
        return Report(self.root, run.stdout)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    root = tmp_path / "project"
    root.mkdir()
    return Project(root)


def test_an_import_counts_by_what_it_looked_for_and_what_ran(project: Project) -> None:
    project.write(
        helper="""
        SCALE = 2
        def used(x): return x * SCALE
        def unused(x): return x - OTHER
        """
    )
    report = project.run("import helper, colorsys\nimports.begin_run()\nhelper.used(1)")
    assert report.imported_files == {"helper.py": ["used"]}
    assert {"helper", "colorsys"} <= report.modules()
    assert report.visible == []
    assert "SCALE" in report.names
    assert "OTHER" not in report.names
    assert report.changed() == set()
    assert not list(project.root.rglob("*.pyc"))

    project.write(helper="SCALE = 2\ndef used(x): return x * SCALE  # comment\ndef unused(x): return x\n")
    assert report.changed() == set()
    project.write(helper="SCALE = 2\ndef used(x): return x + SCALE\ndef unused(x): return x - OTHER\n")
    assert report.changed() == {"source helper.py"}


def test_a_module_that_shadows_another_is_noticed(project: Project) -> None:
    project.write(helper="import colorsys\ntry:\n    import turbo\nexcept ImportError:\n    turbo = None\n")
    report = project.run("import helper")
    (project.root / "unrelated.py").touch()
    (project.root / "data.txt").touch()
    assert report.changed() == set()
    (project.root / "turbo").mkdir()
    assert report.changed() == {"modules ."}
    (project.root / "turbo").rmdir()
    (project.root / "colorsys.py").touch()
    assert report.changed() == {"modules ."}


def test_a_module_that_shadows_one_that_a_starter_imported_is_noticed(project: Project) -> None:
    report = project.run("assert 'colorsys' in sys.modules", before="import colorsys, sys, xml.dom\n")
    assert report.modules() >= {"colorsys", "xml"}
    assert not report.modules() & {"sys", "builtins"}
    assert report.visible == []
    (project.root / "colorsys.py").touch()
    assert report.changed() == {"modules ."}
    report = project.run("sys.path.append(sys.path.pop(0))", before="import colorsys\n")
    assert "colorsys" not in report.modules()


def test_packages_and_relative_imports(project: Project) -> None:
    project.write(
        pkgIN_INIT="from .sub import f\nfrom . import other",
        pkgIN_sub="from .other import g\ndef f(): return g()",
        pkgIN_other="def g(): return 1",
        spaceIN_part="from pkg import f\nf()",
    )
    report = project.run("import space.part")
    assert set(report.imported_files) == {"pkg/__init__.py", "pkg/sub.py", "pkg/other.py", "space/part.py"}
    assert report.modules("pkg") == {"sub", "other"}
    assert report.modules("space") == {"part"}
    assert {"pkg", "space"} <= report.modules()
    assert report.visible == []
    (project.root / "space" / "__init__.py").touch()
    assert report.changed() == {"modules ."}


def test_what_a_program_itself_lists_and_opens_is_visible(project: Project) -> None:
    project.write(helper="x = 1", pkgIN_INIT="")
    (project.root / "pkg" / "data.txt").write_text("5")
    report = project.run("""
        import helper, pkg, pkgutil, inspect, importlib.resources
        inspect.getsource(helper)
        list(pkgutil.iter_modules([root]))
        importlib.resources.files(pkg).joinpath("data.txt").read_text()
        pkgutil.get_data("pkg", "data.txt")
        os.listdir(root + "/pkg")
        """)
    assert report.visible == [
        ("open", "/helper.py"),
        *[("os.listdir", ""), ("os.listdir", "/pkg")],
        ("open", "/pkg/data.txt"),
        ("open", "/pkg/data.txt"),
        ("os.listdir", "/pkg"),
    ]


def test_a_bytecode_file_is_not_trusted(project: Project) -> None:
    """Its time may say that it is of the text, where both were written in one second."""
    project.write(helper="x = 1")
    program = "import py_compile; py_compile.compile(sys.argv[1] + '/helper.py', doraise=True)\n"
    subprocess.run([sys.executable, "-c", "import sys\n" + program, str(project.root)], check=True)
    status = (project.root / "helper.py").stat()
    project.write(helper="x = 2")
    os.utime(project.root / "helper.py", ns=(status.st_atime_ns, status.st_mtime_ns))
    project.run("import helper; assert helper.x == 2")


def test_a_module_of_bytecode_alone_is_visible(project: Project) -> None:
    project.write(helper="x = 1")
    py_compile.compile(str(project.root / "helper.py"), str(project.root / "alone.pyc"), doraise=True)
    report = project.run("import alone; assert alone.x == 1")
    assert report.imported_files == {}
    assert ("open", "/alone.pyc") in report.visible
    assert "alone" in report.modules()


def test_a_reloaded_module_has_both_texts(project: Project) -> None:
    project.write(helper="x = int(1)")
    report = project.run("""
        import helper, importlib
        open(root + "/helper.py", "w").write("x = int(22)")
        importlib.reload(helper)
        assert helper.x == 22
        """)
    raws = [json.loads(read.name)[0] for read in report.reads if read.kind == "source"]
    assert sorted(raws) == sorted(map(digest_bytes, (b"x = int(1)", b"x = int(22)")))
    assert report.changed() == {"source helper.py"}


def test_a_module_that_the_run_makes(project: Project) -> None:
    """Looked for first, its absence is an input; made first, it is there."""
    program = """
        import importlib
        {}
        open(root + "/made.py", "w").write("x = 1")
        importlib.invalidate_caches()
        import made
        """
    report = project.run(program.format(""))
    assert report.changed() == set()
    (project.root / "made.py").unlink()
    report = project.run(program.format("try: import made\n        except ImportError: pass"))
    assert report.changed() == {"modules ."}


def test_a_name_that_was_unpickled_counts(project: Project) -> None:
    project.write(helper="class A:\n    x = 1\nclass B:\n    x = 1\n")
    report = project.run("import pickle; assert pickle.loads(b'chelper\\nA\\n.').x == 1")
    project.write(helper="class A:\n    x = 1\nclass B:\n    x = 2\n")
    assert report.changed() == set()
    project.write(helper="class A:\n    x = 2\nclass B:\n    x = 1\n")
    assert report.changed() == {"source helper.py"}


def test_below_the_guard_of_a_script_that_runpy_executes_all_may_be_named(project: Project) -> None:
    project.write(
        tool="import helper\nif __name__ == '__main__':\n    print = helper.late = vars(helper)['X']", helper="X = 1"
    )
    report = project.run("import runpy; runpy.run_module('tool', run_name='__main__')")
    project.write(helper="X = 2")
    assert report.changed() == {"source helper.py"}


def test_a_module_that_is_not_python(project: Project) -> None:
    project.write(broken="def f(:")
    report = project.run("try: import broken\nexcept SyntaxError: pass")
    assert report.imported_files == {"broken.py": []}
    assert report.changed() == set()
    project.write(broken="def g(:")
    assert report.changed() == {"source broken.py"}


def test_zip_files_stay_visible(project: Project) -> None:
    with zipfile.ZipFile(project.root / "lib.zip", "w") as file:
        file.writestr("zipped.py", "x = 1")
    report = project.run("sys.path.insert(0, root + '/lib.zip'); import zipped; assert zipped.x == 1")
    assert ("open", "/lib.zip") in report.visible
    assert report.imported_files == {}


def test_a_module_by_its_path(project: Project) -> None:
    project.write(toolsIN_one="def f(): return 1")
    report = project.run("""
        from importlib.util import module_from_spec, spec_from_file_location
        spec = spec_from_file_location("one", root + "/tools/one.py")
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        module.f()
        """)
    assert report.imported_files == {"tools/one.py": ["f"]}
    assert report.visible == []


def test_the_text_that_runpy_executes_is_visible(project: Project) -> None:
    """There the guard counts, and ``source`` reads leave it out."""
    project.write(tool="if __name__ == '__main__':\n    print = lambda *a: None\n")
    report = project.run("import runpy; runpy.run_module('tool', run_name='__main__')")
    assert ("open", "/tool.py") in report.visible


def test_an_editable_install_of_setuptools(project: Project) -> None:
    project.write(srcIN_editedIN_INIT="from edited.sub import f", srcIN_editedIN_sub="def f(): return 1")
    before = """
import sys, types
from importlib.util import spec_from_file_location
from pathlib import Path
finder = sys.modules["__editable___edited_finder"] = types.ModuleType("__editable___edited_finder")
finder.MAPPING = {"edited": sys.argv[1] + "/src/edited"}
class Finder:
    __module__ = "__editable___edited_finder"
    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        if fullname in finder.MAPPING and open(finder.MAPPING[fullname] + "/__init__.py"):
            return spec_from_file_location(fullname, Path(finder.MAPPING[fullname]) / "__init__.py")
sys.meta_path.append(Finder)
"""
    report = project.run("import warnings; warnings.simplefilter('ignore'); import edited; edited.f()", before)
    assert set(report.imported_files) == {"src/edited/__init__.py", "src/edited/sub.py"}
    assert report.modules("src") == {"edited"}
    assert report.modules("src/edited") == {"sub"}
    assert report.visible == []


def test_a_search_for_distributions_counts_those_alone(project: Project) -> None:
    report = project.run("import importlib.metadata; importlib.metadata.entry_points()")
    assert report.visible == []
    (project.root / "results.txt").touch()
    assert report.changed() == set()
    (project.root / "Plugin-1.0.dist-info").mkdir()
    assert report.changed() == {"modules ."}


def test_imports_in_threads(project: Project) -> None:
    project.write(**{f"m{number}": f"def f(): return {number}" for number in range(20)})
    report = project.run("""
        import threading
        def load(number):
            __import__(f"m{number}").f()
        threads = [threading.Thread(target=load, args=(n,)) for n in range(20)]
        for each in threads: each.start()
        for each in threads: each.join()
        """)
    expected = ["f"]
    assert report.imported_files == {f"m{number}.py": expected for number in range(20)}
    assert report.visible == []


def test_a_forked_child_is_visible(project: Project) -> None:
    """It can't report what it imports and runs."""
    project.write(helper="def f(): return 1\ndef g(): return hidden_name", late="x = 1")
    report = project.run("""
        import helper
        reading, writing = os.pipe()
        if not os.fork():
            import late
            os.write(writing, json.dumps(visible).encode())
            os._exit(0)
        os.wait()
        visible += json.loads(os.read(reading, 10000))
        """)
    assert ("open", "/late.py") in report.visible
    assert report.imported_files == {"helper.py": None}
    assert "hidden_name" in report.names


def test_code_that_is_read_and_not_run_makes_files_count_as_wholes(project: Project) -> None:
    project.write(helper="def f(): return 1\ndef g(): return 2")
    report = project.run("import helper, types; helper.f(); sys.modules['numba.core.bytecode'] = types.ModuleType('b')")
    assert report.imported_files == {"helper.py": None}


def test_code_that_is_sent_to_other_processes_makes_files_count_as_wholes(project: Project) -> None:
    project.write(helper="def f(): return 1\ndef g(): return 2")
    program = "import cloudpickle, helper; cloudpickle.register_pickle_by_value(helper); "
    assert project.run(program + "cloudpickle.dumps(1)").imported_files == {"helper.py": []}
    assert project.run(program + "cloudpickle.dumps(helper.f)").imported_files == {"helper.py": None}


def test_code_that_libraries_generate_names_all_that_it_means(project: Project) -> None:
    project.write(helper="X = 1\nY = 2\ndef f(): return 1")
    report = project.run("import helper\nexec('def g(x): return getattr(x, \"X\")')\nassert g(helper) == 1")
    project.write(helper="X = 1\nY = 3\ndef f(): return 1\ndef late(): return 2")
    assert report.changed() == set()
    project.write(helper="X = 4\nY = 2\ndef f(): return 1")
    assert report.changed() == {"source helper.py"}


def test_functions_that_trace_others_go_unseen(project: Project) -> None:
    project.write(helper="import sys\ndef traced(*_): return traced\ndef f(): sys.settrace(traced), sys.settrace(None)")
    assert project.run("import helper").imported_files == {"helper.py": []}
    assert project.run("import helper; helper.f()").imported_files == {"helper.py": None}


def test_nested_functions_classes_and_comprehensions(project: Project) -> None:
    project.write(
        helper="""
        def outer():
            class Local:
                def method(self): return (lambda: sum(x for x in (1, 2)))()
            return Local().method()
        def unused(): return 1
        """
    )
    report = project.run("import helper; helper.outer()")
    project.write(helper=(project.root / "helper.py").read_text().replace("return 1", "return 2"))
    assert report.changed() == set()
    for old, new in (("(1, 2)", "(1, 3)"), ("Local()", "Local( )")):
        project.write(helper=(project.root / "helper.py").read_text().replace(old, new))
    assert report.changed() == {"source helper.py"}


def test_names_are_those_that_may_be_read_in_the_run(project: Project) -> None:
    project.write(
        helper="""
        import config
        def early(): return config.AT_IMPORT
        TEXT = early()
        def late(): return getattr(config, "BY_TEXT") + eval("config.BY_EVAL")
        """,
        config="AT_IMPORT = 1\nBY_TEXT = 2\nBY_EVAL = 3",
        lazy="from config import AT_IMPORT as _\ndef never(): return NEVER",
    )
    report = project.run("import helper\nimports.begin_run()\nhelper.late()")
    assert {"config", "BY_TEXT", "eval"} <= report.names
    assert "AT_IMPORT" not in report.names
    assert "TEXT" not in report.names
    report = project.run("import helper\nimports.begin_run()\nimport lazy")
    assert "AT_IMPORT" in report.names


def test_programs_see_the_classes_of_python(project: Project) -> None:
    project.write(helper="x = 1")
    project.run("""
        import importlib.machinery, pkgutil, helper
        assert type(helper.__loader__) is importlib.machinery.SourceFileLoader
        assert type(pkgutil.get_importer(root)) is importlib.machinery.FileFinder
        assert helper.__file__ == root + "/helper.py" and helper.__spec__.cached
        assert helper.__loader__.get_source("helper") == "x = 1"
        """)


def test_a_warning_at_import_names_the_importing_line(project: Project) -> None:
    """No frame of ours stands between: ``stacklevel`` counts frames."""
    project.write(
        helper="import warnings\nwarnings.warn('old', DeprecationWarning, stacklevel=2)", user="import helper"
    )
    project.run("""
        import warnings
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import user
        assert [each.filename for each in caught] == [root + "/user.py"]
        """)
