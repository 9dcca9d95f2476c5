"""Configuration files that are found: whose they are, and what they may not say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cachec import config
from cachec.base import file_ownership
from cachec.errors import ConfigError
from cachec.events import EventLog
from cachec.model import Outcome, Reason

from .conftest import Run

SETTINGS = ("-m", "cachec", "config")


def _given(path: Path, uid: int | None) -> Path:
    if uid is not None:
        os.chown(path, uid, uid)
    return path


def test_a_file_of_another_user_is_refused_by_name(run: Run, place: Path, uid: int | None, attacker: int) -> None:
    for name, text in (("cachec.toml", 'log = "off"\n'), ("pyproject.toml", '[tool.cachec]\nlog = "off"\n')):
        file = place / name
        file.write_text(text)
        os.chown(file, attacker, attacker)
        done = run(*SETTINGS)
        assert done.returncode == 2, done
        assert f"{file} is refused: {file} belongs to user {attacker}" in done.stderr
        assert f"CACHEC_TRUSTED={place}" in done.stderr
        assert run(*SETTINGS, environ={"CACHEC_TRUSTED": str(place)}).returncode == 0
        _given(file, uid)
        os.chown(file, 0 if uid is None else uid, 0)
        assert run(*SETTINGS).returncode == 0
        file.unlink()


def test_a_command_is_not_started_with_a_foreign_file(run: Run, place: Path, attacker: int) -> None:
    file = place / "cachec.toml"
    file.write_text(
        'stats_file = "~/.bashrc"\n[adapters."$(touch pwned)"]\nmatch = ["cp"]\n'
        'flags = [{names = ["-t"], is = "output", takes = ["next"]}]\n'
    )
    os.chown(file, attacker, attacker)
    done = run("-m", "cachec", "exec", "--", "cp", "a", "b")
    assert done.returncode == 2
    assert f"{file} is refused" in done.stderr
    assert not (place / "home" / ".bashrc").exists()


def test_a_foreign_pyproject_that_says_nothing_to_us_is_passed_over(run: Run, place: Path, attacker: int) -> None:
    file = place / "pyproject.toml"
    file.write_text('[project]\nname = "uses-cachec"\n')
    os.chown(file, attacker, attacker)
    assert run(*SETTINGS).returncode == 0


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o1777])
def test_a_folder_above_that_others_can_write(run: Run, place: Path, uid: int | None, mode: int) -> None:
    """Sticky, as /tmp is, nobody can replace what is the user's own."""
    open_folder = _given(_made(place / "open"), uid)
    project = _given(_made(open_folder / "project"), uid)
    _given(project / "cachec.toml", None).write_text('log = "off"\n')
    _given(project / "cachec.toml", uid)
    open_folder.chmod(mode)
    done = run(*SETTINGS, cwd=project)
    if mode & 0o1000:
        assert done.returncode == 0, done
    else:
        assert done.returncode == 2
        assert f"{open_folder} is writable for everybody" in done.stderr


def test_a_file_that_others_can_write(run: Run, place: Path, uid: int | None) -> None:
    file = place / "cachec.toml"
    file.write_text('log = "off"\n')
    _given(file, uid).chmod(0o666)
    assert "writable for everybody" in run(*SETTINGS).stderr
    file.chmod(0o644)
    assert run(*SETTINGS).returncode == 0


def test_a_link_to_a_file_of_another_user(run: Run, place: Path, tmp_path: Path, attacker: int) -> None:
    theirs = _made(tmp_path / "theirs")
    (theirs / "settings.toml").write_text('log = "off"\n')
    os.chown(theirs, attacker, attacker)
    (place / "cachec.toml").symlink_to(theirs / "settings.toml")
    assert f"belongs to user {attacker}" in run(*SETTINGS).stderr


def test_the_group_of_one_user_is_no_other(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "file").chmod(0o664)
    if os.geteuid() == 0:
        os.chown(tmp_path / "file", 0, 0)
        assert file_ownership.why_foreign((tmp_path / "file").stat()) == ""
        os.chown(tmp_path / "file", 0, 12345)
        assert "writable for the group 12345" in file_ownership.why_foreign((tmp_path / "file").stat())


@pytest.mark.parametrize("key", sorted(config.CONFINED))
@pytest.mark.parametrize("value", ["~/x", "/x", "../x", "link/x"])
def test_a_found_file_leads_nowhere_outside(tmp_path: Path, key: str, value: str) -> None:
    project = _made(tmp_path / "project")
    (project / "link").symlink_to(tmp_path)
    (project / "cachec.toml").write_text(f'namespace = "x"\n{key} = "{value}"\n')
    with pytest.raises(ConfigError, match=rf"cachec.toml:2: {key} = .* leads out of the project .*{key.upper()}"):
        config.load(environ={"HOME": "/h"}, cwd=project)
    wanted = config.load(environ={"HOME": "/h", f"CACHEC_{key.upper()}": value}, cwd=project)
    assert getattr(wanted, key) is not None
    user = _made(tmp_path / "config" / "cachec")
    (user / "cachec.toml").write_text(f'{key} = "{value}"\nlog = "all"\n')
    (project / "cachec.toml").write_text('log = "off"\n')
    found = config.load(environ={"HOME": "/h", "XDG_CONFIG_HOME": str(tmp_path / "config")}, cwd=project)
    assert getattr(found, key) is not None
    assert found.origins[key] == f"file: {user / 'cachec.toml'}:1"
    assert found.log == "off"


