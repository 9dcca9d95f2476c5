"""Frozen value types that every layer shares. They hold data, they do nothing.

Records that go to disk are ``msgspec`` structs: decoding one validates it. Their annotations are no texts (there is no
``from __future__ import annotations``): msgspec would compile each in each new process. A digest is 64 lower-case
hexadecimal characters of BLAKE3-256 wherever it is kept or shown.
"""

import enum
from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypeVar

import msgspec

T = TypeVar("T")

#: BLAKE3-256 in lower-case hexadecimal.
Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]

#: What msgspec raises for JSON that is malformed, holds another kind of thing, is not UTF-8, or is nested without end.
MALFORMED_JSON = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def from_json(data: bytes | str, kind: type[T], refused: Callable[[str], Exception], words: str) -> T:
    """A value of a kind from JSON. For anything else raises what ``refused`` makes of words that end with the error."""
    try:
        return msgspec.json.decode(data, type=kind)
    except MALFORMED_JSON as error:
        raise refused(f"{words}: {error}") from error


#: Version of every record below. Rows of two versions lie side by side in one index, and neither sees the other's.
RECORD_VERSION = 4

#: Version of the records that are the store's own, and that all versions share: pins.
STORE_VERSION = 1

#: Traces kept under one key, newest first.
MAX_TRACES = 32

#: Begins a path below ``base_dir`` in a read of a command. No other path of a read begins so: those are absolute.
BELOW_BASE = "base_dir:"

#: The same below the environment that a tool is installed in, which lies elsewhere on another machine.
BELOW_TOOL = "tool:"


class Mode(enum.Enum):
    """What a call may do with the cache."""

    ON = "on"
    OFF = "off"
    READ_ONLY = "read-only"
    REFRESH = "refresh"
    REQUIRE = "require"
    VERIFY = "verify"
    BOTH = "both"


class Reason(enum.Enum):
    """Why a call ended as it did: exactly one an outcome. The value is what users see."""

    HIT = "hit"
    # The key was never seen; the reason is the first part that differs from the nearest entry of the stage.
    FIRST_RUN = "miss:first-run"
    NEW_INPUT = "miss:new-input"  # the source, program or callable that the call works on was never seen, by name
    STAGE_CHANGED = "miss:stage-changed"
    CODE_CHANGED = "miss:code-changed"
    TOOL_CHANGED = "miss:tool-changed"
    AMBIENT_CHANGED = "miss:ambient-changed"
    ENVIRONMENT_CHANGED = "miss:environment-changed"
    PLATFORM_CHANGED = "miss:platform-changed"
    OPTION_CHANGED = "miss:option-changed"
    TOPOLOGY_CHANGED = "miss:topology-changed"
    WEIGHT_SPEC_CHANGED = "miss:weight-spec-changed"
    FILE_CHANGED = "miss:file-changed"
    # The key was seen, but what its runs read has changed.
    WEIGHT_CONTENT_CHANGED = "miss:weight-content-changed"
    DEPENDENCY_CHANGED = "miss:dependency-changed"
    # The key was seen, and the entry can't be used.
    ENTRY_GONE = "miss:entry-gone"
    ARTIFACT_MISSING = "miss:artifact-missing"
    ARTIFACT_CORRUPT = "miss:artifact-corrupt"
    ROW_CORRUPT = "miss:row-corrupt"
    ROW_VERSION = "miss:row-version"
    ROW_FOREIGN = "miss:row-foreign-key"
    CLASS_NOT_LOADED = "miss:class-not-loaded"  # of a result: its module is not imported, and is not for a row to name
    UNUSABLE_HERE = "miss:unusable-here"  # a plugin can't use the stored value in this process; it is not damaged
    STORE_UNAVAILABLE = "miss:store-unavailable"
    REFRESH = "miss:refresh"
    VERIFIED = "miss:verified"
    VERIFY_DIFFERS = "miss:verify-differs"
    # The stage ran without the cache.
    MODE_OFF = "bypass:mode-off"
    INPUT_CHANGED = "bypass:input-changed-during-run"
    KEY_UNREADABLE = "bypass:key-unreadable"  # the system refused a file that the key rests on
    NO_STORE_FOLDER = "bypass:no-store-folder"  # no setting names the store, and the user has no home folder
    STALE_MEMO = "bypass:stale-memo"
    UNSUPPORTED_VERSION = "bypass:unsupported-version"  # of a library that a plugin speaks for
    PROCESS_BOUND = "bypass:process-bound"  # an argument or the result refers to objects of this process (callbacks)
    UNSTORABLE = "bypass:unstorable-value"  # an argument or the result has no stored form, by its plugin
    UNRESOLVED_CODE = "bypass:unresolved-code"  # the code reaches a value without a stable form, or code of no source
    # The same for a command: it is the build system's own; it can't be understood, or read; with --strip a flag is
    # there for what it prints or writes beside the result; it depends on the time; it did what no store does again.
    BUILD_HELPER = "bypass:build-helper"
    NOT_UNDERSTOOD = "bypass:not-understood"
    VOLATILE_INPUT = "bypass:volatile-input"
    UNDESCRIBED = "bypass:undescribed-effect"
    UNTRACED = "bypass:untraced"  # nothing, or not all, could be seen of what the command looked up
    NETWORK = "bypass:network"
    # Code ran that no later look could find again.
    UNNAMED_CODE = "bypass:unnamed-code"
    # Of an isolated stage: it can't be run in a process of its own; it was, and gave another value than here.
    NOT_ISOLATED = "bypass:not-isolated"
    ISOLATION_DIFFERS = "bypass:isolation-differs"
    UNDECLARED_PROGRAM = "bypass:undeclared-program"  # a program or process worked for the run outside of cachec.run
    # Nothing was returned.
    STAGE_RAISED = "error:stage-raised"
    REQUIRED = "error:required"
    USAGE = "error:usage"

    __hash__ = object.__hash__  # members are compared by identity too; Enum's own is slow, and each hit is counted

    @property
    def kind(self) -> str:
        """``hit``, ``miss``, ``bypass`` or ``error``."""
        return self.value.partition(":")[0]

    @property
    def counts_in_rate(self) -> bool:
        """Whether the hit rate counts a call that ended so: the cache was asked, and the call came to an end."""
        return self.kind != "error" and self not in _NOT_ASKED

    @property
    def cause(self) -> str:
        """Of a miss: ``new`` (never stored, of nothing that was), ``changed`` (what it was made of), ``lost`` (it was
        stored, and is gone or can't be used) or ``asked`` (the mode runs the stage all the same); else empty."""
        return "" if self.kind != "miss" else _CAUSES.get(self, "changed")


