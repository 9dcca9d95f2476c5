"""docs/reference: each table has every name that the code has, and no other."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import cachec
from cachec import errors
from cachec.bundle import format
from cachec.cli import main
from cachec.cli.completion import LINE_OPTIONS
from cachec.config import DEPTH, KEY, KEYS, SECRET, TOKEN
from cachec.key.tools import command_variables
from cachec.launcher import adapters
from cachec.launcher.exec_settings import ACCEPTED
from cachec.model import READ_KINDS, Fault, Mode, Outcome, Reason
from cachec.remote import urls
from cachec.reproduce import pack
from cachec.warm import targets
from cachec.weights import formats
from tests import pages
from tests.needs import need

ROOT = Path(__file__).parents[2]
FRAMEWORKS = ("jax", "torch", "executorch", "triton", "onnxruntime", "tvm", "iree", "mlir", "native")


def first(page: str, heading: str = "") -> list[str]:
    """What the first cells of tables name."""
    return [name for row in pages.table(page, heading) for name in pages.names(row[0])]


def commands_of(group: click.Group, above: str = "") -> Iterator[tuple[str, click.Command]]:
    """Each command that can be called by itself, with its name behind ``cachec``."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            if command.invoke_without_command:
                yield above + name, command
            yield from commands_of(command, f"{above}{name} ")
        else:
            yield above + name, command


def all_commands() -> dict[str, click.Command]:
    """Those of cachec and of its plugin for MLIR."""
    found = dict(commands_of(main))
    from cachec_mlir.cli import command

    return found | {f"mlir {name}": each for name, each in commands_of(command)}


COMMAND_HEADINGS = (
    *("Run and ask", "See", "Change the store", "Move results and weights", "Check and report", "Set up"),
    "MLIR modules",
)


def test_every_command_is_in_a_table_with_options_that_it_has() -> None:
    known = all_commands()
    described = set()
    for row in (row for heading in COMMAND_HEADINGS for row in pages.table("reference/commands.md", f"## {heading}")):
        (line,) = pages.names(row[0])
        words = re.findall(r"^[a-z ]+", line)[0].split()
        name = next(" ".join(words[:n]) for n in (2, 1) if " ".join(words[:n]) in known)
        described.add(name)
        options = {option for parameter in known[name].params for option in parameter.opts} | set(LINE_OPTIONS)
        assert {each for each in pages.names(row[2]) if each.startswith("-")} <= options, line
    assert described == set(known)


def test_every_command_has_json_but_those_that_are_named() -> None:
    (without,) = re.findall(r"(`exec`.*) have no `--json`", pages.text_of("reference/commands.md"))
    lacking = {
        name
        for name, command in all_commands().items()
        if "--json" not in command.get_help(click.Context(command, info_name=name))
    }
    assert lacking == set(pages.names(without))


def test_every_selector_is_in_the_table() -> None:
    options = {option for parameter in all_commands()["ls"].params for option in parameter.opts if option[:2] == "--"}
    named = {re.split(r"[ =\[]", each)[0] for each in first("reference/commands.md", "## Selectors")}
    assert named == options - {"--json", "--help"} | {"KEY"}


def test_the_commands_run(tmp_path: Path) -> None:
    need("gcc")
    (tmp_path / "a.c").write_text("int f(void) { return 1; }\n")
    os.utime(tmp_path / "a.c", (1e9, 1e9))
    lines = pages.commands("reference/commands.md")
    assert pages.outputs(lines[:2], tmp_path)[1] == "hit\n"
    for page in ("reference/commands.md", "reference/outcomes.md", "reference/settings.md"):
        pages_lines = [shlex.split(line) for line in pages.commands(page)]
        for words in pages_lines:
            assigned = dict(word.split("=") for word in words if re.match("[A-Z_]+=", word))
            pages.outputs([" ".join(words[len(assigned) :])], tmp_path, **assigned)


def test_every_setting_is_in_the_tables() -> None:
    rows = pages.table("reference/settings.md", "## Keys")
    assert [(pages.names(row[0]), pages.names(row[1])) for row in rows] == [
        ([key], [f"CACHEC_{key.upper()}"]) for key in sorted(KEYS, key=[pages.names(row[0])[0] for row in rows].index)
    ]
    (sentence,) = re.findall(r"^Arguments of `cachec.Cache` are .*$", pages.text_of("reference/settings.md"), re.M)
    assert pages.names(sentence)[1:] == list(inspect.signature(cachec.Cache).parameters)
    assert first("reference/settings.md", "## Modes") == [mode.value for mode in Mode]
    options = {*inspect.signature(cachec.Cache.stage).parameters} - {"self", "function"}
    assert set(first("reference/settings.md", "## Options of a stage")) == options
    assert {TOKEN, KEY, SECRET, DEPTH} <= set(first("reference/settings.md", "## Other variables"))
    assert tuple(first("reference/settings.md", "## `[exec]`")) == tuple(ACCEPTED)
    assert sorted(first("reference/settings.md", "## `[warm]`")) == sorted([*targets._TABLE_KEYS, *targets._FIELDS])


