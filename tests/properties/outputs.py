"""What a compile writes: results, side files, depfiles, and what is in their place before."""

from __future__ import annotations

from tests.properties.scenario import CLANG, CXX, GCC, C, Property

_PLAIN = {"a.c": "int f(void) { return 1; }\n"}
_HEADER = {"a.c": '#include "x.h"\nint f(void) { return X; }\n', "x.h": "#define X 1\n"}
_MAIN = {"a.c": "int g(void);\nint main(void) { return g(); }\n", "b.c": "int g(void) { return 3; }\n"}
_BRANCH = {"a.c": "int main(int c, char **v) { (void)v; if (c > 1) return 3; return 0; }\n"}

#: LINE writes to a file that is not there, that is empty and that is full, with modes of its own and of others.
_OVER_MODES = """
    new LINE -o absent
    sh for mode in 600 644 755; do : > empty-$mode; echo old > full-$mode; chmod $mode empty-$mode full-$mode; done
    any LINE -o empty-644
    any LINE -o full-755
    any LINE -o full-644
    any LINE -o full-600
    any LINE -o empty-755
    any LINE -o empty-600
    sh rm empty-* full-*
    any for mode in 600 644 755; do LINE -o empty-$mode; LINE -o full-$mode; done
    sh for mode in 600 644 755; do : > empty-$mode; echo old > full-$mode; chmod $mode empty-$mode full-$mode; done
    any for mode in 600 644 755; do LINE -o empty-$mode; LINE -o full-$mode; done
    sh rm empty-600; chmod 600 full-644; chmod 755 full-600; umask 077; : > empty-644; chmod 600 empty-644
    any umask 077; for mode in 600 644 755; do LINE -o empty-$mode; LINE -o full-$mode; done
    sh rm absent
    any umask 077; LINE -o absent
    any umask 077; LINE -o absent
"""

