"""Files that a compile reads: headers, where the compiler looks for them, and other inputs by name."""

from __future__ import annotations

from tests.properties.scenario import CLANG, CXX, GCC, C, Property

_SOURCE = '#include "x.h"\nint f(void) { return X; }\n'
_ONE = "#define X 1\n"
_TWO = "#define X 2\n"
_PLAIN = {"a.c": _SOURCE, "x.h": _ONE}
_ANGLED = "#include <x.h>\nint f(void) { return X; }\n"
_EITHER = '#if __has_include("y.h")\n#include "y.h"\n#else\n#define Y 0\n#endif\nint f(void) { return Y; }\n'

PROPERTIES = (
    Property(
        "repeated-compile",
        C,
        {"a.c": _SOURCE, "x.h": _ONE},
        """
        new $CC -c a.c -o a.o
        hit $CC -c a.c -o a.o
        sh rm a.o
        hit $CC -c a.c -o a.o
        """,
        quick=True,
    ),
    Property(
        "repeated-compile-cxx",
        CXX,
        {"a.cpp": "#include <vector>\nint f(std::vector<int> v) { return v.at(1); }\n"},
        """
        new $CC -c a.cpp -o a.o
        hit $CC -c a.cpp -o a.o
        """,
    ),
    Property(
        "source-edited",
        C,
        _PLAIN,
        """
        new $CC -c a.c -o a.o
        sh echo 'int g;' >> a.c
        new $CC -c a.c -o a.o
        hit $CC -c a.c -o a.o
        """,
    ),
    Property(
        "header-edited",
        C,
        _PLAIN,
        """
        new $CC -c a.c -o a.o
        sh echo '#define X 22' > x.h
        new $CC -c a.c -o a.o
        hit $CC -c a.c -o a.o
        """,
        quick=True,
    ),
    Property(
        "indirect-header-edited",
        C,
        {"a.c": _SOURCE, "x.h": '#include "sub/y.h"\n', "sub/y.h": '#include "z.h"\n', "sub/z.h": _ONE},
        """
        new $CC -c a.c -o a.o
        sh echo '#define X 22' > sub/z.h
        new $CC -c a.c -o a.o
        hit $CC -c a.c -o a.o
        """,
    ),
    Property(
        "header-edited-back",
        C,
        _PLAIN,
        """
        new $CC -c a.c -o a.o
        sh echo '#define X 2' > x.h
        new $CC -c a.c -o a.o
        sh echo '#define X 1' > x.h
        hit $CC -c a.c -o a.o
        sh echo '#define X 2' > x.h
        hit $CC -c a.c -o a.o
        """,
    ),
    Property(
        "header-edited-same-size",
        C,
        _PLAIN,
        """
        new $CC -c a.c -o a.o
        sh echo '#define X 2' > x.h
        new $CC -c a.c -o a.o
        """,
    ),
    Property(
        "header-edited-same-size-and-time",
        C,
        _PLAIN,
        """
        new $CC -c a.c -o a.o
        hit $CC -c a.c -o a.o
        sh cp -p x.h stamp; echo '#define X 2' > x.h; touch -r stamp x.h
        new $CC -c a.c -o a.o
        """,
        quick=True,
    ),
    Property(
        "source-edited-same-size-and-time",
        C,
        {"a.c": "int f(void) { return 1; }\n"},
        """
        new $CC -c a.c -o a.o
        hit $CC -c a.c -o a.o
        sh cp -p a.c stamp; echo 'int f(void) { return 2; }' > a.c; touch -r stamp a.c
        new $CC -c a.c -o a.o
        """,
    ),
    Property(
        "header-touched",
        C,
        _PLAIN,
        """
        new $CC -c a.c -o a.o
        sh touch x.h a.c
        hit $CC -c a.c -o a.o
        sh touch -d '2001-02-03' x.h
        hit $CC -c a.c -o a.o
        """,
    ),
    Property(
        "header-replaced-by-rename",
        C,
        _PLAIN,
        """
        new $CC -c a.c -o a.o
        sh echo '#define X 2' > n; mv n x.h
        new $CC -c a.c -o a.o
        sh echo '#define X 1' > n; mv n x.h
        hit $CC -c a.c -o a.o
        """,
    ),
    Property(
        "header-removed",
        C,
        _PLAIN,
        """
        new $CC -c a.c -o a.o
        sh mv x.h y.h
        fail $CC -c a.c -o a.o
        sh mv y.h x.h
        hit $CC -c a.c -o a.o
        """,
    ),
    Property(
        "header-becomes-a-folder",
        C,
        {"a.c": _SOURCE, "one/x.h": _ONE, "two/x.h": _TWO},
        """
        new $CC -Ione -Itwo -c a.c -o a.o
        sh rm one/x.h; mkdir one/x.h
        any $CC -Ione -Itwo -c a.c -o a.o
        sh rmdir one/x.h; echo '#define X 1' > one/x.h
        hit $CC -Ione -Itwo -c a.c -o a.o
        """,
    ),
    Property(
        "missing-header-appears",
        C,
        {"a.c": _SOURCE},
        """
        fail $CC -c a.c -o a.o
        fail $CC -c a.c -o a.o
        sh echo '#define X 1' > x.h
        new $CC -c a.c -o a.o
        hit $CC -c a.c -o a.o
        """,
        quick=True,
    ),
    Property(
        "header-shadowed-in-the-search-path",
        C,
        {"a.c": _ANGLED, "one/other.h": "", "two/x.h": _ONE},
        """
        new $CC -Ione -Itwo -c a.c -o a.o
        hit $CC -Ione -Itwo -c a.c -o a.o
        sh echo '#define X 2' > one/x.h
        new $CC -Ione -Itwo -c a.c -o a.o
        sh rm one/x.h
        hit $CC -Ione -Itwo -c a.c -o a.o
        """,
        quick=True,
    ),
    Property(
        "header-shadowed-beside-the-source",
        C,
        {"src/a.c": _SOURCE, "inc/x.h": _ONE},
        """
        new $CC -Iinc -c src/a.c -o a.o
        sh echo '#define X 2' > src/x.h
        new $CC -Iinc -c src/a.c -o a.o
        """,
    ),
    Property(
        "header-shadowed-beside-its-includer",
        C,
        {"a.c": '#include "sub/y.h"\nint f(void) { return X; }\n', "sub/y.h": '#include "x.h"\n', "x.h": _ONE},
        """
        new $CC -I. -c a.c -o a.o
        sh echo '#define X 2' > sub/x.h
        new $CC -I. -c a.c -o a.o
        """,
    ),
    Property(
        "system-header-shadowed",
        C,
        {"a.c": "#include <stddef.h>\nsize_t f(void) { return sizeof(size_t); }\n", "inc/other.h": ""},
        """
        new $CC -Iinc -c a.c -o a.o
        sh echo 'typedef short size_t;' > inc/stddef.h
        new $CC -Iinc -c a.c -o a.o
        """,
    ),
    Property(
        "search-folder-appears",
        C,
        {"a.c": _ANGLED, "two/x.h": _ONE},
        """
        new $CC -Ione -Itwo -c a.c -o a.o
        sh mkdir one; echo '#define X 2' > one/x.h
        new $CC -Ione -Itwo -c a.c -o a.o
        """,
    ),
    Property(
        "search-order",
        C,
        {"a.c": _ANGLED, "one/x.h": _ONE, "two/x.h": _TWO},
        """
        new $CC -Ione -Itwo -c a.c -o a.o
        new $CC -Itwo -Ione -c a.c -o a.o
        hit $CC -Ione -Itwo -c a.c -o a.o
        """,
    ),
    Property(
        "unrelated-files-appear",
        C,
        {"a.c": _SOURCE, "inc/x.h": _ONE},
        """
        new $CC -Iinc -c a.c -o a.o
        sh echo > inc/y.h; echo > b.c; mkdir inc/x
        hit $CC -Iinc -c a.c -o a.o
        """,
    ),
    Property(
        "has-include",
        C,
        {"a.c": _EITHER},
        """
        new $CC -c a.c -o a.o
        hit $CC -c a.c -o a.o
        sh echo '#define Y 1' > y.h
        new $CC -c a.c -o a.o
        sh rm y.h
        hit $CC -c a.c -o a.o
        """,
        quick=True,
    ),
    Property(
        "has-include-only-looks",
        C,
        {"a.c": "#if __has_include(<y.h>)\nint y;\n#endif\nint f;\n", "inc/y.h": "not C at all"},
        """
        new $CC -Iinc -c a.c -o a.o
        hit $CC -Iinc -c a.c -o a.o
        sh rm inc/y.h
        new $CC -Iinc -c a.c -o a.o
        """,
    ),
    Property(
        "include-next",
        C,
        {"a.c": _ANGLED, "one/x.h": "#include_next <x.h>\n", "two/y.h": "", "three/x.h": _ONE},
        """
        new $CC -Ione -Itwo -Ithree -c a.c -o a.o
        hit $CC -Ione -Itwo -Ithree -c a.c -o a.o
        sh echo '#define X 3' > three/x.h
        new $CC -Ione -Itwo -Ithree -c a.c -o a.o
        sh echo '#define X 2' > two/x.h
        new $CC -Ione -Itwo -Ithree -c a.c -o a.o
        """,
    ),
    Property(
        "include-by-absolute-path",
        C,
        {"x.h": _ONE},
        """
        sh printf '#include "%s/x.h"\\nint f(void) { return X; }\\n' $W > a.c
        new $CC -c a.c -o a.o
        hit $CC -c a.c -o a.o
        sh echo '#define X 2' > x.h
        new $CC -c a.c -o a.o
        """,
    ),
    Property(
        "include-by-a-macro",
        C,
        {"a.c": "#include NAME\nint f(void) { return X; }\n", "x.h": _ONE, "y.h": _TWO},
        """
        new $CC -DNAME='"x.h"' -c a.c -o a.o
        new $CC -DNAME='"y.h"' -c a.c -o a.o
        hit $CC -DNAME='"x.h"' -c a.c -o a.o
        sh echo '#define X 3' > y.h
        hit $CC -DNAME='"x.h"' -c a.c -o a.o
        new $CC -DNAME='"y.h"' -c a.c -o a.o
        """,
    ),
    Property(
        "include-of-a-parent-folder",
        C,
        {"src/a.c": '#include "../inc/../x.h"\nint f(void) { return X; }\n', "inc/other.h": "", "x.h": _ONE},
        """
        new $CC -c src/a.c -o a.o
        hit $CC -c src/a.c -o a.o
        sh echo '#define X 2' > x.h
        new $CC -c src/a.c -o a.o
        """,
    ),
    Property(
        "linked-header-retargeted",
        C,
        {"a.c": _SOURCE, "one.h": _ONE, "two.h": _TWO},
        """
        sh ln -s one.h x.h
        new $CC -c a.c -o a.o
        hit $CC -c a.c -o a.o
        sh ln -sfn two.h x.h
        new $CC -c a.c -o a.o
        sh echo '#define X 3' > two.h
        new $CC -c a.c -o a.o
        """,
    ),
    Property(
        "linked-search-folder-retargeted",
        C,
        {"a.c": _ANGLED, "one/x.h": _ONE, "two/x.h": _TWO},
        """
        sh ln -s one inc
        new $CC -Iinc -c a.c -o a.o
        hit $CC -Iinc -c a.c -o a.o
        sh ln -sfn two inc
        new $CC -Iinc -c a.c -o a.o
        """,
    ),
    Property(
        "linked-source-finds-headers-beside-the-link",
        C,
        {"real/a.c": _SOURCE, "real/x.h": _ONE, "here/x.h": _TWO},
        """
        sh ln -s ../real/a.c here/a.c
        new $CC -c here/a.c -o a.o
        hit $CC -c here/a.c -o a.o
        sh echo '#define X 3' > here/x.h
        new $CC -c here/a.c -o a.o
        sh rm here/x.h
        any $CC -c here/a.c -o a.o
        """,
    ),
    Property(
        "pragma-once-of-one-file-by-two-names",
        C,
        {
            "a.c": '#include "one/x.h"\n#include "two/x.h"\nint f(void) { return X; }\n',
            "one/x.h": "#pragma once\nenum { X = 1 };\n",
        },
        """
        sh mkdir two; ln one/x.h two/x.h
        new $CC -c a.c -o a.o
        hit $CC -c a.c -o a.o
        sh rm two/x.h; printf '#pragma once\\nenum { Y = 1 };\\n' > two/x.h
        new $CC -c a.c -o a.o
        """,
    ),
    Property(
        "search-folder-with-spaces",
        C,
        {"a.c": _ANGLED, "in c/x.h": _ONE},
        """
        new $CC '-Iin c' -c a.c -o 'a b.o'
        hit $CC '-Iin c' -c a.c -o 'a b.o'
        sh echo '#define X 2' > 'in c/x.h'
        new $CC '-Iin c' -c a.c -o 'a b.o'
        """,
    ),
    Property(
        "system-folders-silence-warnings",
        C,
        {"a.c": "#include <x.h>\n", "inc/x.h": "static int f(void) { int unused; return 1 / 0; }\n"},
        """
        new $CC -Wall -Iinc -c a.c -o a.o
        new $CC -Wall -isystem inc -c a.c -o a.o
        hit $CC -Wall -Iinc -c a.c -o a.o
        hit $CC -Wall -isystem inc -c a.c -o a.o
        sh echo 'int f;' > inc/x.h
        new $CC -Wall -isystem inc -c a.c -o a.o
        """,
    ),
    Property(
        "iquote-and-idirafter",
        C,
        {
            "a.c": '#include "x.h"\n#include <y.h>\nint f(void) { return X + Y; }\n',
            "q/x.h": _ONE,
            "d/y.h": "#define Y 1\n",
        },
        """
        new $CC -iquote q -idirafter d -c a.c -o a.o
        hit $CC -iquote q -idirafter d -c a.c -o a.o
        sh echo '#define X 2' > q/x.h
        new $CC -iquote q -idirafter d -c a.c -o a.o
        sh echo '#define Y 2' > d/y.h
        new $CC -iquote q -idirafter d -c a.c -o a.o
        """,
    ),
    Property(
        "include-flag",
        C,
        {"a.c": "int f(void) { return X; }\n", "x.h": _ONE},
        """
        new $CC -include x.h -c a.c -o a.o
        hit $CC -include x.h -c a.c -o a.o
        sh echo '#define X 2' > x.h
        new $CC -include x.h -c a.c -o a.o
        """,
    ),
    Property(
        "imacros-flag",
        C,
        {"a.c": "int f(void) { return X; }\n", "x.h": "int ignored;\n" + _ONE},
        """
        new $CC -imacros x.h -c a.c -o a.o
        hit $CC -imacros x.h -c a.c -o a.o
        sh echo '#define X 2' > x.h
        new $CC -imacros x.h -c a.c -o a.o
        """,
    ),
    Property(
        "include-of-dev-null",
        C,
        {"a.c": "int f(void) { return 1; }\n"},
        """
        new $CC -include /dev/null -c a.c -o a.o
        hit $CC -include /dev/null -c a.c -o a.o
        """,
    ),
    Property(
        "cpath",
        C,
        {"a.c": _ANGLED, "one/x.h": _ONE, "two/x.h": _TWO},
        """
        new CPATH=one $CC -c a.c -o a.o
        hit CPATH=one $CC -c a.c -o a.o
        new CPATH=two:one $CC -c a.c -o a.o
        sh mv two/x.h two/y.h
        new CPATH=two:one $CC -c a.c -o a.o
        fail $CC -c a.c -o a.o
        """,
    ),
    Property(
        "cpath-with-an-empty-entry",
        C,
        {"a.c": _ANGLED, "one/x.h": _ONE},
        """
        new CPATH=:one $CC -c a.c -o a.o
        hit CPATH=:one $CC -c a.c -o a.o
        sh echo '#define X 2' > x.h
        new CPATH=:one $CC -c a.c -o a.o
        """,
    ),
    Property(
        "c-include-path",
        C,
        {"a.c": _ANGLED, "one/x.h": _ONE, "two/y.h": ""},
        """
        new C_INCLUDE_PATH=two:one $CC -c a.c -o a.o
        hit C_INCLUDE_PATH=two:one $CC -c a.c -o a.o
        sh echo '#define X 2' > two/x.h
        new C_INCLUDE_PATH=two:one $CC -c a.c -o a.o
        """,
    ),
    Property(
        "cplus-include-path",
        CXX,
        {"a.cpp": "#include <x.h>\nint f() { return X; }\n", "one/x.h": _ONE, "two/y.h": ""},
        """
        new CPLUS_INCLUDE_PATH=two:one $CC -c a.cpp -o a.o
        hit CPLUS_INCLUDE_PATH=two:one $CC -c a.cpp -o a.o
        sh echo '#define X 2' > two/x.h
        new CPLUS_INCLUDE_PATH=two:one $CC -c a.cpp -o a.o
        """,
    ),
    Property(
        "sysroot",
        C,
        {"a.c": _ANGLED, "root/usr/include/x.h": _ONE},
        """
        new $CC --sysroot=root -c a.c -o a.o
        may $CC --sysroot=root -c a.c -o a.o
        sh echo '#define X 2' > root/usr/include/x.h
        new $CC --sysroot=root -c a.c -o a.o
        sh mkdir -p root/usr/local/include; echo '#define X 3' > root/usr/local/include/x.h
        new $CC --sysroot=root -c a.c -o a.o
        """,
    ),
    Property(
        "iwithprefix",
        C,
        {"a.c": _ANGLED, "pre/inc/x.h": _ONE},
        """
        new $CC -iprefix $W/pre/ -iwithprefix inc -c a.c -o a.o
        may $CC -iprefix $W/pre/ -iwithprefix inc -c a.c -o a.o
        sh echo '#define X 2' > pre/inc/x.h
        new $CC -iprefix $W/pre/ -iwithprefix inc -c a.c -o a.o
        """,
    ),
    Property(
        "unity-build",
        C,
        {"all.c": '#include "a.c"\n#include "b.c"\n', "a.c": "int a = 1;\n", "b.c": "int b = 1;\n"},
        """
        new $CC -c all.c -o all.o
        hit $CC -c all.c -o all.o
        sh echo 'int b = 2;' > b.c
        new $CC -c all.c -o all.o
        """,
    ),
    Property(
        "incbin",
        C,
        {"a.c": 'asm(".section .rodata\\nd: .incbin \\"data.bin\\"\\n");\nint f;\n', "data.bin": b"\x01\x02\x03"},
        """
        new $CC -c a.c -o a.o
        may $CC -c a.c -o a.o
        sh printf 'abc' > data.bin
        new $CC -c a.c -o a.o
        sh rm data.bin
        fail $CC -c a.c -o a.o
        """,
        quick=True,
    ),
    Property(
        "incbin-in-a-header",
        C,
        {"a.c": '#include "x.h"\n', "x.h": 'asm("d: .inc" "bin \\"data.bin\\"");\n', "data.bin": b"\x01\x02\x03"},
        """
        new $CC -c a.c -o a.o
        may $CC -c a.c -o a.o
        sh printf 'abc' > data.bin
        new $CC -c a.c -o a.o
        """,
    ),
    Property(
        "incbin-found-by-the-search-path",
        C,
        {"a.c": 'asm("d: .incbin \\"data.bin\\"");\n', "two/data.bin": "two", "one/other": ""},
        """
        new $CC -Wa,-Ione -Wa,-Itwo -c a.c -o a.o
        may $CC -Wa,-Ione -Wa,-Itwo -c a.c -o a.o
        sh printf one > one/data.bin
        new $CC -Wa,-Ione -Wa,-Itwo -c a.c -o a.o
        """,
    ),
    Property(
        "assembler-include",
        C,
        {"a.c": 'asm(".include \\"x.inc\\"");\n', "x.inc": ".long 1\n"},
        """
        new $CC -c a.c -o a.o
        may $CC -c a.c -o a.o
        sh echo '.long 2' > x.inc
        new $CC -c a.c -o a.o
        """,
    ),
    Property(
        "assembler-source",
        C,
        {"a.S": '#include "x.h"\n.data\nd: .long X\n', "x.h": _ONE},
        """
        new $CC -c a.S -o a.o
        hit $CC -c a.S -o a.o
        sh echo '#define X 2' > x.h
        new $CC -c a.S -o a.o
        """,
    ),
    Property(
        "assembler-source-without-preprocessor",
        C,
        {"a.s": '.data\n.include "x.inc"\n', "x.inc": ".long 1\n"},
        """
        new $CC -c a.s -o a.o
        may $CC -c a.s -o a.o
        sh echo '.long 2' > x.inc
        new $CC -c a.s -o a.o
        """,
    ),
    Property(
        "embed",
        CLANG,
        {"a.c": 'const unsigned char d[] = {\n#embed "data.bin"\n};\n', "data.bin": "abc"},
        """
        new $CC -std=c23 -c a.c -o a.o
        may $CC -std=c23 -c a.c -o a.o
        sh printf xyz > data.bin
        new $CC -std=c23 -c a.c -o a.o
        sh printf 'longer' > data.bin
        new $CC -std=c23 -c a.c -o a.o
        """,
    ),
    Property(
        "has-embed",
        CLANG,
        {"a.c": '#if __has_embed("data.bin") == 1\nint yes;\n#else\nint no;\n#endif\n'},
        """
        new $CC -std=c23 -c a.c -o a.o
        may $CC -std=c23 -c a.c -o a.o
        sh printf xyz > data.bin
        new $CC -std=c23 -c a.c -o a.o
        sh : > data.bin
        new $CC -std=c23 -c a.c -o a.o
        """,
    ),
    Property(
        "preprocessed-input",
        C,
        _PLAIN,
        """
        sh $NAME -E a.c -o a.i
        new $CC -c a.i -o a.o
        hit $CC -c a.i -o a.o
        sh echo '#define X 2' > x.h
        hit $CC -c a.i -o a.o
        sh $NAME -E a.c -o a.i
        new $CC -c a.i -o a.o
        """,
    ),
    Property(
        "response-file",
        C,
        {**_PLAIN, "args": "-DY=1 -c a.c\n"},
        """
        new $CC @args -o a.o
        hit $CC @args -o a.o
        sh echo '-DX=2 -c a.c' > args
        new $CC @args -o a.o
        sh echo '-Wall -Wextra -c a.c -DY=1' > args
        new $CC @args -o a.o
        """,
    ),
    Property(
        "nested-response-files",
        C,
        {
            "a.c": "#include <x y.h>\nint f(void) { return X; }\n",
            "in c/x y.h": _ONE,
            "args": "@more -c a.c",
            "more": '"-Iin c"',
        },
        """
        new $CC @args -o a.o
        hit $CC @args -o a.o
        sh echo '"-Iin c" -DNDEBUG -O2' > more
        new $CC @args -o a.o
        sh echo '#define X 2' > 'in c/x y.h'
        new $CC @args -o a.o
        """,
    ),
    Property(
        "missing-response-file",
        C,
        _PLAIN,
        """
        fail $CC @args -c a.c -o a.o
        sh echo '-DY' > args
        new $CC @args -c a.c -o a.o
        """,
    ),
    Property(
        "standard-input",
        C,
        {"a.c": _SOURCE, "b.c": "int b;\n", "x.h": _ONE},
        """
        new $CC -x c -c - -o a.o < a.c
        hit $CC -x c -c - -o a.o < a.c
        new $CC -x c -c - -o a.o < b.c
        hit cat a.c | $CC -x c -c - -o a.o
        sh echo '#define X 2' > x.h
        new $CC -x c -c - -o a.o < a.c
        """,
    ),
    Property(
        "assembler-embeds-a-missing-file",
        C,
        {"a.c": 'asm("d: .incbin \\"data.bin\\"");\n'},
        """
        fail $CC -c a.c -o a.o
        sh echo > data.bin
        new $CC -c a.c -o a.o
        """,
    ),
    Property(
        "header-in-a-folder-that-was-moved",
        C,
        {"a.c": _SOURCE, "one/x.h": _ONE, "two/x.h": _TWO},
        """
        new $CC -Iinc -Ione -c a.c -o a.o
        sh mv two inc
        new $CC -Iinc -Ione -c a.c -o a.o
        sh mv inc two
        hit $CC -Iinc -Ione -c a.c -o a.o
        """,
    ),
    Property(
        "line-endings",
        C,
        {"a.c": 'const char *s = "a\\\nb"; int n = __LINE__;\n'},
        """
        new $CC -c a.c -o a.o
        sh printf 'int n =\\r\\n__LINE__;\\r\\n' > a.c
        new $CC -c a.c -o a.o
        hit $CC -c a.c -o a.o
        """,
    ),
    Property(
        "empty-source",
        C,
        {"a.c": ""},
        """
        new $CC -c a.c -o a.o
        hit $CC -c a.c -o a.o
        sh echo 'int a;' > a.c
        new $CC -c a.c -o a.o
        """,
    ),
    Property(
        "pragma-dependency",
        GCC,
        {"a.c": '#pragma GCC dependency "x.h" look again\nint f;\n', "x.h": ""},
        """
        sh touch -d '2001-02-03' x.h
        new $CC -c a.c -o a.o
        sh touch -d '2031-02-03' x.h
        new $CC -c a.c -o a.o
        """,
    ),
    Property(
        "pragma-once-of-equal-files",
        GCC,
        {
            "a.c": '#include "one/x.h"\n#include "two/x.h"\n',
            "one/x.h": "#pragma once\nextern int x; static int y;\n",
            "two/x.h": "#pragma once\nextern int x; static int y;\n",
        },
        """
        sh touch -d '2001-02-03' one/x.h two/x.h
        new $CC -E a.c -o a.i
        sh touch -d '2001-02-04' two/x.h
        new $CC -E a.c -o a.i
        """,
    ),
)
