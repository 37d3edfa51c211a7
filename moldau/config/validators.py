"""Checks on typed values: ranges, enumerations, list rules; each says in `describe()` what it
accepts.

`accepts` never raises for a value of the key's own type.
"""

from __future__ import annotations

import re
from typing import Protocol


class Validator(Protocol):
    """A check of one typed value."""

    def accepts(self, value: object) -> bool:
        """Whether a parsed, non-null value is inside the limits."""

    def describe(self) -> str:
        """The limits as a clause that follows "must be"."""


class Range:
    """Numbers between two inclusive bounds, or one extra value; None: no upper bound."""

    __slots__ = ("extra", "maximum", "minimum")

    def __init__(
        self, minimum: float, maximum: float | None = None, extra: float | None = None
    ) -> None:
        self.minimum = minimum
        self.maximum = maximum
        self.extra = extra

    def accepts(self, value: object) -> bool:
        if self.extra is not None and value == self.extra:
            return True
        assert isinstance(value, int | float)
        return value >= self.minimum and (self.maximum is None or value <= self.maximum)

    def describe(self) -> str:
        if self.maximum is None:
            text = f"at least {self.minimum}"
        else:
            text = f"between {self.minimum} and {self.maximum}"
        return text if self.extra is None else f"{text}, or {self.extra}"


class OneOf:
    """Strings from a fixed set, optionally in any case."""

    __slots__ = ("any_case", "values")

    def __init__(self, *values: str, any_case: bool = False) -> None:
        self.values = values
        self.any_case = any_case

    def accepts(self, value: object) -> bool:
        if self.any_case:
            return str(value).lower() in {known.lower() for known in self.values}
        return value in self.values

    def describe(self) -> str:
        return "one of " + ", ".join(self.values)


class ListOf:
    """Lists without repeated or blank elements, of any or of the named elements only."""

    __slots__ = ("may_be_empty", "values")

    def __init__(self, *values: str, may_be_empty: bool = True) -> None:
        self.values = values
        self.may_be_empty = may_be_empty

    def accepts(self, value: object) -> bool:
        if not value:
            return self.may_be_empty
        assert isinstance(value, tuple)
        if len(set(value)) != len(value) or not all(value):
            return False
        return not self.values or all(element in self.values for element in value)

    def describe(self) -> str:
        text = (
            "a list of distinct values"
            if self.may_be_empty
            else "a non-empty list of distinct values"
        )
        return f"{text} out of {', '.join(self.values)}" if self.values else text


class NonEmptyString:
    """Strings with something in them."""

    __slots__ = ()

    def accepts(self, value: object) -> bool:
        return bool(value)

    def describe(self) -> str:
        return "a non-empty string"


class BindAddress:
    """`HOST:PORT` (IPv6 in brackets), without a host for every interface, or nothing at all."""

    __slots__ = ()
    _PATTERN = re.compile(r"(?:\[[^\[\]\s]+\]|[^\[\]:\s]*):(\d{1,5})", re.ASCII)
    _MAX_PORT = 65_535

    def accepts(self, value: object) -> bool:
        match = self._PATTERN.fullmatch(str(value))
        return not value or (match is not None and int(match[1]) <= self._MAX_PORT)

    def describe(self) -> str:
        return "HOST:PORT (port 0 for any, IPv6 addresses in brackets), or empty"


class OffsetReset:
    """`earliest`, `latest`, or `by_duration:` and an ISO 8601 duration."""

    __slots__ = ()

    def accepts(self, value: object) -> bool:
        return value in ("earliest", "latest") or str(value).startswith("by_duration:P")

    def describe(self) -> str:
        return "earliest, latest, or by_duration:PnDTnHnMnS"


class ThrottledReplicas:
    """`partition:broker` pairs or `*` alone (KIP-73); empty elements may be there."""

    __slots__ = ()
    _PAIR = re.compile(r"(?:\d+:\d+)?", re.ASCII)

    def accepts(self, value: object) -> bool:
        assert isinstance(value, tuple)
        if "".join(value) == "*":
            return True
        return all(self._PAIR.fullmatch(element) for element in value)

    def describe(self) -> str:
        return "a list of PARTITION:BROKER pairs, or *"
