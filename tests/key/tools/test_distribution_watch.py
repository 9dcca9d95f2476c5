"""What happens to a followed distribution is seen as by a look at all of its files, and nothing else costs a look."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from cachec.base.distributions import Distributions
from cachec.base.hashing import FileDigests
from cachec.base.inotify import Inotify
from cachec.base.mounts import Mounts
from cachec.errors import UsageError
from cachec.key.tools.distribution_watch import MIN_LOOKUPS, DistributionWatch
from cachec.key.tools.toolchain import ToolKeys
from cachec.model import Part
from tests.key.tools.test_toolchain import FILES, Clock, keys, wheel

CORE = "comp/core.py"

MORE = {
    **FILES,
    "comp/sub/deep/data.bin": b"d" * 5000,
    "comp/sub/other.bin": b"other",
    "../bin/tool": b"\x7fELF outside",
    "alone.py": b"at the top\n",
}


class Followers:
    """The wheel ``comp`` in ``site``, followed by one ToolKeys. looks: how often all of its files were looked at."""

    def __init__(self, site: Path, followed: DistributionWatch | None = None) -> None:
        self.site = site
        self.clock = Clock()
        # Nothing here is older than two seconds, and waiting for that is all that would be left out.
        self.followed = followed or DistributionWatch(clock=lambda: time.time() + 3600)
        self.tools = ToolKeys(FileDigests(), Distributions([str(site)]), clock=self.clock, followed=self.followed)
        self.looks = 0
        look = self.tools._distribution_part

        def counted(*given: object) -> Part:
            self.looks += 1
            return look(*given)  # type: ignore[arg-type]

        self.tools._distribution_part = counted  # type: ignore[method-assign]

    def part(self, *, fresh: bool = False) -> Part | str:
        """As a call sees it that comes a second later."""
        self.clock.now += 1.0
        return said(self.tools, fresh=fresh)

    def settled(self) -> Followers:
        """After it was looked at so often that it is followed."""
        before = {self.part() for _ in range(MIN_LOOKUPS + 1)}
        assert len(before) == 1
        assert self.looks == MIN_LOOKUPS + 1
        return self

    def is_quiet(self) -> bool:
        """Whether a call looks at no file."""
        before = self.looks
        self.part()
        return self.looks == before


def said(tools: ToolKeys, *, fresh: bool = False) -> Part | str:
    try:
        return tools.distribution("comp", fresh=fresh)
    except UsageError as error:
        return str(error)


def installed(folder: Path) -> Path:
    """A wheel with RECORD an hour older than its files: each is read at a look, and no write is too near to it."""
    site = wheel(folder / "lib" / "site", MORE)
    record = site / "comp-1.0.dist-info/RECORD"
    os.utime(record, (record.stat().st_mtime - 3600,) * 2)
    return site


def _replaced(site: Path) -> None:
    (site / "comp/new").write_bytes(b"another")
    (site / "comp/new").rename(site / CORE)


def _overwritten(site: Path) -> None:
    state = (site / CORE).stat()
    (site / CORE).write_bytes(FILES[CORE].replace(b"1", b"2"))
    os.utime(site / CORE, ns=(state.st_atime_ns, state.st_mtime_ns))


def _linked(site: Path) -> None:
    os.link(site / CORE, site.parent / "same")
    (site.parent / "same").write_bytes(b"through a new link")


def _mapped(site: Path) -> None:
    with open(site / CORE, "r+b") as file, mmap.mmap(file.fileno(), 0) as stored:
        stored[:3] = b"DEF"


def _moved_folder(site: Path) -> None:
    (site / "comp/sub").rename(site / "comp/was")
    shutil.copytree(site / "comp/was", site / "comp/sub")
    (site / "comp/sub/deep/data.bin").write_bytes(b"e" * 5000)


def _exchanged(site: Path) -> None:
    shutil.copytree(site / "comp/sub", site / "comp/two")
    (site / "comp/two/other.bin").write_bytes(b"OTHER")
    one, two = (os.fsencode(site / "comp" / name) for name in ("sub", "two"))
    assert not ctypes.CDLL(None, use_errno=True).renameat2(-100, one, -100, two, 2)  # AT_FDCWD, RENAME_EXCHANGE


def _moved_site(site: Path) -> None:
    shutil.copytree(site, site.with_name("two"))
    (site.with_name("two") / CORE).write_bytes(b"in another site")
    site.rename(site.with_name("one"))
    site.with_name("two").rename(site)


def _became_a_link(site: Path) -> None:
    (site.parent / "elsewhere").write_bytes(b"behind a link")
    (site / CORE).unlink()
    (site / CORE).symlink_to(site.parent / "elsewhere")


#: What changes the distribution's part.
DEEDS: dict[str, Callable[[Path], object]] = {
    "appended": lambda site: (site / CORE).open("ab").write(b"more"),
    "overwritten, its time put back": _overwritten,
    "cut": lambda site: os.truncate(site / CORE, 3),
    "replaced": _replaced,
    "removed": lambda site: (site / CORE).unlink(),
    "renamed": lambda site: (site / CORE).rename(site / "comp/core2.py"),
    "by an older link": lambda site: (site.parent / "link").write_bytes(b"through a link"),
    "by a newer link": _linked,
    "by a map": _mapped,
    "by another process": lambda site: subprocess.run(["cp", "/etc/passwd", site / CORE], check=True),
    "at the top": lambda site: (site / "alone.py").write_bytes(b"other"),
    "outside": lambda site: (site.parent / "bin/tool").write_bytes(b"\x7fELF another"),
    "outside, removed": lambda site: (site.parent / "bin/tool").unlink(),
    "a folder moved": _moved_folder,
    "a folder above the file's": lambda site: (site / "comp").rename(site / "away"),
    "a folder exchanged": _exchanged,
    "a folder removed": lambda site: shutil.rmtree(site / "comp/sub"),
    "the site moved": _moved_site,
    "the folder of the site moved": lambda site: (site.parent.rename(site.parent.with_name("was")), _copied(site)),
    "made a link": _became_a_link,
    "editable": lambda site: (site / "comp-1.0.dist-info/direct_url.json").write_text('{"dir_info":{"editable":true}}'),
    "uninstalled": lambda site: shutil.rmtree(site / "comp-1.0.dist-info"),
    "installed anew": lambda site: wheel(site, {**MORE, CORE: b"def compile(): return 2222\n"}),
}


def _copied(site: Path) -> None:
    shutil.copytree(site.parent.with_name("was"), site.parent)
    (site / CORE).write_bytes(b"elsewhere")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    site = installed(tmp_path)
    os.link(site / CORE, site.parent / "link")
    return site


@pytest.mark.parametrize("name", DEEDS)
@pytest.mark.parametrize(
    "fresh", [pytest.param(False, id="a second later"), pytest.param(True, id="after a run", marks=pytest.mark.long)]
)
def test_what_happens_to_a_followed_distribution_is_seen(site: Path, name: str, fresh: bool) -> None:
    one = Followers(site).settled()
    assert one.is_quiet()
    before = one.part()
    DEEDS[name](site)
    after = one.part(fresh=fresh)
    assert after != before
    assert after == said(keys(site))
    # What was made anew is followed again.
    if isinstance(after, Part) and not name.startswith(("uninstalled", "installed", "a folder", "the")):
        (site / "comp/__init__.py").write_bytes(b"and another")
        assert one.part() == said(keys(site)) != after
        with suppress(FileNotFoundError):
            (site / CORE).write_bytes(b"the same again")
            assert one.part() == said(keys(site))
        assert one.is_quiet()


def _mapped_to_be_read(site: Path) -> None:
    with open(site / CORE, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as read:
        assert read[:3] == b"def"


#: What does not change it, and costs no look.
IDLE: dict[str, Callable[[Path], object]] = {
    "nothing": lambda site: None,
    "read": lambda site: (site / CORE).read_bytes(),
    "looked at": lambda site: [os.listdir(site / "comp"), os.stat(site / CORE)],
    "bytecode written": lambda site: (site / "comp/__pycache__/core.cpython-312.pyc").write_bytes(b"new"),
    "a file beside": lambda site: (site / "comp/extra.py").write_bytes(b"new"),
    "mapped to be read": _mapped_to_be_read,
    "all read": lambda site: subprocess.run(["grep", "-r", "nothing", site], check=False),
}


@pytest.mark.parametrize("name", IDLE)
def test_what_does_not_touch_a_followed_distribution_costs_no_look(site: Path, name: str) -> None:
    one = Followers(site).settled()
    for _ in range(2):
        IDLE[name](site)
        assert one.is_quiet()


def test_a_map_that_was_there_before_is_heeded(site: Path) -> None:
    with open(site / CORE, "r+b") as file:
        stored = mmap.mmap(file.fileno(), 0)
    one = Followers(site)
    before = [one.part() for _ in range(MIN_LOOKUPS + 2)][-1]
    assert not one.is_quiet()  # somebody may write to it, which nothing would tell
    (site / "comp-1.0.dist-info/RECORD").touch()  # now there is no reason to doubt any file
    other = Followers(site).settled()
    assert not other.is_quiet()
    stored[:3] = b"DEF"
    os.utime(site / "comp-1.0.dist-info/RECORD", (0, 0))
    after = one.part()
    assert after == said(keys(site)) != before
    stored.close()
    assert one.part() == after
    for each in (one, other):
        for _ in range(MIN_LOOKUPS + 1):  # another RECORD, other files
            each.part()
        assert each.is_quiet()


def test_a_map_of_a_file_that_was_opened_meanwhile_is_heeded(site: Path) -> None:
    one = Followers(site).settled()
    with open(site / CORE, "r+b") as file:
        stored = mmap.mmap(file.fileno(), 0)
    before = one.part()
    stored[:3] = b"DEF"
    assert one.part() == said(keys(site)) != before
    stored[:3] = b"def"
    assert one.part() == before
    stored[:3] = b"DEF"
    stored.close()  # the last word of a map, told when it goes
    assert one.part() == said(keys(site)) != before
    assert one.is_quiet()


def test_links_and_missing_files_are_looked_at(tmp_path: Path) -> None:
    site = installed(tmp_path)
    (site / "comp/sub").rename(site.parent / "sub")
    (site / "comp/sub").symlink_to(site.parent / "sub")
    (site / "alone.py").unlink()
    (site / CORE).rename(site.parent / "core.py")
    (site / CORE).symlink_to(site.parent / "core.py")
    one = Followers(site).settled()
    assert one.is_quiet()
    before = one.part()
    (site.parent / "core2.py").write_bytes(b"behind the link")
    (site.parent / "new").symlink_to(site.parent / "core2.py")
    (site.parent / "new").rename(site / CORE)
    linked = one.part()
    assert linked == said(keys(site)) != before
    assert one.is_quiet()
    before = linked
    shutil.copytree(site.parent / "sub", site.parent / "two")
    (site.parent / "two/deep/data.bin").write_bytes(b"where the link leads to now")
    (site / "comp/sub").unlink()
    (site / "comp/sub").symlink_to(site.parent / "two")
    second = one.part()
    assert second == said(keys(site)) != before
    assert one.is_quiet()
    (site / "alone.py").write_bytes(b"it came")
    assert one.part() == said(keys(site)) != second


def test_another_site_in_its_place_with_the_same_record_is_seen(site: Path) -> None:
    two, record = site.with_name("two"), Path("comp-1.0.dist-info/RECORD")
    shutil.copytree(site, two)
    (two / CORE).write_bytes(b"in another site")
    (two / record).unlink()
    os.link(site / record, two / record)
    one = Followers(site).settled()
    before = one.part()
    site.rename(site.with_name("one"))
    two.rename(site)
    assert one.part() == said(keys(site)) != before


def test_what_changed_just_now_is_looked_at_until_its_time_would_tell(tmp_path: Path) -> None:
    site = installed(tmp_path)
    seconds = [time.time()]
    one = Followers(site, DistributionWatch(clock=lambda: seconds[0])).settled()
    assert not one.is_quiet()  # files outside were written within the last two seconds
    seconds[0] += 3
    one.part()
    assert one.is_quiet()
    (site.parent / "bin/tool").write_bytes(b"\x7fELF another")
    seconds[0] = time.time()
    one.part()
    assert not one.is_quiet()
    seconds[0] += 3
    one.part()
    assert one.is_quiet()


def test_a_distribution_that_comes_before_it_on_the_path_is_seen(tmp_path: Path) -> None:
    site, first = installed(tmp_path), tmp_path / "first"
    first.mkdir()
    followed = DistributionWatch(clock=lambda: time.time() + 3600)
    clock = Clock()
    tools = ToolKeys(FileDigests(), Distributions([str(first), str(site)]), clock=clock, followed=followed)
    for _ in range(MIN_LOOKUPS + 2):
        clock.now += 1.0
        before = tools.distribution("comp")
    wheel(first, version="2.0")
    clock.now += 1.0
    assert tools.distribution("comp").version == "2.0" != before.version


def test_a_process_that_ends_soon_follows_nothing(site: Path) -> None:
    one = Followers(site)
    for _ in range(MIN_LOOKUPS):
        one.part()
    assert one.looks == MIN_LOOKUPS
    assert one.followed.token(str(site / "comp-1.0.dist-info")) is None


def test_two_names_of_one_distribution_are_each_told(site: Path) -> None:
    one = Followers(site).settled()
    for name in ("COMP", "comp"):
        one.tools.distribution(name)
    (site / CORE).write_bytes(b"other")
    wanted = said(keys(site))
    one.clock.now += 1.0
    assert [one.tools.distribution(name) for name in ("COMP", "comp")] == [wanted, wanted]


def test_hard_links_within_a_distribution_are_one_file_under_two_names(tmp_path: Path) -> None:
    site = installed(tmp_path)
    (site / "alone.py").unlink()
    os.link(site / CORE, site / "alone.py")
    one = Followers(site).settled()
    assert one.is_quiet()
    (site / "alone.py").unlink()
    assert one.part() == said(keys(site))
    (site / CORE).write_bytes(b"the one that is left")
    assert one.part() == said(keys(site))


def test_lost_events_are_no_quiet(site: Path) -> None:
    one = Followers(site).settled()
    before = one.part()
    for _ in range(int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())):
        for name in (CORE, "alone.py"):  # two alike are one event
            os.close(os.open(site / name, os.O_RDONLY))
    (site / "comp/sub/other.bin").write_bytes(b"its event is lost")
    assert one.part() == said(keys(site)) != before
    for _ in range(MIN_LOOKUPS):
        one.part()
    assert one.is_quiet()  # followed again, in time


def test_a_forked_child_takes_no_event_of_its_parent(site: Path) -> None:
    one = Followers(site).settled()
    before = one.part()
    (site / CORE).write_bytes(b"before the fork")
    child = os.fork()
    if not child:
        right = one.part() == said(keys(site)) != before
        (site / "alone.py").write_bytes(b"in the child")
        right = right and one.part() == said(keys(site))
        os._exit(not right)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert one.part() == said(keys(site)) != before
    assert one.is_quiet()


def test_a_child_closes_no_file_of_its_own_in_place_of_the_inherited_queue(site: Path) -> None:
    one = Followers(site).settled()
    child = os.fork()
    if not child:
        held = [os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
        right = not any("inotify" in each or "mountinfo" in each for each in held)
        mine = [os.open(site / CORE, os.O_RDONLY) for _ in range(8)]  # the numbers stand for something else now
        one.part()
        right = right and all(os.pread(fd, 3, 0) == b"def" for fd in mine)
        os._exit(not right)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert one.is_quiet()


def test_threads_are_told_alike(site: Path) -> None:
    one = Followers(site).settled()
    for number in range(20):
        (site / CORE).write_bytes(b"%d" % number * (number + 1))
        wanted, found = said(keys(site)), set[Part | str]()
        one.clock.now += 1.0
        threads = [threading.Thread(target=lambda: found.add(said(one.tools))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == {wanted}


@pytest.mark.parametrize("what", ["no queue", "no watch", "no watch for a folder", "a share that is too small"])
def test_where_the_kernel_gives_no_more_all_files_are_looked_at(
    site: Path, monkeypatch: pytest.MonkeyPatch, what: str, tmp_path: Path
) -> None:
    def refused(*_: object) -> int:
        raise OSError(28, "No space left on device")

    given: list[str] = []
    watch = Inotify.watch

    def few(self: Inotify, path: str, mask: int) -> int:
        given.append(path)
        return refused() if len(given) > 3 or what.endswith("folder") else watch(self, path, mask)

    if what == "no queue":
        monkeypatch.setattr(Inotify, "__init__", refused)
    elif what.startswith("no watch"):
        monkeypatch.setattr(Inotify, "watch", few)
    else:
        (tmp_path / "limit").write_text("64\n")
        monkeypatch.setattr("cachec.key.tools.distribution_watch._MAX_WATCHES", str(tmp_path / "limit"))
    one = Followers(site).settled()
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(MIN_LOOKUPS + 2):
        assert not one.is_quiet()
    assert len(os.listdir("/proc/self/fd")) <= descriptors  # of earlier tests, some may be closed meanwhile
    (site / CORE).write_bytes(b"other")
    assert one.part() == said(keys(site))


@pytest.mark.parametrize("kind", ["nfs4", "fuse.sshfs", "9p", "unknown"])
def test_where_others_may_write_all_files_are_looked_at(site: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(Mounts, "kind_of_device", lambda *_: kind)
    one = Followers(site).settled()
    assert not one.is_quiet()


def test_a_file_that_others_may_write_is_looked_at(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mounts, "kind_of_device", lambda _self, _dev, path: "ext4" if CORE not in path else "nfs4")
    one = Followers(site).settled()
    assert one.is_quiet()
    before = one.part()
    monkeypatch.setattr(Inotify, "events", lambda _self: ())
    (site / CORE).write_bytes(b"on another machine")
    assert one.part() == said(keys(site)) != before


def _watches() -> int:
    """How many watches this process has."""
    told = [each.read_text() for each in Path("/proc/self/fdinfo").iterdir() if each.exists()]
    return sum(text.count("inotify wd:") for text in told)


def test_no_watch_is_left_of_what_was_installed_before(site: Path) -> None:
    gc.collect()
    others = _watches()  # of caches that earlier tests left, and of the folders of their runs
    one = Followers(site).settled()
    before = _watches()
    wheel(site, {**FILES, CORE: b"def compile(): return 2222\n"})
    for _ in range(MIN_LOOKUPS + 2):
        one.part()
    assert one.is_quiet()
    assert _watches() < before
    one.followed = one.tools = None  # type: ignore[assignment]
    gc.collect()
    assert _watches() <= others


_OVERLAY = """
over = site.parent / "over"; over.mkdir(); mount("-t", "tmpfs", "none", over)
for name in ("up", "work", "all"): (over / name).mkdir()
shutil.copytree(site, over / "low")
mount("-t", "overlay", "-o", f"lowerdir={over}/low,upperdir={over}/up,workdir={over}/work", "none", over / "all")
lower = over / "low/comp/core.py"; site = over / "all"; comp = site / "comp"
"""

#: Run in a name space of its own, with the site: what is done before it is followed, and after.
MOUNTED = {
    "over a folder": (
        "shutil.copytree(comp / 'sub', site.parent / 'sub'); (site.parent / 'sub/other.bin').write_bytes(b'another')",
        "mount('--bind', site.parent / 'sub', comp / 'sub')",
    ),
    "taken off a folder": (
        "shutil.copytree(comp / 'sub', site.parent / 'sub'); (site.parent / 'sub/other.bin').write_bytes(b'another');"
        "mount('--bind', site.parent / 'sub', comp / 'sub')",
        "subprocess.run(['umount', comp / 'sub'], check=True)",
    ),
    "over a file": (
        "(site.parent / 'core').write_bytes(b'another')",
        "mount('--bind', site.parent / 'core', comp / 'core.py')",
    ),
    "a file of another mount": (
        "(site.parent / 'seen').mkdir(); mount('--bind', site, site.parent / 'seen')",
        "(site.parent / 'seen/comp/core.py').write_bytes(b'by another mount')",
    ),
    "a lower file of an overlay whose layers are out of reach": (
        _OVERLAY + "(over / 'low').rename(over / 'down'); (over / 'up').rename(over / 'top')",
        "(comp / 'core.py').open('ab').write(b'more')",
    ),
    "a layer of an overlay, which is not followed": (
        _OVERLAY,
        "lower.open('ab').write(b'more')",
    ),
}

_SCRIPT = """
import os, shutil, subprocess, sys
from pathlib import Path
from tests.key.tools.test_distribution_watch import Followers, said
from tests.key.tools.test_toolchain import keys

