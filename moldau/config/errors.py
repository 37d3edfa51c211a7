"""The one exception configuration raises.

Owns: `ConfigError` and the wording "key, value, what is allowed".
Must not: format a sensitive value; whoever raises passes the redacted text.
Invariant: `str(error)` is a single line.
"""

from __future__ import annotations

HIDDEN = "[hidden]"


class ConfigError(ValueError):
    """A key that cannot be used with this value.

    Attributes:
        key: the dotted name, or a file name when no key is to blame.
        value: the offending text, redacted when the key is sensitive; None when it is missing.
        allowed: what would be accepted, as a clause such as "must be at least 1".
    """

    __slots__ = ("allowed", "key", "value")

    def __init__(self, key: str, value: str | None, allowed: str) -> None:
        self.key = key
        self.value = value
        self.allowed = " ".join(allowed.split())
        shown = "" if value is None else "=" + _one_line(value)
        super().__init__(f"{key}{shown}: {self.allowed}")


def _one_line(value: str) -> str:
    """Text that cannot break the line nor flood it (200 characters are enough to recognise it)."""
    escaped = value.encode("unicode_escape").decode("ascii") if not value.isprintable() else value
    return escaped if len(escaped) <= 200 else escaped[:197] + "..."
