"""Settings: order, origins, and errors that name where a value was written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cachec import config
from cachec.errors import ConfigError
from cachec.model import Mode


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder two levels down, so that a file may stand above it."""
    folder = tmp_path / "project" / "deep"
    folder.mkdir(parents=True)
    return folder


def load(project: Path, environ: dict[str, str] | None = None, **overrides: object) -> config.Settings:
    return config.load(overrides, environ={"HOME": "/home/u", **(environ or {})}, cwd=project)


def test_defaults(project: Path) -> None:
    found = load(project)
    assert found.dir == Path("/home/u/.cache/cachec")
    assert found.mode is Mode.ON
    assert found.max_size == 20 * 1024**3
    assert found.namespace == "default"
    assert found.base_dir is None
    assert found.log == "miss"
    assert found.lock_timeout == 3600
    assert found.stats_file is None
    assert found.fsync is False
    assert dict(found.origins) == dict.fromkeys(config.KEYS, "default")


def test_every_key_is_a_field_and_has_an_origin(project: Path) -> None:
    fields = {*config.KEYS, "origins", "store_folder", "no_store"} - {"dir"}
    assert set(config.Settings.__struct_fields__) == fields
    assert list(load(project).origins) == list(config.KEYS)


def test_xdg(project: Path) -> None:
    assert load(project, {"XDG_CACHE_HOME": "/x"}).dir == Path("/x/cachec")
    assert load(project, {"XDG_CACHE_HOME": "relative"}).dir == Path("/home/u/.cache/cachec")  # as XDG says
    assert load(project, {"XDG_CACHE_HOME": ""}).dir == Path("/home/u/.cache/cachec")


def test_order_of_origins(project: Path) -> None:
    file = project / "cachec.toml"
    file.write_text('# ours\nnamespace = "file"\n\nlog = "all"\nmode = "off"\n')
    found = load(project, {"CACHEC_LOG": "off", "CACHEC_MODE": "verify"}, mode="refresh")
    assert (found.namespace, found.log, found.mode) == ("file", "off", Mode.REFRESH)
    assert found.origins["namespace"] == f"file: {file}:2"
    assert found.origins["log"] == "environment: CACHEC_LOG"
    assert found.origins["mode"] == "argument"
    assert found.origins["fsync"] == "default"


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("mode", "read-only", Mode.READ_ONLY),
        ("max_size", "5kB", 5000),
        ("namespace", "team.a-1_x", "team.a-1_x"),
        ("log", "all", "all"),
        ("lock_timeout", "0.5", 0.5),
        ("fsync", "yes", True),
        ("dir", "/d", Path("/d")),
        ("base_dir", "/b", Path("/b")),
        ("stats_file", "/s", Path("/s")),
    ],
)
def test_every_key_has_its_variable(project: Path, key: str, text: str, value: object) -> None:
    found = load(project, {f"CACHEC_{key.upper()}": text})
    assert getattr(found, key) == value
    assert found.origins[key] == f"environment: CACHEC_{key.upper()}"
    assert getattr(load(project, {f"CACHEC_{key.upper()}": ""}), key) == getattr(load(project), key)


def test_an_override_of_none_is_none_given(project: Path) -> None:
    assert load(project, {"CACHEC_LOG": "off"}, log=None).log == "off"


def test_nearest_file_wins_and_files_are_not_merged(project: Path) -> None:
    (project.parent / "cachec.toml").write_text('log = "all"\nnamespace = "far"\n')
    assert load(project).namespace == "far"
    (project / "cachec.toml").write_text('log = "off"\n')
    found = load(project)
    assert (found.log, found.namespace) == ("off", "default")


def test_pyproject(project: Path) -> None:
    file = project.parent / "pyproject.toml"
    file.write_text('[project]\nname = "x"\nmode = "not ours"\n\n[tool.other]\nlog = 3\n\n[tool.cachec]\nlog = "off"\n')
    found = load(project)
    assert found.log == "off"
    assert found.origins["log"] == f"file: {file}:9"
    (project.parent / "cachec.toml").write_text('log = "all"\n')
    assert load(project).log == "all"


def test_a_pyproject_without_our_table_is_passed_over(project: Path) -> None:
    (project / "pyproject.toml").write_text('[project]\nname = "uses-cachec"\ndependencies = ["cachec"]\n')
    (project.parent / "pyproject.toml").write_text('[tool.cachec]\nlog = "off"\n')
    assert load(project).log == "off"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[tool.cachec]\nlog = "off"\n', 2),
        ('[tool.cachec]\nnamespace = """\nlog"""\n'.replace('"""\nlog"""', "'x'") + "\n\nlog='off'\n", 5),
        ('[tool]\ncachec.log = "off"\n', 2),
        ('x = 1\ntool.cachec = {mode = "on", log = "off"}\n', 2),
        ('[tool.a]\nlog = "x"\ns = """\nlog = 1\n"""\n[tool.cachec]\n"log" = "off"\n', 7),
        ('[tool.cachec.warm]\nlog = 1\n[tool.cachec]\n\nlog = "off"\n', 5),
        ('[tool.cachec]\r\nmode = "on"\r\nlog = "off"\r\n', 3),
    ],
)
def test_line_numbers_however_it_is_written(project: Path, text: str, line: int) -> None:
    file = project / "pyproject.toml"
    file.write_bytes(text.encode())
    found = load(project)
    assert found.log == "off"
    assert found.origins["log"] == f"file: {file}:{line}"


