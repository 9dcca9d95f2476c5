"""Which distributions are installed, which one owns a file, and which plugins they announce; nothing is imported.

Reads the installed-distribution database as the packaging specifications describe it ("Recording installed
projects", "Entry points", PEP 503 names): ``NAME-VERSION.dist-info`` folders with ``RECORD`` and
``entry_points.txt``. importlib.metadata reads the same, at 20 ms of imports and one METADATA parse a distribution.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from cachec.base import fsio
from cachec.base.fsio import Identity

#: The folder of the package cachec, of which no file is ever part of a user's project.
OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep

_SUFFIX = ".dist-info"
#: What setuptools and Debian's packages leave in place of it: without a RECORD, so nothing is known of its files.
_EGG = ".egg-info"

#: Common packages with another name than their distribution: their owners are checked first.
_LIKELY = {"_distutils_hack": "setuptools", "pkg_resources": "setuptools"}

#: Folders for executables of an installer; RECORD lists them with leading ``../``.
_SCRIPT_FOLDERS = frozenset({"bin", "Scripts"})


def normalise(name: str) -> str:
    """The normal form of a distribution's name (PEP 503): ``iree_base.Compiler`` is ``iree-base-compiler``."""
    name = name.lower().replace("_", "-").replace(".", "-")
    while "--" in name:
        name = name.replace("--", "-")
    return name


class RecordedFile(msgspec.Struct, frozen=True):
    """One file of a RECORD: path relative to the site folder, ``algorithm=base64`` or empty, bytes or -1."""

    path: str
    hash: str
    size: int


class InstallRecord(msgspec.Struct, frozen=True):
    """A RECORD as it was read: the file's identity then, and its rows."""

    identity: Identity
    rows: tuple[RecordedFile, ...]


