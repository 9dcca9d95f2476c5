"""What can go wrong around a traced run: each is survived, recorded, or named."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cachec.tracing import codec, process_paths, supervisor
from cachec.tracing.accesses import Kind, TraceProblemKind
from cachec.tracing.process import Child, children
from cachec.tracing.process_paths import ProcessMemory, Unreadable
from cachec.tracing.supervisor import trace
from cachec.tracing.syscall_decoder import SyscallDecoder
from cachec.tracing.syscalls import architecture
from tests.needs import need
from tests.tracing.conftest import kinds, output, reasons, run

PYTHON = os.path.realpath(sys.executable)
NOBODY = 65534


def in_child(task: Callable[[], object]) -> str:
    """What ``task`` returns, as text, in a forked child: it may give up rights, install filters, or be killed."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, str(task()).encode())
        except BaseException as error:
            os.write(writer, f"raised {error!r}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        text = file.read()
    os.waitpid(pid, 0)
    return text


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


# --- how a run ends


def test_exit_status_and_signals(work: Path) -> None:
    assert run("sh", "-c", "exit 3").returncode == 3
    assert run("sh", "-c", "kill -9 $$").returncode == -9


def test_what_can_not_be_started_raises(work: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        run("no-such-program")
    (work / "file").write_text("")
    with pytest.raises(PermissionError):
        run("./file")
    with pytest.raises(FileNotFoundError, match="no-folder"):
        run("true", cwd="no-folder")
    with pytest.raises(ValueError, match="null"):
        run("true", "\0")
    with pytest.raises(ValueError, match="="):
        run("true", env={"A=": "x"})
    with pytest.raises(OSError, match="descriptor"):
        run("true", stdin=9999)
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        run("true", program="no-such-program")
    with pytest.raises(FileNotFoundError, match="''"):
        run("true", program="")
    for words in ([], [""]):
        with pytest.raises(ValueError, match="first word"):
            run(*words, program="true")


@pytest.mark.parametrize("program", ["sh", "{work}/shell", "./shell", "down/../shell"])
def test_a_program_by_another_name(work: Path, program: str) -> None:
    (work / "down").mkdir()
    (work / "shell").symlink_to(str(shutil.which("sh")))
    program = program.format(work=work)
    accesses, text = output("other word", "-c", 'echo "$0"; cat /proc/$$/cmdline', program=program)
    words = subprocess.run(["other word", "-c", 'echo "$0"; cat /proc/$$/cmdline'], executable=program, stdout=-1)
    assert text == words.stdout.decode() != ""
    assert kinds(accesses, os.path.normpath(program) if "/" in program else shutil.which("sh")) & Kind.EXECUTED
    assert not kinds(accesses, "other word")


def test_streams_and_readers(work: Path) -> None:
    (work / "in").write_text("text\n")
    reader, writer = os.pipe()
    found: list[bytes] = []

    def read() -> bool:
        found.append(os.read(reader, 1000))
        return len(found) < 2

    with (work / "in").open() as file:
        command = ["sh", "-c", "tr a-z A-Z; until [ -e more ]; do sleep .01; done; echo more; echo unread"]
        thread = threading.Thread(target=lambda: (wait_for(lambda: bool(found)), (work / "more").touch()))
        thread.start()
        accesses = trace(command, stdin=file.fileno(), stdout=writer, readers={reader: read})
    thread.join()
    os.close(writer)
    assert (found[0], accesses.returncode) == (b"TEXT\n", 0)
    assert b"".join([*found, os.read(reader, 1000)]).startswith(b"TEXT\nmore\n")
    os.close(reader)


def test_the_search_for_the_program_is_recorded(work: Path) -> None:
    accesses = run("true", env={"PATH": f"{work}/none:/bin"})
    assert kinds(accesses, work / "none/true") & Kind.EXECUTED
    assert kinds(accesses, "/bin/true") & Kind.EXECUTED


def test_signals_are_as_they_were(work: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)]
    command = ("grep", "-E", "SigIgn|SigBlk", "/proc/self/status")
    _, text = output(*command)
    plainly = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # a shell's `&` ignores some
    glibc = 3 << 31  # signals 32 and 33, which glibc keeps for its own threads
    masks, expected = ([int(line.split()[1], 16) & ~glibc for line in each.splitlines()] for each in (text, plainly))
    assert masks == expected
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)] == before