def test_paths_of_a_file_start_at_its_folder(project: Path) -> None:
    (project.parent / "cachec.toml").write_text('dir = "store"\nbase_dir = "../up"\n')
    found = load(project, {"CACHEC_STATS_FILE": "stats.jsonl"})
    assert found.dir == project.parent / "store"
    assert found.base_dir == project.parent.parent / "up"
    assert found.stats_file == project / "stats.jsonl"
    assert load(project, dir="~/x").dir == Path("/home/u/x")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("20GiB", 20 << 30),
        ("1.5 TiB", 3 << 39),
        ("500MB", 500_000_000),
        ("0", 0),
        ("12", 12),
        ("7 B", 7),
        ("1KB", 1000),
    ],
)
def test_sizes(project: Path, text: str, value: int) -> None:
    assert load(project, max_size=text).max_size == value


@pytest.mark.parametrize(
    ("key", "value", "accepted"),
    [
        ("max_size", "20gib", "20GiB"),
        ("max_size", "-1", "number of bytes"),
        ("max_size", -1, "number of bytes"),
        ("max_size", 1.5, "number of bytes"),
        ("max_size", "1.5", "number of bytes"),
        ("max_size", True, "number of bytes"),
        ("mode", "verfy", "did you mean verify"),
        ("mode", "On", "one of on, off, read-only, refresh, require, verify"),
        ("log", "misses", "one of miss, all, off (did you mean miss?)"),
        ("namespace", "a/b", "letters"),
        ("namespace", "..", "letters"),
        ("namespace", "a\n", "letters"),
        ("namespace", "x" * 65, "1 to 64"),
        ("lock_timeout", -1, "0 or more"),
        ("lock_timeout", "nan", "seconds"),
        ("lock_timeout", "inf", "seconds"),
        ("lock_timeout", True, "seconds"),
        ("lock_timeout", "soon", "seconds"),
        ("fsync", "maybe", "true or false"),
        ("fsync", 1, "true or false"),
        ("dir", "", "a path"),
        ("dir", "a\0b", "a path"),
        ("dir", 3, "a path"),
    ],
)
def test_bad_values(project: Path, key: str, value: object, accepted: str) -> None:
    with pytest.raises(ConfigError) as error:
        config.load({key: value}, environ={}, cwd=project)
    assert str(error.value).startswith(f"argument: {key} = {value!r} is not accepted")
    assert accepted in str(error.value)


def test_a_bad_variable_is_named(project: Path) -> None:
    with pytest.raises(ConfigError, match=r"environment: CACHEC_MODE: mode = 'onn' .*did you mean on\?"):
        load(project, {"CACHEC_MODE": "onn"})


def test_a_bad_value_in_a_file_names_the_line(project: Path) -> None:
    file = project / "cachec.toml"
    file.write_text('namespace = "x"\n\nlock_timeout = "long"\n')
    with pytest.raises(ConfigError) as error:
        load(project)
    assert f"file: {file}:3: lock_timeout = 'long' is not accepted" in str(error.value)


def test_a_bad_value_that_is_overridden_is_not_looked_at(project: Path) -> None:
    assert load(project, {"CACHEC_MODE": "onn"}, mode="off").mode is Mode.OFF


def test_an_unknown_key_in_a_file(project: Path) -> None:
    file = project / "cachec.toml"
    file.write_text('mode = "on"\nmax-size = 3\n')
    with pytest.raises(ConfigError) as error:
        load(project)
    assert f"{file}:2: 'max-size' is not a setting (did you mean max_size?)" in str(error.value)
    assert "lock_timeout" in str(error.value)


def test_an_unknown_override(project: Path) -> None:
    with pytest.raises(ConfigError, match=r"argument: 'lok' is not a setting \(did you mean log\?\)"):
        load(project, lok="off")


def test_tables_of_other_parts_are_left_alone_and_no_others(project: Path) -> None:
    file = project / "cachec.toml"
    file.write_text('log = "off"\n[warm]\nanything = 1\n[adapters.x]\ny = 2\n')
    assert load(project).log == "off"
    file.write_text("warm = 3\n")
    with pytest.raises(ConfigError, match="'warm' is not a setting"):
        load(project)
    file.write_text("[worm]\nx = 1\n")
    with pytest.raises(ConfigError, match=r":1: 'worm' is not a setting"):
        load(project)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'mode = "on"\nlog = \n', ":2: not valid TOML"),
        (b'mode = "on"\nmode = "off"\n', "not valid TOML"),
        (b'mode = "on"\nlog = "\xff"\n', ":2: not UTF-8"),
        (b'mode = "on"\nx = """', "not valid TOML"),
    ],
)
def test_malformed_files(project: Path, data: bytes, words: str) -> None:
    file = project / "cachec.toml"
    file.write_bytes(data)
    with pytest.raises(ConfigError) as error:
        load(project)
    assert str(file) in str(error.value)
    assert words in str(error.value)


def test_tool_cachec_has_to_be_a_table(project: Path) -> None:
    (project / "pyproject.toml").write_text("[tool]\ncachec = 3\n")
    with pytest.raises(ConfigError, match="has to be a table"):
        load(project)


def test_unknown_variables_are_warned_of_and_no_error(project: Path) -> None:
    environ = {"CACHEC_MAXSIZE": "3", "CACHEC_LOG": "off", "OTHER": "x"}
    assert load(project, environ).log == "off"
    assert config.unknown_variables(environ) == ("CACHEC_MAXSIZE is not a setting (did you mean CACHEC_MAX_SIZE?)",)


def test_settings_are_frozen(project: Path) -> None:
    found = load(project)
    with pytest.raises(AttributeError):
        found.log = "all"  # type: ignore[misc]


def test_no_parser_is_imported_without_a_file(project: Path) -> None:
    code = (
        "import sys; from cachec import config; config.load(cwd=sys.argv[1], environ={'HOME': '/h'});"
        "print([m for m in ('tomllib', 'difflib', 'dataclasses', 'logging', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(project)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
