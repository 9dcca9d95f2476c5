"""Ordinary tools: what strace sees them look up is recorded, and what they leave behind too.

Each command runs twice under strace, so that random names and numbers of processes drop out, and once traced.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.effort import sample
from tests.needs import need
from tests.tracing import oracle
from tests.tracing.conftest import run

FILES = {
    "a": "a\n",
    "b": "b\n",
    "sub/c": "c\n",
    "sub/d/e": "e\n",
    "pkg/__init__.py": "from . import m\n",
    "pkg/m.py": "import csv, json\n",
    "a.c": '#include <stdio.h>\n#include "a.h"\nint main(void) { return puts(A) < 0; }\n',
    "f.c": "int f(void) { return 1; }\n",
    "a.h": '#define A "a"\n',
    "a.cc": '#include <vector>\n#include "a.h"\nint main() { std::vector<int> v; return v.size(); }\n',
    "Makefile": (
        "X := $(shell cat a)\nY := $(wildcard sub/*)\n-include sub/*.mk none.mk\n"
        "lib.a: a.o f.o\n\tar rcs $@ $^\n%.o: %.c a.h\n\tgcc -c $< -o $@\n"
    ),
    "build.ninja": (
        "rule cc\n  command = gcc -MD -MF $out.d -c $in -o $out\n  depfile = $out.d\n  deps = gcc\n"
        "rule ar\n  command = ar rcs $out $in\nbuild a.o: cc a.c\nbuild f.o: cc f.c\nbuild lib.a: ar a.o f.o\n"
    ),
    "CMakeLists.txt": "cmake_minimum_required(VERSION 3.10)\nproject(P C)\nadd_executable(p a.c)\n",
    "m.js": (
        "const fs = require('fs'); require('./n.js'); fs.readdirSync('.', {recursive: true}); fs.readFileSync('a');\n"
        "fs.existsSync('none'); fs.realpathSync('sub/../a'); fs.cpSync('sub', 'new', {recursive: true});\n"
        "fs.opendirSync('sub').close(); require('child_process').execSync('cat b');\n"
    ),
    "n.js": "module.exports = 1;\n",
    "p.pl": (
        "use strict; use File::Find; use lib 'sub'; eval { require Foo; }; open(F, '<a'); my @a = <F>;\n"
        "opendir(D, 'sub'); my @d = readdir(D); my @g = glob('*.c'); my $b = `cat b`; find(sub { -s $_ }, '.');\n"
        "-e 'none'; chdir 'sub'; open(G, '<c'); open(H, '>out'); rename 'out', 'moved';\n"
    ),
}

_PYTHON = (os.path.realpath(sys.executable), "-B", "-c")

TOOLS: dict[str, tuple[str, ...]] = {
    "bash": (
        *("bash", "-c"),
        "shopt -s globstar; for f in **; do [ -f $f ] && read x < $f; done; . ./a; cat <(cat b); type gcc; cd sub; "
        "pwd -P; cd ..; [[ a -nt b ]]; exec 3< a; read -u3 y; mapfile z < b; compgen -f; cat a | sort; cat <<< x; true",
    ),
    "dash": (
        *("dash", "-c"),
        "for f in * sub/*; do [ -r $f ] && read x < $f; done; . ./b; cd sub; pwd -P; cat ../a | tr a b; cat < c; "
        "command -v gcc; echo x > out; (cd d; cat e); (cat c & wait); [ -e none ] || true",
    ),
    "Python: imports": (
        *_PYTHON,
        "import sys; sys.path.insert(0, '.'); import pkg, asyncio, email, sqlite3, ssl, zipfile, ctypes.util\n"
        "import importlib.metadata as m; list(m.distributions()); ctypes.util.find_library('c')\n"
        "try: import nothing_here\nexcept ImportError: pass",
    ),
    "Python: files": (
        *_PYTHON,
        "import glob, linecache, mimetypes, mmap, os, pathlib, pwd, shutil; list(os.walk('.')); list(os.fwalk('.'))\n"
        "glob.glob('**', recursive=True); list(pathlib.Path('.').rglob('*')); os.path.realpath('sub/../a')\n"
        "shutil.which('gcc'); shutil.copytree('sub', 'new'); linecache.getline('a', 1); mimetypes.init()\n"
        "os.path.samefile('a', 'b'); pwd.getpwuid(0); os.listxattr('a'); os.statvfs('.'); os.path.ismount('/')\n"
        "d = os.open('sub', 0); os.stat('c', dir_fd=d); os.listdir(d); os.fchdir(d); open('c').read()\n"
        "os.open('d/e', 0, dir_fd=d); f = open('../a'); mmap.mmap(f.fileno(), 0, prot=1)\n"
        "os.readlink('/proc/self/exe')",
    ),
    "Python: names that are no text": (
        *_PYTHON,
        "import os; os.mkdir(b'\\xff\\xe9'); os.chdir(b'\\xff\\xe9'); open('x y\\n', 'w'); os.stat('x y\\n')\n"
        "os.path.exists('../a')\n"
        "os.listdir('..'); os.rename('x y\\n', '../q'); os.chdir('..'); os.rmdir(b'\\xff\\xe9')",
    ),
    "Python: processes": (
        *_PYTHON,
        "import os, subprocess; subprocess.run(['cat', 'a']); subprocess.run('cat b; ls sub', shell=True)\n"
        "os.system('cat a'); os.posix_spawn('/bin/cat', ['cat', 'b'], {}); os.wait(); os.popen('ls').read()\n"
        "subprocess.run(['cat', 'c'], cwd='sub'); subprocess.run(['cat', 'e'], cwd='sub/d', start_new_session=True)\n"
        "subprocess.run(['x', 'sub/c'], executable='cat')",
    ),
    "Python: multiprocessing": (
        *_PYTHON,
        "import multiprocessing as m, os\nif __name__ == '__main__':\n  for kind in ('fork', 'spawn', 'forkserver'):\n"
        "    with m.get_context(kind).Pool(2) as pool: pool.map(os.path.getsize, ['a', 'b', 'sub/c'])",
    ),
    "Python: threads": (
        *_PYTHON,
        "import concurrent.futures as f, ctypes, os, threading\n"
        "with f.ThreadPoolExecutor(8) as e: list(e.map(os.path.exists, ['a', 'b', 'sub/c', 'none/x', '.'] * 20))\n"
        "def own_folder(): ctypes.CDLL(None).unshare(0x200); os.chdir('sub'); open('c').read()\n"
        "t = threading.Thread(target=own_folder); t.start(); t.join(); open('a').read()",
    ),
    "perl": ("perl", "p.pl"),
    "awk": (
        "awk",
        '{print} END {while ((getline l < "b") > 0) print l; "cat b" | getline x; getline y < "none"; '
        'print "z" > "out"; close("out"); getline q < "out"; system("ls sub")}',
        *("a", "sub/c"),
    ),
    "sed": ("sed", "-i", "s/a/b/;r b", "a"),
    "make": ("make", "-j2"),
    "ninja": ("ninja", "-j2"),
    "cmake": ("cmake", "-G", "Ninja", "-S", ".", "-B", "build"),
    "gcc": ("gcc", "-flto", "-g", "-Isub", "-Inone", "a.c", "f.c", "-o", "a.out"),
    "gcc: other ways": (
        *("sh", "-c"),
        "gcc -save-temps -pipe -c f.c; gcc -x c a.h -o h.gch; gcc -include a.h -B sub -c f.c; echo -c > r; gcc @r f.c; "
        "gcc -shared -fPIC f.c -o f.so; gcc -M a.c; gcc -print-search-dirs",
    ),
    "g++": ("g++", "a.cc", "-o", "a.out"),
    "clang": ("clang-19", "-MD", "-isystem", "sub", "-include", "a.h", "a.c", "-o", "a.out"),
    "clang: other ways": (
        *("sh", "-c"),
        "clang-19 -x c-header a.h -o a.pch; clang-19 -include-pch a.pch -c f.c; clang-19 -gsplit-dwarf -g -c f.c; "
        "clang-19 -flto=thin -c f.c -o l.o; echo -c > r; clang-19 @r f.c",
    ),
    "as, ld, ar": (
        *("sh", "-c"),
        "printf '.globl x\\n.incbin \"a\"\\n' > x.s; as x.s -o x.o; ld -r x.o -o y.o; ar rcs l.a x.o; ranlib l.a; "
        "nm l.a; objdump -d x.o; strip y.o; objcopy x.o z.o; readelf -a z.o; ld -L. -Lsub -e x x.o -l:l.a",
    ),
    "ld.so": ("sh", "-c", "ldd /bin/ls; LD_PRELOAD=./none.so true; LD_LIBRARY_PATH=sub cat a"),
    "node": ("node", "m.js"),
    "git": (
        *("sh", "-c"),
        "git init -q .; git add a b sub; git -c user.name=x -c user.email=y commit -qm m; git status; git log; "
        "git ls-files; git describe --always --dirty; git mv a q; git clone -q . clone; git checkout -qb z; git grep b",
    ),
    "tar": ("sh", "-c", "tar cf t.tar a b sub; mkdir x; tar xf t.tar -C x; tar czf t.tgz sub; tar -X a -cf u.tar sub"),
    "sqlite3": (
        "sqlite3",
        "db",
        "create table t(x); pragma journal_mode=wal; insert into t values (1); select * from t",
    ),
    "coreutils": (
        *("sh", "-c"),
        "ls -laR; cp -a sub new; cp -r sub/d d2; install -m 644 a a3; mv a3 a4; stat a; readlink -f sub/../a; du -s .; "
        "df .; find . -newer a -exec cat {} +; grep -r a .; diff a b; test a -ef b; id; env -i /bin/cat a; tee o < a; "
        "mktemp -p sub; truncate -s 3 t; ln -s a l; cat l; dd if=a of=dd; split a; touch -r a u; "
        "chmod --reference=a b; mkfifo p; (cat p & echo x > p; wait); env -C sub cat c; install -d x/y/z; nproc",
    ),
    "compression": ("sh", "-c", "gzip -k a; zcat a.gz; diff -u a b > p; patch a < p"),
}

#: Devices without state are no inputs, and neither are processes of the run: Input says so.
_NO_INPUTS = re.compile(r"/dev/(null|urandom|tty)|/proc/(self|\d+)(/.*)?")


def prepare(work: Path) -> None:
    shutil.rmtree(work)
    for name, text in FILES.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(text)
    os.chdir(work)


@pytest.mark.fuzz
@pytest.mark.parametrize("name", sample([*TOOLS]))
def test_nothing_is_missed(work: Path, name: str) -> None:
    command = TOOLS[name]
    need("strace", command[0])
    program = str(shutil.which(command[0]))
    required = []
    for _ in range(2):
        prepare(work)
        account = oracle.strace([program, *command[1:]], work, work.parent / "log", oracle.snapshot(work))
        required.append(account.required)
    prepare(work)
    before = oracle.snapshot(work)
    accesses = run(*command, program=program)
    assert (accesses.returncode, accesses.problems) == (0, ())
    unseen = required[0] & required[1] - oracle.inputs(accesses)
    unseen = {(path, kind) for path, kind in unseen if not _NO_INPUTS.fullmatch(path)}
    assert not unseen, f"strace alone saw {sorted(unseen)}"
    assert len(required[0]) > 5
    after = oracle.snapshot(work)
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert changed <= {change.path for change in accesses.changes}
