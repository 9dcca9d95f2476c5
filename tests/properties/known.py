"""Properties that the code does not keep yet, each with the reason. Their tests fail when they are kept."""

from __future__ import annotations

from tests.properties.scenario import Property

#: Name of a property, or name-compiler -> why it does not hold.
KNOWN: dict[str, str] = {
    "output-in-the-place-of-a-folder": "the call has two records, the first of them a hit",
    "output-through-a-link-gcc": "what was stored through a dangling link is restored through the link",
    "compile-command-fragment": "the adapter does not name the output of -MJ, so it counts whether that existed",
}


def reason(property: Property, compiler: str) -> str | None:
    """Why a property does not hold with a compiler; None where it does."""
    return KNOWN.get(f"{property.name}-{compiler}") or KNOWN.get(property.name)