@pytest.mark.parametrize("key", sorted(config.PERSONAL))
def test_a_found_file_trusts_nobody(tmp_path: Path, key: str) -> None:
    (tmp_path / "cachec.toml").write_text(f'{key} = "trusted"\n')
    with pytest.raises(ConfigError, match="not for the file of a project"):
        config.load(environ={"HOME": "/h"}, cwd=tmp_path)


def test_the_user_file_has_settings_alone(tmp_path: Path) -> None:
    (_made(tmp_path / "cachec") / "cachec.toml").write_text('[adapters.x]\nmatch = ["x"]\n')
    with pytest.raises(ConfigError, match=r"\[adapters\] belongs into the file of a project"):
        config.load(environ={"XDG_CONFIG_HOME": str(tmp_path)}, cwd=tmp_path)


def test_a_file_without_an_end(tmp_path: Path) -> None:
    with (tmp_path / "cachec.toml").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ConfigError, match="are the most"):
        config.load(environ={"HOME": "/h"}, cwd=tmp_path)
    (tmp_path / "cachec.toml").write_text("x = " + "[" * 100_000)
    with pytest.raises(ConfigError, match=r"too deep|not valid TOML"):
        config.load(environ={"HOME": "/h"}, cwd=tmp_path)


def test_an_adapter_file_of_another_user(run: Run, place: Path, uid: int | None, attacker: int) -> None:
    adapter = place / "cp.toml"
    adapter.write_text('match = ["cp"]\n')
    os.chown(adapter, attacker, attacker)
    (place / "cachec.toml").write_text('[adapters]\nfiles = ["cp.toml"]\n')
    _given(place / "cachec.toml", uid)
    done = run("-m", "cachec", "exec", "--", "cp", "a", "b")
    assert done.returncode == 2
    assert f"adapter {adapter} is refused" in done.stderr


@pytest.mark.parametrize("name", ["$(touch pwned)", "`id`", "a b", "", "x" * 65, "a\x1b[31m", "../x"])
def test_names_of_adapters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    from cachec.launcher import adapters

    (tmp_path / "mycc.toml").write_text(f"name = {_quoted(name)}\nmatch = ['mycc']\n")
    with pytest.raises(ConfigError, match=r"name = .* is not accepted") as raised:
        adapters.read(tmp_path / "mycc.toml")
    assert str(raised.value).isprintable()


@pytest.mark.parametrize("name", ["a\x1b[31m", "two\nlines", "", " x", "x" * 256, "\u202e"])
def test_names_of_stages(tmp_path: Path, name: str) -> None:
    import cachec

    with pytest.raises(cachec.errors.UsageError, match="is not accepted"):
        cachec.Cache(tmp_path / "store").stage(name=name)(lambda: 1)


def test_a_record_is_nothing_to_a_shell_or_a_terminal(run: Run, place: Path, uid: int | None, tmp_path: Path) -> None:
    stats = tmp_path / "stats"
    detail = "$(touch pwned) `touch pwned` ${IFS} \x1b[31m \x7f \x9b31m \u202e \U000e0001 é"
    EventLog(tmp_path / "store", log="off", stats_file=stats).emit(
        Outcome(reason=Reason.NOT_UNDERSTOOD, stage="exec:$(touch pwned)", key="", detail=detail)
    )
    text = stats.read_text()
    assert not set(text.rstrip("\n")) & set("$`\x1b\x7f\x9b\u202e\U000e0001")
    assert text.rstrip("\n").isprintable()
    from cachec.events import read_outcomes

    [found] = read_outcomes(stats)
    assert (found.stage, found.detail) == ("exec:$(touch pwned)", detail)


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_a_log_is_a_regular_file(tmp_path: Path, kind: str) -> None:
    stats, target = tmp_path / "stats", tmp_path / "target"
    target.write_text("mine\n")
    if kind == "link":
        stats.symlink_to(target)
    elif kind == "fifo":
        os.mkfifo(stats)
    else:
        stats.mkdir()
    log = EventLog(tmp_path / "store", log="off", stats_file=stats)
    log.emit(Outcome(reason=Reason.FIRST_RUN, stage="s", key=""))
    assert log.dropped == 1
    assert target.read_text() == "mine\n"


def _made(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


def _quoted(text: str) -> str:
    return '"' + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text) + '"'