def test_every_variable_that_does_not_count_is_in_the_table() -> None:
    heading = "## Variables that do not count"
    rows = {row[0]: tuple(pages.names(row[1])) for row in pages.table("reference/settings.md", heading)}
    assert rows == command_variables.NEUTRAL_GROUPS
    assert set(command_variables.SECRET_WORDS) <= set(pages.names(pages.text_of("reference/settings.md", heading)))


#: Bypasses that a command can't end with: it runs no code of a stage, and no plugin speaks for it.
OF_STAGES = {Reason.STALE_MEMO, Reason.UNNAMED_CODE, Reason.UNSUPPORTED_VERSION, Reason.UNRESOLVED_CODE}
OF_STAGES |= {Reason.UNDECLARED_PROGRAM, Reason.PROCESS_BOUND, Reason.UNSTORABLE, Reason.MODE_OFF}
OF_STAGES |= {Reason.NOT_ISOLATED, Reason.ISOLATION_DIFFERS}


def test_every_outcome_is_in_the_tables() -> None:
    page = "reference/outcomes.md"
    rows = {pages.names(row[0])[0]: row[1] for row in pages.table(page, "## Misses")}
    assert rows == {reason.value: reason.cause for reason in Reason if reason.kind == "miss"}
    bypasses = {reason.value for reason in Reason if reason.kind == "bypass"}
    of_stages, of_commands = (set(first(page, f"## Bypasses of {each}")) for each in ("stages", "commands"))
    assert of_stages | of_commands == bypasses
    assert of_commands == bypasses - {reason.value for reason in OF_STAGES}
    assert first(page, "## Errors") == [reason.value for reason in Reason if reason.kind == "error"]
    assert sorted(first(page, "## Faults")) == sorted(fault.value for fault in Fault)


def test_every_exception_is_in_the_table() -> None:
    rows = pages.table("reference/outcomes.md", "## Exceptions")
    named = {name for row in rows for cell in row for name in pages.names(cell) if name[0].isupper()}
    raised = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.CachecError) and not issubclass(value, errors.StoreFault)
    }
    assert named == raised - {"CachecError"}


def test_every_kind_of_read_and_field_of_the_log_is_in_the_tables() -> None:
    assert set(first("reference/formats.md", "## Entries")) == READ_KINDS
    assert set(first("reference/formats.md", "## The log")) == set(Outcome.__struct_fields__)


def test_every_member_of_archives_is_in_the_tables() -> None:
    page = "reference/formats.md"
    assert {pack.README, pack.ABOUT, pack.RECIPE, pack.WEIGHTS, pack.STDERR} <= set(first(page, "## Reproducers"))
    assert {format.TABLE, format.SIGNATURE} <= set(first(page, "## Bundles"))


def test_every_kind_of_file_that_can_be_linked_is_in_the_table() -> None:
    kinds = {
        kind
        for framework in FRAMEWORKS
        for path in (ROOT / "plugins" / f"cachec_{framework}").glob("*.py")
        for kind in re.findall(r"^(?:KIND|EXPORTED) = \"(\w+:[\w-]+)\"", path.read_text(), re.MULTILINE)
    }
    assert set(first("reference/weights.md", "## Links")) == kinds - {"triton:kernel"}  # a folder


def test_every_option_and_field_of_the_launcher_is_in_the_tables() -> None:
    page = "reference/launcher.md"
    assert {name.split()[0] for name in first(page, "## Options")} == set(LINE_OPTIONS)
    fields = {*adapters.Adapter.__struct_fields__, *adapters.AdapterEnvironment.__struct_fields__}
    fields |= {"names", "takes", "is", "key"} - {"name", "origin"}
    assert set(first(page, "## Adapters")) == fields - {"name", "origin"}
    (shipped,) = re.findall(r"Shipped adapters: (.*)\.$", pages.text_of(page), re.MULTILINE)
    assert pages.names(shipped) == sorted(path.stem for path in adapters.SHIPPED.glob("*.toml"))


def test_every_format_of_checkpoints_is_in_the_table() -> None:
    rows = pages.table("reference/weights.md", "## Formats")
    suffixes = {suffix for row in rows for suffix in pages.names(row[1])}
    assert {name for row in rows for name in pages.names(row[0])} == {known.name for known in formats.FORMATS}
    assert suffixes == set(formats.CHECKPOINT_SUFFIXES)
    written = {name for row in rows if row[2] == "yes" for name in pages.names(row[0])}
    assert written == {known.name for known in formats.FORMATS if known.writes}