# --- the supervisor

LOOP = """
import os, sys, time
for i in range(150):
    os.stat('in')
    if i == 20: open('ready', 'w').close()
    time.sleep(.001)
open('done', 'w').close()
"""


def test_the_keeper_takes_over_when_the_supervisor_is_killed(work: Path) -> None:
    (work / "in").write_text("")
    pid = os.fork()
    if pid == 0:
        run(PYTHON, "-I", "-S", "-c", LOOP)
        os._exit(1)
    wait_for((work / "ready").exists)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    wait_for((work / "done").exists)


def test_the_keeper_answers_the_call_that_the_supervisor_had_received(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "in").write_text("")
    handle = SyscallDecoder.handle

    def die(self: SyscallDecoder, number: int, pid: int, arguments: tuple[int, ...]) -> object:
        if (work / "ready").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return handle(self, number, pid, arguments)

    monkeypatch.setattr(SyscallDecoder, "handle", die)
    pid = os.fork()
    if pid == 0:
        run(PYTHON, "-I", "-S", "-c", LOOP)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -9
    wait_for((work / "done").exists)


def test_an_exception_in_the_supervisor_ends_the_command(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(SyscallDecoder, "handle", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        run("sleep", "100")


def test_ctrl_c_is_for_the_command(work: Path) -> None:
    (work / "in").write_text("")
    text = """
import os, sys, time
try:
    open('ready', 'w').close(); time.sleep(30)
except KeyboardInterrupt:
    os.stat('in'); sys.exit(7)
"""

    def interrupted() -> object:
        os.setpgid(0, 0)
        (work / "group").write_text(str(os.getpid()))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        accesses = run(PYTHON, "-I", "-S", "-c", text)
        return accesses.returncode, int(kinds(accesses, "in")), len(accesses.problems)

    pid = os.fork()
    if pid == 0:
        wait_for((work / "ready").exists)
        os.killpg(int((work / "group").read_text()), signal.SIGINT)
        os._exit(0)
    assert in_child(interrupted) == "(7, 1, 1)"  # the signal is no part of every run
    os.waitpid(pid, 0)


def test_a_signal_to_the_supervisor_goes_to_the_command(work: Path) -> None:
    def terminated() -> object:
        return run("sh", "-c", f"kill -TERM {os.getpid()}; sleep 30").returncode

    assert in_child(terminated) == "-15"


def test_a_command_that_ends_with_the_supervisor(work: Path) -> None:
    script = "trap 'touch ended; exit' TERM; touch ready; while :; do sleep .01; done"
    pid = os.fork()
    if pid == 0:
        run("sh", "-c", script, ends_with_us=True)
        os._exit(1)
    wait_for((work / "ready").exists)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    wait_for((work / "ended").exists)


def test_a_process_that_is_left_behind_goes_on_and_is_named(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_GRACE_SECONDS", 0.1)
    (work / "in").write_text("")
    before = children()
    daemon = "until [ -e returned ]; do sleep .01; done; cat in && touch done"
    accesses = run("sh", "-c", f"setsid sh -c '{daemon}' & exit 4")
    assert (accesses.returncode, reasons(accesses)) == (4, {TraceProblemKind.LEFT_BEHIND})
    assert children() - before
    (work / "returned").write_text("")
    wait_for((work / "done").exists)
    wait_for(lambda: not children() - before)


def test_orphans_that_end_are_recorded_and_reaped(work: Path) -> None:
    (work / "in").write_text("")
    accesses = run("sh", "-c", "(sh -c 'cat in & exit' &) ; sleep .05")
    assert kinds(accesses, "in") & Kind.CONTENT
    assert not accesses.problems


def test_no_descriptor_and_no_process_stays(work: Path) -> None:
    run("true")
    children_before = children()
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        run("sh", "-c", "true & wait")
    assert set(os.listdir("/proc/self/fd")) == before
    wait_for(lambda: not children() - children_before)


def test_the_command_has_no_descriptor_of_ours(work: Path) -> None:
    command = ["sh", "-c", "ls /proc/$$/fd"]
    bare = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, close_fds=False)
    assert output(*command)[1] == bare.stdout


# --- where nothing can be traced, the command runs once


NESTED = """
import os, sys
from cachec.tracing import supervisor
from cachec.tracing.supervisor import trace
supervisor._GRACE_SECONDS = float(os.environ.get('GRACE', '20'))
open('of-outer').close()
null = os.open(os.devnull, os.O_RDWR)
a = trace(sys.argv[1:], stdout=null, stderr=null)
names = {os.path.basename(each.path) for each in a.inputs if each.path.startswith(('in', 'of'))}
print(a.returncode, sorted(names), [os.path.basename(each.path) for each in a.changes], *a.problems)
"""


def test_a_nested_run_is_recorded_by_the_outer_supervisor(work: Path) -> None:
    for name in ("in1", "in2", "of-outer"):
        (work / name).write_text("")
    script = "cat in1; (sh -c 'sleep .02; cat in2' & ); echo x >> out; sleep .04; exit 3"
    accesses, text = output(sys.executable, "-B", "-c", NESTED, "sh", "-c", script)
    assert text == "3 ['in1', 'in2'] ['out']\n"
    assert (work / "out").read_text() == "x\n"
    assert all(kinds(accesses, name) & Kind.CONTENT for name in ("in1", "in2", "of-outer"))
    assert {change.path for change in accesses.changes} == {str(work / "out")}
    assert not accesses.problems


def test_a_run_nested_twice(work: Path) -> None:
    for name in ("in1", "of-outer"):
        (work / name).write_text("")
    command = [sys.executable, "-B", "-c", NESTED]
    script = "import os, sys; os.dup2(int(sys.argv[1]), 1); os.execv(sys.argv[2], sys.argv[2:])"
    with (work / "text").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        inner = [sys.executable, "-c", script, str(file.fileno()), *command, "cat", "in1"]
        accesses, text = output(*command, *inner)
    assert (work / "text").read_text() == "0 ['in1'] []\n"
    assert text.startswith("0 ['in1', 'of-outer'] []")
    assert not accesses.problems


def test_a_process_that_a_nested_run_leaves_behind(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_GRACE_SECONDS", 0.1)
    monkeypatch.setenv("GRACE", "0.1")
    (work / "of-outer").write_text("")
    daemon = "until [ -e done ]; do sleep .01; done; touch ended"
    _, text = output(sys.executable, "-B", "-c", NESTED, "sh", "-c", f"setsid sh -c '{daemon}' & exit 0")
    (work / "done").write_text("")
    wait_for((work / "ended").exists)
    assert f"TraceProblemKind.LEFT_BEHIND: '{TraceProblemKind.LEFT_BEHIND}'" in text


def test_an_outer_tracer_of_another_kind(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not know what nested runs ask for: the command runs once, untraced."""
    monkeypatch.setattr(process_paths, "_REQUESTS", b"/proc/other")
    (work / "of-outer").write_text("")
    accesses, text = output(sys.executable, "-B", "-c", NESTED, "sh", "-c", "echo x >> out")
    assert text.startswith(f"0 [] [] TraceProblem(reason=<TraceProblemKind.NESTED: '{TraceProblemKind.NESTED}'>")
    assert (work / "out").read_text() == "x\n"
    assert {change.path for change in accesses.changes} == {str(work / "out")}


@pytest.mark.parametrize("damage", ["empty", "cut", "other-encoding"])
def test_a_damaged_record_of_a_nested_run(work: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    """The run is untraced; its exit status is known all the same."""
    damages: dict[str, Callable[[bytes], bytes]] = {
        "empty": lambda _: b"",
        "cut": lambda data: data[:-1],
        "other-encoding": lambda data: data.replace(b'"utf-8"', b'"latin-1"', 1),
    }
    encode = codec.encode
    monkeypatch.setattr(codec, "encode", lambda accesses: damages[damage](encode(accesses)))
    (work / "of-outer").write_text("")
    accesses, text = output(sys.executable, "-B", "-c", NESTED, "sh", "-c", "echo x >> out; exit 3")
    assert text.startswith(f"3 [] [] TraceProblem(reason=<TraceProblemKind.NESTED: '{TraceProblemKind.NESTED}'>")
    assert (work / "out").read_text() == "x\n"
    assert not accesses.problems


def test_an_unknown_machine(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "architecture", lambda: None)
    accesses, text = output("sh", "-c", "echo x")
    assert (text, reasons(accesses)) == ("x\n", {TraceProblemKind.UNSUPPORTED_MACHINE})


def test_no_access_to_the_memory_of_a_child(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bytes:
        raise Unreadable("process 1: not permitted")

    monkeypatch.setattr(ProcessMemory, "read", refuse)
    accesses, text = output("sh", "-c", "echo x")
    assert (text, reasons(accesses)) == ("x\n", {TraceProblemKind.NO_ACCESS})


def deny(*numbers: int, value: int = 1) -> None:
    """Have this process get an error for calls, as in a container."""
    libc = ctypes.CDLL(None, use_errno=True)
    code = [(0x20, 0, 0, 0)]
    for number in numbers:
        code += [(0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | value)]
    code.append((0x06, 0, 0, 0x7FFF0000))
    program = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *each) for each in code))
    header = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", len(code), ctypes.addressof(program)))
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, header, 0, 0) == 0, os.strerror(ctypes.get_errno())


#: Calls that Docker's default profile refuses without capabilities: mount, umount2, unshare, setns, ptrace,
#: process_vm_readv, process_vm_writev, pidfd_getfd, io_uring_setup, keyctl, bpf, perf_event_open, userfaultfd.
DOCKER = {
    "x86_64": (165, 166, 272, 308, 101, 310, 311, 438, 425, 250, 321, 298, 323),
    "aarch64": (40, 39, 97, 268, 117, 270, 271, 438, 425, 219, 280, 241, 282),
}


def test_a_filter_like_that_of_docker(work: Path) -> None:
    (work / "in").write_text("")

    def contained() -> object:
        deny(*DOCKER[os.uname().machine])
        deny(435, value=38)  # clone3
        accesses = run("sh", "-c", "cat in; touch out")
        return int(kinds(accesses, "in")), accesses.problems, [change.path for change in accesses.changes]

    assert in_child(contained) == f"(2, (), ['{work}/out'])"


def test_a_sandbox_without_seccomp(work: Path) -> None:
    def contained() -> object:
        machine = architecture()
        assert machine is not None
        deny(machine.seccomp)
        accesses, text = output("sh", "-c", "echo x; grep NoNewPrivs /proc/$$/status")
        return text.split(), [str(reason) for reason in reasons(accesses)]

    assert in_child(contained) == "(['x', 'NoNewPrivs:', '1'], ['untraced-no-listener'])"


def test_a_sandbox_without_pidfd(work: Path) -> None:
    def contained() -> object:
        deny(434)  # pidfd_open
        accesses, text = output("sh", "-c", "echo x")
        return text, [str(reason) for reason in reasons(accesses)]

    assert in_child(contained) == "('x\\n', ['untraced-no-access'])"


def test_a_namespace_without_proc(work: Path) -> None:
    need("unshare")
    hide = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]
    if subprocess.run([*hide, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount")
    text = (
        "import os; from cachec.tracing.supervisor import trace\n"
        "r, w = os.pipe()\n"
        "a = trace(['sh', '-c', 'echo x >> out; echo x'], stdout=w, readers={r: lambda: os.read(r, 9)})\n"
        "print(a.returncode, *(str(problem.reason) for problem in a.problems))"
    )
    done = subprocess.run([*hide, sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.stdout == "0 untraced-no-access\n", done.stderr
    assert (work / "out").read_text() == "x\n"


# --- rights


def as_nobody(task: Callable[[], object]) -> str:
    if os.getuid() != 0:
        return in_child(task)

    def unprivileged() -> object:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: setuid(2) has taken it
        return task()

    return in_child(unprivileged)


@pytest.fixture
def open_work(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current folder that all users may use; that of pytest is below one that they may not."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(os.path.realpath(name))
        folder.chmod(0o777)
        monkeypatch.chdir(folder)
        yield folder


def test_an_ordinary_user(open_work: Path) -> None:
    (open_work / "in").write_text("")

    def task() -> object:
        accesses, text = output("sh", "-c", "cat in; touch out; grep NoNewPrivs /proc/$$/status")
        return int(kinds(accesses, "in")), accesses.problems, len(accesses.changes), text.split()[-1]

    assert as_nobody(task) == "(2, (), 1, '1')"


def test_a_set_uid_program_of_an_ordinary_user(open_work: Path) -> None:
    program = open_work / "program"
    program.write_bytes(Path("/bin/true").read_bytes())
    program.chmod(0o4755)
    assert as_nobody(lambda: sorted(reasons(run("./program")))) == "[<TraceProblemKind.PRIVILEGE: 'privilege'>]"


def test_a_program_that_others_may_not_read(open_work: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("needs root, to have a program of another user")
    program = open_work / "program"
    program.write_bytes(Path("/bin/true").read_bytes())
    program.chmod(0o711)
    assert as_nobody(lambda: [run("./program").returncode, *reasons(run("./program"))]) == (
        "[0, <TraceProblemKind.UNREADABLE: 'unreadable-process'>]"
    )


@pytest.mark.parametrize(
    "command",
    [
        ["unshare", "-r", "cat", "in"],
        ["unshare", "-r", "-m", "cat", "in"],
        ["bwrap", "--ro-bind", "/", "/", "--tmpfs", "/mnt", "--unshare-pid", "cat", "in"],
    ],
    ids=["user namespace", "mount namespace", "bubblewrap"],
)
def test_namespaces(work: Path, command: list[str]) -> None:
    need(command[0])
    (work / "in").write_text("text")
    bare = subprocess.run(command, capture_output=True, text=True, check=False)
    if bare.returncode:
        pytest.skip(f"{command[0]} does not work here: {bare.stderr}")
    accesses, text = output(*command)
    assert (text, accesses.returncode) == ("text", 0)
    assert reasons(accesses) - {TraceProblemKind.OTHER_RIGHTS} == {TraceProblemKind.NAMESPACE}


def test_another_root(work: Path) -> None:
    if subprocess.run(["chroot", "/", "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to change the root")
    accesses = run("chroot", "/", "true")
    assert (accesses.returncode, reasons(accesses)) == (0, {TraceProblemKind.NAMESPACE})


# --- calls that are not seen, or that fail


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("signal.signal(signal.SIGCHLD, lambda *_: None)", True),
        ("signal.signal(signal.SIGCHLD, lambda *_: None); signal.siginterrupt(signal.SIGCHLD, False)", True),
        ("signal.signal(signal.SIGCHLD, signal.SIG_IGN)", False),
        ("signal.signal(signal.SIGUSR1, lambda *_: None)", False),
        ("pass", False),
    ],
)
def test_handlers_that_interrupt_are_watched(work: Path, text: str, expected: bool) -> None:
    assert run(PYTHON, "-I", "-S", "-c", f"import signal; {text}").may_be_interrupted is expected


RESTARTED = r"""
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/time.h>
#include <unistd.h>
static void handle(int number) {}
int main(void) {
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, 0);
    struct itimerval every = {{0, 200}, {0, 200}};
    setitimer(ITIMER_REAL, &every, 0);
    char path[64];
    int failed = 0;
    for (int i = 0; i < 500; i++) {
        sprintf(path, "/proc/../none/%d", i);
        if (open(path, O_RDONLY) < 0 && errno != ENOENT) failed++;
    }
    return failed ? 1 : 0;
}
"""


def test_signals_do_not_lose_calls(work: Path, compiled: Callable[..., str]) -> None:
    accesses = run(compiled("restarted", RESTARTED))
    assert (accesses.returncode, accesses.may_be_interrupted) == (0, False)
    assert sum(each.path.startswith("/proc/../none/") for each in accesses.inputs) == 500


INT80 = r"""
int main(void) {
    int pid;
    __asm__ volatile("int $0x80" : "=a"(pid) : "a"(20) : "r8", "r9", "r10", "r11", "memory");
    return pid > 0 ? 0 : 1;
}
"""
X32 = "#include <unistd.h>\nint main(void) { syscall(0x40000000 | 39); return 0; }\n"
I386 = r"""
void _start(void) { __asm__ volatile("int $0x80" :: "a"(1), "b"(5)); }
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="other ABIs of x86")
@pytest.mark.parametrize(
    ("name", "text", "flags", "code"),
    [
        ("int80", INT80, (), 0),
        ("x32", X32, (), 0),
        ("i386", I386, ("-m32", "-nostdlib", "-static", "-ffreestanding", "-fno-pic", "-no-pie"), 5),
    ],
)
def test_foreign_calls(
    work: Path, compiled: Callable[..., str], name: str, text: str, flags: tuple[str, ...], code: int
) -> None:
    program = compiled(name, text, flags)
    bare = subprocess.run([program], check=False).returncode
    accesses = run(program)
    assert accesses.returncode == bare == code
    assert reasons(accesses) == {TraceProblemKind.FOREIGN_CALLS}


def test_io_uring_does_not_exist(work: Path) -> None:
    text = "import ctypes; l = ctypes.CDLL(None, use_errno=True); l.syscall(425, 8, 0); print(ctypes.get_errno())"
    accesses, found = output(PYTHON, "-I", "-c", text)
    assert (found, accesses.problems) == ("38\n", ())


def test_open_below_another_root(work: Path) -> None:
    text = (
        "import ctypes, os, struct; d = os.open('.', os.O_PATH); h = struct.pack('QQQ', 0, 0, 0x10);"
        "ctypes.CDLL(None).syscall(437, d, b'/in', h, 24)"
    )
    assert reasons(run(PYTHON, "-I", "-c", text)) == {TraceProblemKind.UNSUPPORTED_CALL}


# --- processes, in numbers


def test_threads(work: Path) -> None:
    text = (
        "import os, threading\n"
        "def look(i):\n    for j in range(20): os.path.exists(f'none{i}-{j}')\n"
        "threads = [threading.Thread(target=look, args=(i,)) for i in range(16)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
    )
    accesses = run(PYTHON, "-I", "-S", "-c", text)
    assert sum(each.path.startswith("none") for each in accesses.inputs) == 320


RACE = r"""
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>
static volatile char path[] = "fileA";
static volatile int goes = 1;
static void *flip(void *nothing) {
    while (goes) path[4] ^= 'A' ^ 'B';
    return nothing;
}
int main(void) {
    pthread_t thread;
    pthread_create(&thread, 0, flip, 0);
    int failed = 0;
    for (int i = 0; i < 300; i++) {
        int fd = open((const char *)path, O_RDONLY);
        if (fd < 0) failed++;
        else close(fd);
    }
    goes = 0;
    pthread_join(thread, 0);
    return failed ? 1 : 0;
}
"""


def test_a_path_that_another_thread_changes(work: Path, compiled: Callable[..., str]) -> None:
    """Which of the two files the kernel opens is not known: a limit. The run itself is not disturbed."""
    for name in ("fileA", "fileB"):
        (work / name).write_text("")
    accesses = run(compiled("race", RACE))
    assert accesses.returncode == 0
    assert {each.path for each in accesses.inputs if each.folder} <= {"fileA", "fileB"}


def test_make_with_many_jobs(work: Path) -> None:
    need("make")
    names = [f"f{i}" for i in range(24)]
    for name in names:
        (work / f"{name}.in").write_text(name)
    (work / "Makefile").write_text(f"all: {' '.join(names)}\n%: %.in\n\tcat $< > $@\n")
    accesses = run("make", "-s", "-j16")
    assert (accesses.returncode, accesses.problems) == (0, ())
    assert {change.path for change in accesses.changes} == {str(work / name) for name in names}
    assert all(kinds(accesses, f"{name}.in") & Kind.CONTENT for name in names)


def test_process_numbers_that_are_given_out_again(work: Path) -> None:
    """In a namespace of its own every ``cat`` has the same number."""
    need("unshare")
    namespace = ["unshare", "-pf", "--mount-proc"]
    if subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to make a namespace")
    script = "".join(
        f"echo 300 > /proc/sys/kernel/ns_last_pid; (cd {i} && exec cat ../in{i} x) > /dev/null\n" for i in range(30)
    )
    for i in range(30):
        (work / f"{i}").mkdir()
        (work / f"{i}/x").write_text("")
        (work / f"in{i}").write_text("")
    text = (
        "from cachec.tracing.supervisor import trace\n"
        f"a = trace(['bash', '--norc', '-c', {script!r}])\n"
        "print(*{(i.folder, i.path) for i in a.inputs if i.folder}, a.returncode, a.problems, sep='\\n')"
    )
    line = [*namespace, sys.executable, "-c", text]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    found = done.stdout.splitlines()
    expected = {str((f"{work}/{i}", name)) for i in range(30) for name in (f"../in{i}", "x")}
    assert expected <= set(found), done.stderr
    assert found[-2:] == ["0", "()"]


MANY = r"""
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
int main(int count, char **words) {
    char path[64];
    for (int i = 0; i < atoi(words[1]); i++) {
        sprintf(path, "none/%d", i);
        open(path, O_RDONLY);
    }
    return 0;
}
"""


@pytest.mark.parametrize("count", [500, pytest.param(100_000, marks=pytest.mark.long)])
def test_many_opens(work: Path, compiled: Callable[..., str], count: int) -> None:
    accesses = run(compiled("many", MANY), count)
    assert sum(each.path.startswith("none/") for each in accesses.inputs) == count
    assert count <= accesses.notifications < count + 20


@pytest.mark.long
def test_many_processes(work: Path) -> None:
    """More than there may be open descriptors."""
    accesses = run("bash", "--norc", "-c", "for i in $(seq 1500); do /bin/true & ((i % 16)) || wait; done; wait")
    assert (accesses.returncode, accesses.problems) == (0, ())


# --- sockets, pipes and devices


SOCKETS = {
    "a connection": (
        "s = socket.socket(); s.settimeout(.1); s.connect_ex(('127.0.0.1', 9))",
        {TraceProblemKind.NETWORK},
    ),
    "a datagram": ("socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))", {TraceProblemKind.NETWORK}),
    "a message": (
        "socket.socket(type=socket.SOCK_DGRAM).sendmsg([b'x'], [], 0, ('127.0.0.1', 9))",
        {TraceProblemKind.NETWORK},
    ),
    "IPv6": ("s = socket.socket(socket.AF_INET6); s.connect_ex(('::1', 9))", {TraceProblemKind.NETWORK}),
    "a server": ("socket.socket().bind(('127.0.0.1', 0))", {TraceProblemKind.NETWORK}),
    "a pair": ("a, b = socket.socketpair(); a.send(b'x'); a.sendmsg([b'x']); b.recv(2)", set()),
    "an absent daemon": ("socket.socket(socket.AF_UNIX).connect_ex('none')", set()),
    "an abstract daemon": ("socket.socket(socket.AF_UNIX).connect_ex('\\0none')", {TraceProblemKind.DAEMON}),
    "a daemon": ("socket.socket(socket.AF_UNIX).connect('daemon')", {TraceProblemKind.DAEMON}),
    "its own server": (
        "s = socket.socket(socket.AF_UNIX); s.bind('own'); s.listen(); socket.socket(socket.AF_UNIX).connect('own')",
        set(),
    ),
}


@pytest.mark.parametrize("name", SOCKETS)
def test_sockets(work: Path, name: str) -> None:
    import socket

    text, expected = SOCKETS[name]
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind("daemon")
        daemon.listen()
        accesses = run(PYTHON, "-I", "-c", f"import socket\ntry: {text}\nexcept OSError: pass")
    assert accesses.returncode == 0
    assert reasons(accesses) == expected
    if name == "an absent daemon":
        assert kinds(accesses, "none") == Kind.STATUS


def test_named_pipes(work: Path) -> None:
    os.mkfifo(work / "outside")
    accesses = run("sh", "-c", "mkfifo own; echo x > own & cat own; wait; [ -p outside ]")
    assert (accesses.returncode, accesses.problems) == (0, ())
    accesses = run("sh", "-c", "echo x > outside & cat outside; wait")
    assert reasons(accesses) == {TraceProblemKind.PIPE}


def test_devices(work: Path) -> None:
    accesses = run("sh", "-c", "cat /dev/null; head -c 3 /dev/zero /dev/urandom; echo x > /dev/null; : > /dev/full")
    assert not accesses.problems
    assert not any(each.path.startswith("/dev/") for each in accesses.inputs)
    assert run("bash", "--norc", "-c", "true").problems == ()
    if Path("/dev/kmsg").exists() and os.getuid() == 0:
        assert reasons(run("sh", "-c", ": < /dev/kmsg")) == {TraceProblemKind.DEVICE}


def test_a_folder_that_was_removed(work: Path) -> None:
    (work / "in").write_text("")
    accesses = run("sh", "-c", "mkdir gone; cd gone; rmdir ../gone; cat x; true")
    assert not accesses.problems
    assert reasons(run("sh", "-c", "mkdir gone; cd gone; rmdir ../gone; cat ../in; true")) == {
        TraceProblemKind.UNRESOLVED
    }


def test_a_signal_before_the_command_starts(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = Child.go_traced

    def killed(self: Child) -> object:
        os.kill(self.pid, signal.SIGKILL)
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        return order(self)

    monkeypatch.setattr(Child, "go_traced", killed)
    accesses = run("touch", "out")
    assert (accesses.returncode, reasons(accesses)) == (-9, {TraceProblemKind.NO_LISTENER})
    assert not (work / "out").exists()