#: Of calls for which the cache was not asked: it is switched off, or the command is no compiler.
_NOT_ASKED = frozenset({Reason.MODE_OFF, Reason.BUILD_HELPER})

#: What a miss comes of; every other one of something that changed.
_CAUSES = {
    Reason.FIRST_RUN: "new",
    Reason.NEW_INPUT: "new",
    Reason.ENTRY_GONE: "lost",
    Reason.ARTIFACT_MISSING: "lost",
    Reason.ARTIFACT_CORRUPT: "lost",
    Reason.ROW_CORRUPT: "lost",
    Reason.ROW_VERSION: "lost",
    Reason.ROW_FOREIGN: "lost",
    Reason.CLASS_NOT_LOADED: "lost",
    Reason.STORE_UNAVAILABLE: "lost",
    Reason.REFRESH: "asked",
    Reason.VERIFIED: "asked",
    Reason.VERIFY_DIFFERS: "asked",
}


class Fault(enum.Enum):
    """What failed in the cache itself, beside the outcome of the call: counted, logged, and treated as a miss."""

    STORE_FULL = "store-full"
    STORE_UNWRITABLE = "store-unwritable"
    STORE_MISSING = "store-missing"
    NETWORK_MOUNT = "network-mount"
    INDEX_CORRUPT = "index-corrupt"
    INDEX_BUSY = "index-busy"
    ROW_CORRUPT = "row-corrupt"
    ROW_VERSION = "row-version"
    ROW_FOREIGN = "row-foreign-key"
    ROW_REFUSED = "row-refused"
    ARTIFACT_MISSING = "artifact-missing"
    ARTIFACT_CORRUPT = "artifact-corrupt"
    LOCK_TIMEOUT = "lock-timeout"
    IO_ERROR = "io-error"
    # Of a remote: it can't be reached; it is too slow; it forbids what was asked; it is full; what it answers is no
    # answer, or not what was stored; a result is not for other machines, as it rests on a path of this one.
    REMOTE_UNREACHABLE = "remote-unreachable"
    REMOTE_TIMEOUT = "remote-timeout"
    REMOTE_REFUSED = "remote-refused"
    REMOTE_FULL = "remote-full"
    REMOTE_CORRUPT = "remote-corrupt"
    REMOTE_UNTRUSTED = "remote-untrusted"  # a row that nobody has signed who is trusted
    REMOTE_SKIPPED = "remote-skipped"
    REMOTE_OFF = "remote-off"  # it is left alone for a while, after faults or long waits

    @property
    def is_remote(self) -> bool:
        """Whether it says something of a remote, and nothing of the store."""
        return self.value.startswith("remote-")

    @property
    def is_of_a_row(self) -> bool:
        """Whether one row of the index is damaged: that goes away with it."""
        return self in {Fault.ROW_CORRUPT, Fault.ROW_VERSION, Fault.ROW_FOREIGN, Fault.ROW_REFUSED}


