"""Every selector: what it takes, and what it does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import cachec
from cachec.base.hashing import digest_bytes
from cachec.errors import UsageError
from cachec.maintain.maintainer import Maintainer
from cachec.maintain.selector import Selector, module_names
from cachec.model import Fault, Read
from cachec.store.store import Store
from cachec.weights.library.stored_weights import WeightStore
from tests.parts import option, part, tool

from .conftest import DAY, Yard, key_of

MANIFEST = json.dumps([{"name": "decoder.0.weight"}, {"name": "decoder.1.bias"}]).encode()


@pytest.fixture
def named(yard: Yard) -> dict[str, str]:
    """Entries that differ in one thing each; name -> key."""
    names = (
        "plain",
        "stage",
        "tag",
        "tool",
        "tool-version",
        "executable",
        "option",
        "weight",
        "read",
        "code",
        "file",
        "command",
    )
    keys = {name: key_of(number) for number, name in enumerate(names)}
    manifest = digest_bytes(MANIFEST)
    jaxlib = tool("jaxlib", "0.10.0")
    clang = part("executable/clang", "clang 6ed9cd818fda, libc.so.6 0e0c431afddf", version="6ed9cd818fda")
    publish = yard.publish
    publish(keys["plain"], parts=(option("target", "'cpu'"),))
    publish(keys["stage"], stage="other.lower", parts=(option("target", "'gpu'"),), ago=10 * DAY)
    publish(keys["tag"], tags=("nightly", "big"))
    publish(
        keys["tool"],
        parts=(jaxlib, option("n", "1"), part("program/program", "mlir:text", version="mlir:text")),
    )
    publish(
        keys["tool-version"],
        parts=(tool("jaxlib", "0.9.1", "; not as installed: a.py is 1"),),
    )
    publish(
        keys["executable"],
        parts=(clang,),
    )
    publish(keys["option"], parts=(option("target", "'cuda'"), option("n", "3")))
    publish(keys["weight"], parts=(part("weights/w", "2 weights", refs=(manifest,)),), manifest=MANIFEST)
    publish(keys["read"], reads=(Read("weight", "w", "scale", "a" * 64), Read("file", "/src/x.h", "", "b" * 64)))
    publish(keys["code"], parts=(part("code/pkg.mod.helper#2", "mod.py:3"), part("code/pkg.model.f", "model.py:1")))
    publish(
        keys["file"],
        parts=(
            part("file/depends/flags.txt", "0123456789ab", value="flags.txt"),
            part("file/model", "my model.onnx 0123456789ab", value="my model.onnx"),
        ),
    )
    files = (
        part("file/src/a.c", "0123456789ab", value="a.c"),
        part("file/@flags.rsp", "0123456789ab", value="flags.rsp"),
    )
    program = part("program/model.mlir", "mlir:text", value="model.mlir")
    publish(keys["command"], stage="exec:cc", parts=(*files, program))
    return keys


def found(yard: Yard, entries: dict[str, str], **given: Any) -> set[str]:
    """The names of the entries that a selector means."""
    names = {key: name for name, key in entries.items()}
    return {names[item.entry.key] for item in yard.maintainer.find(Selector(**given))}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"stages": ("lower",)}, {"stage"}),
        ({"stages": ("other.lower",)}, {"stage"}),
        ({"stages": ("ower",)}, set()),
        ({"tags": ("nightly",)}, {"tag"}),
        ({"tags": ("nightly", "big")}, {"tag"}),
        ({"tags": ("nightly", "small")}, set()),
        ({"tools": ("jaxlib",)}, {"tool", "tool-version"}),
        ({"tools": ("JaxLib==0.10.0",)}, {"tool"}),
        ({"tools": ("jax*==0.9*",)}, {"tool-version"}),
        ({"tools": ("jax",)}, set()),
        ({"tools": ("clang",)}, {"executable"}),
        ({"tools": ("clang==6ed9cd*",)}, {"executable"}),
        ({"options": ("target",)}, {"plain", "stage", "option"}),
        ({"options": ("target=cuda",)}, {"option"}),
        ({"options": ("target='cuda'",)}, {"option"}),
        ({"options": ("n=3",)}, {"option"}),
        ({"options": ("n=3", "target=cpu")}, set()),
        ({"options": ("tar",)}, set()),
        ({"weights": ("decoder.0.weight",)}, {"weight"}),
        ({"weights": ("decoder.*",)}, {"weight"}),
        ({"weights": ("scale",)}, {"read"}),
        ({"weights": ("decoder",)}, set()),
        ({"sources": ("/src/x.h",)}, {"read"}),
        ({"sources": ("/src",)}, {"read"}),
        ({"sources": ("/src/x",)}, set()),
        ({"sources": ("/anywhere/flags.txt",)}, {"file"}),
        ({"sources": ("/anywhere/my model.onnx",)}, {"file"}),
        ({"sources": ("/anywhere/my",)}, set()),
        ({"sources": ("/anywhere/a.c",)}, {"command"}),
        ({"sources": ("/anywhere/flags.rsp",)}, {"command"}),
        ({"sources": ("/anywhere/model.mlir",)}, {"command"}),
        ({"sources": ("/anywhere/program",)}, set()),
        ({"sources": ("/somewhere/pkg/mod.py",)}, {"code"}),
        ({"sources": ("/somewhere/pkg/mode.py",)}, set()),
        ({"sources": ("/somewhere/other/mod.py",)}, set()),
        ({"older_than": 5 * DAY}, {"stage"}),
        ({"newer_than": 5 * DAY, "options": ("target",)}, {"plain", "option"}),
        ({"stages": ("lower", "build"), "options": ("target",)}, {"plain", "stage", "option"}),
        ({"stages": ("build",), "tools": ("jaxlib",), "options": ("n=1",)}, {"tool"}),
    ],
)
def test_a_selector(yard: Yard, named: dict[str, str], given: Any, expected: set[str]) -> None:
    assert found(yard, named, **given) == expected
    # The same where the summaries are gone: the parts are read.
    summaries = [name for name, _ in yard.store.index.rows("") if name.startswith(("summary:", "facts:"))]
    assert len(summaries) > len(named)
    yard.store.index.delete_many(summaries)
    assert found(yard, named, **given) == expected
    assert yard.faults == []


#: Details that, read as data, would say something else than their parts.
_MISLEADING = (
    "",
    "x" * 5000,
    "jaxlib 0.9.1",
    "cuda",
    "'cuda'",
    "3",
    "clang 6ed9cd818fda, a b",
    "a.c 0123456789ab",
    "0" * 64,
)


@pytest.mark.parametrize("detail", _MISLEADING)
def test_no_selector_reads_words_for_people(yard: Yard, named: dict[str, str], detail: str) -> None:
    """Entries are the same to every selector, to gc and to --stale, whatever the details of their parts say."""
    given: list[Any] = [
        {"tools": (text,)} for text in ("jaxlib", "jax*==0.9*", "clang==6ed9cd*", "a", "x" * 9, "jaxlib==0.10.0")
    ]
    given += [{"options": (text,)} for text in ("target=cuda", "n=3", "n=cuda", "target")]
    given += [{"weights": ("decoder.*",)}, {"stale": True}]
    given += [{"sources": (f"/x/{name}",)} for name in ("a.c", "my model.onnx", "pkg/mod.py", "model.mlir", "x.h")]
    before = [found(yard, named, **each) for each in given]
    terms = {item.entry.key: item.terms for item in yard.maintainer.find(Selector(tools=("*",)))}
    assert sum(map(bool, before)) > 10
    for item in list(yard.store.entries()):
        parts = [msgspec.structs.replace(each, detail=detail) for each in yard.store.parts(item)]
        ref = yard.store.objects.add_bytes(msgspec.json.encode(parts))
        yard.store.publish(item.key, item.stage, item.tags, ref, item.traces[0])
    assert [found(yard, named, **each) for each in given] == before
    assert {item.entry.key: item.terms for item in yard.maintainer.find(Selector(tools=("*",)))} == terms


def test_an_option_is_matched_whole_or_not_at_all(cache: cachec.Cache) -> None:
    @cache.stage()
    def lower(text: str, n: int = 0) -> int:
        return len(text) + n

    maintainer = Maintainer(cache.store, on_fault=lambda *_: None)
    short, long = "a" * 150 + "…", "b" * 250
    for text in (short, short + "!", long, long + "!"):
        lower(text)

    def matching(text: str) -> int:
        return len(list(maintainer.find(Selector(options=(f"text={text}",)))))

    assert [matching(text) for text in (short, repr(short), short[:80], long, long + "!", "")] == [1, 1, 0, 0, 0, 0]
    assert len(list(maintainer.find(Selector(options=("n=0",))))) == 4


def test_tools_by_version_of_what_a_stage_used(cache: cachec.Cache) -> None:
    @cache.stage(tools=["msgspec", "/bin/sh"])
    def lower(n: int) -> int:
        return n

    lower(1)
    maintainer = Maintainer(cache.store, on_fault=lambda *_: None)
    content = digest_bytes(Path("/bin/sh").read_bytes())[:12]

    def matching(text: str) -> int:
        return len(list(maintainer.find(Selector(tools=(text,)))))

    version = msgspec.__version__
    wanted = (
        f"msgspec=={version}",
        f"msgspec=={version[:2]}*",
        "msgspec==0.0.1",
        f"sh=={content}",
        "sh==0",
        f"sh=={version}",
    )
    assert [matching(text) for text in wanted] == [1, 1, 0, 1, 0, 0]


def test_keys(yard: Yard, named: dict[str, str]) -> None:
    assert found(yard, named, keys=(named["tag"][:8], named["tool"].upper())) == {"tag", "tool"}
    assert found(yard, named, keys=("0" * 64,)) == set()
    assert found(yard, named) == set(named)
    for text in ("abc", "xyzxyz", "a" * 65):
        with pytest.raises(UsageError, match="is no key"):
            Selector(keys=(text,))


def test_what_is_no_selector() -> None:
    with pytest.raises(UsageError, match="older_than"):
        Selector(older_than=-1.0)
    with pytest.raises(UsageError, match="tags expected a tuple"):
        Selector(tags="nightly")  # type: ignore[arg-type]


def test_other_namespaces_are_not_searched(yard: Yard, named: dict[str, str]) -> None:
    other = Yard(yard.folder, "default:2")
    key = key_of(99)
    other.publish(key, tags=("nightly",))
    assert found(yard, named, tags=("nightly",)) == {"tag"}
    assert [item.entry.key for item in other.maintainer.find(Selector())] == [key]


@pytest.mark.parametrize("damage", [b"garbage", b"cachec\x09" + b"0" * 100, None])
def test_damaged_summaries_and_facts_are_told_and_done_without(
    yard: Yard, named: dict[str, str], damage: bytes | None
) -> None:
    for name in list(yard.store.index.keys()):
        if name.startswith(("summary:", "facts:")):
            row = damage or yard.store.index.read(f"summary:default:{named['plain']}") or b""
            yard.store.index.write(name, row, "x")
    assert found(yard, named, tools=("jaxlib",)) == {"tool", "tool-version"}
    assert {*yard.faults} <= {Fault.ROW_CORRUPT, Fault.ROW_VERSION}
    assert yard.faults != []


def test_an_entry_whose_parts_are_gone_too_is_found_by_what_its_row_says(yard: Yard) -> None:
    key = key_of(1)
    yard.publish(key, tags=("a",), parts=(tool("x", "1"),))
    yard.store.index.delete(f"summary:default:{key}")
    (entry,) = yard.store.entries()
    yard.store.objects.path(entry.parts).unlink()
    assert [item.entry.key for item in yard.maintainer.find(Selector(tags=("a",)))] == [key]
    assert list(yard.maintainer.find(Selector(tools=("x",)))) == []
    assert {*yard.faults} == {Fault.ARTIFACT_MISSING}


def test_module_names(tmp_path: Path) -> None:
    (tmp_path / "top" / "pkg" / "sub").mkdir(parents=True)
    for folder in ("pkg", "pkg/sub"):
        (tmp_path / "top" / folder / "__init__.py").touch()
    first = list(module_names(str(tmp_path / "top" / "pkg" / "sub" / "mod.py")))[:2]
    assert first == ["pkg.sub.mod", "top.pkg.sub.mod"]
    assert next(module_names(str(tmp_path / "top" / "pkg" / "__init__.py"))) == "pkg"
    assert list(module_names("/a/script.py"))[:2] == ["script", "a.script"]
    assert list(module_names("/a/script.txt")) == []


# --- with stages and weights as they are


def test_entries_of_real_stages(cache: cachec.Cache, weights_file: Path, tmp_path: Path) -> None:
    source = tmp_path / "kernel.cu"
    source.write_text("kernel")

    @cache.stage(tools=["msgspec"], tags=["slow"])
    def lower(weights: cachec.WeightSet, target: str, batch: int = 1) -> bytes:
        return f"{len(weights)} {target} {batch}".encode()

    @cache.stage
    def fold(weights: cachec.WeightSet) -> bytes:
        return weights["scale"].read().tobytes()

    @cache.stage
    def build(kernel: Path) -> bytes:
        return kernel.read_bytes()

    settings = tmp_path / "settings.toml"
    settings.write_text("settings")

    @cache.stage(depends=[settings])
    def configure(number: int) -> bytes:
        return settings.read_bytes() * number

    configure(2)
    weights = cachec.open_weights(weights_file)
    lower(weights, "cpu")
    lower(weights, "gpu", batch=4)
    fold(weights)
    build(source)
    maintainer = Maintainer(cache.store)

    def stages(**given: Any) -> list[str]:
        return sorted(item.entry.stage.rpartition(".")[2] for item in maintainer.find(Selector(**given)))

    import msgspec

    assert stages(tools=(f"msgspec=={msgspec.__version__}",)) == ["lower", "lower"]
    assert stages(options=("target=gpu",)) == ["lower"]
    assert stages(options=("batch=1",)) == ["lower"]
    assert stages(weights=("scale",)) == ["fold", "lower", "lower"]
    assert stages(weights=("a",), tags=("slow",)) == ["lower", "lower"]
    assert stages(sources=(str(source),)) == ["build"]
    assert stages(sources=(str(settings),)) == ["configure"]
    assert stages(sources=(__file__,)) == ["build", "configure", "fold", "lower", "lower"]
    assert stages(sources=(str(tmp_path / "other.cu"),)) == []


def test_a_revision_means_what_depends_on_its_bytes(cache: cachec.Cache, weights_file: Path, tmp_path: Path) -> None:
    @cache.stage
    def fold(weights: cachec.WeightSet) -> bytes:
        return weights["scale"].read().tobytes()

    @cache.stage
    def lower(weights: cachec.WeightSet) -> bytes:
        return str(len(weights)).encode()

    store = WeightStore(Store(cache.dir))
    first = store.add(cachec.open_weights(weights_file), "base")
    from safetensors.numpy import save_file

    save_file({name: np.full((), 9.0, "f4") for name in ("scale", "a", "b")}, tmp_path / "other.safetensors")
    store.add(cachec.open_weights(tmp_path / "other.safetensors"), "tuned")
    store.add(cachec.open_weights(weights_file), "in-place", own=False)
    fold(store.open("base"))
    lower(store.open("base"))
    fold(store.open("tuned"))
    maintainer = Maintainer(cache.store)
    (base,) = maintainer.find(Selector(revisions=("base",)))
    (tuned,) = maintainer.find(Selector(revisions=("tuned",)))
    assert base.entry.traces[0].reads != tuned.entry.traces[0].reads or base.entry.key != tuned.entry.key
    assert [item.entry.key for item in maintainer.find(Selector(revisions=(first.id[:12],)))] == [base.entry.key]
    for text, words in (("nothing", "no weights"), ("in-place", "in place")):
        with pytest.raises(UsageError, match=words):
            list(maintainer.find(Selector(revisions=(text,))))