def test_every_argument_and_member_of_weights_is_there() -> None:
    page = "reference/weights.md"
    assert f"`cachec.open_weights{_signature(cachec.open_weights)}`" in pages.text_of(page)
    tables = pages.table(page, "## WeightSet")
    members = [name for row in tables for name in pages.names(row[0])]
    for member in members:
        owner = cachec.WeightSet if members.index(member) < members.index("name") else cachec.Weight
        found = re.fullmatch(r"(\w+)(?:\((.*)\))?|with weights:", member)
        assert found is not None, member
        if found[1] is None or found[1] == "name":
            continue
        value = inspect.getattr_static(owner, found[1])
        if found[2]:
            parameters = inspect.signature(getattr(owner, found[1])).parameters
            assert {each.split("=")[0].strip() for each in found[2].split(",")} <= set(parameters), member
        assert (found[2] is None) == isinstance(value, property), member


def _signature(function: object) -> str:
    signature = inspect.signature(function)  # type: ignore[arg-type]
    bare = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
    return str(inspect.Signature(bare)).replace("'", '"')


def _refusal(url: str) -> str:
    with pytest.raises(errors.ConfigError) as raised:
        urls.parse(url, "default", {})
    return str(raised.value)


def test_every_scheme_and_option_of_remotes_is_in_the_tables() -> None:
    rows = pages.table("reference/remotes.md", "## URLs")
    given = {url.partition("://")[0]: url for row in rows for url in pages.names(row[0]) if "://" in url}
    (listed,) = re.findall(r"it begins with (.*), and ://", _refusal("nothing://host"))
    assert set(given) == set(re.split(", | or ", listed)) - {"the scheme of an installed package"}
    options = {pages.names(row[0])[0]: row[1] for row in rows if "://" not in row[0]}
    for scheme, url in given.items():
        (known,) = re.findall(r"there are (.*?);", _refusal(f"{url}?nothing=1"))
        described = {name for name, some in options.items() if some == "all" or scheme in pages.names(some)}
        assert described == set(known.split(", ")), scheme


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_call_of_a_framework_is_in_a_table_with_its_arguments(framework: str) -> None:
    package = importlib.import_module(f"cachec_{framework}")
    text = pages.text_of("reference/frameworks.md")
    (below,) = re.findall(rf"^\| call of `cachec_{framework}` \|.*\n\|.*\n((?:\|.*\n)+)", text, re.MULTILINE)
    calls = [name for row in below.splitlines() for name in pages.names(row.split(" |")[0])]
    functions = {name: getattr(package, name) for name in package.__all__}
    functions = {name: value for name, value in functions.items() if inspect.isfunction(value)}
    assert sorted(call.partition("(")[0] for call in calls) == sorted(functions)
    for call in calls:
        name, bracket, arguments = call.rstrip(")").partition("(")
        if bracket:
            expected = list(inspect.signature(functions[name]).parameters)
            assert [each for each in arguments.split(", ") if each] == expected, call


def test_every_release_and_tool_of_a_framework_is_in_the_table() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    for row in pages.table("reference/frameworks.md")[: len(FRAMEWORKS) - 2]:
        (extra,) = re.findall(r"`cachec\[([\w,]+)\]`", row[1])
        wanted = [each for name in extra.split(",") for each in extras[name]]
        assert any(f">={row[2].split()[0]}" in each for each in wanted), row
        distributions = {re.split("[>=]", each)[0] for each in wanted}
        ours = {"apache-tvm-ffi", "torch"}  # of what is required in its turn
        assert set(pages.names(row[3])) <= distributions | ours, row


def test_the_example_for_jax_runs(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    pages.scripts("reference/frameworks.md", tmp_path, "## JAX")
    one, two, stats = pages.outputs(pages.commands("reference/frameworks.md", "## JAX"), tmp_path)
    assert one == "64.0 True\n"
    assert two == "128.0 False\n"
    assert re.search(r"build .*50", stats), stats


def test_what_the_foreign_cache_example_says_holds(tmp_path: Path) -> None:
    program = pages.blocks("python", "reference/remotes.md", "## Foreign caches")[0]
    heads = "key, source, took, compile = 'k', b'', 1.0, lambda source: b'code'\n"
    code = program.replace("cachec.Cache()", f"cachec.Cache({str(tmp_path / 'store')!r}, log='off')")
    for _ in range(2):
        names: dict[str, object] = {}
        exec(heads + code, names)
        assert names["binary"] in {None, b"code"}
        heads = "key = 'k'\n"  # from now on it is found
    assert names["binary"] == b"code"
