"""What toy compilers do: ways to read and ways to write, in Python, shell and C. No way asks for what cachec is documented
not to count: times, numbers of files, link counts of folders, load and name of the machine.

Marks in code, files and variables: ``@D`` is the folder of a way as the program spells it, ``@A`` its absolute path,
``@N`` the number of the way in its toy. In files ``v1`` is what edits change. A file's text may begin with ``-> `` (a
link), ``C: `` (a program in C), ``SO: `` (a shared object); its name may end with ``*`` (executable) or ``/`` (a folder).
"""

from __future__ import annotations

from typing import NamedTuple

# Lines are easier to read as they are.
# ruff: noqa: E501


class Way(NamedTuple):
    """A way to read. missing: paths that edits may create. path: folders before others in PATH. env: values in turn.

    wrap: a command line that runs the toy as ``"$@"``.
    """

    name: str
    py: str = ""
    sh: str = ""
    c: str = ""
    files: dict[str, str] = {}  # noqa: RUF012 - never changed
    missing: str = ""
    env: dict[str, tuple[str, ...]] = {}  # noqa: RUF012 - never changed
    path: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    wrap: str = ""
    stdin: bool = False


class Write(NamedTuple):
    """A way to write the text that was read. outputs: what is made, from the current folder; ``@O`` is ``-o``'s file."""

    name: str
    py: str = ""
    sh: str = ""
    c: str = ""
    outputs: str = "@O"


PY_PRELUDE = """\
import os, sys
lines = []
out = sys.argv[sys.argv.index("-o") + 1] if "-o" in sys.argv else "fixed.out"
strict = "--strict" in sys.argv
def put(*words): lines.append(" ".join(map(str, words)))
def slurp(path):
    with open(path) as file: return file.read()
def attempt(read):
    try: read()
    except (OSError, ImportError, ValueError) as error:
        if strict:
            print("missing:", type(error).__name__, file=sys.stderr)
            sys.exit(3)
        put("none", type(error).__name__, getattr(error, "errno", ""))
"""

SH_PRELUDE = """\
out=fixed.out strict=
for each; do
    [ "$last" = -o ] && out=$each
    [ "$each" = --strict ] && strict=1
    last=$each
done
none() { [ "$strict" ] && { echo "missing" >&2; exit 3; }; echo none; }
"""

C_PRELUDE = r"""
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <langinfo.h>
#include <locale.h>
#include <limits.h>
#include <pthread.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>
extern char **environ;
static char text[1 << 20];
static size_t length;
static int strict;
static const char *out = "fixed.out";
static void put(const char *format, ...) {
    va_list list;
    va_start(list, format);
    length += vsnprintf(text + length, sizeof text - length, format, list);
    va_end(list);
}
static void none(void) {
    if (strict) { fprintf(stderr, "missing: errno %d\n", errno); exit(3); }
    put("none %d\n", errno);
}
static void slurp_fd(int fd) {
    char bytes[4096];
    ssize_t count;
    if (fd < 0) { none(); return; }
    while ((count = read(fd, bytes, sizeof bytes)) > 0) put("%.*s", (int)count, bytes);
    if (count < 0) none();
    close(fd);
}
static void slurp(const char *path) { slurp_fd(open(path, O_RDONLY)); }
static void start(char *const line[]) {
    int ends[2], status;
    if (pipe(ends)) exit(9);
    fflush(NULL);
    pid_t child = fork();
    if (!child) { dup2(ends[1], 1); close(ends[0]); execvp(line[0], line); _exit(127); }
    close(ends[1]);
    slurp_fd(ends[0]);
    waitpid(child, &status, 0);
    put("ended %d\n", WEXITSTATUS(status));
}
static int compare(const void *one, const void *other) { return strcmp(*(char *const *)one, *(char *const *)other); }
static void list(const char *path) {
    char *names[999];
    int count = 0;
    struct dirent *entry;
    DIR *folder = opendir(path);
    if (!folder) { none(); return; }
    while ((entry = readdir(folder))) names[count++] = strdup(entry->d_name);
    closedir(folder);
    qsort(names, count, sizeof *names, compare);
    for (int i = 0; i < count; i++) put("%s\n", names[i]);
}
static long walked;
static int visit(const char *path, const struct stat *status, int kind, struct FTW *place) {
    walked += kind + strlen(path + place->base) * path[place->base];
    return 0;
}
static void *read_in_thread(void *path) { slurp(path); return NULL; }
static void save(const char *path, int flags, int mode, const char *bytes, size_t count) {
    int fd = open(path, O_WRONLY | O_CREAT | flags, mode);
    if (fd < 0 || write(fd, bytes, count) != (ssize_t)count) { fprintf(stderr, "can't write: %d\n", errno); exit(4); }
    close(fd);
}
"""

C_MAIN = """
int main(int argc, char **argv) {{
    for (int i = 1; i < argc; i++) {{
        if (!strcmp(argv[i], "-o")) out = argv[i + 1];
        strict |= !strcmp(argv[i], "--strict");
    }}
{}    return 0;
}}
"""

_F = {"f": "v1\n"}
_AB = {"a/f": "v1\n", "b/f": "v2\n", "cur": "-> a"}
_TREE = {"d/one.x": "v1\n", "d/two.x": "v1\n", "d/three.y": "v1\n", "d/sub/four.x": "v1\n"}
_HELPER = "#!/bin/sh\necho helper v1 $*\n"

