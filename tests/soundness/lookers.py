"""Ways in which code looks at a folder ``p``: ``a`` and ``s/b`` are files in it, ``link`` leads to ``s``.

Each public function here is one. They are project code, run as stages; what they give is JSON.
"""

from __future__ import annotations

import configparser
import contextlib
import ctypes
import filecmp
import fileinput
import functools
import glob
import importlib
import importlib.machinery
import importlib.util
import io
import linecache
import mmap
import os
import runpy
import shutil
import sqlite3
import stat as modes
import subprocess
import sys
import tarfile
import tempfile
import tokenize
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from os import stat as _stat_of_before
from pathlib import Path
from typing import Any

import numpy as np

# --- content


def text(p: str) -> Any:
    return Path(p, "a").read_text()


def by_bytes_path(p: str) -> Any:
    with open(os.fsencode(p) + b"/a") as file:
        return file.read()


def raw(p: str) -> Any:
    with io.FileIO(f"{p}/a") as file:
        return file.read().hex()


def mapped(p: str) -> Any:
    with open(f"{p}/a", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data[:].hex()


def at_a_place(p: str) -> Any:
    with open(f"{p}/a") as file:
        return os.pread(file.fileno(), 9, 0).hex()


def appended(p: str) -> Any:
    with open(f"{p}/a", "a+") as file:
        file.seek(0)
        return file.read()


def by_numpy(p: str) -> Any:
    return np.fromfile(f"{p}/a", dtype=np.uint8).tolist()


def by_linecache(p: str) -> Any:
    linecache.clearcache()
    return linecache.getline(f"{p}/a", 1)


def by_fileinput(p: str) -> Any:
    with fileinput.input([f"{p}/a"]) as lines:
        return list(lines)


def by_tokenize(p: str) -> Any:
    with tokenize.open(f"{p}/a") as file:
        return file.read()


def by_runpy(p: str) -> Any:
    return {name: value for name, value in runpy.run_path(f"{p}/m.py").items() if name == "x"}


def by_a_loader(p: str) -> Any:
    return importlib.machinery.SourceFileLoader("q", f"{p}/a").get_data(f"{p}/a").hex()


def by_a_spec(p: str) -> Any:
    spec = importlib.util.spec_from_file_location("q", f"{p}/m.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.x


def by_exec(p: str) -> Any:
    space: dict[str, Any] = {}
    exec(compile(Path(p, "m.py").read_text(), f"{p}/m.py", "exec"), space)
    return space["x"]


def by_configparser(p: str) -> Any:
    parser = configparser.RawConfigParser(allow_no_value=True)
    parser.read(f"{p}/c.ini")
    return {name: dict(parser[name]) for name in parser.sections()}


def by_zipfile(p: str) -> Any:
    return zipfile.is_zipfile(f"{p}/a"), Path(p, "a").stat().st_size


def by_sqlite(p: str) -> Any:
    with contextlib.closing(sqlite3.connect(f"file:{p}/a?mode=ro", uri=True)) as connection:
        return connection.execute("select 1").fetchone()


def by_ctypes(p: str) -> Any:
    try:
        ctypes.CDLL(f"{p}/a")
    except OSError as error:
        return str(error).replace(p, "")


def compared(p: str) -> Any:
    filecmp.clear_cache()
    return filecmp.cmp(f"{p}/a", f"{p}/s/b", shallow=False)


def copied(p: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(f"{p}/a", f"{folder}/x")
        return Path(folder, "x").read_text()


def copied_tree(p: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(p, f"{folder}/x", symlinks=True)
        return Path(folder, "x/a").read_text(), Path(folder, "x/s/b").read_text()


def archived(p: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        name = shutil.make_archive(f"{folder}/z", "tar", p)
        with tarfile.open(name) as archive:
            return sorted((each.name, each.size) for each in archive if each.isfile())


# --- by ways around


def back_over_a_link(p: str) -> Any:
    with open(f"{p}/link/../a") as file:
        return file.read()


def through_a_link(p: str) -> Any:
    with open(f"{p}/link/b") as file:
        return file.read()


def linked_to(p: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(f"{p}/a", f"{folder}/x")
        return Path(folder, "x").read_text()


def folder_linked_to(p: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(p, f"{folder}/x")
        return Path(folder, "x/a").read_text(), sorted(os.listdir(f"{folder}/x/s"))


def hard_linked(p: str) -> Any:
    with tempfile.TemporaryDirectory(dir=os.path.dirname(p)) as folder:
        os.link(f"{p}/a", f"{folder}/x")
        return Path(folder, "x").read_text()


def renamed(p: str) -> Any:
    os.rename(f"{p}/a", f"{p}/zz")
    try:
        return Path(p, "zz").read_text()
    finally:
        os.rename(f"{p}/zz", f"{p}/a")


def renamed_folder(p: str) -> Any:
    os.rename(f"{p}/s", f"{p}/zz")
    try:
        return Path(p, "zz/b").read_text()
    finally:
        os.rename(f"{p}/zz", f"{p}/s")


@contextlib.contextmanager
def _held(p: str) -> Iterator[int]:
    fd = os.open(p, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


def by_an_opener(p: str) -> Any:
    with _held(p) as folder, open("a", opener=lambda name, flags: os.open(name, flags, dir_fd=folder)) as file:
        return file.read()


def by_fwalk(p: str) -> Any:
    seen = []
    for _, _, files, folder in os.fwalk(p):
        for name in sorted(files):
            fd = os.open(name, os.O_RDONLY, dir_fd=folder)
            seen.append((name, os.read(fd, 100).hex()))
            os.close(fd)
    return sorted(seen)


def there_by_a_folder(p: str) -> Any:
    with _held(p) as folder:
        return os.access("a", os.R_OK, dir_fd=folder)


def size_by_a_folder(p: str) -> Any:
    with _held(p) as folder:
        return os.stat("a", dir_fd=folder).st_size


def in_a_folder(p: str) -> Any:
    with contextlib.chdir(p):
        return sorted(os.listdir()), open("a").read()


def in_a_held_folder(p: str) -> Any:
    with _held(".") as before, _held(p) as folder:
        os.fchdir(folder)
        try:
            return open("a").read()
        finally:
            os.fchdir(before)


# --- folders


def listed(p: str) -> Any:
    return sorted(os.listdir(p))


def listed_if_there(p: str) -> Any:
    try:
        return sorted(os.listdir(f"{p}/new"))
    except FileNotFoundError:
        return None


def listed_by_a_descriptor(p: str) -> Any:
    with _held(p) as folder:
        return sorted(os.listdir(folder))


def kinds_by_scandir(p: str) -> Any:
    with os.scandir(p) as entries:
        return sorted((each.name, each.is_dir(), each.is_file()) for each in entries)


def links_by_scandir(p: str) -> Any:
    with os.scandir(p) as entries:
        return sorted((each.name, each.is_symlink()) for each in entries)


def sizes_by_scandir(p: str) -> Any:
    with os.scandir(p) as entries:
        return sorted((each.name, each.stat().st_size) for each in entries if each.is_file())


def walked(p: str) -> Any:
    return sorted((folder.removeprefix(p), sorted(folders), sorted(files)) for folder, folders, files in os.walk(p))


def globbed(p: str) -> Any:
    return sorted(glob.glob("*", root_dir=p)), sorted(glob.glob(f"{p}/**", recursive=True))


def globbed_by_a_descriptor(p: str) -> Any:
    with _held(p) as folder:
        return sorted(glob.glob("*", dir_fd=folder))


def by_rglob(p: str) -> Any:
    return sorted(
        (str(each), each.is_dir(), each.stat().st_size if each.is_file() else 0) for each in Path(p).rglob("*")
    )


def iterated(p: str) -> Any:
    return sorted((each.name, each.is_dir(), each.is_symlink()) for each in Path(p).iterdir())


def folders_compared(p: str) -> Any:
    found = filecmp.dircmp(p, f"{p}/s")
    return sorted(found.left_only), sorted(found.right_only)


# --- whether something is there, and what it is


def exists(p: str) -> Any:
    return os.path.exists(f"{p}/a"), os.path.isfile(f"{p}/new"), Path(p, "new").is_dir(), os.path.lexists(f"{p}/new")


def size(p: str) -> Any:
    return os.path.getsize(f"{p}/a"), Path(p, "s", "b").stat().st_size


def own_size(p: str) -> Any:
    return os.lstat(f"{p}/a").st_size


def mode(p: str) -> Any:
    return os.stat(f"{p}/a").st_mode & 0o777, modes.S_ISDIR(Path(p, "a").stat().st_mode)


def changed(p: str) -> Any:
    return os.path.getmtime(f"{p}/a"), Path(p, "s/b").stat().st_mtime_ns


def may_be_run(p: str) -> Any:
    return os.access(f"{p}/a", os.X_OK)


def which(p: str) -> Any:
    return (shutil.which("a", path=p) or "").removeprefix(p)


def is_link(p: str) -> Any:
    return os.path.islink(f"{p}/a"), Path(p, "s").is_symlink(), modes.S_ISLNK(os.lstat(f"{p}/s/b").st_mode)


def leads_to(p: str) -> Any:
    try:
        return os.readlink(f"{p}/link"), str(Path(p, "a").readlink())
    except OSError as error:
        return error.errno


def resolved(p: str) -> Any:
    return os.path.realpath(f"{p}/link/b"), str(Path(p, "a").resolve())


def same(p: str) -> Any:
    return os.path.samefile(f"{p}/a", f"{p}/s/b")


def untold(p: str) -> Any:
    return _stat_of_before(f"{p}/a").st_size


# --- what is made


def folder_made_or_there(p: str) -> Any:
    os.makedirs(p, exist_ok=True)
    return Path(p, "a").read_text()


def folders_made_or_there(p: str) -> Any:
    Path(p, "s").mkdir(parents=True, exist_ok=True)
    return Path(p, "s/b").read_text()


def folder_made(p: str) -> Any:
    try:
        os.mkdir(f"{p}/new")
    except FileExistsError:
        return "there"
    os.rmdir(f"{p}/new")
    return "made"


def folder_made_by_an_own_function(p: str, exist_ok: bool = True) -> Any:
    try:
        os.mkdir(f"{p}/new")
    except FileExistsError:
        return "there" if exist_ok else "refused"
    os.rmdir(f"{p}/new")
    return "made"


def makedirs(p: str, exist_ok: bool = True) -> Any:
    return exist_ok and os.path.exists(f"{p}/new")


def file_made(p: str) -> Any:
    try:
        open(f"{p}/new", "x").close()
    except FileExistsError:
        return "there"
    os.unlink(f"{p}/new")
    return "made"


def file_there_is_not_made(p: str) -> Any:
    try:
        os.close(os.open(f"{p}/a", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return Path(p, "a").read_text()
    os.unlink(f"{p}/a")
    return None


def written_and_read(p: str) -> Any:
    Path(p, "own").write_text("1")
    try:
        return Path(p, "own").read_text()
    finally:
        os.unlink(f"{p}/own")


# --- modules


@contextlib.contextmanager
def _path_with(p: str) -> Iterator[None]:
    sys.path.insert(0, p)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(p)


def module_sought(p: str) -> Any:
    with _path_with(p):
        try:
            return importlib.import_module("looked_for").x
        except ImportError:
            return None


def module_sought_by_its_spec(p: str) -> Any:
    with _path_with(p):
        return importlib.util.find_spec("looked_for") is not None


def module_imported(p: str) -> Any:
    with _path_with(p):
        return importlib.import_module("m").x


# --- what is done beside, and is no input


def in_its_own_pool(p: str) -> Any:
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda name: Path(p, name).read_text(), ["a", "s/b"]))


def beside_a_named_temporary_file(p: str) -> Any:
    with tempfile.NamedTemporaryFile(dir=p):
        return Path(p, "a").read_text(), os.path.exists(f"{p}/new")


def beside_a_temporary_file(p: str) -> Any:
    with tempfile.TemporaryFile(dir=p):
        return Path(p, "a").read_text()


def beside_scratch_that_is_listed(p: str) -> Any:
    with tempfile.TemporaryDirectory(dir=p):
        return len(os.listdir(p)), Path(p, "a").read_text()


def beside_a_lock(p: str) -> Any:
    with open(f"{p}/a", "ab"):
        return Path(p, "a").read_text()


def beside_an_output_anew(p: str) -> Any:
    if os.path.exists(f"{p}/out"):
        os.remove(f"{p}/out")
    Path(p, "out").write_text("x")
    return Path(p, "a").read_text()


def beside_an_output_folder_anew(p: str) -> Any:
    shutil.rmtree(f"{p}/outs", ignore_errors=True)
    os.makedirs(f"{p}/outs/deep")
    Path(p, "outs/deep/x").write_text("x")
    return Path(p, "a").read_text(), Path(p, "outs/deep/x").read_text()


# --- what fails


def beside_a_rename_that_fails(p: str) -> Any:
    with contextlib.suppress(FileNotFoundError):
        os.replace(f"{p}/nothing", f"{p}/a")
    return Path(p, "a").read_text()


def beside_a_folder_opened_to_write(p: str) -> Any:
    with contextlib.suppress(IsADirectoryError):
        open(p, "w").close()
    return Path(p, "a").read_text()


def beside_a_removal_that_fails(p: str) -> Any:
    with contextlib.suppress(OSError):
        os.rmdir(p)
    return Path(p, "a").read_text()


def removed(p: str) -> Any:
    try:
        os.remove(f"{p}/new")
    except OSError as error:
        return type(error).__name__
    Path(p, "new").write_text("x")
    return "done"


def tree_removed(p: str) -> Any:
    try:
        shutil.rmtree(f"{p}/new")
    except OSError as error:
        return type(error).__name__
    os.mkdir(f"{p}/new")
    return "done"


def gone_to(p: str) -> Any:
    try:
        with contextlib.chdir(f"{p}/new"):
            return "done"
    except OSError as error:
        return type(error).__name__


# --- by other processes


def process_run(p: str) -> Any:
    return subprocess.run(["cat", f"{p}/a"], capture_output=True, check=False).stdout.decode()


def process_of_a_script(p: str) -> Any:
    Path(p).with_name("script").write_text('cat "$1/s/b"')
    return subprocess.check_output(["sh", f"{p}/../script", p]).decode()


def process_by_system(p: str) -> Any:
    os.system(f"cp {p}/a {p}/../copy 2>/dev/null")
    return Path(p).with_name("copy").read_text()


def process_by_popen(p: str) -> Any:
    with os.popen(f"ls {p}") as file:
        return file.read()


# --- by what was put into a memo before


@functools.cache
def _memo(function: Callable[[str], Any], p: str) -> Any:
    return function(p)


MEMOS = [_memo]


def memo_text(p: str) -> Any:
    return _memo(text, p)


def memo_linecache(p: str) -> Any:
    return _memo(by_linecache, p)


def memo_fileinput(p: str) -> Any:
    return _memo(by_fileinput, p)


def memo_configparser(p: str) -> Any:
    return _memo(by_configparser, p)


def memo_zipfile(p: str) -> Any:
    return _memo(by_zipfile, p)


def memo_listing(p: str) -> Any:
    return _memo(listed, p)
