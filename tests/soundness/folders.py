"""Generated C projects, and what another folder may hold of them: equal files, or one that is changed, added or gone.

A header is found beside who includes it, or by one of the search; headers include others by plain, computed and
relative names, or where ``__has_include`` finds them. In a line ``$P`` is the folder of the project.
"""

from __future__ import annotations

import random
from typing import NamedTuple

_FOLDERS = ("", "inc", "inc/deep", "sys", "include", "src")
_HEADERS = ("x.h", "y.h", "z.h")
_SEARCH = ("-I{}", "-I{}", "-I./{}", "-I{}/", "-I$P/{}", "-iquote {}", "-isystem {}", "-isystem ./{}", "-idirafter {}")
_NAMES = ('"{}"', '"{}"', "<{}>", "<{}>", '"deep/{}"', "<deep/{}>", '"../{}"', '"include/{}"', "<../inc/{}>")

#: Begins the text of what is a link.
LINK = "-> "


class Layout(NamedTuple):
    """files: by name. base: whether paths count from the checkout that the project lies in, from a folder above all
    checkouts, or from nowhere (empty). A project may look above itself, and not above its checkout."""

    name: str
    line: str
    files: dict[str, str]
    env: dict[str, str]
    base: str

    @property
    def stays(self) -> bool:
        """Whether another folder with equal files is another call: the current folder counts, from the base folder."""
        is_debug = "-g" in f"{self.line} {self.files.get('flags')}".split()
        return self.base != "checkout" or is_debug or "$P" in "".join(self.env.values())


def layout(rng: random.Random, compiler: str) -> Layout:
    """One that may not compile."""
    source = rng.choice(["a.c", "a.c", "src/a.c"])
    wanted = [rng.choice(_NAMES).format(name) for name in _HEADERS if rng.random() < 0.8]
    files = {source: "".join(_include(rng, name) for name in wanted) + _values()}
    for number, name in enumerate(_HEADERS):
        for folder in rng.sample(_FOLDERS, rng.choice([1, 1, 2])):
            later = [rng.choice(_NAMES).format(other) for other in _HEADERS[number + 1 :] if rng.random() < 0.5]
            text = header(name, rng.randrange(1, 50)) + "".join(_include(rng, other) for other in later)
            files[f"{folder}/{name}".lstrip("/")] = text
    flags = [rng.choice(_SEARCH).format(folder or ".") for folder in rng.sample(_FOLDERS, rng.randrange(4))]
    for flag, share in {"-g": 0.1, "-MD -MF a.d": 0.1, "-MMD": 0.1, "-Wall": 0.2}.items():
        flags += [flag] if rng.random() < share else []
    if rng.random() < 0.15 and "x.h" in files:
        flags.append("-include x.h")
    line = " ".join(flags)
    if rng.random() < 0.2:
        files["flags"], line = line.replace("$P/", ""), "@flags"
    env = {"CPATH": rng.choice(["inc", "sys:include", ":inc", "$P/sys"])} if rng.random() < 0.15 else {}
    shown = f"$P/{source}" if rng.random() < 0.15 else source
    return Layout(
        f"{compiler} {shown} {line}",
        f"{compiler} -c {shown} -o a.o {line}",
        files,
        env,
        rng.choice(["", "checkout", "checkout", "checkout", "above"]),
    )


def header(name: str, number: int) -> str:
    """The text of a header that says which one it is."""
    return f"{'#pragma once' if number % 3 == 0 else ''}\n#undef {_macro(name)}\n#define {_macro(name)} {number}\n"


def edited(rng: random.Random, files: dict[str, str]) -> tuple[str, dict[str, str]]:
    """(what was done, the files then)."""
    there = [path for path in files if path.endswith(".h")]
    what = rng.choice(["changed", "changed", "added", "added", "added", "gone", "linked"])
    path = rng.choice(there)
    name = rng.choice(_HEADERS)
    files = dict(files)
    if rng.random() < 0.1:  # one folder by two names
        name, other = rng.sample(["inc", "sys", "include"], 2)
        files = {path: text for path, text in files.items() if not path.startswith(f"{name}/")}
        files[name] = LINK + other
        return f"{name} linked", files
    if what == "changed":
        files[path] += header(name, rng.randrange(50, 100))
    elif what == "gone":
        del files[path]
    elif what == "linked":
        files["elsewhere/l.h"] = header(path.rpartition("/")[2], rng.randrange(50, 100))
        files[path] = LINK + "../" * path.count("/") + "elsewhere/l.h"
    else:
        folder = rng.choice([*_FOLDERS, "src/deep", "inc/include", "include/deep"])
        path = f"{folder}/{name}".lstrip("/")
        files[path] = files.get(path, "") + header(name, rng.randrange(50, 100))
    return f"{path} {what}", files


def _include(rng: random.Random, name: str) -> str:
    way = rng.randrange(6)
    if way == 0:
        return f"#undef H\n#define H {name}\n#include H\n"
    if way < 3:
        return f"#if __has_include({name})\n#include {name}\n#endif\n"
    if way == 3:
        return f"#undef HAS\n#define HAS(x) __has_include(x)\n#if HAS({name})\n#include {name}\n#endif\n"
    return f"#include {name}\n"


def _values() -> str:
    unset = "".join(f"#ifndef {_macro(name)}\n#define {_macro(name)} 0\n#endif\n" for name in _HEADERS)
    return f"{unset}int f[] = {{{', '.join(map(_macro, _HEADERS))}}};\n"


def _macro(name: str) -> str:
    return "V_" + name[0]