READS = (
    Way("open", 'put(slurp("@D/f"))', "cat @D/f || none", 'slurp("@D/f");', _F),
    Way("open and readline", 'put(open("@D/f").readline())', "{ read -r x < @D/f && echo $x; } || none", 'char line[99] = ""; FILE *file = fopen("@D/f", "r"); if (file && fgets(line, 99, file)) put("%s", line); else none();', _F),
    Way("openat", 'd = os.open("@D", os.O_RDONLY)\nput(os.read(os.open("f", os.O_RDONLY, dir_fd=d), 99))', "", 'int d = open("@D", O_PATH | O_DIRECTORY); slurp_fd(openat(d, "f", O_RDONLY));', _F),
    Way("open that follows no link", 'put(os.read(os.open("@D/f", os.O_RDONLY | os.O_NOFOLLOW), 99))', "", 'slurp_fd(open("@D/f", O_RDONLY | O_NOFOLLOW));', {**_F, "g": "v2\n"}),
    Way("link of its own", 'os.symlink(os.path.abspath("@D/f"), ".own-@N")\ntry: put(slurp(".own-@N"))\nfinally: os.unlink(".own-@N")', 'ln -s "$PWD" .own-@N; cat .own-@N/@D/f || none; rm .own-@N', "", _F),
    Way("size", 'put(os.stat("@D/f").st_size)', "stat -c %s @D/f || none", 'struct stat s; if (stat("@D/f", &s)) none(); else put("%ld\\n", (long)s.st_size);', _F),
    Way("size by count", 'put(os.path.getsize("@D/f"))', "wc -c < @D/f || none", 'int fd = open("@D/f", O_RDONLY); if (fd < 0) none(); else put("%ld\\n", (long)lseek(fd, 0, SEEK_END));', _F),
    Way("mode", 'put(oct(os.stat("@D/f").st_mode))', "stat -c %a @D/f || none", 'struct stat s; if (stat("@D/f", &s)) none(); else put("%o\\n", s.st_mode);', _F),
    Way("mode of what was opened", 'put(oct(os.fstat(os.open("@D/f", os.O_RDONLY)).st_mode))', "cat @D/f && stat -c %a @D/f || none", 'struct stat s; int fd = open("@D/f", O_RDONLY); if (fd < 0 || fstat(fd, &s)) none(); else put("%o %ld\\n", s.st_mode, (long)s.st_nlink);', _F),
    Way("mode of a folder", 'put(oct(os.stat("@D/d").st_mode))', "stat -c %a @D/d || none", 'struct stat s; if (stat("@D/d", &s)) none(); else put("%o\\n", s.st_mode);', _TREE),
    Way("count of links", 'put(os.stat("@D/f").st_nlink)', "stat -c %h @D/f || none", 'struct stat s; if (stat("@D/f", &s)) none(); else put("%ld\\n", (long)s.st_nlink);', _F),
    Way("lstat", 'put(oct(os.lstat("@D/l").st_mode), os.lstat("@D/l").st_size)', "stat -c '%F %s' @D/l || none", 'struct stat s; if (lstat("@D/l", &s)) none(); else put("%o %ld\\n", s.st_mode, (long)s.st_size);', {**_F, "l": "-> f"}),
    Way("exists", 'put(os.path.exists("@D/f"), os.path.exists("@D/g"))', "[ -e @D/f ] && echo f; [ -e @D/g ] && echo g", 'put("%d %d\\n", access("@D/f", F_OK), access("@D/g", F_OK));', _F, "g"),
    Way("may be run", 'put(os.access("@D/f", os.X_OK), os.access("@D/g", os.X_OK))', "[ -x @D/f ] && echo f; [ -x @D/g ] && echo g", 'put("%d %d\\n", access("@D/f", X_OK), access("@D/g", X_OK));', {"f": "v1\n", "g*": "v1\n"}),
    Way("kind", 'put(*(test("@D/f") for test in (os.path.isfile, os.path.isdir, os.path.islink, os.path.ismount)))', "for t in -f -d -L -s -r -p; do [ $t @D/f ] && echo $t; done", 'struct stat s; put("%d\\n", lstat("@D/f", &s) ? -1 : (int)(s.st_mode & S_IFMT));', _F),
    Way("listing", 'put(sorted(os.listdir("@D/d")))', "ls @D/d || none", 'list("@D/d");', _TREE, "d/new d/one.y"),
    Way("long listing", 'put(sorted((e.name, e.is_dir(), e.is_symlink(), e.stat().st_size) for e in os.scandir("@D/d")))', "ls -ln --time-style=+ @D/d | grep -v '^total\\|^d' || none", "", _TREE, "d/new"),
    Way("glob", 'import glob\nput(sorted(glob.glob("@D/d/*.x")))', "echo @D/d/*.x", 'glob_t g; if (glob("@D/d/*.x", 0, NULL, &g)) none(); else for (size_t i = 0; i < g.gl_pathc; i++) put("%s\\n", g.gl_pathv[i]);', _TREE, "d/new.x d/new.y"),
    Way("deep glob", 'import glob\nput(sorted(glob.glob("@D/d/**/*.x", recursive=True)))', "echo @D/*/*/*.x", "", _TREE, "d/new.x d/sub/new.x d/more/new.x"),
    Way("contents of a glob", 'import pathlib\nfor each in sorted(pathlib.Path("@D/d").glob("*.x")): put(each.read_text())', "cat @D/d/*.x || none", 'glob_t g; if (glob("@D/d/*.x", 0, NULL, &g)) none(); else for (size_t i = 0; i < g.gl_pathc; i++) slurp(g.gl_pathv[i]);', _TREE, "d/new.x"),
    Way("walk", 'for at, folders, files in os.walk("@D/d"):\n    folders.sort()\n    put(os.path.basename(at), *sorted(files))', "find @D/d -type f | sort", 'if (nftw("@D/d", visit, 9, FTW_PHYS)) none(); else put("%ld\\n", walked);', _TREE, "d/new d/sub/new d/more/new"),
    Way("walk for a file", 'import pathlib\nput(sorted(pathlib.Path("@D").rglob("four.*")))', "find @D -name 'four*' -size +0 | sort", "", _TREE, "d/four.y"),
    Way("types of names", 'put(sorted((e.name, e.is_dir(follow_symlinks=False), e.is_symlink()) for e in os.scandir("@D/d")))', "find @D/d -mindepth 1 -printf '%P %y\\n' | sort || none", 'struct dirent **all; int n = scandir("@D/d", &all, NULL, alphasort); for (int i = 0; i < n; i++) put("%s %d\\n", all[i]->d_name, all[i]->d_type);', _TREE, "d/new"),
    Way("path of a descriptor", 'put(os.path.basename(os.readlink(f"/proc/self/fd/{os.open(\'@D/f\', os.O_PATH)}")))', '(exec 3< @D/f && basename "$(readlink /dev/fd/3)") || none', 'char path[99], to[PATH_MAX] = ""; int fd = open("@D/f", O_PATH); snprintf(path, sizeof path, "/proc/self/fd/%d", fd); if (readlink(path, to, sizeof to - 1) < 0) none(); else put("%s\\n", strrchr(to, 47));', _F),
    Way("real path of a folder", 'put(os.path.relpath(os.path.realpath("@D/d"), os.path.realpath("@D/..")))', "(cd @D/d && basename \"$(pwd -P)\") || none", "", _TREE),
    Way("owner", 'put(os.stat("@D/f").st_uid)', "stat -L -c %u:%g @D/f || none", 'struct stat s; if (stat("@D/f", &s)) none(); else put("%d\\n", (int)s.st_uid);', _F),
    Way("readlink", 'put(os.readlink("@D/l"))', "readlink @D/l || none", 'char to[99] = ""; if (readlink("@D/l", to, 98) < 0) none(); else put("%s\\n", to);', {**_F, "g": "v2\n", "l": "-> f"}),
    Way("realpath", 'put(os.path.realpath("@D/l/f"))', "realpath @D/l/f || none", 'char to[PATH_MAX]; if (!realpath("@D/l/f", to)) none(); else put("%s\\n", to);', {"s/f": "v1\n", "t/f": "v1\n", "l": "-> s"}),
    Way("real path of a folder", 'import pathlib\nput(pathlib.Path("@D/cur").resolve())', "(cd @D/cur && pwd -P) || none", "", _AB),
    Way("linked file", 'put(slurp("@D/l"))', "cat @D/l || none", 'slurp("@D/l");', {**_F, "g": "v2\n", "l": "-> f"}),
    Way("chain of links", 'put(slurp("@D/l"))', "cat @D/l || none", 'slurp("@D/l");', {"l": "-> m", "m": "-> s/n", "s/n": "-> ../f", "f": "v1\n", "g": "v2\n"}),
    Way("linked folder", 'put(slurp("@D/cur/f"))', "cat @D/cur/f || none", 'slurp("@D/cur/f");', _AB),
    Way("linked folder that is entered", 'was = os.getcwd()\nos.chdir("@D/cur")\nput(slurp("f"))\nos.chdir(was)', "(cd @D/cur && cat f) || none", 'int was = open(".", O_PATH); if (chdir("@D/cur")) none(); else slurp("f"); if (fchdir(was)) exit(9);', _AB),
    Way("back from a link", 'put(slurp("@D/cur/../f"))', "cat @D/cur/../f || none", 'slurp("@D/cur/../f");', {"a/b/x": "v1\n", "a/f": "v1\n", "f": "v2\n", "c/x": "v1\n", "c/f": "v3\n", "cur": "-> a/b"}),
    Way("link to nowhere", 'put(os.path.exists("@D/l"), os.path.lexists("@D/l"))', "[ -e @D/l ] && echo there; [ -L @D/l ] && echo link", 'slurp("@D/l");', {"l": "-> none", **_F}, "none"),
    Way("search path", 'for d in ("a", "b", "c"):\n    if os.path.exists(f"@D/{d}/h"):\n        put(d, slurp(f"@D/{d}/h"))\n        break', "for d in a b c; do [ -f @D/$d/h ] && { cat @D/$d/h; break; }; done", 'int fd = open("@D/a/h", O_RDONLY); if (fd < 0) fd = open("@D/b/h", O_RDONLY); if (fd < 0) fd = open("@D/c/h", O_RDONLY); slurp_fd(fd);', {"a/x": "v1\n", "c/h": "v1\n"}, "a/h b/h b"),
    Way("search path of a variable", 'for d in os.environ.get("TOY_PATH@N", "@D/b").split(":"):\n    try: put(slurp(d + "/h"))\n    except OSError: continue\n    break', "IFS=:; for d in ${TOY_PATH@N:-@D/b}; do [ -f $d/h ] && { cat $d/h; break; }; done; unset IFS", "", {"a/x": "v1\n", "b/h": "v1\n", "c/h": "v2\n"}, "a/h", {"TOY_PATH@N": ("@A/a:@A/b:@A/c", "@A/a:@A/c:@A/b", "@A/c")}),
    Way("include", 'import re\nfor name in re.findall("include (.*)", slurp("@D/src")):\n    found = [d for d in ("@D/i", "@D/j") if os.path.isfile(f"{d}/{name}")]\n    put(name, slurp(f"{found[0]}/{name}") if found else "none")', "for n in $(sed -n 's/include //p' @D/src); do cat @D/i/$n 2>/dev/null || cat @D/j/$n || none; done", "", {"src": "v1\ninclude h1\ninclude h2\n", "i/h1": "v1\n", "j/h2": "v1\n"}, "i/h2 j/h1"),
    Way("response file", 'for a in sys.argv:\n    if a.startswith("@"): put(slurp(a[1:]).split())', 'for a; do case $a in @*) cat "${a#@}" || none;; esac; done', "for (int i = 1; i < argc; i++) if (argv[i][0] == '@') slurp(argv[i] + 1);", {"rsp": "-x v1 -y\n"}, "", {}, (), ("@@D/rsp",)),
    Way("file of an argument", 'put(slurp(sys.argv[sys.argv.index("--in") + 1]))', 'while [ "$1" != --in ]; do shift; done; cat "$2" || none', 'for (int i = 1; i < argc; i++) if (!strcmp(argv[i], "--in")) slurp(argv[i + 1]);', _F, "", {}, (), ("--in", "@D/f")),
    Way("config upward", 'd = "@D/x/y/z"\nwhile len(d) >= len("@D"):\n    if os.path.isfile(d + "/.toyrc"):\n        put(slurp(d + "/.toyrc"))\n        break\n    d = os.path.dirname(d)', "d=@D/x/y/z; while :; do [ -f $d/.toyrc ] && { cat $d/.toyrc; break; }; [ $d = @D ] && break; d=${d%/*}; done", 'char d[] = "@D/x/y/z", p[PATH_MAX]; for (;;) { snprintf(p, sizeof p, "%s/.toyrc", d); if (!access(p, R_OK)) { slurp(p); break; } if (strlen(d) <= strlen("@D")) break; *strrchr(d, \'/\') = 0; }', {".toyrc": "v1\n", "x/y/z/f": "v1\n"}, "x/.toyrc x/y/.toyrc x/y/z/.toyrc"),
    Way("config of the home folder", 'put(slurp(os.path.expanduser("~/.toyrc")))', "cat ~/.toyrc || none", 'char p[PATH_MAX]; snprintf(p, sizeof p, "%s/.toyrc", getenv("HOME") ? getenv("HOME") : ""); slurp(p);', {"h1/.toyrc": "v1\n", "h2/.toyrc": "v2\n"}, "", {"HOME": ("@A/h1", "@A/h2", "@A/none")}),
    Way("variable", 'put(os.environ.get("TOY@N"))', 'echo "${TOY@N-unset}"', 'const char *v = getenv("TOY@N"); put("%s\\n", v ? v : "unset");', _F, "", {"TOY@N": ("one", "two", "", "one ")}),
    Way("all variables", 'put(*sorted(n for n in os.environ if n.startswith("TOY")))', "env | grep ^TOY | sort", 'for (char **e = environ; *e; e++) if (!strncmp(*e, "TOY@N", 4)) put("%s\\n", *e);', _F, "", {"TOY@N": ("one", "two", "")}),
    Way("variable that names a file", 'put(slurp(os.environ.get("TOY_FILE@N", "@D/g")))', "cat ${TOY_FILE@N:-@D/g} || none", 'const char *v = getenv("TOY_FILE@N"); slurp(v ? v : "@D/g");', {"f": "v1\n", "g": "v2\n", "same": "v1\n"}, "", {"TOY_FILE@N": ("@A/f", "@A/g", "@A/none", "@A/same")}),
    Way("program by PATH", 'import subprocess\nput(subprocess.run(["helper@N", "x"], stdout=-1).stdout)', "helper@N x || none", 'char *line[] = {"helper@N", "x", NULL}; start(line);', {"b1/x": "v1\n", "b2/helper@N*": _HELPER, "b3/helper@N*": _HELPER.replace("v1", "v3")}, "b1/helper@N b1", {}, ("b1", "b2", "b3")),
    Way("compiled program by PATH", 'import subprocess\nput(subprocess.run(["helper@N", "x"], stdout=-1).stdout)', "helper@N x || none", 'char *line[] = {"helper@N", "x", NULL}; start(line);', {"b1/x": "v1\n", "b2/helper@N*": 'C: puts("helper v1");', "b3/helper@N*": _HELPER}, "b1/helper@N", {}, ("b1", "b2", "b3")),
    Way("where a program is", 'import shutil\nput(shutil.which("helper@N"))', "command -v helper@N || none", "", {"b1/x": "v1\n", "b2/helper@N*": _HELPER, "b3/helper@N*": _HELPER}, "b1/helper@N", {}, ("b1", "b2", "b3")),
    Way("program by path", 'import subprocess\nput(subprocess.run(["@D/helper", "x"], stdout=-1).stdout)', "@D/helper x || none", 'char *line[] = {"@D/helper", "x", NULL}; start(line);', {"helper*": _HELPER}),
    Way("program that reads", 'put(os.popen("@D/helper").read())', 'echo "$(@D/helper)"', 'char *line[] = {"@D/helper", NULL}; start(line);', {"helper*": "#!/bin/sh\ncat @D/f\n", **_F}),
    Way("script of a program", 'import subprocess\nput(subprocess.run([sys.executable, "-S", "@D/s.py"], stdout=-1).stdout)', "sh @D/s.sh || none", 'char *line[] = {"sh", "@D/s.sh", NULL}; start(line);', {"s.py": 'print("v1")\n', "s.sh": "echo v1\n"}),
    Way("script of the shell", 'import subprocess\nput(subprocess.run(["sh", "@D/s"], stdout=-1).stdout)', "bash @D/s || none", 'char *line[] = {"bash", "@D/s", NULL}; start(line);', {"s": "echo v1\n[ $inner ] || { inner=1; . @D/more; }\n", "more": "echo v1\n"}),
    Way("interpreter", 'import subprocess\nput(subprocess.run(["@D/s"], stdout=-1).stdout)', "@D/s || none", 'char *line[] = {"@D/s", NULL}; start(line);', {"s*": "#!@A/interpreter\nv1\n", "interpreter*": 'C: puts("v1"); FILE *f = fopen(v[1], "r"); char b[99]; if (f && fgets(b, 99, f)) puts(b);'}),
    Way("interpreter of an interpreter", 'put(os.popen("@D/s").read())', "@D/s || none", 'char *line[] = {"@D/s", NULL}; start(line);', {"s*": "#!@A/interpreter\nv1\n", "interpreter*": "#!@A/other v1\n", "other*": 'C: for (int i = 0; i < c; i++) puts(v[i]); puts("v1");'}),
    Way("interpreter by env", 'import subprocess\nput(subprocess.run(["@D/s"], stdout=-1).stdout)', "@D/s || none", 'char *line[] = {"@D/s", NULL}; start(line);', {"s*": "#!/usr/bin/env interpreter@N\nv1\n", "b1/x": "v1\n", "b2/interpreter@N*": "#!/bin/sh\necho v1; cat $1\n"}, "b1/interpreter@N", {}, ("b1", "b2")),
    Way("standard input", "put(sys.stdin.read())", "cat", "slurp_fd(dup(0));", {"in": "v1\n"}, stdin=True),
    Way("standard input by a child", 'import subprocess\nput(subprocess.run(["tr", "v", "w"], stdout=-1).stdout)', "tr v w", 'char *line[] = {"tr", "v", "w", NULL}; start(line);', {"in": "v1\n"}, stdin=True),
    Way("standard input by its name", 'put(slurp("/dev/stdin"))', "cat /dev/stdin || none", 'slurp("/proc/self/fd/0");', {"in": "v1\n"}, stdin=True),
    Way("some of standard input", "put(sys.stdin.readline())", "read -r x; echo $x", "char b[1]; while (read(0, b, 1) == 1 && *b != '\\n') put(\"%c\", *b);", {"in": "v1\nv1\n"}, stdin=True),
    Way("pipe", 'import subprocess\nfirst = subprocess.Popen(["cat", "@D/f"], stdout=-1)\nput(subprocess.run(["tr", "v", "w"], stdin=first.stdout, stdout=-1).stdout)\nfirst.wait()', "cat @D/f | tr v w | sort", 'FILE *p = popen("cat @D/f | tr v w", "r"); char b[99] = ""; if (p && fgets(b, 99, p)) put("%s", b); else none(); if (p) pclose(p);', _F),
    Way("here-document", "", "cat <<END\n$(cat @D/f)\n$(ls @D)\nEND", "", _F, "new"),
    Way("large here-document", "", "big=$(seq 30000); cat <<END | tail -n 2\n$big\n$(cat @D/f)\nEND", "", _F),
    Way("process substitution", "", "bash -c 'cat <(cat @D/f) <(ls @D 2>/dev/null)' || none", "", _F, "new"),
    Way("substitution", "", 'echo "$(< @D/f)" "`cat @D/f`"', "", _F),
    Way("child of fork", 'end, begin = os.pipe()\nif not os.fork():\n    os.write(begin, slurp("@D/f").encode())\n    os._exit(0)\nos.close(begin)\nput(os.read(end, 99))\nput(os.wait()[1])', "(cat @D/f) & wait", 'int ends[2]; if (pipe(ends)) exit(9); fflush(NULL); if (!fork()) { slurp("@D/f"); if (write(ends[1], text, length)) _exit(0); _exit(1); } close(ends[1]); wait(NULL); slurp_fd(ends[0]);', _F),
    Way("thread", 'import threading\nthread = threading.Thread(target=lambda: attempt(lambda: put(slurp("@D/f"))))\nthread.start()\nthread.join()', "", 'pthread_t thread; pthread_create(&thread, NULL, read_in_thread, "@D/f"); pthread_join(thread, NULL);', _F),
    Way("pool", 'from concurrent.futures import ProcessPoolExecutor\nwith ProcessPoolExecutor(2) as pool: put(*pool.map(slurp, ["@D/f", "@D/g"]))', "for n in f g; do cat @D/$n > .part-@N-$n & done; wait; cat .part-@N-*; rm .part-@N-*", "", {**_F, "g": "v1\n"}),
    Way("module", 'sys.path.insert(0, "@D")\nimport mod@N\nput(mod@N.value)', ". @D/lib && echo $value || none", "", {"mod@N.py": 'value = "v1"\n', "lib": "value=v1\n"}),
    Way("module of a search path", 'sys.path[:0] = ["@D/a", "@D/b"]\nimport mod@N\nput(mod@N.value)', "", "", {"a/x.py": "v1 = 0\n", "b/mod@N.py": 'value = "v1"\n'}, "a/mod@N.py a/mod@N a/mod@N/__init__.py"),
    Way("package", 'sys.path.insert(0, "@D")\nimport pack@N.sub\nput(pack@N.sub.value, pack@N.value)\ntry:\n    from pack@N import more\n    put(more.value)\nexcept ImportError: put("no more")', "", "", {"pack@N/__init__.py": 'value = "v1"\n', "pack@N/sub.py": 'value = "v1"\n'}, "pack@N/more.py pack@N/more/__init__.py pack@N.py"),
    Way("namespace package", 'sys.path[:0] = ["@D/a", "@D/b"]\nimport space@N.one, space@N.two\nput(space@N.one.value, space@N.two.value)', "", "", {"a/space@N/one.py": 'value = "v1"\n', "b/space@N/two.py": 'value = "v1"\n'}, "a/space@N/two.py a/space@N/__init__.py"),
    Way("PYTHONPATH", "import path_mod@N\nput(path_mod@N.value)", "", "", {"a/x.py": "v1 = 0\n", "b/path_mod@N.py": 'value = "v1"\n', "c/path_mod@N.py": 'value = "v2"\n'}, "a/path_mod@N.py a/sitecustomize.py", {"PYTHONPATH": ("@A/a:@A/b:@A/c", "@A/a:@A/c:@A/b", "@A/c")}),
    Way("BASH_ENV", "import subprocess\nput(subprocess.run(['bash', '-c', 'echo $value'], stdout=-1).stdout)", "bash -c 'echo $value'", 'char *line[] = {"bash", "-c", "echo $value", NULL}; start(line);', {"rc": "value=v1\n", "rc2": "value=v2\n"}, "", {"BASH_ENV": ("@A/rc", "@A/rc2", "@A/none")}),
    Way("shared object", "import ctypes\nput(ctypes.CDLL('@A/lib.so').f())", "", 'void *lib = dlopen("@A/lib.so", RTLD_NOW); int (*f)(void) = lib ? (int (*)(void))dlsym(lib, "f") : NULL; put("%d\\n", f ? f() : -1);', {"lib.so*": 'SO: int f(void) { const char *t = "v1"; return t[1]; }'}),
    Way("LD_LIBRARY_PATH", "import subprocess\nput(subprocess.run(['@D/prog'], stdout=-1).stdout)", "@D/prog || none", 'char *line[] = {"@D/prog", NULL}; start(line);', {"a/x": "v1\n", "b/libtoy@N.so*": 'SO: int f(void) { const char *t = "v1"; return t[1]; }', "prog*": 'C: void *l = dlopen("libtoy@N.so", 2); printf("%d\\n", l ? ((int (*)(void))dlsym(l, "f"))() : -1);'}, "a/libtoy@N.so", {"LD_LIBRARY_PATH": ("@A/a:@A/b", "@A/b", "@A/a")}),
    Way("mmap", 'import mmap\nwith open("@D/f") as f: put(mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)[:])', "", 'struct stat s; int fd = open("@D/f", O_RDONLY); if (fd < 0 || fstat(fd, &s) || !s.st_size) none(); else { char *p = mmap(NULL, s.st_size, PROT_READ, MAP_PRIVATE, fd, 0); if (p == MAP_FAILED) none(); else put("%.*s", (int)s.st_size, p); }', _F),
    Way("sendfile", 'a, b = os.pipe()\nf = os.open("@D/f", os.O_RDONLY)\nput(os.sendfile(b, f, 0, 99), os.read(a, 99))', "", 'int fd = open("@D/f", O_RDONLY), e[2]; if (fd < 0 || pipe(e) || sendfile(e[1], fd, NULL, 99) < 0) none(); else { close(e[1]); slurp_fd(e[0]); }', _F),
    Way("copy", 'import shutil\nshutil.copyfile("@D/f", ".part-@N")\nput(slurp(".part-@N"))\nos.unlink(".part-@N")', "cp @D/f .part-@N && cat .part-@N && rm .part-@N || none", 'int f = open("@D/f", O_RDONLY), g = open(".part-@N", O_RDWR | O_CREAT, 0600); if (f < 0) none(); else { put("%ld\\n", (long)copy_file_range(f, NULL, g, NULL, 99, 0)); lseek(g, 0, 0); slurp_fd(g); } unlink(".part-@N");', _F),
    Way("locale", 'import locale\nlocale.setlocale(locale.LC_ALL, "")\nput(locale.nl_langinfo(locale.CODESET))', "locale charmap; printf 'a\\nB\\n' | sort", 'setlocale(LC_ALL, ""); put("%s %d\\n", nl_langinfo(CODESET), (int)MB_CUR_MAX);', _F, "", {"LC_ALL": ("C", "C.UTF-8", "none")}),
    Way("umask", "mask = os.umask(0)\nos.umask(mask)\nput(oct(mask))", "umask", 'mode_t mask = umask(0); umask(mask); put("%o\\n", mask);', _F),
    Way("current folder", "put(os.getcwd())", "pwd -P", 'char at[PATH_MAX]; put("%s\\n", getcwd(at, sizeof at));', _F),
    Way("file named in a file", 'put(slurp("@D/" + slurp("@D/name").strip()))', "cat @D/$(cat @D/name) || none", 'char name[99] = "", path[PATH_MAX]; FILE *f = fopen("@D/name", "r"); if (!f || fscanf(f, "%98s", name) != 1) none(); else { snprintf(path, sizeof path, "@D/%s", name); slurp(path); }', {"name": "v1\n", "v1": "one v1\n", "v2": "two\n"}, "v3"),
    Way("list of files", 'for name in slurp("@D/list").split():\n    attempt(lambda: put(slurp("@D/" + name)))', "while read -r n; do cat @D/$n || none; done < @D/list", "", {"list": "a\nb\nc\n", "a": "v1\n", "b": "v1\n"}, "c"),
    Way("file by xargs", "", "sed 's,^,@D/,' @D/list | xargs cat", "", {"list": "a\nb\n", "a": "v1\n", "b": "v1\n"}),
    Way("name of a process", 'fd = os.open("@D/f", os.O_RDONLY)\nput(slurp(f"/proc/self/fd/{fd}"), slurp("/proc/self/root" + os.path.abspath("@D/f")))', "cat < @D/f; cat /dev/fd/3 3< @D/f || none", 'char path[99]; int fd = open("@D/f", O_PATH); snprintf(path, sizeof path, "/proc/self/fd/%d", fd); slurp(path);', _F),
    Way("inherited descriptor", "put(os.pread(3, 99, 0))", "cat <&3", "slurp_fd(dup(3));", _F, wrap='exec "$@" 3< @D/f' ),
    Way("loop over a pipe", "put(sys.argv[-1])", "for n; do :; done; echo $n", 'put("%s\\n", argv[argc - 1]);', {"list": "v1\nv2\n"}, wrap='cat @D/list | while read -r n; do "$@" "$n" || exit; done'),
    Way("loop over a file", "put(sys.argv[-1])", "for n; do :; done; echo $n", 'put("%s\\n", argv[argc - 1]);', {"list": "v1\nv2\n"}, wrap='while read -r n; do "$@" "$n" || exit; done < @D/list'),
    Way("part of a file on standard input", "put(sys.stdin.buffer.raw.read(3))", "read -r x; echo $x", 'char b[3]; put("%.*s\\n", (int)read(0, b, 3), b);', {"list": "v1\nv2\nv3\n"}, wrap='{ read -r x; "$@"; status=$?; cat; exit $status; } < @D/list'),
    Way("extended attribute", 'put(os.getxattr("@D/f", "user.toy"))', "", 'char v[99] = ""; if (getxattr("@D/f", "user.toy", v, 98) < 0) none(); else put("%s\\n", v);', _F),
    Way("own text", "put(slurp(__file__)[-40:])", 'tail -c 20 "$0" || none', 'struct stat s; if (stat("/proc/self/exe", &s)) none(); else put("%ld\\n", (long)s.st_size);', _F),
    Way("user", 'import pwd\nput(pwd.getpwuid(os.getuid()).pw_name, os.path.expanduser("~root"))', "id -un; echo ~root", 'struct passwd *p = getpwuid(getuid()); put("%s\\n", p ? p->pw_name : "none");', _F),
    Way("processors", "put(os.cpu_count(), len(os.sched_getaffinity(0)))", "nproc", 'put("%ld\\n", sysconf(_SC_NPROCESSORS_ONLN));', _F),
    Way("temporary file", 'import tempfile\nwith tempfile.NamedTemporaryFile("w+") as t:\n    t.write(slurp("@D/f"))\n    t.seek(0)\n    put(t.read())', "t=$(mktemp); cat @D/f > $t; cat < $t; rm $t", 'FILE *t = tmpfile(); char b[99] = ""; int fd = open("@D/f", O_RDONLY); if (fd < 0) none(); else { fprintf(t, "%d", (int)read(fd, b, 98)); rewind(t); put("%d %s\\n", fgetc(t), b); }', _F),
    Way("temporary folder", 'import tempfile\nwith tempfile.TemporaryDirectory() as t:\n    os.symlink(os.path.abspath("@D/f"), t + "/l")\n    put(slurp(t + "/l"))', "t=$(mktemp -d); cp @D/f $t/g; cat $t/g 2>/dev/null; rm -r $t", "", _F),
    Way("configparser", 'import configparser\np = configparser.ConfigParser()\np.read(["@D/a.ini", "@D/b.ini"])\nput({s: dict(p[s]) for s in p})', "cat @D/a.ini @D/b.ini 2>/dev/null", "", {"b.ini": "[one]\nk = v1\n"}, "a.ini"),
    Way("compare", 'import filecmp\nput(filecmp.cmp("@D/f", "@D/g"), filecmp.cmp("@D/f", "@D/g", shallow=False))', "cmp @D/f @D/g; diff @D/f @D/g", "", {**_F, "g": "v1\n"}),
    Way("grep", "", "grep -rn v @D/d | sort", "", _TREE, "d/new d/sub/new"),
    Way("tools", "", "sort @D/f; sed s/v/w/ @D/f; awk '{print $1}' @D/f; sha256sum @D/f; head -n 1 @D/f", "", _F),
    Way("lock", 'import fcntl\nwith open("@D/f") as f:\n    fcntl.flock(f, fcntl.LOCK_EX)\n    put(f.read())', "mkdir .lock-@N && cat @D/f; rmdir .lock-@N", "", _F),
    Way("lock that is busy", 'try:\n    os.mkdir("@D/lock")\n    os.rmdir("@D/lock")\n    put("free")\nexcept FileExistsError: put("busy")', "mkdir @D/lock && rmdir @D/lock && echo free || none", 'if (mkdir("@D/lock", 0777)) none(); else { rmdir("@D/lock"); put("free\\n"); }', _F, "lock"),
    Way("exclusive file", 'try:\n    os.close(os.open("@D/x", os.O_CREAT | os.O_EXCL))\n    os.unlink("@D/x")\n    put("new")\nexcept FileExistsError: put("there")', "(set -C; : > @D/x) && rm @D/x && echo new || none", 'int fd = open("@D/x", O_CREAT | O_EXCL, 0600); if (fd < 0) none(); else { unlink("@D/x"); put("new\\n"); }', _F, "x"),
    Way("compiler", 'import subprocess\nput(subprocess.run(["gcc", "-E", "-P", "-I@D/a", "-I@D/b", "@D/s.c"], stdout=-1).stdout)', "gcc -E -P -I@D/a -I@D/b @D/s.c || none", "", {"s.c": '#include "h.h"\nint v1;\n', "a/x": "v1\n", "b/h.h": "int v1;\n"}, "a/h.h h.h"),
    Way("compiler and linker", "", "gcc -I@D/a -o .prog-@N @D/s.c && ./.prog-@N; rm -f .prog-@N", "", {"s.c": '#include <stdio.h>\n#include "h.h"\nint main(void) { puts(H); }\n', "a/h.h": '#define H "v1"\n'}, "h.h"),
    Way("deleted and read", 'import shutil\nshutil.copy("@D/f", ".part-@N")\nf = open(".part-@N")\nos.unlink(".part-@N")\nput(f.read())', "cp @D/f .part-@N; exec 4< .part-@N; rm .part-@N; cat <&4; exec 4<&-", "", _F),
    Way("renamed folder", 'import shutil\nshutil.copytree("@D/d", ".copy-@N")\nos.rename(".copy-@N", ".moved-@N")\nput(slurp(".moved-@N/one.x"), sorted(os.listdir(".moved-@N")))\nshutil.rmtree(".moved-@N")', "cp -r @D/d .copy-@N; mv .copy-@N .moved-@N; cat .moved-@N/*.x; rm -r .moved-@N", "", _TREE, "d/new.x"),
)  # fmt: skip