def mount(*words):
    subprocess.run(["mount", *words], check=True)

site = Path(sys.argv[1]); comp = site / "comp"
exec(sys.argv[2])
one = Followers(site)
one.settled()
assert one.is_quiet() == ("low" not in os.listdir(site.parent)), "not quiet"
before = one.part()
(site.parent / "elsewhere").mkdir()
mount("-t", "tmpfs", "none", site.parent / "elsewhere")  # what is mounted elsewhere does not matter
assert one.is_quiet() == ("low" not in os.listdir(site.parent)), "not quiet after a mount elsewhere"
exec(sys.argv[3])
after = one.part()
assert after == said(keys(site)), (after, said(keys(site)))
assert after != before
"""


def _unshare(*line: object) -> subprocess.CompletedProcess[str]:
    words = ["unshare", "--user", "--map-root-user", "--mount", *map(str, line)]
    return subprocess.run(words, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3])


@pytest.mark.sampled
@pytest.mark.parametrize("name", MOUNTED)
def test_what_is_done_by_mounts_is_seen(site: Path, name: str) -> None:
    if shutil.which("unshare") is None or _unshare("mount", "-t", "tmpfs", "none", site.parent / "bin").returncode:
        pytest.skip("no mounts can be made here")
    done = _unshare(sys.executable, "-c", _SCRIPT, site, *MOUNTED[name])
    assert done.returncode == 0, done.stdout + done.stderr
