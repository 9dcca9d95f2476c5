"""The compiler itself: wrappers, updates, configuration, plugins, precompiled headers, modules, targets."""

from __future__ import annotations

from tests.properties.scenario import CLANG, CLANGXX, GCC, GXX, C, Property

_PLAIN = {"a.c": "int f(void) { return 1; }\n"}
_VALUE = {"a.c": "int f(void) { return X; }\n"}
_HEADER = {"a.c": '#include "x.h"\nint f(void) { return X; }\n', "x.h": "#define X 1\n"}
_MODULE = {
    "m.cpp": "export module m;\nexport int g() { return 1; }\n",
    "a.cpp": "import m;\nint f() { return g(); }\n",
}

#: A plugin that prints when it is loaded, without the headers of any compiler.
_PLUGIN = """
#include <unistd.h>
int plugin_is_GPL_compatible;
int plugin_init(void *a, void *b) { (void)a; (void)b; return 0; }
__attribute__((constructor)) static void loaded(void) { write(2, TEXT, sizeof TEXT - 1); }
"""

#: Lets clang find x.h at the place of another file.
_OVERLAY = '{"version":0,"roots":[{"type":"file","name":"W/x.h","external-contents":"W/NAME.h"}]}'

PROPERTIES = (
    Property(
        "wrapper-edited",
        C,
        _VALUE,
        """
        sh printf '#!/bin/sh\\nexec %s -DX=1 "$@"\\n' $NAME > cc; chmod +x cc
        new $RUN ./cc -c a.c -o a.o
        hit $RUN ./cc -c a.c -o a.o
        sh printf '#!/bin/sh\\nexec %s -DX=2 "$@"\\n' $NAME > cc
        new $RUN ./cc -c a.c -o a.o
        hit $RUN ./cc -c a.c -o a.o
        """,
    ),
    Property(
        "wrapper-that-reads-a-file",
        C,
        {**_VALUE, "options": "-DX=1"},
        """
        sh printf '#!/bin/sh\\n%s $(cat options) "$@"\\n' $NAME > cc; chmod +x cc
        new $RUN ./cc -c a.c -o a.o
        may $RUN ./cc -c a.c -o a.o
        sh echo '-DX=2' > options
        new $RUN ./cc -c a.c -o a.o
        """,
    ),
    Property(
        "wrapper-that-reads-a-variable",
        C,
        _VALUE,
        """
        sh printf '#!/bin/sh\\n%s -DX=$MY_VALUE "$@"\\n' $NAME > cc; chmod +x cc
        new MY_VALUE=1 $RUN ./cc -c a.c -o a.o
        may MY_VALUE=1 $RUN ./cc -c a.c -o a.o
        new MY_VALUE=2 $RUN ./cc -c a.c -o a.o
        """,
    ),
    Property(
        "wrapper-that-writes-a-log",
        C,
        _PLAIN,
        """
        sh printf '#!/bin/sh\\necho called >> log\\n%s "$@"\\n' $NAME > cc; chmod +x cc
        new $RUN ./cc -c a.c -o a.o
        new $RUN ./cc -c a.c -o a.o
        """,
    ),
    Property(
        "wrapper-that-fails-afterwards",
        C,
        _PLAIN,
        """
        sh printf '#!/bin/sh\\n%s "$@"\\nexit 3\\n' $NAME > cc; chmod +x cc
        fail $RUN ./cc -c a.c -o a.o
        fail $RUN ./cc -c a.c -o a.o
        """,
    ),
    Property(
        "script-in-the-place-of-the-compiler",
        C,
        {"a.txt": "one\n", "gen": '#!/bin/sh\nsed s/one/two/ "$1" > "$2"\n'},
        """
        sh chmod +x gen
        new $RUN ./gen a.txt b.txt
        may $RUN ./gen a.txt b.txt
        sh echo 'one more' > a.txt
        new $RUN ./gen a.txt b.txt
        sh sed -i s/two/three/ gen
        new $RUN ./gen a.txt b.txt
        """,
    ),
    Property(
        "compiler-replaced-behind-a-link",
        C,
        _VALUE,
        """
        sh for i in 1 2; do printf '#!/bin/sh\\nexec %s -DX=%s "$@"\\n' $NAME $i > cc$i; done
        sh chmod +x cc1 cc2; ln -s cc1 cc
        new $RUN ./cc -c a.c -o a.o
        sh ln -sfn cc2 cc
        new $RUN ./cc -c a.c -o a.o
        sh ln -sfn cc1 cc
        hit $RUN ./cc -c a.c -o a.o
        """,
    ),
    Property(
        "compiler-appears-earlier-in-the-path",
        C,
        _VALUE,
        """
        sh mkdir one two; printf '#!/bin/sh\\nexec %s -DX=1 "$@"\\n' $(which $NAME) > two/mycc; chmod +x two/mycc
        new PATH=$W/one:$W/two:$PATH; $RUN mycc -c a.c -o a.o
        hit PATH=$W/one:$W/two:$PATH; $RUN mycc -c a.c -o a.o
        sh sed s/X=1/X=2/ two/mycc > one/mycc; chmod +x one/mycc
        new PATH=$W/one:$W/two:$PATH; $RUN mycc -c a.c -o a.o
        """,
    ),
    Property(
        "assembler-replaced-in-the-path",
        GCC,
        _PLAIN,
        """
        sh mkdir bin; printf '#!/bin/sh\\nexec /usr/bin/as --defsym mine=1 "$@"\\n' > bin/as; chmod +x bin/as
        new $CC -c a.c -o a.o
        any PATH=$W/bin:$PATH; $CC -c a.c -o a.o
        """,
        needs=("as",),
    ),
    Property(
        "programs-of-the-compiler-by-flag",
        GCC,
        _PLAIN,
        """
        sh mkdir bin; printf '#!/bin/sh\\nexec as --defsym mine=1 "$@"\\n' > bin/as; chmod +x bin/as
        new $CC -Bbin -c a.c -o a.o
        may $CC -Bbin -c a.c -o a.o
        sh sed -i s/mine=1/mine=2/ bin/as
        new $CC -Bbin -c a.c -o a.o
        sh rm bin/as
        new $CC -Bbin -c a.c -o a.o
        """,
        needs=("as",),
    ),
    Property(
        "programs-of-the-compiler-by-variable",
        GCC,
        _PLAIN,
        """
        sh mkdir bin; printf '#!/bin/sh\\nexec /usr/bin/as --defsym mine=1 "$@"\\n' > bin/as; chmod +x bin/as
        new $CC -c a.c -o a.o
        new COMPILER_PATH=$W/bin $CC -c a.c -o a.o
        may COMPILER_PATH=$W/bin $CC -c a.c -o a.o
        sh sed -i s/mine=1/mine=2/ bin/as
        new COMPILER_PATH=$W/bin $CC -c a.c -o a.o
        """,
        needs=("as",),
    ),
    Property(
        "wrapper-flag",
        GCC,
        _PLAIN,
        """
        sh printf '#!/bin/sh\\ncase $1 in *as) shift; exec as --defsym mine=1 "$@";; esac; exec "$@"\\n' > w; chmod +x w
        new $CC -wrapper ./w -c a.c -o a.o
        may $CC -wrapper ./w -c a.c -o a.o
        sh sed -i s/mine=1/mine=2/ w
        new $CC -wrapper ./w -c a.c -o a.o
        """,
        needs=("as",),
    ),
    Property(
        "specs",
        GCC,
        {**_VALUE, "my.specs": "*cpp:\n+ -DX=1\n\n"},
        """
        new $CC -specs=my.specs -c a.c -o a.o
        may $CC -specs=my.specs -c a.c -o a.o
        sh printf '*cpp:\\n+ -DX=2\\n\\n' > my.specs
        new $CC -specs=my.specs -c a.c -o a.o
        """,
    ),
    Property(
        "configuration-by-flag",
        CLANG,
        {**_VALUE, "my.cfg": "-DX=1\n"},
        """
        new $CC --config ./my.cfg -c a.c -o a.o
        may $CC --config ./my.cfg -c a.c -o a.o
        sh echo '-DX=2' > my.cfg
        new $CC --config ./my.cfg -c a.c -o a.o
        """,
    ),
    Property(
        "options-by-variable",
        CLANG,
        _VALUE,
        """
        new CCC_OVERRIDE_OPTIONS='# +-DX=1' $CC -c a.c -o a.o
        may CCC_OVERRIDE_OPTIONS='# +-DX=1' $CC -c a.c -o a.o
        new CCC_OVERRIDE_OPTIONS='# +-DX=2' $CC -c a.c -o a.o
        fail $CC -c a.c -o a.o
        """,
    ),
    Property(
        "overlay-of-the-file-system",
        CLANG,
        {
            "a.c": '#include "x.h"\nint f(void) { return X; }\n',
            "one.h": "#define X 1\n",
            "two.h": "#define X 2\n",
            "template": _OVERLAY,
        },
        """
        sh for i in one two; do sed "s,W,$W,g; s,NAME,$i," template > $i.yaml; done; cp one.yaml o.yaml
        new $CC -ivfsoverlay o.yaml -c a.c -o a.o
        may $CC -ivfsoverlay o.yaml -c a.c -o a.o
        sh echo '#define X 3' > one.h
        new $CC -ivfsoverlay o.yaml -c a.c -o a.o
        sh cp two.yaml o.yaml
        new $CC -ivfsoverlay o.yaml -c a.c -o a.o
        """,
    ),
    Property(
        "plugin",
        C,
        {**_PLAIN, "p.c": _PLUGIN},
        """
        sh $NAME -shared -fPIC -DTEXT='"one\\n"' p.c -o p.so
        new $CC -fplugin=./p.so -c a.c -o a.o
        may $CC -fplugin=./p.so -c a.c -o a.o
        sh $NAME -shared -fPIC -DTEXT='"two\\n"' p.c -o q.so; mv q.so p.so
        new $CC -fplugin=./p.so -c a.c -o a.o
        """,
    ),
    Property(
        "precompiled-header-of-gcc",
        GCC,
        {**_HEADER, "y.h": "#define Y 1\n"},
        """
        sh echo '#include "y.h"' >> x.h
        new $CC -c x.h -o x.h.gch
        sh rm x.h.gch
        may $CC -c x.h -o x.h.gch
        new $CC -Winvalid-pch -c a.c -o a.o
        may $CC -Winvalid-pch -c a.c -o a.o
        sh echo '#define Y 2' > y.h; $NAME -c x.h -o x.h.gch
        any $CC -Winvalid-pch -c a.c -o a.o
        sh echo '#define X 3' > x.h; $NAME -c x.h -o x.h.gch
        new $CC -Winvalid-pch -c a.c -o a.o
        """,
        unstable=("*.gch",),
    ),
    Property(
        "precompiled-header-appears",
        GCC,
        {**_HEADER, "other.h": "#define X 9\n"},
        """
        new $CC -Winvalid-pch -c a.c -o a.o
        sh $NAME -c other.h -o x.h.gch
        new $CC -Winvalid-pch -c a.c -o a.o
        sh $NAME -O2 -c other.h -o x.h.gch
        new $CC -Winvalid-pch -c a.c -o a.o
        sh rm x.h.gch
        hit $CC -Winvalid-pch -c a.c -o a.o
        """,
        unstable=("*.gch",),
    ),
    Property(
        "precompiled-header-of-clang",
        CLANG,
        {"a.c": "int f(void) { return X; }\n", "x.h": "#define X 1\n"},
        """
        new $CC -x c-header x.h -o x.pch
        sh rm x.pch
        may $CC -x c-header x.h -o x.pch
        new $CC -include-pch x.pch -c a.c -o a.o
        may $CC -include-pch x.pch -c a.c -o a.o
        sh echo '#define X 22' > x.h; $NAME -x c-header x.h -o x.pch
        new $CC -include-pch x.pch -c a.c -o a.o
        """,
        unstable=("*.pch",),
    ),
    Property(
        "precompiled-header-that-is-stale",
        CLANG,
        {"a.c": "int f(void) { return X; }\n", "x.h": "#define X 1\n"},
        """
        sh $NAME -x c-header x.h -o x.pch
        new $CC -include-pch x.pch -c a.c -o a.o
        sh echo '#define X 222' > x.h
        fail $CC -include-pch x.pch -c a.c -o a.o
        """,
        unstable=("*.pch",),
    ),
    Property(
        "precompiled-header-that-is-touched",
        CLANG,
        {"a.c": "int f(void) { return X; }\n", "x.h": "#define X 1\n"},
        """
        sh touch -d '2001-02-03' x.h; $NAME -x c-header x.h -o x.pch
        new $CC -include-pch x.pch -c a.c -o a.o
        sh touch -d '2002-02-03' x.h
        fail $CC -include-pch x.pch -c a.c -o a.o
        """,
        unstable=("*.pch",),
    ),
    Property(
        "precompiled-header-beside-an-included-file",
        CLANG,
        {"a.c": "int f(void) { return X; }\n", "x.h": "#define X 1\n", "y.h": "#define X 2\n"},
        """
        new $CC -include x.h -c a.c -o a.o
        sh $NAME -x c-header y.h -o x.h.pch
        new $CC -include x.h -c a.c -o a.o
        sh rm x.h.pch
        hit $CC -include x.h -c a.c -o a.o
        """,
        unstable=("*.pch",),
    ),
    Property(
        "modules-of-gcc",
        GXX,
        _MODULE,
        """
        new $CC -std=c++20 -fmodules-ts -c m.cpp -o m.o
        sh rm -r gcm.cache m.o
        may $CC -std=c++20 -fmodules-ts -c m.cpp -o m.o
        new $CC -std=c++20 -fmodules-ts -c a.cpp -o a.o
        may $CC -std=c++20 -fmodules-ts -c a.cpp -o a.o
        sh sed -i 's/int g()/long g()/' m.cpp; $NAME -std=c++20 -fmodules-ts -c m.cpp -o m.o
        new $CC -std=c++20 -fmodules-ts -c a.cpp -o a.o
        sh rm -r gcm.cache
        fail $CC -std=c++20 -fmodules-ts -c a.cpp -o a.o
        """,
        unstable=("gcm.cache/*",),
    ),
    Property(
        "header-units-of-gcc",
        GXX,
        {"x.h": "#define X 1\n", "a.cpp": 'import "x.h";\nint f() { return X; }\n'},
        """
        new $CC -std=c++20 -fmodules-ts -x c++-header x.h
        sh find gcm.cache -type f
        new $CC -std=c++20 -fmodules-ts -c a.cpp -o a.o
        may $CC -std=c++20 -fmodules-ts -c a.cpp -o a.o
        sh echo '#define X 2' > x.h; $NAME -std=c++20 -fmodules-ts -x c++-header x.h
        new $CC -std=c++20 -fmodules-ts -c a.cpp -o a.o
        """,
        unstable=("gcm.cache/*",),
    ),
    Property(
        "modules-of-clang",
        CLANGXX,
        {"m.cppm": _MODULE["m.cpp"], "a.cpp": _MODULE["a.cpp"]},
        """
        new $CC -std=c++20 --precompile m.cppm -o m.pcm
        sh rm m.pcm
        may $CC -std=c++20 --precompile m.cppm -o m.pcm
        new $CC -std=c++20 -fmodule-file=m=m.pcm -c a.cpp -o a.o
        may $CC -std=c++20 -fmodule-file=m=m.pcm -c a.cpp -o a.o
        sh sed -i 's/int g()/long g()/' m.cppm; $NAME -std=c++20 --precompile m.cppm -o m.pcm
        new $CC -std=c++20 -fmodule-file=m=m.pcm -c a.cpp -o a.o
        new $CC -std=c++20 -fprebuilt-module-path=. -c a.cpp -o a.o
        may $CC -std=c++20 -fprebuilt-module-path=. -c a.cpp -o a.o
        """,
        unstable=("*.pcm",),
    ),
    Property(
        "implicit-modules-of-clang",
        CLANG,
        {
            "a.c": '#include "x.h"\nint f(void) { return X; }\n',
            "inc/x.h": "#define X 1\n",
            "inc/module.modulemap": 'module x { header "x.h" export * }\n',
        },
        """
        any $CC -fmodules -fmodules-cache-path=mods -Iinc -c a.c -o a.o
        any $CC -fmodules -fmodules-cache-path=mods -Iinc -c a.c -o a.o
        sh echo '#define X 22' > inc/x.h
        new $CC -fmodules -fmodules-cache-path=mods -Iinc -c a.c -o a.o
        """,
        unstable=("mods/*",),
    ),
    Property(
        "language-by-flag",
        C,
        {"a.txt": "int f(void) { return sizeof 'a'; }\n"},
        """
        new $CC -x c -c a.txt -o a.o
        new $CC -x c++ -c a.txt -o a.o
        hit $CC -x c -c a.txt -o a.o
        fail $CC -x nothing -c a.txt -o a.o
        """,
    ),
    Property(
        "language-by-suffix",
        C,
        {"a.c": "int f(void) { return sizeof 'a'; }\n", "b.cc": "int f(void) { return sizeof 'a'; }\n"},
        """
        new $CC -c a.c -o a.o
        new $CC -c b.cc -o a.o
        hit $CC -c a.c -o a.o
        """,
    ),
    Property(
        "processor-of-this-machine",
        C,
        {"a.c": "void f(float *a) { for (int i = 0; i < 64; i++) a[i] *= 2; }\n"},
        """
        new $CC -O3 -march=native -c a.c -o a.o
        hit $CC -O3 -march=native -c a.c -o a.o
        new $CC -O3 -c a.c -o a.o
        new $CC -O3 -mtune=native -c a.c -o a.o
        """,
    ),
    Property(
        "switches-recorded-in-the-object",
        C,
        _PLAIN,
        """
        new $CC -frecord-gcc-switches -c a.c -o a.o
        hit $CC -frecord-gcc-switches -c a.c -o a.o
        new $CC -frecord-gcc-switches -DUNUSED -c a.c -o a.o
        any $CC -frecord-gcc-switches -c a.c -o b.o
        new $CC -g -grecord-gcc-switches -DUNUSED -c a.c -o a.o
        """,
    ),
    Property(
        "list-of-exceptions-for-sanitizers",
        CLANG,
        {"a.c": "int f(int *p) { return *p; }\n", "ignore": "fun:nothing\n"},
        """
        new $CC -fsanitize=address -fsanitize-ignorelist=ignore -c a.c -o a.o
        may $CC -fsanitize=address -fsanitize-ignorelist=ignore -c a.c -o a.o
        sh echo 'fun:f' > ignore
        new $CC -fsanitize=address -fsanitize-ignorelist=ignore -c a.c -o a.o
        """,
    ),
    Property(
        "compile-that-is-killed",
        C,
        {**_PLAIN, "waits": ""},
        """
        sh printf '%s\\n' '#!/bin/sh' 'if [ -e waits ]; then echo part > a.o; : > begun; exec sleep 3; fi' > cc
        sh printf 'exec %s "$@"\\n' $NAME >> cc; chmod +x cc
        any $RUN ./cc -c a.c -o a.o & p=$!; until [ -e begun ]; do sleep 0.01; done; kill -TERM $p; wait $p
        sh rm begun
        any $RUN ./cc -c a.c -o a.o & p=$!; until [ -e begun ]; do sleep 0.01; done; kill -KILL $p; exec 2>&-; wait $p
        sh rm -f waits begun
        new $RUN ./cc -c a.c -o a.o
        hit $RUN ./cc -c a.c -o a.o
        """,
    ),
    Property(
        "compiler-that-leaves-a-process-behind",
        C,
        _PLAIN,
        """
        sh printf '#!/bin/sh\\n%s "$@"\\n(sleep 0.3; echo late > late) > /dev/null 2>&1 &\\n' $NAME > cc; chmod +x cc
        any $RUN ./cc -c a.c -o a.o; sleep 2
        sh rm late
        any $RUN ./cc -c a.c -o a.o; sleep 2
        """,
    ),
    Property(
        "build-by-make",
        C,
        {**_HEADER, "Makefile": "a.o: a.c\n\t$(CC) -MMD -c a.c -o a.o\n-include a.d\n"},
        """
        new make -s CC="$CC"
        sh rm a.o
        hit make -s CC="$CC"
        sh echo '#define X 2' > x.h
        new make -s CC="$CC"
        sh $NAME --version > /dev/null; make -q CC="$NAME"
        """,
        needs=("make",),
    ),
)