#: Ways to read that show where the project lies.
SHOWING_PATHS = {"current folder", "realpath", "real path of a folder", "where a program is"}

WRITES = (
    Write("file of an argument", 'with open(out, "w") as file: file.write(text)', 'printf "%s\\n" "$text" > "$out"', "save(out, O_TRUNC, 0666, text, length);"),
    Write("fixed name", 'open("fixed", "w").write(text)', 'echo "$text" > fixed', 'save("fixed", O_TRUNC, 0666, text, length);', "fixed"),
    Write("new folder", 'os.makedirs("new/deep", exist_ok=True)\nopen("new/deep/one", "w").write(text)\nopen("new/two", "w").write("2")', 'mkdir -p new/deep; echo "$text" > new/deep/one; echo 2 > new/two', 'mkdir("new", 0777); mkdir("new/deep", 0777); save("new/deep/one", O_TRUNC, 0666, text, length); save("new/two", O_TRUNC, 0666, "2", 1);', "new/deep/one new/two new/deep new"),
    Write("several files", 'for name in ("one", "two", "three"): open(f"{out}.{name}", "w").write(name + text)', 'for n in one two three; do echo "$n$text" > "$out.$n"; done', 'save("several.one", O_TRUNC, 0666, text, length); save("several.two", O_TRUNC, 0666, "2", 1); save(out, O_TRUNC, 0666, "3", 1);', "@O.one @O.two @O.three several.one several.two @O"),
    Write("renamed", 'open(out + ".tmp", "w").write(text)\nos.replace(out + ".tmp", out)', 'echo "$text" > "$out.tmp"; mv -f "$out.tmp" "$out"', 'save(".temporary", O_TRUNC, 0666, text, length); if (rename(".temporary", out)) return 4;'),
    Write("renamed from a random name", 'import tempfile\nfd, name = tempfile.mkstemp(dir=os.path.dirname(out) or ".")\nos.write(fd, text.encode())\nos.close(fd)\nos.rename(name, out)', 't=$(mktemp "$out.XXXXXX"); echo "$text" > "$t"; mv "$t" "$out"', 'char name[PATH_MAX]; snprintf(name, sizeof name, "%s.XXXXXX", out); int fd = mkstemp(name); if (write(fd, text, length) < 0 || rename(name, out)) { unlink(name); return 4; }'),
    Write("appended", 'open(out, "a").write(text)', 'echo "$text" >> "$out"', "save(out, O_APPEND, 0666, text, length);" ),
    Write("written and appended", 'open(out, "w").write("first")\nopen(out, "a").write(text)', ': > "$out"; echo "$text" >> "$out"', 'save(out, O_TRUNC, 0666, "first", 5); save(out, O_APPEND, 0666, text, length);'),
    Write("without truncation", "fd = os.open(out, os.O_WRONLY | os.O_CREAT)\nos.write(fd, text.encode())", 'echo "$text" 1<> "$out"', "save(out, 0, 0666, text, length);"),
    Write("link", 'open(out, "w").write(text)\nif os.path.lexists("link.out"): os.unlink("link.out")\nos.symlink(out, "link.out")', 'echo "$text" > "$out"; ln -sf "$out" link.out', 'save(out, O_TRUNC, 0666, text, length); unlink("link.out"); if (symlink(out, "link.out")) return 4;', "@O link.out"),
    Write("link of a version", 'import zlib\nname = f"lib.{zlib.crc32(text.encode()) % 3}"\nopen(name, "w").write(text)\nif os.path.lexists("lib"): os.unlink("lib")\nos.symlink(name, "lib")', 'n=lib.${#text}; echo "$text" > $n; ln -sfn $n lib', "", "lib"),
    Write("hard link", 'open(out, "w").write(text)\nif os.path.lexists("hard.out"): os.unlink("hard.out")\nos.link(out, "hard.out")', 'echo "$text" > "$out"; ln -f "$out" hard.out', "", "@O hard.out"),
    Write("executable", 'open(out, "w").write(text)\nos.chmod(out, 0o755)', 'echo "$text" > "$out"; chmod +x "$out"', "save(out, O_TRUNC, 0777, text, length); chmod(out, 0750);"),
    Write("mode at creation", 'with os.fdopen(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o700), "w") as file: file.write(text)', '(umask 077; echo "$text" > "$out")', "save(out, O_TRUNC, 0711, text, length);"),
    Write("modes that were asked for", 'with os.fdopen(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640), "w") as file: file.write(text)\nif not os.path.isdir("asked"): os.mkdir("asked", 0o750)', 'mkdir -p asked; echo "$text" > asked/in; cp asked/in "$out"', 'save(out, O_TRUNC, 0755, text, length); mkdir("asked", 0770);', "@O asked asked/in"),
    Write("modes copied", 'import shutil\nopen("part", "w").write(text)\nshutil.copy2("part", out)\nos.unlink("part")', 'echo "$text" > part; cp -p part "$out"; rm part', ""),
    Write("moved within a new folder", 'os.mkdir(".within")\nopen(".within/a", "w").write(text)\nos.rename(".within", "within")\nos.rename("within/a", "within/b")', 'mkdir .within && echo "$text" > .within/a && mv .within within && mv within/a within/b', "", "within/b within"),
    Write("new each time", 'if os.path.exists(out): os.unlink(out)\nopen(out, "w").write(text)', 'rm -f "$out"; echo "$text" > "$out"', "unlink(out); save(out, O_EXCL, 0644, text, length);"),
    Write("exclusive", 'open(out, "x").write(text)', 'set -C; echo "$text" > "$out" || exit 5', "save(out, O_EXCL, 0644, text, length);"),
    Write("standard output", "sys.stdout.write(text)", 'echo "$text"', "fwrite(text, 1, length, stdout);", ""),
    Write("standard error", "sys.stderr.write(text)", 'echo "$text" >&2', "fwrite(text, 1, length, stderr);", ""),
    Write("both streams and a file", 'print("begins")\nprint("warning", file=sys.stderr)\nopen(out, "w").write(text)\nprint("ends")', 'echo begins; echo warning >&2; echo "$text" > "$out"; echo ends', 'puts("begins"); fputs("warning\\n", stderr); save(out, O_TRUNC, 0666, text, length);'),
    Write("much", 'sys.stdout.write("x" * 200000)\nopen(out, "wb").write(bytes(range(256)) * 4000 + text.encode())', 'seq 20000; seq 100000 > "$out"; echo "$text" >> "$out"', "for (int i = 0; i < 200000; i++) putchar('x'); save(out, O_TRUNC, 0666, text, sizeof text);"),
    Write("holes", 'with open(out, "wb") as file:\n    file.seek(1000000)\n    file.write(text.encode())', 'truncate -s 1M "$out"; echo "$text" >> "$out"', ""),
    Write("backup", 'if os.path.exists(out): os.replace(out, out + ".bak")\nopen(out, "w").write(text)', '[ -e "$out" ] && mv "$out" "$out.bak"; echo "$text" > "$out"', "", "@O @O.bak"),
    Write("only where it differs", 'if not os.path.exists(out) or open(out).read() != text: open(out, "w").write(text)', 'echo "$text" > "$out.tmp"; if cmp -s "$out.tmp" "$out"; then rm "$out.tmp"; else mv "$out.tmp" "$out"; fi', ""),
    Write("only if absent", 'if not os.path.exists(out): open(out, "w").write(text)', '[ -e "$out" ] || echo "$text" > "$out"', ""),
    Write("folder made anew", 'import shutil\nshutil.rmtree("anew", ignore_errors=True)\nos.mkdir("anew")\nopen("anew/one", "w").write(text)', 'rm -rf anew; mkdir anew; echo "$text" > anew/one', "", "anew/one anew anew/stale"),
    Write("empty folder", 'os.makedirs("empty/deep", exist_ok=True)\nopen(out, "w").write(text)', 'mkdir -p empty/deep; echo "$text" > "$out"', "", "@O empty/deep empty"),
    Write("name of the text", 'import zlib\nopen(f"named.{zlib.crc32(text.encode()) % 5}", "w").write(text)', 'echo "$text" > named.${#text}', "", ""),
    Write("rest of before removed", 'import glob\nfor old in glob.glob("many.*"): os.unlink(old)\nopen(f"many.{len(text)}", "w").write(text)', 'rm -f many.*; echo "$text" > many.${#text}', "", "many.0"),
    Write("incremental", 'state = open(".state").read() if os.path.exists(".state") else ""\nopen(".state", "w").write(text)\nopen(out, "w").write("as before" if state == text else text)', 'old=$(cat .state 2>/dev/null); echo "$text" > .state; if [ "$old" = "$text" ]; then echo as before > "$out"; else echo "$text" > "$out"; fi', "", "@O .state"),
    Write("counter", 'n = int(open("count").read()) + 1 if os.path.exists("count") else 0\nopen("count", "w").write(str(n))\nopen(out, "w").write(text)', 'n=$(cat count 2>/dev/null); echo $((n + 1)) > count; echo "$text" > "$out"', "", "@O count"),
    Write("by a child", 'import subprocess\nsubprocess.run(["tee", out], input=text.encode(), stdout=subprocess.DEVNULL)', 'echo "$text" | tee "$out" | wc -l', 'FILE *p = popen("cat > by-child", "w"); fwrite(text, 1, length, p); pclose(p);', "@O by-child"),
    Write("copied", 'import shutil\nopen("part", "w").write(text)\nshutil.copy("part", out)\nos.unlink("part")', 'echo "$text" > part; install -m 750 part "$out"; rm part', ""),
    Write("copied with its folder", 'import shutil\nos.makedirs("tree/a/b", exist_ok=True)\nopen("tree/a/b/c", "w").write(text)\nshutil.copytree("tree", "tree2", dirs_exist_ok=True, symlinks=True)', 'mkdir -p tree/a/b; echo "$text" > tree/a/b/c; cp -r tree/. tree2', "", "tree/a/b/c tree2/a/b/c"),
    Write("archive", 'import zipfile\nwith zipfile.ZipFile(out, "w") as z: z.writestr(zipfile.ZipInfo("a"), text)', 'echo "$text" > part.o; rm -f "$out"; ar rcD "$out" part.o; rm part.o', ""),
    Write("beside the current folder", 'os.makedirs("../beside", exist_ok=True)\nopen("../beside/it", "w").write(text)', 'mkdir -p ../beside; echo "$text" > ../beside/it', "", ""),
    Write("by another name", 'open(out, "w").write(text)\nos.rename(out, out + ".2")\nos.link(out + ".2", out)\nos.unlink(out + ".2")', 'echo "$text" > "$out"; mv "$out" "$out.2"; cp "$out.2" "$out"; rm "$out.2"', ""),
    Write("own time stamps", 'open(out, "w").write(text)\nos.utime(out, (10**9, 10**9))', 'echo "$text" > "$out"; touch -d @1000000000 "$out"', ""),
    Write("special bits", 'open(out, "w").write(text)\nos.chmod(out, 0o4755)', 'echo "$text" > "$out"; chmod 2755 "$out"', "save(out, O_TRUNC, 0666, text, length); chmod(out, 06755);"),
    Write("sticky folder", 'os.makedirs("sticky", exist_ok=True)\nos.chmod("sticky", 0o1777)\nopen(out, "w").write(text)', 'mkdir -p -m 1777 sticky; echo "$text" > "$out"', "", "@O sticky"),
    Write("owner", 'open(out, "w").write(text)\nif not os.getuid(): os.chown(out, 1, 1)', 'echo "$text" > "$out"; chown 1 "$out" 2>/dev/null', ""),
    Write("attribute", 'open(out, "w").write(text)\nos.setxattr(out, "user.toy", text.encode())', "", 'save(out, O_TRUNC, 0666, text, length); setxattr(out, "user.toy", "v1", 2, 0);'),
    Write("removal that may fail", 'open(out, "w").write(text)\ntry: os.rmdir("occupied")\nexcept OSError as error: print(error.errno)', 'echo "$text" > "$out"; rmdir occupied 2>/dev/null || echo not removed', "", "@O occupied occupied/f"),
    Write("folder that may be missing", 'open(out, "w").write(text)\ntry: open("maybe/it", "w").write(text)\nexcept OSError as error: print(error.errno)', 'echo "$text" > "$out"; { echo "$text" > maybe/it; } 2>/dev/null || echo no folder', 'save(out, O_TRUNC, 0666, text, length); printf("%d\\n", mkdir("maybe/it", 0777));', "@O maybe/it maybe"),
    Write("stamp", 'open(out, "w").write(text)\nimport pathlib\npathlib.Path("stamp").touch()', 'echo "$text" > "$out"; touch stamp', "", "@O stamp"),
    Write("folder in the place of another", 'import shutil\nshutil.rmtree("next", ignore_errors=True)\nos.mkdir("next")\nopen("next/it", "w").write(text)\ntry: os.rename("next", "done")\nexcept OSError as error: print(error.errno)', 'rm -rf next; mkdir next; echo "$text" > next/it; mv -T next done 2>/dev/null || echo there', "", "done/it done next"),
    Write("made executable", 'open(out, "w").write(text)\nos.chmod(out, os.stat(out).st_mode | 0o111)', 'echo "$text" > "$out"; chmod +x "$out"', ""),
    Write("read-only", 'if os.path.exists(out): os.chmod(out, 0o644)\nopen(out, "w").write(text)\nos.chmod(out, 0o444)', 'rm -f "$out"; echo "$text" > "$out"; chmod 444 "$out"', ""),
    Write("exit status", 'open(out, "w").write(text)\nsys.exit(len(text) % 2)', 'echo "$text" > "$out"; exit $((${#text} % 2))', "save(out, O_TRUNC, 0666, text, length); return length % 2;"),
    Write("edited in place", 'open(out, "w").write(text)\nwith open(out, "r+") as file:\n    file.seek(0)\n    file.write("X")', 'echo "$text" > "$out"; sed -i s/v/V/ "$out"', "save(out, O_TRUNC, 0666, text, length); FILE *f = fopen(out, \"r+\"); fputc('X', f); fclose(f); truncate(out, 3);"),
    Write("named pipe", 'if not os.path.exists("pipe"): os.mkfifo("pipe")\nopen(out, "w").write(text)', '[ -p pipe ] || mkfifo pipe; echo "$text" > "$out"', ""),
)  # fmt: skip
