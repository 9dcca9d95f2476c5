"""Exit status and messages: warnings are replayed as they were, failures are never kept."""

from __future__ import annotations

from tests.properties.scenario import CLANG, GCC, C, Property

_WARNS = {"a.c": "static int f(int n) { return n / 0; }\n"}
_PLAIN = {"a.c": "int f(void) { return 1; }\n"}

PROPERTIES = (
    Property(
        "warnings-are-replayed",
        C,
        _WARNS,
        """
        new $CC -Wall -Wextra -c a.c -o a.o
        hit $CC -Wall -Wextra -c a.c -o a.o
        new $CC -w -c a.c -o a.o
        hit $CC -Wall -Wextra -c a.c -o a.o
        """,
        quick=True,
    ),
    Property(
        "warnings-quote-the-source",
        C,
        {"a.c": '#include "x.h"\n', "x.h": "static int f(int n) { return n / 0; /* one */ }\n"},
        """
        new $CC -Wall -c a.c -o a.o
        sh sed -i s/one/two/ x.h
        new $CC -Wall -c a.c -o a.o
        hit $CC -Wall -c a.c -o a.o
        """,
    ),
    Property(
        "colours-by-flag",
        C,
        _WARNS,
        """
        new $CC -Wall -fdiagnostics-color=always -c a.c -o a.o
        new $CC -Wall -fdiagnostics-color=never -c a.c -o a.o
        hit $CC -Wall -fdiagnostics-color=always -c a.c -o a.o
        hit $CC -Wall -fdiagnostics-color=never -c a.c -o a.o
        any $CC -Wall -fdiagnostics-color=auto -c a.c -o a.o
        """,
    ),
    Property(
        "colours-by-variable",
        GCC,
        _WARNS,
        """
        new GCC_COLORS='warning=01;31' $CC -Wall -fdiagnostics-color=always -c a.c -o a.o
        new GCC_COLORS='warning=01;32' $CC -Wall -fdiagnostics-color=always -c a.c -o a.o
        hit GCC_COLORS='warning=01;31' $CC -Wall -fdiagnostics-color=always -c a.c -o a.o
        """,
    ),
    Property(
        "warnings-as-json",
        GCC,
        _WARNS,
        """
        new $CC -Wall -fdiagnostics-format=json -c a.c -o a.o
        hit $CC -Wall -fdiagnostics-format=json -c a.c -o a.o
        new $CC -Wall -c a.c -o a.o
        """,
    ),
    Property(
        "warnings-as-sarif",
        CLANG,
        _WARNS,
        """
        new $CC -Wall -fdiagnostics-format=sarif -c a.c -o a.o
        may $CC -Wall -fdiagnostics-format=sarif -c a.c -o a.o
        """,
    ),
    Property(
        "fix-its-from-a-variable",
        GCC,
        {"a.c": "int f(void) { int colour = 1; return color; }\n"},
        """
        fail $CC -c a.c -o a.o
        fail GCC_EXTRA_DIAGNOSTIC_OUTPUT=fixits-v1 $CC -c a.c -o a.o
        """,
    ),
    Property(
        "locale-of-messages",
        C,
        _WARNS,
        """
        new LC_ALL=C $CC -Wall -c a.c -o a.o
        any LC_ALL=C.UTF-8 $CC -Wall -c a.c -o a.o
        hit LC_ALL=C $CC -Wall -c a.c -o a.o
        hit LC_ALL=C.UTF-8 $CC -Wall -c a.c -o a.o
        any LC_ALL=xx_YY $CC -Wall -c a.c -o a.o
        any unset LC_ALL; LC_MESSAGES=C.UTF-8 LANG=C $CC -Wall -c a.c -o a.o
        """,
    ),
    Property(
        "locale-that-is-not-set",
        C,
        _WARNS,
        """
        new unset LC_ALL; $CC -Wall -c a.c -o a.o
        hit unset LC_ALL; $CC -Wall -c a.c -o a.o
        any unset LC_ALL; LC_CTYPE=C.UTF-8 $CC -Wall -c a.c -o a.o
        """,
    ),
    Property(
        "locale-that-is-not-used",
        C,
        _PLAIN,
        """
        new LC_ALL=C $CC -c a.c -o a.o
        hit LC_ALL=C.UTF-8 $CC -c a.c -o a.o
        """,
    ),
    Property(
        "errors-are-not-kept",
        C,
        {"a.c": "int f(void) { return X }\n"},
        """
        fail $CC -c a.c -o a.o
        fail $CC -c a.c -o a.o
        sh echo 'int f(void) { return 1; }' > a.c
        new $CC -c a.c -o a.o
        hit $CC -c a.c -o a.o
        """,
        quick=True,
    ),
    Property(
        "warnings-as-errors",
        C,
        _WARNS,
        """
        fail $CC -Wall -Werror -c a.c -o a.o
        new $CC -Wall -c a.c -o a.o
        fail $CC -Wall -Werror -c a.c -o a.o
        hit $CC -Wall -c a.c -o a.o
        """,
    ),
    Property(
        "error-directive-of-a-missing-macro",
        C,
        {"a.c": "#ifndef X\n#error X is missing\n#endif\nint f;\n"},
        """
        fail $CC -c a.c -o a.o
        new $CC -DX -c a.c -o a.o
        fail $CC -c a.c -o a.o
        fail $CC -DX -UX -c a.c -o a.o
        """,
    ),
    Property(
        "unknown-flag",
        C,
        _PLAIN,
        """
        fail $CC --no-such-flag -c a.c -o a.o
        fail $CC -fno-such-thing -c a.c -o a.o
        any $CC -Wno-such-warning -c a.c -o a.o
        any $CC -Wno-such-warning -c a.c -o a.o
        fail $CC -c a.c -o
        any $CC '' -c a.c -o a.o
        """,
    ),
    Property(
        "no-input",
        C,
        {},
        """
        fail $CC
        fail $CC -c
        fail $CC -c missing.c -o a.o
        fail $CC -c missing.c -o a.o
        """,
    ),
    Property(
        "what-a-compiler-says-about-itself",
        C,
        _PLAIN,
        """
        any $CC --version
        any $CC --version
        any $CC -dumpmachine
        any $CC -dumpversion
        any $CC -print-search-dirs
        any $CC -print-file-name=libc.so
        any $CC -print-prog-name=ld
        any $CC '-###' -c a.c -o a.o
        any $CC -v -c a.c -o a.o
        any $CC -v -c a.c -o a.o
        """,
    ),
    Property(
        "list-of-headers",
        C,
        {"a.c": '#include "x.h"\n', "x.h": "", "inc/other": ""},
        """
        new $CC -H -Iinc -c a.c -o a.o
        may $CC -H -Iinc -c a.c -o a.o
        sh rm x.h; : > inc/x.h
        new $CC -H -Iinc -c a.c -o a.o
        """,
    ),
    Property(
        "flags-that-are-not-used",
        C,
        _PLAIN,
        """
        new $CC -Wl,-O1 -lm -L. -c a.c -o a.o
        hit $CC -Wl,-O1 -lm -L. -c a.c -o a.o
        """,
    ),
    Property(
        "pipe-flag",
        C,
        _PLAIN,
        """
        new $CC -pipe -c a.c -o a.o
        hit $CC -pipe -c a.c -o a.o
        """,
    ),
    Property(
        "defines",
        C,
        {"a.c": "int f(void) { return X; }\n"},
        """
        new $CC -DX=1 -c a.c -o a.o
        new $CC -DX=2 -c a.c -o a.o
        new $CC -DX -UX -DX=3 -c a.c -o a.o
        fail $CC -DX=3 -UX -c a.c -o a.o
        hit $CC -DX=1 -c a.c -o a.o
        """,
    ),
    Property(
        "standards-and-optimization",
        C,
        {"a.c": "long f(void) { return __STDC_VERSION__; }\n"},
        """
        new $CC -std=c99 -c a.c -o a.o
        new $CC -std=c11 -c a.c -o a.o
        new $CC -std=c99 -O2 -c a.c -o a.o
        new $CC -std=c99 -O0 -c a.c -o a.o
        hit $CC -std=c11 -c a.c -o a.o
        """,
    ),
    Property(
        "two-at-once",
        C,
        {"a.c": "int f(void) { return 1; }\n", "b.c": "int g(void) { return 1; }\n"},
        """
        any $CC -c a.c -o a.o & $CC -c b.c -o b.o & wait
        any $CC -c a.c -o a.o & $CC -c b.c -o b.o & wait
        hit $CC -c a.c -o a.o && $CC -c b.c -o b.o
        """,
    ),
    Property(
        "same-compile-twice-at-once",
        C,
        _PLAIN,
        """
        any $CC -c a.c -o a.o & $CC -c a.c -o a.o & $CC -c a.c -o b.o & wait
        any $CC -c a.c -o a.o
        hit $CC -c a.c -o a.o
        """,
    ),
    Property(
        "streams-that-are-closed",
        C,
        _WARNS,
        """
        any $CC -Wall -c a.c -o a.o 2>&-
        any $CC -Wall -c a.c -o a.o 2>&- >&- <&-
        any $CC -Wall -c a.c -o a.o 2> /dev/full
        any $CC -Wall -c a.c -o a.o
        """,
    ),
    Property(
        "both-streams-to-files-in-the-folder",
        C,
        _WARNS,
        """
        new $CC -Wall -S a.c -o - > out 2> err
        may $CC -Wall -S a.c -o - > out 2> err
        """,
    ),
)
