"""Users without a home folder: no base folder is relative, so no checkout chooses the settings or the store."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import cachec
from cachec import config
from cachec.base import call_hooks, fsio, xdg
from cachec.cli import main
from cachec.errors import CacheMissError, ConfigError, NoStoreFolder
from cachec.launcher import client, direct, execute, server_start
from cachec.model import Mode, Reason

#: A user number without an account.
UID = 4242

#: What HOME is: None for not set.
HOMES = [None, "", "home", "~"]


@pytest.fixture
def no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """No user has an account."""

    def missing(user: object) -> pwd.struct_passwd:
        raise KeyError(user)

    monkeypatch.setattr(pwd, "getpwuid", missing)
    monkeypatch.setattr(pwd, "getpwnam", missing)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with settings wherever a relative base folder would lead to."""
    folder = tmp_path / "checkout"
    for base in ("~/.config", ".config", "home/.config", "config", "~/.cache", ".cache"):
        place = folder / base / "cachec"
        place.mkdir(parents=True)
        (place / "cachec.toml").write_text('dir = "/tmp/of-the-attacker"\nremote = ["file:///tmp/of-the-attacker"]\n')
    monkeypatch.chdir(folder)
    return folder


def _variables(home: str | None, **others: str) -> dict[str, str]:
    return {**({} if home is None else {"HOME": home}), **others}


@pytest.mark.usefixtures("no_account", "checkout")
@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("others", [{}, {"XDG_CACHE_HOME": "cache", "XDG_CONFIG_HOME": "config"}])
def test_no_base_folder_is_relative(home: str | None, others: dict[str, str]) -> None:
    environ = _variables(home, **others)
    assert (xdg.cache_folder(environ), xdg.settings_file(environ), xdg.home_folder(environ)) == ("", "", "")
    assert direct.default_folder(environ, os.getcwd()) == ""
    settings = config.load(environ=environ)
    assert settings.store_folder is None
    assert settings.remote == ()
    with pytest.raises(NoStoreFolder, match=r"HOME .* account .*set CACHEC_DIR, XDG_CACHE_HOME or HOME"):
        _ = settings.dir