#: What a fault of the store makes of the call that met it; any other makes ``store-unavailable`` of it.
MISS_OF_FAULT = {
    Fault.ARTIFACT_MISSING: Reason.ARTIFACT_MISSING,
    Fault.ARTIFACT_CORRUPT: Reason.ARTIFACT_CORRUPT,
    Fault.ROW_CORRUPT: Reason.ROW_CORRUPT,
    Fault.ROW_REFUSED: Reason.ROW_CORRUPT,
    Fault.ROW_VERSION: Reason.ROW_VERSION,
    Fault.ROW_FOREIGN: Reason.ROW_FOREIGN,
}


#: The layout of every weight that does not say another: one object, because msgspec leaves a default out by identity.
ROW_MAJOR = "row-major"


class WeightSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A weight without its bytes: all that a compiler may see of it."""

    name: str
    #: The name of the numpy or ml_dtypes scalar type (``float32``, ``bfloat16``, ``float8_e4m3fn``, ``bool``).
    dtype: str
    #: The local shape, after sharding.
    shape: tuple[int, ...]
    nbytes: int
    #: The logical element order.
    layout: str = ROW_MAJOR
    #: The first name, in order, of its group of tied weights, or None.
    alias: str | None = None
    #: ``(axis, count)`` where this is one shard of a larger weight, else None.
    shard: tuple[int, int] | None = None


class ArtifactRef(msgspec.Struct, frozen=True):
    """An immutable file of the object store."""

    digest: Digest
    size: Annotated[int, msgspec.Meta(ge=0)]


class PartKind(enum.StrEnum):
    """What a part of a key is about: the first piece of its label."""

    STAGE = "stage"
    #: A function, class, module or value that the stage reaches.
    CODE = "code"
    DISTRIBUTION = "distribution"
    #: What a distribution requires in its turn, by its version.
    REQUIREMENT = "requirement"
    EXECUTABLE = "executable"
    #: A setting of a library.
    AMBIENT = "ambient"
    ENVIRONMENT = "env"
    PLATFORM = "platform"
    ARGUMENT = "arg"
    PROGRAM = "program"
    WEIGHTS = "weights"
    FILE = "file"
    #: In which order a command was given its arguments; its subject is what it writes.
    ORDER = "order"


class Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """One part of a key.

    Hashed into the key are ``label``, which tells kind and name apart (no kind has a slash), and ``digest``, each
    framed. All else follows from what the digest is of, or is said beside it:
    """

    kind: PartKind
    name: str
    digest: Digest
    #: For people alone, so it may be shortened and worded anew; nothing is read out of it.
    detail: str = ""
    #: Stored content that the part names, kept by ``gc`` while the entry is there: of a program its IR, then its
    #: manifest; of a weight set its manifest; of a file its content, which is stored where it is small; of code the
    #: texts of all that a call reaches.
    refs: tuple[Digest, ...] = ()
    #: Of a distribution, of an executable the first digits of its content, of a program its format.
    version: str = ""
    #: Whole or empty, of an argument as it is written; of code that is a value (a global, a default, the content of a
    #: closure) as it is written, shortened; of a file, or a program in one, its base name.
    value: str = ""
    #: The name of what the call works on, which stays while its content changes: of a file, a program, a callable, the
    #: outputs of a command; calls of one subject are compared with one another.
    subject: str = ""
    #: For people too, what a container holds, by path.
    leaves: tuple[tuple[str, str], ...] = ()

    @property
    def label(self) -> str:
        """Kind and name in one: ``code/pkg.mod.fn``, ``distribution/jaxlib``, ``arg/batch``, ``platform``."""
        return part_label(self.kind, self.name)


def part_label(kind: PartKind, name: str) -> str:
    """The label of the part of this kind and name; the kind alone where that has but one part, without a name."""
    return kind + "/" + name if name else str(kind)


#: All kinds of reads; another one is none that was written here.
READ_KINDS = frozenset(
    {"weight", "file", "absent", "there", "listing", "links", "access", "status", "tool", "env", "processor", "state"}
    | {"cwd", "folder", "same", "code", "module", "distribution"}
    | {"content", "lookup", "names", "attributes", "stdin", "umask", "search"}
    | {"source", "modules", "global", "ambient", "current", "process", "effects"}
    | {"path", "memo", "library", "unset", "imported", "generator"}
)


class Read(msgspec.Struct, frozen=True):
    """Something that one run of a stage looked at, beyond its key."""

    #: ``weight`` (where = argument path, name = weight name), ``file``, ``absent``, ``there`` (a path of which no
    #: more was asked), ``listing``, ``cwd`` (where = the current folder, which the run took for a value: the digest
    #: is of its path), ``tool`` (where = path, name = the search variables that the stage fixed), ``env`` (where =
    #: variable), ``processor`` (where = ``host`` or ``accelerators``), ``state`` (where = a state of the process,
    #: ``key.tools.process_queries``), ``folder`` (where = an anchor, of a command ``cwd`` or ``base_dir``, whose path
    #: is in the result: the digest is of its path), of a command ``same`` (name = paths, of which some are one file),
    #: of Python ``code`` (see ``key.code.run_reads``), of a traced command ``content``, ``lookup``, ``names``,
    #: ``attributes``, ``stdin``, ``umask`` and ``search`` (see ``commands.traced_run``), ``module`` (where = one that
    #: was looked for in vain) and ``distribution`` (where = its name, ``*`` for all). Of an isolated stage ``source``
    #: (where = a Python file), ``modules`` (where = a folder that modules were looked for in; both see
    #: ``key.source_parts``), ``global`` (where = a module, name = one of its globals; with ``=`` and a digest where
    #: its text makes that value, so that it holds before the module is imported too), ``ambient`` (where = a plugin),
    #: ``current`` (where = the current folder), ``process`` (where = a setting, see ``key.process_state``),
    #: ``effects`` (of a notebook's cells), ``path`` (where = a folder of ``sys.path``, name = its place there),
    #: ``memo`` (``key.lru_caches``), ``library`` (``key.library_patches``), ``unset`` (where = a module, name =
    #: globals that it has not), ``imported`` (which modules of the project are imported) and ``generator`` (where = a
    #: random generator of the process, see ``key.random_generators``). Paths of a stage's reads are kept from an
    #: anchor (``base.anchors``).
    kind: str
    where: str
    name: str
    #: Of the content seen; of nothing (``EMPTY``) where a file was absent.
    digest: Digest


# --- the stored value of a stage: a tree whose leaves are artifacts, inline JSON, or references to the caller's weights


class Inline(msgspec.Struct, frozen=True, tag="inline"):
    """A value in the row itself: ``kind`` says what ``value`` spells."""

    #: ``none``, ``bool``, ``int``, ``float`` (as ``repr``: ``nan`` and ``inf`` too), ``complex``, ``str`` (short),
    #: ``bytes`` (short, hexadecimal) or ``enum`` (``module:qualname:member``).
    kind: str
    value: str


class Leaf(msgspec.Struct, frozen=True, tag="leaf"):
    """A value that one codec wrote to one or more artifacts. ``meta`` is the codec's own, validated when decoded."""

    codec: str
    artifacts: tuple[ArtifactRef, ...]
    meta: dict[str, Any] = {}


