"""Folders, checkouts, names and the time: what of the place and moment of a compile its result holds."""

from __future__ import annotations

from tests.properties.scenario import CLANG, CXX, GCC, C, Property

_PLAIN = {"a.c": "int f(void) { return 1; }\n"}
_BOTH = {"one/a.c": "int f(void) { return 1; }\n", "two/a.c": "int f(void) { return 1; }\n"}
_HEADER = '#include "inc/x.h"\nint f(void) { return X; }\n'
_CHECKOUTS = {
    f"{name}/{file}": text
    for name in ("one", "second")
    for file, text in {"a.c": _HEADER, "inc/x.h": "#define X 1\n"}.items()
}

PROPERTIES = (
    Property(
        "debug-information-holds-the-folder",
        C,
        _BOTH,
        """
        new (cd one && $CC -g -c a.c -o a.o)
        hit (cd one && $CC -g -c a.c -o a.o)
        new (cd two && $CC -g -c a.c -o a.o)
        hit (cd one && $CC -g -c a.c -o a.o)
        """,
        quick=True,
    ),
    Property(
        "debug-information-holds-the-shell's-folder",
        C,
        {"one/a.c": "int f(void) { return 1; }\n"},
        """
        sh ln -s one link
        new (cd one && $CC -g -c a.c -o a.o)
        any (cd link && $CC -g -c a.c -o a.o)
        any (cd one && PWD=$W/link $CC -g -c a.c -o a.o)
        any (cd one && PWD=/ $CC -g -c a.c -o a.o)
        hit (cd one && $CC -g -c a.c -o a.o)
        """,
    ),
    Property(
        "same-command-in-another-folder",
        C,
        {"one/a.c": _HEADER, "one/inc/x.h": "#define X 1\n", "two/a.c": _HEADER, "two/inc/x.h": "#define X 2\n"},
        """
        new (cd one && $CC -c a.c -o a.o)
        new (cd two && $CC -c a.c -o a.o)
        hit (cd one && $CC -c a.c -o a.o)
        hit (cd two && $CC -c a.c -o a.o)
        """,
    ),
    Property(
        "checkouts-share-with-a-base-folder",
        C,
        _CHECKOUTS,
        """
        new (cd one && CACHEC_BASE_DIR=$W/one $CC -c a.c -o a.o)
        hit (cd second && CACHEC_BASE_DIR=$W/second $CC -c a.c -o a.o)
        sh echo '#define X 2' > second/inc/x.h
        new (cd second && CACHEC_BASE_DIR=$W/second $CC -c a.c -o a.o)
        hit (cd one && CACHEC_BASE_DIR=$W/one $CC -c a.c -o a.o)
        """,
        quick=True,
    ),
    Property(
        "checkouts-share-by-absolute-names",
        C,
        _CHECKOUTS,
        """
        new (cd one && CACHEC_BASE_DIR=$W/one $CC -I$W/one/inc -c $W/one/a.c -o $W/one/a.o)
        hit (cd one && CACHEC_BASE_DIR=$W/one $CC -I$W/one/inc -c $W/one/a.c -o $W/one/a.o)
        any (cd second && CACHEC_BASE_DIR=$W/second $CC -I$W/second/inc -c $W/second/a.c -o $W/second/a.o)
        any (cd second && CACHEC_BASE_DIR=$W/second $CC -S -I$W/second/inc -c $W/second/a.c -o -)
        """,
    ),
    Property(
        "checkouts-and-debug-information",
        C,
        _CHECKOUTS,
        """
        new (cd one && CACHEC_BASE_DIR=$W/one $CC -g -c a.c -o a.o)
        new (cd second && CACHEC_BASE_DIR=$W/second $CC -g -c a.c -o a.o)
        hit (cd one && CACHEC_BASE_DIR=$W/one $CC -g -c a.c -o a.o)
        hit (cd second && CACHEC_BASE_DIR=$W/second $CC -g -c a.c -o a.o)
        """,
    ),
    Property(
        "checkouts-share-debug-information-with-mapped-folders",
        C,
        _CHECKOUTS,
        """
        new (cd one && CACHEC_BASE_DIR=$W/one $CC -g -ffile-prefix-map=$W/one=. -c a.c -o a.o)
        hit (cd second && CACHEC_BASE_DIR=$W/second $CC -g -ffile-prefix-map=$W/second=. -c a.c -o a.o)
        """,
    ),
    Property(
        "checkouts-and-the-name-of-the-file",
        C,
        {f"{name}/a.c": "const char *f = __FILE__;\n" for name in ("one", "two")},
        """
        new (cd one && CACHEC_BASE_DIR=$W/one $CC -c $W/one/a.c -o a.o)
        new (cd two && CACHEC_BASE_DIR=$W/two $CC -c $W/two/a.c -o a.o)
        hit (cd one && CACHEC_BASE_DIR=$W/one $CC -c $W/one/a.c -o a.o)
        any (cd one && CACHEC_BASE_DIR=$W/one $CC -fmacro-prefix-map=$W/one=. -c $W/one/a.c -o a.o)
        any (cd two && CACHEC_BASE_DIR=$W/two $CC -fmacro-prefix-map=$W/two=. -c $W/two/a.c -o a.o)
        """,
    ),
    Property(
        "checkouts-and-the-length-of-the-name",
        C,
        {f"{name}/a.c": "int f = sizeof __FILE__;\n" for name in ("one", "second")},
        """
        new (cd one && CACHEC_BASE_DIR=$W/one $CC -c $W/one/a.c -o a.o)
        new (cd second && CACHEC_BASE_DIR=$W/second $CC -c $W/second/a.c -o a.o)
        """,
    ),
    Property(
        "checkouts-and-the-length-of-a-pasted-name",
        C,
        {f"{name}/a.c": "#define P(a, b) a##b\nint f = sizeof P(__FI, LE__);\n" for name in ("one", "second")},
        """
        new (cd one && CACHEC_BASE_DIR=$W/one $CC -c $W/one/a.c -o a.o)
        new (cd second && CACHEC_BASE_DIR=$W/second $CC -c $W/second/a.c -o a.o)
        """,
    ),
    Property(
        "checkouts-and-the-hash-of-a-name",
        CXX,
        {
            f"{name}/a.cpp": "constexpr unsigned h(const char *s) { return *s ? *s + 31 * h(s + 1) : 7; }\n"
            "unsigned f() { constexpr unsigned x = h(__FILE__); return x; }\n"
            for name in ("one", "two")
        },
        """
        new (cd one && CACHEC_BASE_DIR=$W/one $CC -std=c++17 -c $W/one/a.cpp -o a.o)
        new (cd two && CACHEC_BASE_DIR=$W/two $CC -std=c++17 -c $W/two/a.cpp -o a.o)
        """,
    ),
    Property(
        "checkouts-and-the-name-of-a-lambda",
        CXX,
        {
            f"{name}/a.cpp": "template <class T> constexpr int n() { return sizeof __PRETTY_FUNCTION__; }\n"
            "int f() { auto l = [] {}; return n<decltype(l)>(); }\n"
            for name in ("one", "second")
        },
        """
        new (cd one && CACHEC_BASE_DIR=$W/one $CC -std=c++17 -c $W/one/a.cpp -o a.o)
        any (cd second && CACHEC_BASE_DIR=$W/second $CC -std=c++17 -c $W/second/a.cpp -o a.o)
        """,
    ),
    Property(
        "checkouts-and-builtin-file",
        C,
        {f"{name}/a.c": "int f(void) { return __builtin_strlen(__builtin_FILE()); }\n" for name in ("one", "second")},
        """
        new (cd one && CACHEC_BASE_DIR=$W/one $CC -O1 -c $W/one/a.c -o a.o)
        new (cd second && CACHEC_BASE_DIR=$W/second $CC -O1 -c $W/second/a.c -o a.o)
        """,
    ),
    Property(
        "checkouts-and-dependencies",
        C,
        _CHECKOUTS,
        """
        new (cd one && CACHEC_BASE_DIR=$W/one $CC -MD -c $W/one/a.c -o a.o)
        any (cd second && CACHEC_BASE_DIR=$W/second $CC -MD -c $W/second/a.c -o a.o)
        hit (cd one && CACHEC_BASE_DIR=$W/one $CC -MD -c $W/one/a.c -o a.o)
        any (cd second && CACHEC_BASE_DIR=$W/second $CC -MD -c $W/second/a.c -o a.o)
        """,
    ),
    Property(
        "checkouts-and-warnings",
        C,
        {f"{name}/a.c": "static int f(void) { return 1; }\n" for name in ("one", "two")},
        """
        new (cd one && CACHEC_BASE_DIR=$W/one $CC -Wall -c $W/one/a.c -o a.o)
        any (cd two && CACHEC_BASE_DIR=$W/two $CC -Wall -c $W/two/a.c -o a.o)
        hit (cd one && CACHEC_BASE_DIR=$W/one $CC -Wall -c $W/one/a.c -o a.o)
        any (cd two && CACHEC_BASE_DIR=$W/two $CC -Wall -c $W/two/a.c -o a.o)
        """,
    ),
    Property(
        "checkouts-with-a-define-of-the-folder",
        C,
        {f"{name}/a.c": "const char *f = ROOT;\nint n = sizeof ROOT;\n" for name in ("one", "second")},
        """
        new (cd one && CACHEC_BASE_DIR=$W/one $CC -DROOT="\\"$W/one\\"" -c a.c -o a.o)
        new (cd second && CACHEC_BASE_DIR=$W/second $CC -DROOT="\\"$W/second\\"" -c a.c -o a.o)
        """,
    ),
    Property(
        "checkouts-with-the-folder-in-a-source",
        C,
        {},
        """
        sh mkdir one two; echo "const char *f = \\"$W/one\\";" | tee one/a.c > two/a.c
        new (cd one && CACHEC_BASE_DIR=$W/one $CC -c a.c -o a.o)
        any (cd two && CACHEC_BASE_DIR=$W/two $CC -c a.c -o a.o)
        """,
    ),
    Property(
        "checkouts-and-coverage",
        C,
        _BOTH,
        """
        new (cd one && CACHEC_BASE_DIR=$W/one $CC -frandom-seed=1 --coverage -c a.c -o a.o)
        any (cd two && CACHEC_BASE_DIR=$W/two $CC -frandom-seed=1 --coverage -c a.c -o a.o)
        """,
    ),
    Property(
        "name-of-the-file-as-given",
        C,
        {"a.c": "const char *f = __FILE__;\n"},
        """
        new $CC -c a.c -o a.o
        new $CC -c ./a.c -o a.o
        new $CC -c $W/a.c -o a.o
        new $CC -c ../work/a.c -o a.o
        hit $CC -c a.c -o a.o
        hit $CC -c $W/a.c -o a.o
        """,
    ),
    Property(
        "name-of-a-header-as-found",
        C,
        {"a.c": "#include <x.h>\n", "inc/x.h": "const char *f = __FILE__;\n"},
        """
        new $CC -Iinc -c a.c -o a.o
        new $CC -I./inc -c a.c -o a.o
        new $CC -I$W/inc -c a.c -o a.o
        hit $CC -Iinc -c a.c -o a.o
        """,
    ),
    Property(
        "source-under-another-name",
        C,
        _PLAIN,
        """
        new $CC -c a.c -o a.o
        sh mv a.c b.c
        new $CC -c b.c -o a.o
        hit $CC -c b.c -o a.o
        """,
    ),
    Property(
        "macro-prefix-map",
        C,
        {"a.c": "const char *f = __FILE__;\n"},
        """
        new $CC -c $W/a.c -o a.o
        new $CC -fmacro-prefix-map=$W=/src -c $W/a.c -o a.o
        new $CC -fmacro-prefix-map=$W=/other -c $W/a.c -o a.o
        hit $CC -fmacro-prefix-map=$W=/src -c $W/a.c -o a.o
        """,
    ),
    Property(
        "debug-prefix-map",
        C,
        _PLAIN,
        """
        new $CC -g -c a.c -o a.o
        new $CC -g -fdebug-prefix-map=$W=/src -c a.c -o a.o
        new $CC -g -fdebug-prefix-map=$W=/other -c a.c -o a.o
        hit $CC -g -fdebug-prefix-map=$W=/src -c a.c -o a.o
        """,
    ),
    Property(
        "file-prefix-map",
        C,
        {"a.c": "const char *f = __FILE__;\n"},
        """
        new $CC -g -ffile-prefix-map=$W=/src -c $W/a.c -o a.o
        hit $CC -g -ffile-prefix-map=$W=/src -c $W/a.c -o a.o
        new $CC -g -ffile-prefix-map=$W=/other -c $W/a.c -o a.o
        """,
    ),
    Property(
        "file-compilation-dir",
        CLANG,
        _BOTH,
        """
        new (cd one && $CC -g -ffile-compilation-dir=/src -c a.c -o a.o)
        hit (cd one && $CC -g -ffile-compilation-dir=/src -c a.c -o a.o)
        any (cd two && $CC -g -ffile-compilation-dir=/src -c a.c -o a.o)
        new (cd one && $CC -g -ffile-compilation-dir=/other -c a.c -o a.o)
        """,
    ),
    Property(
        "debug-compilation-dir",
        CLANG,
        _BOTH,
        """
        new (cd one && $CC -g -fdebug-compilation-dir=/src -c a.c -o a.o)
        any (cd two && $CC -g -fdebug-compilation-dir=/src -c a.c -o a.o)
        new (cd one && $CC -g -fdebug-compilation-dir=. -c a.c -o a.o)
        hit (cd one && $CC -g -fdebug-compilation-dir=. -c a.c -o a.o)
        """,
    ),
    Property(
        "working-directory-flag",
        CLANG,
        {"one/a.c": "#include <x.h>\nint f(void) { return X; }\n", "one/inc/x.h": "#define X 1\n", "inc/y.h": ""},
        """
        new $CC -working-directory=$W/one -Iinc -c a.c -o a.o
        may $CC -working-directory=$W/one -Iinc -c a.c -o a.o
        sh echo '#define X 2' > one/inc/x.h
        new $CC -working-directory=$W/one -Iinc -c a.c -o a.o
        """,
    ),
    Property(
        "debug-levels",
        C,
        {"a.c": "#define M 1\nint f(void) { return M; }\n"},
        """
        new $CC -g -c a.c -o a.o
        new $CC -g3 -c a.c -o a.o
        new $CC -g0 -c a.c -o a.o
        new $CC -gdwarf-4 -c a.c -o a.o
        hit $CC -g3 -c a.c -o a.o
        """,
    ),
    Property(
        "date-is-of-now",
        C,
        {"a.c": "const char *f = __DATE__;\n"},
        """
        any $CC -c a.c -o a.o
        new $CC -c a.c -o a.o
        """,
        unstable=("a.o",),
    ),
    Property(
        "time-is-of-now",
        C,
        {"a.c": "const char *f = __TIME__;\n"},
        """
        any $CC -c a.c -o a.o
        new $CC -c a.c -o a.o
        """,
        unstable=("a.o",),
        quick=True,
    ),
    Property(
        "time-in-a-header-by-a-pasted-name",
        C,
        {
            "a.c": '#include "x.h"\nconst char *f = P(__TI, ME__);\n',
            "x.h": "#define P_(a, b) a##b\n#define P(a, b) P_(a, b)\n",
        },
        """
        any $CC -c a.c -o a.o
        new $CC -c a.c -o a.o
        """,
        unstable=("a.o",),
    ),
    Property(
        "time-in-a-flag",
        C,
        {"a.c": "const char *f = NOW;\n"},
        """
        any $CC -DNOW=__TIME__ -c a.c -o a.o
        new $CC -DNOW=__TIME__ -c a.c -o a.o
        """,
        unstable=("a.o",),
    ),
    Property(
        "time-that-is-not-used",
        C,
        {"a.c": "#define NOW __TIME__\n// __DATE__\nint f(void) { return 1; }\n"},
        """
        new $CC -c a.c -o a.o
        hit $CC -c a.c -o a.o
        """,
    ),
    Property(
        "time-of-the-file",
        C,
        {"a.c": "const char *f = __TIMESTAMP__;\n"},
        """
        sh touch -d '2001-02-03' a.c
        new $CC -c a.c -o a.o
        sh touch -d '2002-02-03' a.c
        new $CC -c a.c -o a.o
        """,
    ),
    Property(
        "time-with-an-epoch",
        C,
        {"a.c": "const char *f = __DATE__ __TIME__;\n"},
        """
        new SOURCE_DATE_EPOCH=1 $CC -c a.c -o a.o
        hit SOURCE_DATE_EPOCH=1 $CC -c a.c -o a.o
        new SOURCE_DATE_EPOCH=100000000 $CC -c a.c -o a.o
        hit SOURCE_DATE_EPOCH=1 $CC -c a.c -o a.o
        """,
    ),
    Property(
        "time-of-the-file-with-an-epoch",
        C,
        {"a.c": "const char *f = __TIMESTAMP__;\n"},
        """
        sh touch -d '2001-02-03' a.c
        any SOURCE_DATE_EPOCH=1 $CC -c a.c -o a.o
        sh touch -d '2002-02-03' a.c
        any SOURCE_DATE_EPOCH=1 $CC -c a.c -o a.o
        """,
    ),
    Property(
        "epoch-that-is-not-used",
        C,
        _PLAIN,
        """
        new SOURCE_DATE_EPOCH=1 $CC -c a.c -o a.o
        hit SOURCE_DATE_EPOCH=2 $CC -c a.c -o a.o
        hit $CC -c a.c -o a.o
        """,
    ),
    Property(
        "epoch-that-is-wrong",
        C,
        {"a.c": "const char *f = __DATE__;\n"},
        """
        new SOURCE_DATE_EPOCH=1 $CC -c a.c -o a.o
        fail SOURCE_DATE_EPOCH=soon $CC -c a.c -o a.o
        """,
    ),
    Property(
        "warnings-about-time",
        C,
        {"a.c": "const char *f = __DATE__;\n"},
        """
        any $CC -Wdate-time -c a.c -o a.o
        any $CC -Wdate-time -c a.c -o a.o
        fail $CC -Werror=date-time -c a.c -o a.o
        fail $CC -Wdate-time -Werror -c a.c -o a.o
        any $CC -Werror -c a.c -o a.o
        """,
        unstable=("a.o",),
    ),
    Property(
        "time-where-warnings-are-off",
        C,
        {"a.c": "const char *f = __DATE__ __TIME__;\n"},
        """
        any $CC -w -c a.c -o a.o
        any $CC -w -c a.c -o a.o
        new $CC -w -c a.c -o a.o
        """,
        unstable=("a.o",),
    ),
    Property(
        "time-where-its-warning-is-off",
        C,
        {"a.c": "const char *f = __DATE__ __TIME__;\n"},
        """
        any $CC -Wno-date-time -c a.c -o a.o
        any $CC -Wno-date-time -c a.c -o a.o
        new $CC -Wno-date-time -c a.c -o a.o
        """,
        unstable=("a.o",),
    ),
    Property(
        "time-in-a-system-header",
        C,
        {"a.c": "#include <x.h>\n", "inc/x.h": "const char *f = __TIME__;\n"},
        """
        any $CC -isystem inc -c a.c -o a.o
        any $CC -isystem inc -c a.c -o a.o
        new $CC -isystem inc -c a.c -o a.o
        """,
        unstable=("a.o",),
    ),
    Property(
        "time-by-a-macro-of-a-system-header",
        C,
        {"a.c": "#include <x.h>\nconst char *f = NOW;\n", "inc/x.h": "#define NOW __TIME__\n"},
        """
        any $CC -isystem inc -c a.c -o a.o
        any $CC -isystem inc -c a.c -o a.o
        new $CC -isystem inc -c a.c -o a.o
        """,
        unstable=("a.o",),
    ),
    Property(
        "time-in-a-header-that-says-it-is-a-system's",
        C,
        {"a.c": '#include "x.h"\n', "x.h": "#pragma GCC system_header\nconst char *f = __TIME__;\n"},
        """
        any $CC -c a.c -o a.o
        any $CC -c a.c -o a.o
        new $CC -c a.c -o a.o
        """,
        unstable=("a.o",),
    ),
    Property(
        "time-where-a-pragma-silences",
        C,
        {"a.c": '#pragma GCC diagnostic ignored "-Wdate-time"\nconst char *f = __TIME__;\n'},
        """
        any $CC -c a.c -o a.o
        any $CC -c a.c -o a.o
        new $CC -c a.c -o a.o
        """,
        unstable=("a.o",),
    ),
    Property(
        "time-where-an-operator-silences",
        C,
        {"a.c": '_Pragma("GCC diagnostic ignored \\"-Wdate-time\\"") const char *f = __TIME__;\n'},
        """
        any $CC -c a.c -o a.o
        any $CC -c a.c -o a.o
        new $CC -c a.c -o a.o
        """,
        unstable=("a.o",),
    ),
    Property(
        "time-with-all-warnings-as-errors",
        C,
        {"a.c": "const char *f = __DATE__ __TIME__;\n"},
        """
        any $CC -Wall -Werror -c a.c -o a.o
        any $CC -Wall -Werror -c a.c -o a.o
        new $CC -Wall -Werror -c a.c -o a.o
        """,
        unstable=("a.o",),
    ),
    Property(
        "time-where-the-first-error-is-fatal",
        C,
        {"a.c": "const char *f = __DATE__ __TIME__;\n"},
        """
        any $CC -Wall -Wfatal-errors -Werror -c a.c -o a.o
        any $CC -Wall -Wfatal-errors -Werror -c a.c -o a.o
        new $CC -Wall -Wfatal-errors -Werror -c a.c -o a.o
        """,
        unstable=("a.o",),
    ),
    Property(
        "time-in-assembler-with-preprocessor",
        C,
        {"a.S": ".data\n.ascii __TIME__\n"},
        """
        any $CC -c a.S -o a.o
        any $CC -c a.S -o a.o
        new $CC -c a.S -o a.o
        """,
        unstable=("a.o",),
    ),
    Property(
        "time-in-a-line-of-a-linemarker",
        C,
        {"a.c": '# 1 "x.h" 1 3\nconst char *f = __TIME__;\n'},
        """
        any $CC -c a.c -o a.o
        any $CC -c a.c -o a.o
        new $CC -c a.c -o a.o
        """,
        unstable=("a.o",),
    ),
    Property(
        "time-in-a-response-file",
        C,
        {"a.c": "const char *f = __TIME__;\n", "args": "-w -Wno-date-time"},
        """
        any $CC @args -c a.c -o a.o
        any $CC @args -c a.c -o a.o
        new $CC @args -c a.c -o a.o
        """,
        unstable=("a.o",),
    ),
    Property(
        "time-in-a-condition-of-a-string",
        CXX,
        {"a.cpp": "constexpr char c = __TIME__[7];\nint f() { return c; }\n"},
        """
        any $CC -c a.cpp -o a.o
        any $CC -c a.cpp -o a.o
        new $CC -c a.cpp -o a.o
        """,
        unstable=("a.o",),
    ),
    Property(
        "time-with-messages-as-json",
        GCC,
        {"a.c": "const char *f = __DATE__ __TIME__;\n"},
        """
        any $CC -fdiagnostics-format=json -c a.c -o a.o
        any $CC -fdiagnostics-format=json -c a.c -o a.o
        new $CC -fdiagnostics-format=json -c a.c -o a.o
        """,
        unstable=("a.o",),
    ),
    Property(
        "time-with-colours",
        C,
        {"a.c": "const char *f = __DATE__ __TIME__;\n"},
        """
        any $CC -fdiagnostics-color=always -c a.c -o a.o
        any $CC -fdiagnostics-color=always -c a.c -o a.o
        new $CC -fdiagnostics-color=always -c a.c -o a.o
        """,
        unstable=("a.o",),
    ),
    Property(
        "time-where-messages-go-to-a-file",
        CLANG,
        {"a.c": "const char *f = __DATE__ __TIME__;\n"},
        """
        any $CC -Xclang -diagnostic-log-file -Xclang log -c a.c -o a.o
        any $CC -Xclang -diagnostic-log-file -Xclang log -c a.c -o a.o
        new $CC -Xclang -diagnostic-log-file -Xclang log -c a.c -o a.o
        """,
        unstable=("a.o",),
    ),
    Property(
        "time-after-the-end-of-options",
        GCC,
        {"a.c": "const char *f = __DATE__ __TIME__;\n"},
        """
        any $CC -c -o a.o a.c -Wno-date-time -o a.o
        any $CC -c -o a.o a.c -Wno-date-time -o a.o
        new $CC -c -o a.o a.c -Wno-date-time -o a.o
        """,
        unstable=("a.o",),
    ),
    Property(
        "time-where-no-warning-is-wanted",
        CLANG,
        {"a.c": "const char *f = __TIME__;\n"},
        """
        any $CC -Wno-everything -c a.c -o a.o
        any $CC -Wno-everything -c a.c -o a.o
        new $CC -Wno-everything -c a.c -o a.o
        """,
        unstable=("a.o",),
    ),
    Property(
        "time-where-a-pragma-silences-everything",
        CLANG,
        {"a.c": '#pragma clang diagnostic ignored "-Weverything"\nconst char *f = __TIME__;\n'},
        """
        any $CC -c a.c -o a.o
        any $CC -c a.c -o a.o
        new $CC -c a.c -o a.o
        """,
        unstable=("a.o",),
    ),
    Property(
        "time-in-a-precompiled-header",
        CLANG,
        {"x.h": "static const char *f = __TIME__;\n"},
        """
        any $CC -x c-header x.h -o x.pch
        any $CC -x c-header x.h -o x.pch
        new $CC -x c-header x.h -o x.pch
        """,
        unstable=("x.pch",),
    ),
    Property(
        "time-in-one-of-several-sources",
        C,
        {"a.c": "int f;\n", "b.c": "const char *f = __TIME__;\n"},
        """
        any $CC -c a.c b.c
        any $CC -c a.c b.c
        new $CC -c a.c b.c
        """,
        unstable=("b.o",),
    ),
    Property(
        "time-in-a-program-that-is-linked",
        C,
        {"a.c": "const char *f = __TIME__;\nint main(void) { return 0; }\n"},
        """
        any $CC a.c -o prog
        any $CC a.c -o prog
        new $CC a.c -o prog
        """,
        unstable=("prog",),
    ),
    Property(
        "time-and-standard-input",
        C,
        {"a.c": "const char *f = __TIME__;\n"},
        """
        any $CC -x c -c - -o a.o < a.c
        any $CC -x c -c - -o a.o < a.c
        new $CC -x c -c - -o a.o < a.c
        """,
        unstable=("a.o",),
    ),
    Property(
        "time-in-a-call-of-a-script",
        C,
        {"a.c": "const char *f = __TIME__;\n"},
        """
        sh printf '#!/bin/sh\\n%s -DX=1 "$@"\\n' $NAME > build; chmod +x build
        any $RUN ./build -c a.c -o a.o
        any $RUN ./build -c a.c -o a.o
        new $RUN ./build -c a.c -o a.o
        """,
        unstable=("a.o",),
    ),
    Property(
        "time-in-preprocessed-text",
        C,
        {"a.c": "const char *f = __TIME__;\n"},
        """
        any $CC -E a.c -o a.i
        any $CC -E a.c -o a.i
        new $CC -E a.c -o a.i
        any $CC -E -w a.c -o a.i
        new $CC -E -w a.c -o a.i
        """,
        unstable=("a.i",),
    ),
    Property(
        "warning-about-time-that-a-pragma-makes-an-error",
        C,
        {"a.c": '#pragma GCC diagnostic error "-Wdate-time"\nconst char *f = __TIME__;\n'},
        """
        fail $CC -c a.c -o a.o
        fail $CC -c a.c -o a.o
        """,
    ),
    Property(
        "failing-compile-with-the-time-leaves-nothing",
        C,
        {"a.c": "const char *f = __TIME__;\n", "args": "-Wdate-time -Werror"},
        """
        fail $CC @args -c a.c -o a.o
        fail $CC -Werror=date-time -c a.c -o a.o
        fail $CC -Wdate-time -Werror -c a.c -o a.o
        fail $CC -Werror -Wdate-time -MD -c a.c
        """,
    ),
    Property(
        "all-warnings-of-clang-about-time",
        CLANG,
        {"a.c": "const char *f = __DATE__;\n"},
        """
        any $CC -Weverything -c a.c -o a.o
        any $CC -Weverything -c a.c -o a.o
        """,
        unstable=("a.o",),
    ),
    Property(
        "compile-in-a-deleted-folder",
        C,
        _PLAIN,
        """
        any mkdir gone && cd gone && rmdir $W/gone && $CC -c $W/a.c -o $W/a.o
        any mkdir gone && cd gone && rmdir $W/gone && $CC -c $W/a.c -o $W/a.o
        any mkdir gone && cd gone && rmdir $W/gone && $CC -c $W/a.c -o a.o
        """,
    ),
    Property(
        "compile-in-a-folder-with-an-odd-name",
        C,
        {"ü %s \\\n'x/a.c": '#include "x.h"\nint f(void) { return X; }\n', "ü %s \\\n'x/x.h": "#define X 1\n"},
        """
        new (cd *x && $CC -g -MD -c a.c -o a.o)
        hit (cd *x && $CC -g -MD -c a.c -o a.o)
        sh cd *x && echo '#define X 2' > x.h
        new (cd *x && $CC -g -MD -c a.c -o a.o)
        """,
    ),
    Property(
        "source-with-an-odd-name",
        C,
        {"a b.c": "int f;\n", "ü.c": "int g;\n", "$(x);.c": "int h;\n"},
        """
        new $CC -MD -c 'a b.c' -o 'a b.o' && $CC -MD -c ü.c -o ü.o && $CC -MD -c '$(x);.c' -o '$(x);.o'
        hit $CC -MD -c 'a b.c' -o 'a b.o' && $CC -MD -c ü.c -o ü.o && $CC -MD -c '$(x);.c' -o '$(x);.o'
        """,
    ),
    Property(
        "source-with-a-name-that-is-not-utf-8",
        C,
        {},
        """
        sh echo 'int f;' > "$(printf '\\377.c')"
        new $CC -c "$(printf '\\377.c')" -o "$(printf '\\377.o')"
        may $CC -c "$(printf '\\377.c')" -o "$(printf '\\377.o')"
        """,
    ),
)