class Distribution:
    """One installed distribution. ``root`` is the site folder that RECORD's paths are relative to."""

    def __init__(self, root: str, folder: str) -> None:
        stem = folder.removesuffix(_SUFFIX)
        name, _, self.version = stem.rpartition("-")
        if folder.endswith(_EGG):  # NAME-VERSION-py3.11, or NAME alone
            name, self.version = (*folder.removesuffix(_EGG).split("-"), "")[:2]
        self.name = normalise(name or stem)
        self.root = root
        self.folder = os.path.join(root, folder)
        self.record_path = f"{self.folder}/RECORD"
        self.is_vendored = os.path.basename(root) == "_vendor"  # a copy that is part of another distribution
        self._text: tuple[Identity, bytes] | None = None
        self._other_rows: tuple[Identity, bytes] | None = None
        self._record: InstallRecord | None = None
        self._packages: tuple[Identity, tuple[str, ...]] | None = None

    def __repr__(self) -> str:
        return f"Distribution({self.name} {self.version})"

    def read(self, name: str) -> str:
        """Return the text of a file in the dist-info folder; empty for a missing file."""
        try:
            with open(os.path.join(self.folder, name), encoding="utf-8", errors="replace") as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):  # some are one file
            return ""

    def record(self) -> InstallRecord | None:
        """The rows of RECORD, read again when the file changed; None where the installer left no RECORD."""
        text = self.record_text()
        if text is None:
            return None
        if self._record is None or self._record.identity != text[0]:
            self._record = InstallRecord(text[0], parse_record(text[1].decode("utf-8", "surrogateescape")))
        return self._record

    def lists(self, relative: str) -> bool:
        """Whether RECORD has a row for this path. A search in the text: no row is parsed."""
        text = self.record_text()
        if text is None:
            return False
        row = _quote_path(relative).encode("utf-8", "surrogateescape") + b","
        if row.startswith(b"../"):  # such as a program: cached, because a server reads one after another
            if self._other_rows is None or self._other_rows[0] != text[0]:
                self._other_rows = (text[0], _rows_of_other_folders(text[1]))
            return b"\n" + row in self._other_rows[1]
        return b"\n" + row in text[1] or text[1].startswith(row)

    def entry_points(self, group: str) -> dict[str, str]:
        """Name to ``module:attribute`` of one group of ``entry_points.txt``."""
        return parse_entry_points(self.read("entry_points.txt"), group)

    @property
    def direct_url_path(self) -> str:
        """Where an installer says whence it came, if it does (PEP 610)."""
        return f"{self.folder}/direct_url.json"

    @property
    def editable(self) -> bool:
        """Whether this is an editable install (PEP 610), with modules in another folder, which RECORD does not list."""
        text = self.read("direct_url.json")
        if not text:
            return False
        import msgspec  # here and below: the help of the command line asks for entry points alone

        from cachec.model import MALFORMED_JSON

        try:
            info = msgspec.json.decode(text, type=dict[str, Any]).get("dir_info")
        except MALFORMED_JSON:
            return False  # damaged: what RECORD says is all there is to go by
        return isinstance(info, dict) and info.get("editable") is True

    @property
    def packages(self) -> tuple[str, ...]:
        """Where cachec's packages are, and its plugins', if this is the editable install that it runs from. None for
        any other distribution: what else is installed in that way is the user's own code."""
        if self.name != "cachec":
            return ()
        record = self.record()
        if record is None:
            return ()
        if self._packages is None or self._packages[0] != record.identity:
            self._packages = (record.identity, self._found_packages(record) if self.editable else ())
        return self._packages[1]

    def _found_packages(self, record: InstallRecord) -> tuple[str, ...]:
        named = [row.path for row in record.rows if row.path.endswith(".pth")]
        lines = [line.strip() for name in named for line in self.read(os.path.join(os.pardir, name)).splitlines()]
        places = [os.path.normpath(line) for line in lines if os.path.isabs(line)]
        own = OWN_FOLDER.rstrip(os.sep)
        if os.path.dirname(own) not in places:
            return ()  # another cachec
        offered = self.entry_points("cachec.plugins").values()
        tops = dict.fromkeys(["cachec_startup", *(target.partition(":")[0].partition(".")[0] for target in offered)])
        found = (os.path.join(place, top) for place in dict.fromkeys(places) for top in tops)
        return (own, *(folder for folder in found if os.path.isdir(folder)))

    def record_text(self) -> tuple[Identity, bytes] | None:
        """RECORD as it is, with the identity that it was read with; None where the installer left none."""
        try:
            known, state = self._text, os.stat(self.record_path)
            if known is not None and known[0] == fsio.identity_fields(state):
                return known
            with open(self.record_path, "rb") as file:  # a line ends in "\n", or in pip's "\r\n"
                self._text = (fsio.identity_of(state), file.read())
        except FileNotFoundError:
            return None
        return self._text


def _rows_of_other_folders(text: bytes) -> bytes:
    """The rows of a RECORD about files outside of the site folder, each behind a line feed."""
    text = b"\n" + text
    rows = []
    at = text.find(b"\n../")
    while at >= 0:
        end = text.find(b"\n", at + 1)
        rows.append(text[at : end if end >= 0 else len(text)])
        at = text.find(b"\n../", at + 1)
    return b"".join(rows)


def _quote_path(path: str) -> str:
    """A path as the csv writer of an installer would put it."""
    return '"' + path.replace('"', '""') + '"' if any(c in path for c in ',"\n\r') else path


#: The largest size of a file has 19 digits.
_SIZE_DIGITS = 20


def parse_record(text: str) -> tuple[RecordedFile, ...]:
    """The rows of a RECORD. A malformed size reads as -1 (unknown), so that the file counts by content."""
    lines = [line.split(",") for line in text.splitlines() if line]
    if '"' in text:
        import csv

        with contextlib.suppress(csv.Error):  # a field of 128 KiB: no path, so quotes mean nothing
            lines = [row for row in csv.reader(text.splitlines(keepends=True)) if row]
    rows = []
    for fields in lines:
        path, digest, size = (*fields, "", "")[:3]
        is_size = size.isascii() and size.isdigit() and len(size) < _SIZE_DIGITS
        rows.append(RecordedFile(path, digest, int(size) if is_size else -1))
    return tuple(rows)


