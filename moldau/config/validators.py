"""Checks on typed values: ranges, enumerations, list rules, and what each accepts in words.

A check never raises for a value of the key's own type.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

MAX_PORT: Final = 65_535
_BIND_ADDRESS: Final = re.compile(r"(?:\[[^\[\]\s]+\]|[^\[\]:\s]*):(\d{1,5})", re.ASCII)
_REPLICA: Final = re.compile(r"(?:\d+:\d+)?", re.ASCII)


class Validator(NamedTuple):
    """`accepts` says whether a parsed, non-null value is inside the limits; `limits` are these as a
    clause that follows "must be".
    """

    accepts: Callable[[Any], bool]
    limits: str


def within(minimum: float, maximum: float | None = None, extra: float | None = None) -> Validator:
    """Numbers between two inclusive bounds, or one extra value; None: no upper bound."""
    limits = f"at least {minimum}" if maximum is None else f"between {minimum} and {maximum}"
    highest = float("inf") if maximum is None else maximum
    return Validator(
        lambda value: value == extra or minimum <= value <= highest,
        limits if extra is None else f"{limits}, or {extra}",
    )


def one_of(*values: str, any_case: bool = False) -> Validator:
    """Strings from a fixed set, optionally in any case."""
    known = {value.lower() for value in values} if any_case else set(values)
    return Validator(
        lambda value: (value.lower() if any_case else value) in known,
        "one of " + ", ".join(values),
    )


def list_of(*values: str, may_be_empty: bool = True) -> Validator:
    """Lists without repeated or blank elements, of any or of the named elements only."""

    def accepts(value: tuple[str, ...]) -> bool:
        if not value:
            return may_be_empty
        if len(set(value)) != len(value) or not all(value):
            return False
        return not values or all(element in values for element in value)

    limits = "a list of distinct values" if may_be_empty else "a non-empty list of distinct values"
    return Validator(accepts, f"{limits} out of {', '.join(values)}" if values else limits)


def _is_bind_address(value: str) -> bool:
    match = _BIND_ADDRESS.fullmatch(value)
    return not value or (match is not None and int(match[1]) <= MAX_PORT)


NOT_EMPTY: Final = Validator(bool, "a non-empty string")
BIND_ADDRESS: Final = Validator(
    _is_bind_address, "HOST:PORT (port 0 for any, IPv6 addresses in brackets), or empty"
)
"""`HOST:PORT` (IPv6 in brackets), without a host for every interface, or nothing at all."""
OFFSET_RESET: Final = Validator(
    lambda value: value in ("earliest", "latest") or value.startswith("by_duration:P"),
    "earliest, latest, or by_duration:PnDTnHnMnS",
)
THROTTLED_REPLICAS: Final = Validator(
    lambda value: "".join(value) == "*" or all(map(_REPLICA.fullmatch, value)),
    "a list of PARTITION:BROKER pairs, or *",
)
"""`partition:broker` pairs or `*` alone (KIP-73); empty elements may be there."""
