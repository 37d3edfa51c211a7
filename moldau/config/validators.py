"""Checks on typed values: ranges, enumerations, list rules, and what each accepts in words.

A check never raises for a value of the key's own type. `NAMED` are those that the data files of
keys name in their column of limits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

MAX_PORT: Final = 65_535
_BIND_ADDRESS: Final = re.compile(r"(?:\[[^\[\]\s]+\]|[^\[\]:\s]*):(\d{1,5})", re.ASCII)
_REPLICA: Final = re.compile(r"(?:\d+:\d+)?", re.ASCII)


class Validator(NamedTuple):
    """`accepts` says whether a parsed, non-null value is inside the limits; `limits` are these as a
    clause that follows "must be". `spelling` of an enumeration is how it spells a word itself; None
    for any other text.
    """

    accepts: Callable[[Any], bool]
    limits: str
    spelling: Callable[[str], str | None] | None = None


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
    known = {value.lower() if any_case else value: value for value in values}

    def spelling(word: str) -> str | None:
        return known.get(word.lower() if any_case else word)

    return Validator(
        lambda value: spelling(value) is not None, "one of " + ", ".join(values), spelling
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


BIND_ADDRESS: Final = Validator(
    _is_bind_address, "HOST:PORT (port 0 for any, IPv6 addresses in brackets), or empty"
)
"""`HOST:PORT` (IPv6 in brackets), without a host for every interface, or nothing at all."""
THROTTLED_REPLICAS: Final = Validator(
    lambda value: "".join(value) == "*" or all(map(_REPLICA.fullmatch, value)),
    "a list of PARTITION:BROKER pairs, or *",
)
"""`partition:broker` pairs or `*` alone (KIP-73); empty elements may be there."""

BY_DURATION: Final = "by_duration:"

_DURATION: Final = (
    r"\+?P(?=[\dT+])(?:\+?(\d+)D)?"
    r"(?:T(?=[\d+])(?:\+?(\d+)H)?(?:\+?(\d+)M)?(?:\+?(\d+)(?:\.(\d{0,9}))?S)?)?"
)
"""A time that is not negative, as ISO 8601 writes it and Java reads it: P1DT2H3M4.5S."""


def duration_ms(text: str) -> int | None:
    """The milliseconds of an ISO 8601 duration such as PT1H; None when it is none, or negative."""
    found = re.fullmatch(_DURATION, text, re.ASCII | re.IGNORECASE)
    if found is None or text[-1] in "Tt":
        return None
    days, hours, minutes, seconds, fraction = (group or "0" for group in found.groups())
    whole = ((int(days) * 24 + int(hours)) * 60 + int(minutes)) * 60 + int(seconds)
    return whole * 1000 + int(fraction.ljust(9, "0")) // 1_000_000


def _is_consumers_reset(text: str) -> bool:
    if text.startswith(BY_DURATION):
        return duration_ms(text.removeprefix(BY_DURATION)) is not None
    return text in ("latest", "earliest", "none")


def _is_tls_context(given: object) -> bool:
    import ssl  # a node that has no TLS does not load it for this

    return isinstance(given, ssl.SSLContext)


NAMED: Final[Mapping[str, Validator]] = {
    "distinct": list_of(),
    "distinct, not empty": list_of(may_be_empty=False),
    "not empty": Validator(bool, "a non-empty string"),
    "offset reset": Validator(
        lambda value: value in ("earliest", "latest") or value.startswith("by_duration:P"),
        "earliest, latest, or by_duration:PnDTnHnMnS",
    ),
    "not empty text": Validator(bool, "text that is not empty"),
    "offset reset of a consumer": Validator(
        _is_consumers_reset,
        "latest, earliest, none, or by_duration:PnDTnHnMn.nS such as by_duration:PT1H",
    ),
    "an ssl.SSLContext": Validator(_is_tls_context, "an ssl.SSLContext"),
    "token function": Validator(callable, "a function without arguments that gives a token"),
}
