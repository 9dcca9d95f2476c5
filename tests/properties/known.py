"""Properties that the code does not keep yet, each with the reason. Their tests fail when they are kept."""

from __future__ import annotations

from tests.properties.scenario import Property

#: Name of a property, or name-compiler -> why it does not hold.
KNOWN: dict[str, str] = {
    # The clock and time stamps of files do not count.
    "pragma-dependency": "the compiler compares time stamps of files",
    "pragma-once-of-equal-files": "gcc takes equal files of one time stamp for one file",
    "precompiled-header-that-is-touched": "clang refuses a precompiled header by the time stamp of a header",
    "time-in-a-call-of-a-script": "a script without an adapter gets no -Wdate-time for the compiler that it starts",
    # `-Wdate-time` is added to the command.
    "time-where-a-pragma-silences": "the pragma silences the added -Wdate-time",
    "time-where-an-operator-silences": "the operator silences the added -Wdate-time",
    "time-where-a-pragma-silences-everything": "the pragma silences the added -Wdate-time",
    "time-in-a-line-of-a-linemarker-gcc": "gcc warns of nothing in what a linemarker calls a system header",
    "warnings-about-time-gcc": "the added -Wno-error=date-time lets a compile succeed that fails by itself",
    "failing-compile-with-the-time-leaves-nothing-gcc": "the added -Wno-error=date-time lets the first run succeed",
    "link-time-optimization-gcc": "gcc writes the added flags into the object",
    "unknown-flag": "an added flag at the end becomes the value of a flag without one",
    # Outputs.
    "output-in-the-place-of-a-folder-gcc": "the call has two records, the first of them a hit",
    "output-through-a-link-gcc": "what was stored through a dangling link is restored through the link",
    "compile-command-fragment": "the adapter does not name the output of -MJ, so it counts whether that existed",
    "working-directory-flag": "the adapter does not know that -working-directory moves the output",
}


def reason(property: Property, compiler: str) -> str | None:
    """Why a property does not hold with a compiler; None where it does."""
    return KNOWN.get(f"{property.name}-{compiler}") or KNOWN.get(property.name)