class Sequence(msgspec.Struct, frozen=True, tag="sequence"):
    """A tuple or a list, or the keys and values of a dict in turn; ``kind`` says which."""

    kind: str
    items: "tuple[Node, ...]"


class Record(msgspec.Struct, frozen=True, tag="record"):
    """A mapping with string keys (``dataclass`` empty), or a dataclass or named tuple, in order."""

    #: Its class, as ``module:qualname``.
    dataclass: str
    names: tuple[str, ...]
    items: "tuple[Node, ...]"


class CallerWeight(msgspec.Struct, frozen=True, tag="caller"):
    """A weight of the caller's: argument path and name there."""

    where: str
    name: str
    #: The first of its tied weights in the result.
    alias: str | None = None


class OwnedWeight(msgspec.Struct, frozen=True, tag="owned"):
    """A weight that the stage made: its bytes are one artifact."""

    spec: WeightSpec
    artifact: ArtifactRef


class Weights(msgspec.Struct, frozen=True, tag="weights"):
    """A weight set, name by name."""

    names: tuple[str, ...]
    items: tuple[CallerWeight | OwnedWeight, ...]
    #: The path of an argument whose whole set has these weights over it: what is not named comes from there.
    base: str = ""
    #: The path of the argument whose worker the set belongs to. Either is empty for none.
    ranked: str = ""


