"""What a red rule says: what to do, and then every place, one to a line."""

from __future__ import annotations

from collections.abc import Collection, Mapping


def listed(found: Collection[object], instead: str) -> str:
    """The message of an assertion that nothing is found. pytest itself shows the first place."""
    places = found.items() if isinstance(found, Mapping) else sorted(map(str, found))
    lines = [": ".join(map(str, each)) if isinstance(each, tuple) else each for each in places]
    return "\n  ".join((f"{instead}:", *map(str, lines)))