PROPERTIES = (
    # --- what a compile does not depend on ---
    Property(
        "standard-input-that-is-not-read",
        C,
        _PLAIN,
        """
        new $CC -c a.c -o a.o </dev/null
        hit true | $CC -c a.c -o a.o
        hit $CC -c a.c -o a.o <a.c
        new echo 'int g;' | $CC -x c -c - -o a.o
        """,
    ),
    Property(
        "a-variable-of-another-program",
        (*C, *CXX),
        _PLAIN,
        """
        new $CC -c a.c -o a.o
        hit FOO=1 $CC -c a.c -o a.o
        new CPATH=/nowhere $CC -c a.c -o a.o
        """,
    ),
    # --- outputs that are read first ---
    Property(
        "an-output-that-is-edited-or-extended",
        GCC,
        {"sd.txt": "v2\n", "conf.txt": "a\n"},
        """
        any ${RUN:+${RUN%-- }--outputs sd.txt --} sed -i s/v/w/ sd.txt
        sh echo v3 > sd.txt
        any ${RUN:+${RUN%-- }--outputs sd.txt --} sed -i s/v/w/ sd.txt
        any $RUN sh -c 'echo tail >> conf.txt'
        sh echo b > conf.txt
        any $RUN sh -c 'echo tail >> conf.txt'
        """,
    ),
    # --- depfiles ---
    Property(
        "depfile-by-default-name",
        C,
        _HEADER,
        """
        new $CC -MD -c a.c -o a.o
        sh rm a.o a.d
        hit $CC -MD -c a.c -o a.o
        hit $CC -MD -c a.c -o a.o
        """,
    ),
    Property(
        "depfile-without-an-output-name",
        C,
        {f"src/{name}": text for name, text in _HEADER.items()},
        """
        new $CC -MMD -c src/a.c
        sh rm a.o a.d
        hit $CC -MMD -c src/a.c
        """,
    ),
    Property(
        "depfile-in-a-folder",
        C,
        {**_HEADER, "out/other": ""},
        """
        new $CC -MMD -MF out/deps -c a.c -o out/a.o
        sh rm out/deps
        hit $CC -MMD -MF out/deps -c a.c -o out/a.o
        any $CC -MMD -MF out/others -c a.c -o out/a.o
        fail $CC -MMD -MF missing/deps -c a.c -o out/a.o
        """,
    ),
    Property(
        "depfile-beside-an-output-in-another-folder",
        C,
        {**_HEADER, "one/other": "", "two/other": ""},
        """
        new $CC -MD -c a.c -o one/a.o
        any $CC -MD -c a.c -o two/b.o
        any $CC -MD -c a.c -o two/b.o
        hit $CC -MD -c a.c -o two/b.o
        """,
    ),
    Property(
        "depfile-targets",
        C,
        _HEADER,
        """
        new $CC -MMD -MT one -c a.c -o a.o
        new $CC -MMD -MT two -MT three -c a.c -o a.o
        new $CC -MMD -MQ '$one' -c a.c -o a.o
        new $CC -MMD -MP -c a.c -o a.o
        hit $CC -MMD -MQ '$one' -c a.c -o a.o
        hit $CC -MMD -MT one -c a.c -o a.o
        """,
    ),
    Property(
        "depfile-through-the-preprocessor's-flag",
        C,
        _HEADER,
        """
        new $CC -Wp,-MMD,a.deps -c a.c -o a.o
        sh rm -f a.deps a.o
        may $CC -Wp,-MMD,a.deps -c a.c -o a.o
        sh rm -f a.deps a.o; echo '#define X 2' > x.h
        new $CC -Wp,-MD,a.deps -c a.c -o a.o
        sh rm -f a.deps a.o
        may $CC -Wp,-MD,a.deps -c a.c -o a.o
        """,
    ),
    Property(
        "depfile-and-a-header-that-moved",
        C,
        {"a.c": "#include <x.h>\nint f(void) { return X; }\n", "two/x.h": "#define X 1\n", "one/other.h": ""},
        """
        new $CC -Ione -Itwo -MD -c a.c -o a.o
        sh mv two/x.h one/x.h
        new $CC -Ione -Itwo -MD -c a.c -o a.o
        hit $CC -Ione -Itwo -MD -c a.c -o a.o
        """,
    ),
    Property(
        "depfile-and-a-header-of-equal-content-that-shadows",
        C,
        {"a.c": "#include <x.h>\nint f(void) { return X; }\n", "two/x.h": "#define X 1\n", "one/other.h": ""},
        """
        new $CC -Ione -Itwo -MD -c a.c -o a.o
        sh cp two/x.h one/x.h
        new $CC -Ione -Itwo -MD -c a.c -o a.o
        """,
    ),
    Property(
        "depfile-only",
        C,
        _HEADER,
        """
        new $CC -M a.c
        may $CC -M a.c
        new $CC -MM -MF deps a.c
        may $CC -MM -MF deps a.c
        sh echo '#include "y.h"' > x.h; echo '#define X 3' > y.h
        new $CC -MM a.c
        """,
    ),
    Property(
        "depfile-of-headers-that-are-missing",
        C,
        {"a.c": '#include "x.h"\n', "inc/other": ""},
        """
        new $CC -MM -MG -Iinc a.c
        sh echo > inc/x.h
        new $CC -MM -MG -Iinc a.c
        sh rm inc/x.h
        any $CC -MM -MG -Iinc a.c
        """,
    ),
    Property(
        "depfile-to-nowhere",
        C,
        _HEADER,
        """
        new $CC -MMD -MF /dev/null -c a.c -o a.o
        may $CC -MMD -MF /dev/null -c a.c -o a.o
        """,
    ),
    Property(
        "depfile-to-standard-output",
        C,
        _HEADER,
        """
        new $CC -MMD -MF - -c a.c -o a.o
        may $CC -MMD -MF - -c a.c -o a.o
        any $CC -MMD -MF /dev/stdout -c a.c -o a.o
        any $CC -MMD -MF /dev/stdout -c a.c -o a.o
        """,
    ),
    Property(
        "depfile-by-a-variable",
        C,
        _HEADER,
        """
        new DEPENDENCIES_OUTPUT=deps $CC -c a.c -o a.o
        any DEPENDENCIES_OUTPUT=deps $CC -c a.c -o a.o
        any DEPENDENCIES_OUTPUT='deps target' $CC -c a.c -o a.o
        any SUNPRO_DEPENDENCIES='others target' $CC -c a.c -o a.o
        """,
    ),
    # --- side files ---
    Property(
        "split-debug-information",
        C,
        {**_PLAIN, "out/other": ""},
        """
        new $CC -g -gsplit-dwarf -c a.c -o out/a.o
        sh rm out/a.*
        may $CC -g -gsplit-dwarf -c a.c -o out/a.o
        any $CC -g -gsplit-dwarf -c a.c -o out/b.o
        """,
    ),
    Property(
        "coverage-notes",
        C,
        {**_BRANCH, "out/other": ""},
        """
        new $CC -frandom-seed=1 --coverage -c a.c -o out/a.o
        sh rm out/a.*
        may $CC -frandom-seed=1 --coverage -c a.c -o out/a.o
        any $CC -frandom-seed=1 --coverage -c a.c -o out/b.o
        sh rm out/*.gcno out/*.o
        new $CC -frandom-seed=1 -ftest-coverage -c a.c -o out/a.o
        sh rm out/a.*
        may $CC -frandom-seed=1 -ftest-coverage -c a.c -o out/a.o
        """,
    ),
    Property(
        "coverage-notes-belong-to-their-object",
        GCC,
        _BRANCH,
        """
        any $CC --coverage -c a.c -o a.o
        sh cp a.o saved.o; sed -i s/3/4/ a.c
        any $CC --coverage -c a.c -o a.o
        sh sed -i s/4/3/ a.c
        any $CC --coverage -c a.c -o a.o
        any $CC --coverage a.o -o prog && ./prog && ./prog 1 2; gcov -t a.gcno | grep -v Runs
        """,
        unstable=("*",),
        needs=("gcov",),
    ),
    Property(
        "profile-use",
        GCC,
        _BRANCH,
        """
        sh $NAME -O1 -fprofile-generate -c a.c -o a.o; $NAME -fprofile-generate a.o -o prog; rm a.o; ./prog
        new $CC -O1 -fprofile-use -c a.c -o a.o
        may $CC -O1 -fprofile-use -c a.c -o a.o
        sh for i in 1 2 3 4; do ./prog 1 2; done; true
        new $CC -O1 -fprofile-use -c a.c -o a.o
        sh rm a.gcda
        new $CC -O1 -Wmissing-profile -fprofile-use -c a.c -o a.o
        """,
        unstable=("*.gcda", "prog"),
    ),
    Property(
        "sample-profile",
        CLANG,
        {**_BRANCH, "one.prof": "main:100:10\n 0: 10\n", "other": ""},
        """
        new $CC -O2 -g -fprofile-sample-use=one.prof -c a.c -o a.o
        may $CC -O2 -g -fprofile-sample-use=one.prof -c a.c -o a.o
        sh printf 'main:900:10\\n 0: 900\\n' > one.prof
        new $CC -O2 -g -fprofile-sample-use=one.prof -c a.c -o a.o
        """,
    ),
    Property(
        "saved-temporary-files",
        C,
        {**_HEADER, "out/other": ""},
        """
        new $CC -save-temps -c a.c -o out/a.o
        sh rm -f *.i *.s *.bc out/a*
        may $CC -save-temps -c a.c -o out/a.o
        sh rm -f *.i *.s *.bc out/a*
        new $CC -save-temps=obj -c a.c -o out/a.o
        sh rm -f *.i *.s *.bc out/a*
        may $CC -save-temps=obj -c a.c -o out/a.o
        """,
    ),
    Property(
        "stack-usage",
        C,
        {**_PLAIN, "out/other": ""},
        """
        new $CC -fstack-usage -c a.c -o out/a.o
        sh rm -f out/a.*
        may $CC -fstack-usage -c a.c -o out/a.o
        """,
    ),
    Property(
        "dumps-of-passes",
        GCC,
        _PLAIN,
        """
        new $CC -O1 -fdump-tree-optimized -fdump-rtl-expand=expanded -c a.c -o a.o
        sh rm -f a.c.* a.o expanded
        may $CC -O1 -fdump-tree-optimized -fdump-rtl-expand=expanded -c a.c -o a.o
        """,
    ),
    Property(
        "dumps-under-another-name",
        GCC,
        {**_PLAIN, "dump/other": ""},
        """
        new $CC -O1 -dumpdir dump/ -dumpbase named -fdump-tree-optimized -c a.c -o a.o
        sh rm -f dump/named*
        may $CC -O1 -dumpdir dump/ -dumpbase named -fdump-tree-optimized -c a.c -o a.o
        """,
    ),
    Property(
        "prototypes-of-functions",
        GCC,
        _PLAIN,
        """
        new $CC -aux-info protos -c a.c -o a.o
        sh rm -f protos
        may $CC -aux-info protos -c a.c -o a.o
        """,
    ),
    Property(
        "remarks-of-the-optimizer",
        GCC,
        {"a.c": "void f(int *a) { for (int i = 0; i < 64; i++) a[i] = i; }\n"},
        """
        new $CC -O3 -fopt-info-vec=remarks -c a.c -o a.o
        sh rm -f remarks a.o
        may $CC -O3 -fopt-info-vec=remarks -c a.c -o a.o
        new $CC -O3 -fopt-info-vec -c a.c -o a.o
        may $CC -O3 -fopt-info-vec -c a.c -o a.o
        """,
    ),
    Property(
        "optimization-record",
        CLANG,
        {"a.c": "static int g(void) { return 1; }\nint f(void) { return g(); }\n"},
        """
        new $CC -O2 -fsave-optimization-record -c a.c -o a.o
        sh rm -f a.opt.yaml
        may $CC -O2 -fsave-optimization-record -c a.c -o a.o
        """,
    ),
    Property(
        "time-trace",
        CLANG,
        _PLAIN,
        """
        new $CC -ftime-trace -c a.c -o a.o
        sh rm -f a.json
        any $CC -ftime-trace -c a.c -o a.o
        """,
        unstable=("*.json",),
    ),
    Property(
        "listing-of-the-assembler",
        GCC,
        _PLAIN,
        """
        any $CC -Wa,-aln=listing -c a.c -o a.o
        sh rm -f listing
        any $CC -Wa,-aln=listing -c a.c -o a.o
        sh rm -f listing
        any $CC -Wa,-aln=listing -c a.c -o a.o
        """,
        unstable=("listing",),
    ),
    Property(
        "compile-command-fragment",
        CLANG,
        _PLAIN,
        """
        new $CC -MJ a.json -c a.c -o a.o
        any $CC -MJ a.json -c a.c -o a.o
        hit $CC -MJ a.json -c a.c -o a.o
        """,
    ),
    Property(
        "serialized-diagnostics",
        CLANG,
        {"a.c": "int f(int n) { return n / 0; }\n"},
        """
        new $CC --serialize-diagnostics a.dia -c a.c -o a.o
        sh rm a.dia
        may $CC --serialize-diagnostics a.dia -c a.c -o a.o
        """,
    ),
    # --- kinds of results ---
    Property(
        "preprocessed-to-standard-output",
        C,
        _HEADER,
        """
        new $CC -E a.c
        may $CC -E a.c
        sh echo '#define X 2' > x.h
        new $CC -E a.c
        new $CC -E -P a.c
        new $CC -E -dM a.c
        new $CC -E -C -dD a.c
        """,
    ),
    Property(
        "preprocessed-to-a-file",
        C,
        _HEADER,
        """
        new $CC -E a.c -o a.i
        sh rm a.i
        may $CC -E a.c -o a.i
        sh echo '#define X 2' > x.h
        new $CC -E a.c -o a.i
        """,
    ),
    Property(
        "preprocessed-with-the-folder",
        GCC,
        {"one/a.c": "int f;\n", "two/a.c": "int f;\n"},
        """
        new (cd one && $CC -g -fworking-directory -E a.c)
        new (cd two && $CC -g -fworking-directory -E a.c)
        """,
    ),
    Property(
        "assembly",
        C,
        _HEADER,
        """
        new $CC -S a.c -o a.s
        hit $CC -S a.c -o a.s
        any $CC -S a.c
        new $CC -S a.c -O2 -o a.s
        sh echo '#define X 2' > x.h
        new $CC -S a.c -o a.s
        """,
    ),
    Property(
        "assembly-to-standard-output",
        C,
        _HEADER,
        """
        new $CC -S a.c -o -
        may $CC -S a.c -o -
        sh echo '#define X 2' > x.h
        new $CC -S a.c -o -
        """,
    ),
    Property(
        "intermediate-code-of-llvm",
        CLANG,
        _PLAIN,
        """
        new $CC -emit-llvm -c a.c -o a.bc
        hit $CC -emit-llvm -c a.c -o a.bc
        new $CC -emit-llvm -S a.c -o a.ll
        new $CC -c a.bc -o a.o
        hit $CC -c a.bc -o a.o
        new $CC -emit-ast a.c -o a.ast
        may $CC -emit-ast a.c -o a.ast
        """,
        unstable=("*.ast",),
    ),
    Property(
        "syntax-only",
        C,
        {"a.c": "static int f(void) { return 1; }\n"},
        """
        new $CC -Wall -fsyntax-only a.c
        may $CC -Wall -fsyntax-only a.c
        sh echo 'int g' >> a.c
        fail $CC -Wall -fsyntax-only a.c
        """,
    ),
    Property(
        "several-sources",
        C,
        {"a.c": "int a;\n", "b.c": "int b;\n"},
        """
        new $CC -c a.c b.c
        sh rm *.o
        may $CC -c a.c b.c
        sh echo 'int bb;' >> b.c
        new $CC -c a.c b.c
        fail $CC -c a.c b.c -o both.o
        """,
    ),
    Property(
        "one-of-several-sources-fails",
        C,
        {"a.c": "int a;\n", "b.c": "int b\n"},
        """
        fail $CC -c a.c b.c
        fail $CC -c b.c a.c
        """,
    ),
    Property(
        "sources-to-a-program",
        C,
        _MAIN,
        """
        new $CC a.c b.c -o prog
        sh ./prog || rm prog
        may $CC a.c b.c -o prog
        sh ./prog; sed -i s/3/4/ b.c
        new $CC a.c b.c -o prog
        sh ./prog || true
        """,
    ),
    Property(
        "linking",
        C,
        _MAIN,
        """
        sh $NAME -c a.c b.c
        new $CC a.o b.o -o prog
        sh rm prog
        may $CC a.o b.o -o prog
        any $CC a.o b.o
        sh sed -i s/3/4/ b.c; $NAME -c b.c
        new $CC a.o b.o -o prog
        """,
        quick=True,
    ),
    Property(
        "linking-with-an-archive",
        C,
        {**_MAIN, "one/other": "", "two/other": ""},
        """
        sh $NAME -c a.c b.c; ar rcD two/libmine.a b.o
        new $CC a.o -Lone -Ltwo -lmine -o prog
        may $CC a.o -Lone -Ltwo -lmine -o prog
        sh sed -i s/3/4/ b.c; $NAME -c b.c; ar rcD one/libmine.a b.o
        new $CC a.o -Lone -Ltwo -lmine -o prog
        sh $NAME -shared -fPIC b.c -o one/libmine.so
        new $CC a.o -Lone -Ltwo -lmine -o prog
        """,
        needs=("ar",),
    ),
    Property(
        "linking-a-library",
        C,
        {**_PLAIN, "exports": "{ global: f; local: *; };\n"},
        """
        new $CC -shared -fPIC -Wl,--version-script=exports a.c -o lib.so
        may $CC -shared -fPIC -Wl,--version-script=exports a.c -o lib.so
        sh echo '{ global: g; local: *; };' > exports
        new $CC -shared -fPIC -Wl,--version-script=exports a.c -o lib.so
        """,
    ),
    Property(
        "map-of-the-linker",
        C,
        _MAIN,
        """
        sh $NAME -c a.c b.c
        new $CC a.o b.o -Wl,-Map=prog.map -o prog
        sh rm prog prog.map
        may $CC a.o b.o -Wl,-Map=prog.map -o prog
        """,
    ),
    Property(
        "link-that-fails",
        C,
        _MAIN,
        """
        sh $NAME -c a.c b.c
        fail $CC a.o -o prog
        fail $CC a.o -o prog
        new $CC a.o b.o -o prog
        fail $CC a.o -lmissing -o prog
        """,
    ),
    Property(
        "library-path-of-the-environment",
        C,
        {**_MAIN, "one/other": ""},
        """
        sh $NAME -c a.c b.c; ar rcD one/libmine.a b.o
        fail $CC a.o -lmine -o prog
        new LIBRARY_PATH=one $CC a.o -lmine -o prog
        fail $CC a.o -lmine -o prog
        """,
        needs=("ar",),
    ),
    Property(
        "link-time-optimization",
        C,
        _MAIN,
        """
        new $CC -flto -frandom-seed=1 -c a.c -o a.o
        may $CC -flto -frandom-seed=1 -c a.c -o a.o
        new $CC -flto -frandom-seed=2 -c b.c -o b.o
        """,
    ),
    Property(
        "random-seed",
        CXX,
        {"a.cpp": "namespace { int f() { return 1; } }\nint g() { return f(); }\n"},
        """
        new $CC -frandom-seed=1 -c a.cpp -o a.o
        new $CC -frandom-seed=2 -c a.cpp -o a.o
        hit $CC -frandom-seed=1 -c a.cpp -o a.o
        """,
    ),
    Property(
        "output-to-nowhere",
        C,
        {"a.c": "static int f(void) { return 1; }\n"},
        """
        new $CC -Wall -c a.c -o /dev/null
        may $CC -Wall -c a.c -o /dev/null
        sh test -c /dev/null
        sh echo 'int g' >> a.c
        fail $CC -Wall -c a.c -o /dev/null
        """,
    ),
    Property(
        "output-to-a-missing-folder",
        C,
        _PLAIN,
        """
        fail $CC -c a.c -o out/a.o
        sh mkdir out
        new $CC -c a.c -o out/a.o
        hit $CC -c a.c -o out/a.o
        sh rm -r out
        fail $CC -c a.c -o out/a.o
        """,
    ),
    Property(
        "output-by-default-name",
        C,
        {"src/a.c": "int f;\n", "src/b.c": "int f;\n"},
        """
        new $CC -c src/a.c
        hit $CC -c src/a.c
        any $CC -c src/b.c
        sh rm a.o
        hit $CC -c src/a.c
        """,
    ),
    Property(
        "output-under-another-name",
        C,
        _PLAIN,
        """
        new $CC -c a.c -o one.o
        any $CC -c a.c -o two.o
        any $CC -c a.c -othree.o
        any $CC -c a.c -o one.o -o two.o
        hit $CC -c a.c -o one.o
        """,
    ),
    Property(
        "output-replaced-by-other-content",
        C,
        _PLAIN,
        """
        new $CC -c a.c -o a.o
        sh echo rubbish > a.o
        hit $CC -c a.c -o a.o
        sh : > a.o
        hit $CC -c a.c -o a.o
        """,
    ),
    Property(
        "output-in-the-place-of-a-folder",
        C,
        {**_PLAIN, "out/other": ""},
        """
        fail $CC -c a.c -o out
        new $CC -c a.c -o a.o
        sh rm a.o; mkdir a.o
        fail $CC -c a.c -o a.o
        """,
    ),
    Property(
        "output-through-a-link",
        C,
        {**_PLAIN, "real/other": "", "target": "old"},
        """
        sh ln -s target a.o; ln -s real out
        any $CC -c a.c -o a.o
        any $CC -c a.c -o a.o
        any $CC -c a.c -o out/b.o
        any $CC -c a.c -o out/b.o
        sh rm -f a.o target; ln -s target a.o
        any $CC -c a.c -o a.o
        any $CC -c a.c -o a.o
        """,
    ),
    Property(
        "output-with-a-second-name",
        C,
        {**_PLAIN, "other": "old"},
        """
        sh ln other a.o
        any $CC -c a.c -o a.o
        sh rm a.o; echo old > other; ln other a.o
        any $CC -c a.c -o a.o
        """,
    ),
    Property(
        "output-with-a-mode",
        C,
        _PLAIN,
        """
        sh : > a.o; chmod 600 a.o
        any $CC -c a.c -o a.o
        any $CC -c a.c -o a.o
        sh chmod 755 a.o
        any $CC -c a.c -o a.o
        sh rm a.o
        any umask 077; $CC -c a.c -o a.o
        sh rm a.o
        any umask 002; $CC -c a.c -o a.o
        """,
    ),
    *(
        Property(
            f"{kind}-over-a-file-with-a-mode",
            C,
            _MAIN,
            _OVER_MODES.replace("LINE", f"$CC {line}"),
        )
        for kind, line in {
            "object": "-c a.c",
            "assembly": "-S a.c",
            "preprocessed": "-E a.c",
            "program": "a.c b.c",
        }.items()
    ),
    Property(
        "umask",
        C,
        _MAIN,
        """
        new umask 022; $CC a.c b.c -o prog; $CC -c a.c -o a.o
        sh rm prog a.o
        any umask 077; $CC a.c b.c -o prog; $CC -c a.c -o a.o
        sh rm prog a.o
        any umask 022; $CC a.c b.c -o prog; $CC -c a.c -o a.o
        """,
    ),
    Property(
        "output-that-is-read-only",
        C,
        {**_PLAIN, "a.o": "old"},
        """
        sh chmod 444 a.o
        any $USER_ONLY $CC -c a.c -o a.o
        sh chmod 444 a.o
        any $USER_ONLY $CC -c a.c -o a.o
        """,
        needs=("setpriv",),
    ),
    Property(
        "output-to-a-folder-that-is-read-only",
        C,
        {**_PLAIN, "out/a.o": "old"},
        """
        any $USER_ONLY $CC -c a.c -o a.o
        sh chmod 555 out
        any $USER_ONLY $CC -c a.c -o out/a.o
        any $USER_ONLY $CC -c a.c -o out/b.o
        sh chmod 755 out
        """,
        needs=("setpriv",),
    ),
    Property(
        "source-that-is-unreadable",
        C,
        _PLAIN,
        """
        new $USER_ONLY $CC -c a.c -o a.o
        sh chmod 000 a.c
        fail $USER_ONLY $CC -c a.c -o a.o
        sh chmod 644 a.c
        hit $USER_ONLY $CC -c a.c -o a.o
        """,
        needs=("setpriv",),
    ),
    Property(
        "output-is-the-source",
        C,
        _PLAIN,
        """
        any $CC -c a.c -o ./a.c
        any $CC -E a.c -o a.c
        """,
    ),
    Property(
        "output-is-a-header",
        C,
        {**_HEADER},
        """
        any $CC -c a.c -o x.h
        """,
    ),
    Property(
        "old-output-of-a-compile-that-fails",
        C,
        _PLAIN,
        """
        new $CC -MD -c a.c -o a.o
        sh cp a.c b.c; echo 'int g' >> a.c
        fail $CC -MD -c a.c -o a.o
        sh mv b.c a.c
        hit $CC -MD -c a.c -o a.o
        """,
    ),
    Property(
        "no-output-is-older-than-its-source",
        C,
        _PLAIN,
        """
        new $CC -c a.c -o a.o
        sh touch a.c
        hit $CC -c a.c -o a.o
        sh test a.o -nt a.c
        """,
    ),
)