class CallerSet(msgspec.Struct, frozen=True, tag="caller-set"):
    """A whole weight set of the caller's, passed through unchanged: its argument path."""

    where: str


Node = Inline | Leaf | Sequence | Record | Weights | CallerSet


def artifacts(node: Node) -> Iterator[ArtifactRef]:
    """Every artifact that a stored value needs."""
    if isinstance(node, Leaf):
        yield from node.artifacts
    elif isinstance(node, Sequence | Record):
        for item in node.items:
            yield from artifacts(item)
    elif isinstance(node, Weights):
        for weight in node.items:
            if isinstance(weight, OwnedWeight):
                yield weight.artifact


class GeneratorState(msgspec.Struct, frozen=True):
    """The state that a run left a random generator of the process in."""

    #: Whether the run has set a seed.
    seeds: bool
    #: As ``programs.random_generator`` has it.
    state: bytes


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """What one run of a stage read and what it produced."""

    reads: tuple[Read, ...]
    value: Node
    #: How long the stage ran.
    seconds: float
    #: Unix time.
    created: float
    #: The artifact that says what its File results are to be linked with; a reference, so that a hit decodes no name of
    #: no weight.
    manifest: ArtifactRef | None = None
    #: Programs, manifests and inputs that explain a miss and go into a reproducer; a hit looks at none of them.
    explanations: tuple[ArtifactRef, ...] = msgspec.field(default=(), name="kept")
    #: The artifact of the random generators that the run drew from or seeded: JSON, from name to ``GeneratorState``.
    generators: ArtifactRef | None = None


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known under one key: one row of the index. The row repeats its key; another key there is a miss."""

    version: int
    key: Digest
    stage: str
    tags: tuple[str, ...]
    #: The artifact that holds the parts and the recipe of the newest run as JSON (``KeyDescription``), for ``why`` and
    #: reproducers; it is not needed for a hit.
    parts: ArtifactRef
    traces: tuple[Trace, ...]


class KeyDescription(msgspec.Struct, frozen=True):
    """What an entry's key was made of."""

    parts: tuple[Part, ...]
    #: How the stage was called, see ``reproduce.recipe``; null without one.
    recipe: msgspec.Raw = msgspec.Raw(b"null")


class RemoteFetch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a call had of remotes."""

    #: Seconds that the call waited.
    seconds: float
    #: Whether one had its result.
    hit: bool = False
    #: Bytes that came.
    nbytes: int = 0


class Outcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one call ended: a counter, a log line, and what ``cache.call`` and ``f.check`` return."""

    reason: Reason
    stage: str
    key: str
    #: Names what differed, in words.
    detail: str = ""
    #: Wall time of the call.
    seconds: float = 0.0
    #: Seconds that the stage took when it was stored.
    saved: float = 0.0
    #: Whether this call published an entry.
    stored: bool = False
    #: What failed in the cache meanwhile, if anything.
    fault: Fault | None = None
    #: Unix time of its end.
    time: float = 0.0
    #: The process that answered it, in the log; 0 where that was not written down.
    pid: int = 0
    #: What the call had of remotes; None where none was asked.
    remote: RemoteFetch | None = None

    @property
    def hit(self) -> bool:
        """Whether the result came from the cache."""
        return self.reason is Reason.HIT
