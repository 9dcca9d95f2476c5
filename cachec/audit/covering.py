"""What the key of a command covers, or needs not to cover."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from cachec.base.distributions import Distributions
from cachec.errors import UsageError
from cachec.key.tools.executables import Finder
from cachec.launcher.command import Command
from cachec.launcher.places import Places
from cachec.launcher.request import helper_path
from cachec.model import Read

#: Files of the system that say nothing of a result: of the kernel, the loader, the locale, and users' names.
_SYSTEM = re.compile(
    r"/(?:proc|sys|dev)(?:/|\Z)"
    r"|/etc/(?:ld\.so\.|locale|localtime\Z|nsswitch\.conf\Z|passwd\Z|group\Z|host\.conf\Z|resolv\.conf\Z|hosts\Z"
    r"|os-release\Z|lsb-release\Z|debian_version\Z|mtab\Z)"
    r"|/usr/lib/os-release\Z"
    r"|/usr/(?:lib/locale|share/locale|share/zoneinfo|share/i18n)(?:/|\Z)"
    r"|/(?:usr/)?lib(?:64)?/(?:[^/]*/)?(?:gconv/|libnss_[^/]*\Z|ld-linux)"
    r"|/(?:var/)?run/nscd/"
)

#: What Python looks at when it starts, beside the modules that it imports.
_PYTHON_START = re.compile(
    r"/pyvenv\.cfg\Z|\.pth\Z|/site-packages\Z|/dist-packages\Z|\.dist-info(?:/|\Z)|/__pycache__\Z"
    r"|/_distutils_hack/|\._pth\Z|/pybuilddir\.txt\Z|/Modules/Setup\.local\Z|/python3\d+\.zip\Z|/lib-dynload\Z"
)

#: Where the loader looks for libraries: the key of an executable sees to it that a new one there counts.
_LOADER = re.compile(r"/glibc-hwcaps(?:/|\Z)|/tls(?:/|\Z)|/lib(?:64)?(?:/(?:x86_64|haswell))+\Z|\.so(?:\.[\d.]+)?\Z")

_SITE = re.compile(r"/(?:site|dist)-packages(?:/|\Z)")
_LIBRARY = re.compile(r"(.*/lib(?:64)?/python3(?:\.\d+)?)(?:/(?!site-packages/|dist-packages/)|\Z|\d*\.zip)")


class Covered:
    """Answers for one path at a time: which part of the key covers it, in words; empty for none."""

    def __init__(
        self,
        command: Command,
        environ: Mapping[str, str],
        reads: Iterable[Read],
        places: Places,
        distributions: Distributions,
    ) -> None:
        """environ: what the command was given. reads: what a run of the launcher would keep beside the key.
        distributions: those of the compiler's environment."""
        self._files: dict[str, str] = {}
        self._folders: dict[str, str] = {}
        self._absent: set[str] = set()
        self._listed: set[str] = set()
        self._distributions = distributions
        self._owned: set[str] = set()
        self._interpreters: set[str] = set()
        # sys.path[0] of a script; the current folder may be listed for itself.
        self._imports = {os.path.realpath(os.path.dirname(command.program))} - {os.path.realpath(command.cwd)}
        self._argument_files(command)
        self._reads(reads, places)
        self._program(command.program, "the compiler", environ)
        adapter = command.adapter
        for name in (adapter.helpers if adapter is not None else ()) + command.options.tools:
            self._program(helper_path(name, command, environ), f"tool {name}", environ)
        if adapter is not None:
            self._owned.update(filter(None, (adapter.distribution, *adapter.also)))

    def file(self, path: str) -> str:
        """For a file that was read, or a program that was started."""
        if _SYSTEM.match(path):
            return "the system"
        real = os.path.realpath(path)
        for each in (path, real):
            if each in self._files:
                return self._files[each]
            for folder, why in self._folders.items():
                if each.startswith(folder + "/"):
                    return why
        return self._of_distribution(real)

    def listing(self, path: str) -> str:
        """For a folder whose names were read."""
        if _SYSTEM.match(path) or _PYTHON_START.search(path):
            return "the system"
        real = os.path.realpath(path)
        if path in self._listed or real in self._listed:
            return "the trace"
        if self._interpreters and (real in self._imports or _SITE.search(real)):
            return "the imports of the interpreter"
        return self.file(path + "/.") or self._of_distribution(real + "/")

    def missed(self, path: str) -> str:
        """For a file that was looked for in vain."""
        above = path
        while above not in {"/", ""}:
            if above in self._absent:
                return "the trace"
            above = os.path.dirname(above)
        if os.path.dirname(path) in self._listed:
            return "the trace"
        if _PYTHON_START.search(path) or _LOADER.search(path):
            return "the system"
        return self.listing(os.path.dirname(path))

    def add_imports(self, reads: Iterable[str]) -> None:
        """Folders that Python looks through for modules, as the ``.pth`` files among ``reads`` say."""
        for path in reads:
            if not path.endswith(".pth"):
                continue
            try:
                with open(path, encoding="utf-8", errors="surrogateescape") as file:
                    lines = file.read().splitlines()
            except OSError:
                continue  # gone meanwhile; it was no folder's name then
            self._imports.update(os.path.realpath(os.path.join(os.path.dirname(path), line)) for line in lines if line)

    def add_program(self, path: str, environ: Mapping[str, str]) -> None:
        """From now on a program that the command started is covered, with what it loads: it was told already."""
        self._program(path, f"program {os.path.basename(path)}", environ)

    def _argument_files(self, command: Command) -> None:
        for each in command.inputs:
            place = self._folders if os.path.isdir(each.path) else self._files
            place[os.path.normpath(each.path)] = place[os.path.realpath(each.path)] = f"input {each.text}"
        for path in command.responses:
            self._files[os.path.normpath(os.path.join(command.cwd, path))] = "a response file"
        for path, key in command.weights.items():
            if key != "name":
                self._files[os.path.normpath(path)] = self._files[os.path.realpath(path)] = "weights"

    def _reads(self, reads: Iterable[Read], places: Places) -> None:
        for read in reads:
            path = os.path.normpath(places.present(read.where))
            if read.kind == "file":
                self._files[path] = self._files[os.path.realpath(path)] = "the trace"
            elif read.kind == "absent":
                self._absent.add(path)
            elif read.kind == "listing":
                self._listed.update((path, os.path.realpath(path)))

    def _program(self, path: str, words: str, environ: Mapping[str, str]) -> None:
        try:
            program = Finder(self._distributions).program(path, environ)
        except (UsageError, OSError):
            self._files[path] = words
            return
        self._files[program.path] = self._files[os.path.realpath(program.path)] = words
        for _, file in program.files:
            self._files.setdefault(os.path.realpath(file), words)
            if os.path.basename(os.path.realpath(file)).startswith("python3"):
                self._interpreters.add(file)
        self._owned.update(name for _, name in program.distributions)

    def owner(self, path: str) -> str:
        """The distribution that a file or a folder belongs to; empty for none."""
        real = os.path.realpath(path)
        source = re.sub(r"/__pycache__/([^/.]+)\.[^/]*\.pyc\Z", r"/\1.py", real)
        owner = self._distributions.owner(source) or self._distributions.owner(os.path.join(source, "__init__.py"))
        return "" if owner is None else owner.name

    def has_interpreter(self) -> bool:
        """Whether the command is a Python script, as far as that was told."""
        return bool(self._interpreters)

    def _of_distribution(self, real: str) -> str:
        if self._interpreters and _LIBRARY.match(real):
            return "the interpreter"
        if _PYTHON_START.search(real):
            return "the system"
        name = self.owner(real)
        return f"distribution {name}" if name in self._owned and name else ""


_SHARED_OBJECT = re.compile(r"/(?:usr/)?lib(?:64)?/.*\.so(?:\.[\d.]+)?\Z")


def is_shared_object(path: str) -> bool:
    """Whether a path is that of a library of the system."""
    return _SHARED_OBJECT.match(path) is not None


def is_of_the_system(path: str) -> bool:
    """Whether a path lies where only an administrator changes things."""
    return path.startswith(("/usr/", "/lib", "/etc/", "/bin/", "/sbin/", "/opt/", "/var/lib/"))
