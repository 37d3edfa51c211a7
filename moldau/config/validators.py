"""Checks on typed values: ranges, enumerations, list rules.

Owns: small immutable validators; each says in `describe()` what it accepts.
Must not: parse text or know key names.
Invariant: `accepts` never raises for a value of the key's own type.
"""

from __future__ import annotations

import re
from typing import Any, Protocol


class Validator(Protocol):
    """What a validator offers."""

    def accepts(self, value: Any) -> bool:
        """Whether a parsed, non-null value is inside the limits."""

    def describe(self) -> str:
        """The limits as a clause that follows "must be"."""


class Range:
    """Numbers between two inclusive bounds; None leaves a side open."""

    __slots__ = ("extra", "maximum", "minimum")

    def __init__(
        self,
        minimum: float | None = None,
        maximum: float | None = None,
        extra: float | None = None,
    ) -> None:
        self.minimum = minimum
        self.maximum = maximum
        self.extra = extra

    def accepts(self, value: Any) -> bool:
        """Whether the number lies between the bounds or is the one extra value."""
        if self.extra is not None and value == self.extra:
            return True
        return (self.minimum is None or value >= self.minimum) and (
            self.maximum is None or value <= self.maximum
        )

    def describe(self) -> str:
        """For instance "at least 1" or "between 1 and 9, or -1"."""
        if self.maximum is None:
            text = f"at least {self.minimum}"
        elif self.minimum is None:
            text = f"at most {self.maximum}"
        else:
            text = f"between {self.minimum} and {self.maximum}"
        return text if self.extra is None else f"{text}, or {self.extra}"


class OneOf:
    """Strings from a fixed set, optionally whatever their case."""

    __slots__ = ("any_case", "values")

    def __init__(self, *values: str, any_case: bool = False) -> None:
        self.values = values
        self.any_case = any_case

    def accepts(self, value: Any) -> bool:
        """Whether the string is one of the set."""
        if self.any_case:
            return str(value).lower() in {known.lower() for known in self.values}
        return value in self.values

    def describe(self) -> str:
        """The set, for instance "one of producer, gzip"."""
        return "one of " + ", ".join(self.values)


class ListOf:
    """Lists without duplicates or empty elements, of any or of the named elements only."""

    __slots__ = ("may_be_empty", "values")

    def __init__(self, *values: str, may_be_empty: bool = True) -> None:
        self.values = values
        self.may_be_empty = may_be_empty

    def accepts(self, value: Any) -> bool:
        """Whether every element is allowed and none is repeated or blank."""
        if not value:
            return self.may_be_empty
        if len(set(value)) != len(value) or not all(value):
            return False
        return not self.values or all(element in self.values for element in value)

    def describe(self) -> str:
        """For instance "a list of distinct values out of compact, delete"."""
        text = (
            "a list of distinct values"
            if self.may_be_empty
            else "a non-empty list of distinct values"
        )
        return f"{text} out of {', '.join(self.values)}" if self.values else text


class NonEmptyString:
    """Strings with something in them."""

    __slots__ = ()

    def accepts(self, value: Any) -> bool:
        """Whether the string holds at least one character."""
        return bool(value)

    def describe(self) -> str:
        """The rule in words."""
        return "a non-empty string"


class BindAddress:
    """`HOST:PORT`, without a host for every interface, or nothing at all."""

    __slots__ = ()
    _PATTERN = re.compile(r"(?:\[[^\[\]\s]+\]|[^\[\]:\s]*):(\d{1,5})", re.ASCII)
    _MAX_PORT = 65_535

    def accepts(self, value: Any) -> bool:
        """Whether the string is empty or names a host (IPv6 in brackets) and a port."""
        match = self._PATTERN.fullmatch(value)
        return not value or (match is not None and int(match[1]) <= self._MAX_PORT)

    def describe(self) -> str:
        """The rule in words."""
        return "HOST:PORT (port 0 for any, IPv6 addresses in brackets), or empty"


class ThrottledReplicas:
    """`partition:broker` pairs or `*` alone (KIP-73); empty elements may be there."""

    __slots__ = ()
    _PAIR = re.compile(r"(?:\d+:\d+)?", re.ASCII)

    def accepts(self, value: Any) -> bool:
        """Whether the list is empty, the wildcard, or made of pairs."""
        if "".join(value) == "*":
            return True
        return all(self._PAIR.fullmatch(element) for element in value)

    def describe(self) -> str:
        """The rule in words."""
        return "a list of PARTITION:BROKER pairs, or *"