def parse_entry_points(text: str, group: str) -> dict[str, str]:
    """One group of an ``entry_points.txt``; extras in brackets are dropped, as the specification asks of readers."""
    targets: dict[str, str] = {}
    section = ""
    for line in text.splitlines():
        line = line.strip()
        if not line or line[0] in "#;":
            continue
        if line[0] == "[" and line[-1] == "]":
            section = line[1:-1].strip()
        elif section == group:
            name, equals, value = line.partition("=")
            if equals:
                targets[name.strip()] = value.partition("[")[0].strip()
    return targets


class _Site:
    """One folder of the path and the distributions in it, listed again when the folder changed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.roots: tuple[str, ...] = (path,)
        self.distributions: dict[str, Distribution] = {}
        self._state: _FolderState = ()
        self._calm = False

    def refresh(self) -> bool:
        """List the folder if its state says so; whether a distribution may have come, gone or changed."""
        try:
            found = os.stat(self.path)
            # Its time alone is not enough: installers of images and copies set it back.
            state = found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns
            if state == self._state and self._calm:
                return False
            # A change in the same clock tick as this listing would not show, so such a listing is not cached.
            self._calm = time.time() - max(state[2:]) / 1e9 > fsio.SETTLE_SECONDS
            listed = _list_distributions if self._calm else _list_distributions.__wrapped__
            fresh = listed(self.path, state)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            changed = bool(self.distributions)
            self.distributions, self._state = {}, ()
            return changed
        was = self.distributions
        changed = state != self._state and bool(fresh or was)
        self._state = state
        self.roots = tuple(dict.fromkeys((self.path, os.path.realpath(self.path))))
        self.distributions = {each.name: each for each in fresh}
        return changed or self.distributions != was

    def eggs(self) -> tuple[Distribution, ...]:
        """Those of the folder, as it was listed last, that have no dist-info."""
        return _eggs(self.path, self._state) if self._calm else _eggs.__wrapped__(self.path, self._state)


#: Device, inode and times of a folder; empty where it is not known.
_FolderState = tuple[int, ...]


@lru_cache(maxsize=256)
def _list_distributions(path: str, state: _FolderState) -> tuple[Distribution, ...]:
    """Return the distributions in a folder, cached for the process and the children of a server.

    state: the folder's state, old enough that a later change shows in it.
    """
    del state
    return tuple(_distribution(path, name) for name in sorted(os.listdir(path)) if name.endswith(_SUFFIX))


@lru_cache(maxsize=256)
def _eggs(path: str, state: _FolderState) -> tuple[Distribution, ...]:
    """The same of those without dist-info."""
    names = sorted(os.listdir(path)) if state else ()
    return tuple(_distribution(path, name) for name in names if name.endswith(_EGG))


@lru_cache(maxsize=4096)
def _distribution(root: str, folder: str) -> Distribution:
    """Return the one object of a distribution. It checks the identity of its files before it uses their content."""
    return Distribution(root, folder)


def _site_place(path: str) -> str:
    """Return the folder of an entry of ``sys.path``."""
    return path if path.startswith(os.sep) else os.path.abspath(path)


class Distributions:
    """The distributions found on a path (``sys.path`` as it is at each call, unless one is given)."""

    def __init__(self, path: Sequence[str] | None = None) -> None:
        self._given = None if path is None else tuple(path)
        self._paths: tuple[str, ...] = ()
        self._sites: dict[str, _Site] = {}
        self._owners: dict[str, Distribution | None] = {}
        self._by_top: dict[str, Distribution] = {}
        self._plugins: dict[str, dict[str, str]] = {}

    def __iter__(self) -> Iterator[Distribution]:
        """Every distribution that an import would see: the first of a name on the path."""
        by_name: dict[str, Distribution] = {}
        for site in self._refresh_sites():
            for name, distribution in site.distributions.items():
                by_name.setdefault(name, distribution)
        return iter(by_name.values())

    def all_installed(self) -> Iterator[Distribution]:
        """Every distribution that ``importlib.metadata`` would find: also those that have no dist-info."""
        self._refresh_sites()
        by_name: dict[str, Distribution] = {}
        for path in self._paths:
            site = self._sites[_site_place(path)]
            for each in (*site.distributions.values(), *site.eggs()):
                by_name.setdefault(each.name, each)
        return iter(by_name.values())

    def find(self, name: str) -> Distribution | None:
        """The distribution of that name, in any spelling; the first on the path."""
        return self.find_each((name,))[0]

    def find_each(self, names: Iterable[str]) -> list[Distribution | None]:
        """The same of some names."""
        sites = self._refresh_sites()
        found = []
        for wanted in map(normalise, names):
            each = (site.distributions[wanted] for site in sites if wanted in site.distributions)
            found.append(next(each, None))
        return found

    def find_required(self, names: Iterable[str]) -> list[Distribution | None]:
        """The same; also those of which no more is known than name and version (``.egg-info``).

        Not those that setuptools brings along: it puts them in the path when it is imported, which may be during a run.
        """
        wanted = list(names)
        found = [None if one is None or one.is_vendored else one for one in self.find_each(wanted)]
        if None in found:
            eggs: dict[str, Distribution] = {}
            for site in self._sites.values():
                for each in site.eggs():
                    eggs.setdefault(each.name, each)
            found = [one or eggs.get(normalise(name)) for one, name in zip(found, wanted, strict=True)]
        return found

    def owner(self, file: str | os.PathLike[str]) -> Distribution | None:
        """Return the distribution with this file in its RECORD, by its path as given or by its real path.

        None for project code: files of the standard library, of PYTHONPATH and of editable installs, whose RECORD
        lists only a ``.pth`` or a finder; cachec's own editable install owns its packages all the same. Remembered
        until a folder of the path changes.
        """
        sites = self._refresh_sites()
        given = os.path.abspath(file)
        if given in self._owners:
            return self._owners[given]
        distribution = self._search(sites, given)
        if distribution is None:
            real = os.path.realpath(given)
            distribution = self._search(sites, real) if real != given else None
        if distribution is None:
            distribution = self._editable(given)
        self._owners[given] = distribution
        return distribution

    def plugin_entry_points(self, group: str) -> dict[str, str]:
        """Name to ``module:attribute`` over all distributions; the first on the path wins a name."""
        self._refresh_sites()
        known = self._plugins.get(group)
        if known is None:
            known = {}
            for distribution in self:
                for name, value in distribution.entry_points(group).items():
                    known.setdefault(name, value)
            self._plugins[group] = known
        return dict(known)

    def _refresh_sites(self) -> list[_Site]:
        paths = tuple(sys.path) if self._given is None else self._given
        sites = []
        changed = paths != self._paths
        self._paths = paths
        for path in dict.fromkeys(paths):
            place = _site_place(path)
            site = self._sites.get(place)
            if site is None:
                site = self._sites[place] = _Site(place)
            changed |= site.refresh()
            sites.append(site)
        if changed:
            self._owners, self._by_top, self._plugins = {}, {}, {}
        return [site for site in sites if site.distributions]

    def _search(self, sites: list[_Site], path: str) -> Distribution | None:
        is_script = os.path.basename(os.path.dirname(path)) in _SCRIPT_FOLDERS
        for site in sites:
            for root in site.roots:
                if path.startswith(root + os.sep):
                    distribution = self._lister(site, path[len(root) + 1 :])
                elif is_script:
                    distribution = self._lister(site, os.path.relpath(path, root))
                else:
                    continue
                if distribution is not None:
                    return distribution
        return None

    def _editable(self, path: str) -> Distribution | None:
        """cachec itself, where it runs from a checkout and a file is of its packages."""
        found = self.find("cachec")
        folders = () if found is None else found.packages
        return found if any(path.startswith(folder + os.sep) for folder in folders) else None

    def _lister(self, site: _Site, relative: str) -> Distribution | None:
        top = relative.partition("/")[0] if not relative.startswith("..") else relative
        # Most files are in a package with the name of its distribution, or in the folder of an earlier file.
        named = _LIKELY.get(top) or normalise(top.removesuffix(".py"))
        for likely in (self._by_top.get(top), site.distributions.get(named)):
            if likely is not None and likely.root == site.path and likely.lists(relative):
                return likely
        for candidate in site.distributions.values():
            if candidate.lists(relative):
                self._by_top[top] = candidate
                return candidate
        return None
