"""Tables of Python's library that a program filled before a stage asks: another process with other content misses."""

from __future__ import annotations

import json
from pathlib import Path

from .conftest import Program

#: By what is filled: before the stage is called, and in it. ``V`` is what differs: ``one``, ``two``; ``v.txt`` has it.
TABLES = {
    "mimetypes by a file": ("import mimetypes\nmimetypes.init(['v.types'])", "mimetypes.guess_type('a.zzq')"),
    "mimetypes by a call": ("import mimetypes\nmimetypes.add_type('x/' + V, '.zzq')", "mimetypes.guess_type('a.zzq')"),
    "mimetypes under another name": (
        "from mimetypes import add_type, guess_extension as g\nadd_type('x/y', '.zz' + V)",
        "g('x/y')",
    ),
    "encodings.aliases": (
        "import encodings.aliases as e\ne.aliases['zz' + 'q'] = 'utf_8' if V == 'one' else 'latin_1'",
        "str('é'.encode('zzq'))",
    ),
    "linecache": ("import linecache\nlinecache.getlines('v.txt')", "linecache.getline('v.txt', 1)"),
    "linecache that is stale": (
        "import linecache, os\nlinecache.getlines('v.txt')\nos.rename('v.txt', 'w.txt')",
        "linecache.getline('v.txt', 1)",
    ),
    "gettext's folder": ("import gettext\ngettext.bindtextdomain('d', V)", "gettext.bindtextdomain('d')"),
    "gettext's domain": ("import gettext\ngettext.textdomain(V)", "gettext.textdomain()"),
    "gettext's catalog": (
        "import gettext, os, struct\nos.makedirs('l/de/LC_MESSAGES', exist_ok=True)\n"
        "with open('l/de/LC_MESSAGES/d.mo', 'wb') as file:\n"
        "    file.write(struct.pack('<7I', 0x950412de, 0, 1, 28, 36, 0, 0) + struct.pack('<4I', 2, 44, len(V), 47))\n"
        "    file.write(b'hi\\0' + V.encode() + b'\\0')\n"
        "T = lambda: gettext.translation('d', 'l', ['de'])\nT()\nos.remove('l/de/LC_MESSAGES/d.mo')\n"
        "open('l/de/LC_MESSAGES/d.mo', 'wb').close()",
        "gettext.translation('d', 'l', ['de']).gettext('hi')",
    ),
    "email.charset": (
        "import email.charset\nemail.charset.add_alias('zz', 'x-' + V)",
        "email.charset.Charset('zz').input_charset",
    ),
    "ElementTree": (
        "import xml.etree.ElementTree as ET\nET.register_namespace(V, 'http://a')",
        "ET.tostring(ET.Element('{http://a}b')).decode()",
    ),
    "sqlite3": (
        "import sqlite3\nclass C: ...\n"
        "sqlite3.register_adapter(C, (lambda c: 'one') if V == 'one' else (lambda c: 'two'))",
        "sqlite3.connect(':memory:').execute('select ?', (C(),)).fetchall()",
    ),
    "locale": ("import locale\nlocale.locale_alias['zz'] = V", "locale.normalize('zz')"),
    "shutil": (
        "import shutil\nshutil.register_archive_format('zz', lambda *a, **k: None, description=V)",
        "shutil.get_archive_formats()",
    ),
}
_STAGE = "import cachec\n{names}\n@cachec.Cache().stage\ndef stage():\n    return {expression}\n"
_RUN = """
import json, os
V = os.environ["V"]
found = {}
for name, number in NAMES.items():
    with open("v.txt", "w") as file: file.write(V)
    with open("v.types", "w") as file: file.write(f"x/{V} zzq\\n")
    exec(FILLED[name], space := {"V": V, "__name__": "__main__"})
    stage = __import__(f"stage{number}").stage
    for each in ("C", "g"):
        if each in space: stage.__wrapped__.__globals__[each] = space[each]
    value, outcome = stage.call()
    found[name] = [repr(value), outcome.reason.value, repr(stage.__wrapped__())]
print(json.dumps(found))
"""


def test_a_table_that_was_filled_before_counts(tmp_path: Path, program: Program) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    for number, (filled, expression) in enumerate(TABLES.values()):
        names = "\n".join(each for each in filled.splitlines() if each.startswith(("import", "from")))
        (tmp_path / f"stage{number}.py").write_text(_STAGE.format(names=names, expression=expression))
    head = f"NAMES = { ({name: number for number, name in enumerate(TABLES)})!r}\n"
    head += f"FILLED = { ({name: filled for name, (filled, _) in TABLES.items()})!r}\n"
    (tmp_path / "run.py").write_text(head + _RUN)
    store = str(tmp_path / "store")
    for number, value in enumerate(("one", "two", "one", "two")):
        for name, (given, reason, wanted) in json.loads(
            program(tmp_path / "run.py", V=value, CACHEC_DIR=store)
        ).items():
            assert given == wanted, (name, value, reason)
            wanted = "hit" if number > 1 else "miss:"
            assert reason.startswith("bypass:volatile-input" if "stale" in name else wanted), (name, value)