@pytest.mark.parametrize("account", ["", "relative", "~"])
def test_the_folder_of_an_account_is_absolute_too(monkeypatch: pytest.MonkeyPatch, account: str) -> None:
    entry = pwd.struct_passwd(("name", "x", UID, UID, "", account, "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwuid", lambda _uid: entry)
    assert xdg.cache_folder({}) == ""
    good = pwd.struct_passwd(("name", "x", UID, UID, "", "/home/name", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwuid", lambda _uid: good)
    assert xdg.cache_folder({}) == xdg.cache_folder({"HOME": "relative"}) == "/home/name/.cache/cachec"


@pytest.mark.usefixtures("no_account")
@pytest.mark.parametrize("value", ["~", "~/x", "~nobody-of-that-name/x"])
def test_a_tilde_leads_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.chdir(tmp_path)
    environ = {"CACHEC_DIR": value}
    assert config.load(environ=environ).store_folder is None
    why = config.load(environ=environ).no_store
    assert f"dir is '{value}', and " in why
    assert why.count("absolute path") == 1
    assert direct.default_folder(environ, os.getcwd()) == ""
    for key in ("stats_file", "repro_dir", "base_dir", "trusted"):
        named = rf"environment: CACHEC_{key.upper()}: {key} is '{value}', and .* home folder; give an absolute path"
        with pytest.raises(ConfigError, match=named):
            config.load(environ={"CACHEC_DIR": "/x", f"CACHEC_{key.upper()}": value})
    monkeypatch.delenv("HOME")
    (tmp_path / "cachec.toml").write_text(f'[adapters]\nfiles = ["{value}"]\n')
    from cachec.launcher import adapters

    monkeypatch.setenv("CACHEC_DIR", str(tmp_path / "store"))
    with pytest.raises(ConfigError, match="its home folder is not known"):
        list(adapters.sources())


@pytest.mark.usefixtures("no_account")
def test_a_store_of_a_project_needs_no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no folder for memos and servers then: nothing of theirs is made in the current one."""
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "CACHEC_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cachec.toml").write_text('dir = "store"\n')
    (tmp_path / "in").write_text("input\n")
    made: list[str] = []
    monkeypatch.setattr("cachec.base.fsio.Staging", _Spy(made))
    args = ["--input=in", "--output=out", "--", "/bin/cp", "in", "out"]
    for _ in range(2):
        assert execute.main(args) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"cachec.toml", "in", "out", "store"}
    assert made
    assert all(os.path.isabs(path) for path in made), made
    assert not direct.answer(args)
    assert client.ask(args) == (None, "", "")


@pytest.mark.usefixtures("no_account")
def test_a_command_in_mode_require_ends_without_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "CACHEC_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").write_text("input\n")
    described = ["--input=in", "--output=out", "--", "/bin/cp", "in", "out"]
    for mode in ("on", "verify", "read-only", "refresh", "require"):
        monkeypatch.setenv("CACHEC_MODE", mode)
        ending = execute.conclude(described, {})
        assert ending is not None
        assert (ending.status, ending.become is None) == ((2, True) if mode == "require" else (None, False))


@pytest.mark.usefixtures("no_account")
def test_what_needs_no_store_works_without_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cachec_mlir")
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "CACHEC_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.mlir").write_text("module {}\n")
    done = CliRunner().invoke(main, ["mlir", "hash", "a.mlir"], prog_name="cachec")
    assert (done.exit_code, done.output.endswith("  a.mlir\n")) == (0, True), done.output


def test_no_server_is_started_for_a_store_that_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config.load(environ={}, cwd=tmp_path)
    monkeypatch.setattr(config, "load", lambda: settings)
    for mode, is_refused in ((0o777, True), (0o755, False)):
        place = tmp_path / f"{mode:o}"
        place.mkdir()
        place.chmod(mode)
        folder = place / "store" / f"server-{os.geteuid()}"
        held, _ = server_start.hold(str(folder), "name")
        assert (held < 0) == is_refused
        assert (place / "store").exists() != is_refused
        if held >= 0:
            os.close(held)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        held, is_there = server_start.hold(str(folder), "name")
        assert (held < 0, is_there) == (is_refused, False)
        if held >= 0:
            os.close(held)


class _Spy:
    """``fsio.Staging`` that notes its folders."""

    def __init__(self, made: list[str]) -> None:
        self._made = made
        self._real = fsio.Staging

    def __call__(self, folder: str, prefix: str = "stage-") -> fsio.Staging:
        self._made.append(os.fspath(folder))
        return self._real(folder, prefix)


@pytest.mark.usefixtures("no_account", "checkout")
def test_stages_run_uncached(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "CACHEC_DIR"):
        monkeypatch.delenv(name, raising=False)
    cache = cachec.Cache()
    stage = cache.stage(name="s")(lambda n: n + 1)
    outcomes = [stage.call(n)[1] for n in range(3)]
    assert {outcome.reason for outcome in outcomes} == {Reason.NO_STORE_FOLDER}
    assert stage(1) == 2
    assert stage.check(1).reason is Reason.NO_STORE_FOLDER
    foreign = cache.foreign("f")
    foreign.put("key", b"data")
    assert foreign.get("key") is None
    assert caplog.text.count("no-store-folder") == 1
    assert not cache.replaces("a library's own cache")
    with pytest.raises(NoStoreFolder):
        cache.weights("w")
    with call_hooks.overseen(call_hooks.Oversight(mode=Mode.REQUIRE)), pytest.raises(CacheMissError):
        stage(1)  # as ``pytest --cachec=require`` has it
    required = cachec.Cache(mode="require")
    with pytest.raises(CacheMissError, match="no-store-folder"):
        required.stage(name="s")(lambda n: n)(1)
    with pytest.raises(CacheMissError, match="no-store-folder"):
        required.foreign("f").get("key")


#: Every command in one process of a user without an account, then a stage; what each ended with.
AS_USER = """
import json
import cachec, cachec.cli
from click.testing import CliRunner
found = {}
for name in cachec.cli._COMMANDS:
    words = {"why": ["abcdef"], "show": ["abcdef"], "weights": ["ls"], "pin": ["abcdef"],
             "bundle": ["create", "b"], "check": ["--", "cat", "in"],
             "repro": ["abcdef"], "invalidate": ["abcdef"]}.get(name, [])
    if name not in {"exec", "man", "completion", "init", "python"}:
        done = CliRunner().invoke(cachec.cli.main, [name, *words], prog_name="cachec")
        found[name] = [done.exit_code, done.output, repr(done.exception)]
print(json.dumps(found))
"""


def _as_user(line: list[str], folder: Path, home: str | None) -> subprocess.CompletedProcess[str]:
    environ = _variables(home, PATH=os.environ["PATH"], PYTHONPATH=str(Path(__file__).parents[2]))
    return subprocess.run(line, cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=60)


def _names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("home", [None, pytest.param("home", marks=pytest.mark.long)])
def test_every_command_of_a_user_without_a_home(checkout: Path, home: str | None) -> None:
    for folder in checkout.parents:
        if folder.stat().st_uid == os.geteuid() and not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)
    for path in (checkout, *checkout.rglob("*")):
        os.chown(path, UID, UID)
    (checkout / "in").write_text("input\n")
    (checkout / "in").chmod(0o644)
    before = _names(checkout)
    become = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"]
    become += ["--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"]
    done = _as_user([*become, sys.executable, "-c", AS_USER], checkout, home)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for name, (status, output, raised) in found.items():
        assert "of-the-attacker" not in output, (name, output)
        assert "Traceback" not in output, (name, output)
        assert raised in {"None", "SystemExit(0)", "SystemExit(1)", "SystemExit(2)"}, (name, raised)
        if name == "config":  # which needs no store
            assert status == 0, (name, output)
        else:
            assert status == 2, (name, output)
    told = [name for name, (_, output, _) in found.items() if "there is no folder for the store" in output]
    assert {"ls", "stats", "gc", "doctor", "verify", "why", "show", "log", "top", "server", "config"} <= {*told}, found
    assert _names(checkout) == before
    for line in (["/bin/cp", "in", "out"], ["cmake", "--version"]):
        ran = _as_user([*become, sys.executable, "-m", "cachec", "exec", "--", *line], checkout, home)
        assert "bypass" in ran.stderr, ran
        assert ran.stderr.count("no-store-folder") == 1, ran
    assert _names(checkout) == before | {"out"}


@pytest.mark.long
@pytest.mark.usefixtures("checkout")
@pytest.mark.parametrize(
    ("plugin", "library", "replaced"),
    [
        ("cachec_jax", "jax", "jax._src.compilation_cache.get_file_cache.__name__"),
        ("cachec_torch", "torch._inductor.cpp_builder", "torch._inductor.cpp_builder._run_compile_cmd.__name__"),
        ("cachec_triton", "triton.knobs", "triton.knobs.cache.manager_class.__name__"),
    ],
)
def test_a_library_goes_on_with_its_own_cache(plugin: str, library: str, replaced: str) -> None:
    pytest.importorskip(library.partition(".")[0])
    code = (
        "import pwd\n"
        "def missing(user): raise KeyError(user)\n"
        "pwd.getpwuid = missing\n"
        f"import {library}, {plugin}\nbefore = {replaced}\n{plugin}.install()\nassert {replaced} == before\n"
    )
    environ = {name: value for name, value in os.environ.items() if name not in {"HOME", "CACHEC_DIR"}}
    environ |= {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton", "USER": "u"}
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, env=environ, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("no-store-folder") == 1, done.stderr
    assert "goes on with its own cache" in done.stderr
