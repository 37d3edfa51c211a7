"""Text to typed value and back, by Kafka's rules, and what clients give to typed values; no error
text carries a sensitive value.

`format_value(key, parse_value(key, text))` parses to the same value again.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from typing import Any, Final

from moldau.config.definition import HIDDEN, ConfigError, ConfigKey, ConfigType, Password, Status
from moldau.constants import MAX_INT16, MAX_INT32, MAX_INT64, MIN_INT16, MIN_INT32, MIN_INT64

_INTEGER = re.compile(r"[+-]?[0-9]+")
_DOUBLE = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[dDfF]?")
_BOUNDS = {
    ConfigType.SHORT: (MIN_INT16, MAX_INT16, "a 16-bit whole number"),
    ConfigType.INT: (MIN_INT32, MAX_INT32, "a 32-bit whole number"),
    ConfigType.LONG: (MIN_INT64, MAX_INT64, "a 64-bit whole number"),
}
_BOOLEANS: Final = {"true": True, "false": False}
_CLIENTS_WORDS: Final = {
    ConfigType.BOOLEAN: "true or false",
    ConfigType.STRING: "text",
    ConfigType.PASSWORD: "text",
    ConfigType.LIST: "a list of texts, or one text with commas between them",
}
"""What a client's key takes by its type. Keys of the other types have limits, which say it."""


def shown(key: ConfigKey, text: str | None) -> str | None:
    """The text as it may be displayed: redacted when the key is sensitive."""
    return HIDDEN if key.sensitive and text is not None else text


def parse_value(key: ConfigKey, text: str) -> object:
    """Parses and checks a value against type and limits, whatever the key's status.

    Raises ConfigError: wrong type or outside the limits.
    """
    value = _parse(key, text)
    if key.validator is not None and not key.validator.accepts(value):
        raise ConfigError(key.name, shown(key, text), f"must be {key.validator.limits}")
    return value


def accept_value(key: ConfigKey, text: str) -> object:
    """As `parse_value`, and enforces what this node refuses although Kafka would take it.

    Raises ConfigError: also for a refused key, or a refused value of a served one.
    """
    value = parse_value(key, text)
    if key.status is Status.REFUSED and value != key.default:
        raise ConfigError(key.name, shown(key, text), f"is refused: {key.note}")
    if key.refused_values:
        given = value if isinstance(value, tuple) else (value,)
        for element in given:
            if element in key.refused_values:
                raise ConfigError(key.name, shown(key, text), f"is refused: {key.refusal}")
    return value


def value_of(key: ConfigKey, given: object) -> Any:
    """What a client takes for the value of a setting: text, or a value of the key's own type. Times
    are cut down to 24 days, which is Kafka's largest INT, also those that Kafka counts as LONG.

    Raises ConfigError: not of that type, or outside the limits.
    """
    if given is None and key.default is None and key.type not in _BOUNDS:
        return None
    limits, value = key.validator, _typed(key, given)
    is_choice = limits is not None and limits.spelling is not None
    if value is None and key.type in _CLIENTS_WORDS and not is_choice:
        problem = _CLIENTS_WORDS[key.type]
    elif limits is not None and (value is None or not limits.accepts(value)):
        problem = limits.limits
    elif str(value) in key.refused_values:
        problem = key.refusal
    else:
        return min(value, MAX_INT32) if key.unit == "ms" else value
    raise ConfigError(key.name, shown(key, repr(given)), problem)


def format_value(key: ConfigKey, value: object) -> str | None:
    """The canonical text of a typed value, None for null. Sensitive values come out hidden."""
    if value is None:
        return None
    if isinstance(value, Password):
        return HIDDEN
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, float):
        return _format_double(value)
    return str(value)


def _parse(key: ConfigKey, text: str) -> object:
    stripped = text.strip()
    kind = key.type
    if kind is ConfigType.BOOLEAN:
        if stripped.lower() not in _BOOLEANS:
            raise ConfigError(key.name, text, "must be true or false")
        return _BOOLEANS[stripped.lower()]
    if kind in _BOUNDS:
        minimum, maximum, words = _BOUNDS[kind]
        # No value that is allowed has 25 digits; int() of a megabyte of digits would take long.
        if not _INTEGER.fullmatch(stripped) or len(stripped) > 25:
            raise ConfigError(key.name, text, f"must be {_limits(key, words)}")
        number = int(stripped)
        if not minimum <= number <= maximum:
            raise ConfigError(key.name, text, f"must be {_limits(key, words)}")
        return number
    if kind is ConfigType.DOUBLE:
        if not _DOUBLE.fullmatch(stripped):
            raise ConfigError(key.name, text, f"must be {_limits(key, 'a number')}")
        return float(stripped.rstrip("dDfF"))
    if kind is ConfigType.LIST:
        return tuple(re.split(r"\s*,\s*", stripped)) if stripped else ()
    if kind is ConfigType.PASSWORD:
        return Password(stripped)
    if kind is ConfigType.CLASS:
        return stripped or None
    return stripped


def _typed(key: ConfigKey, given: Any) -> Any:
    """The value in the key's type, None for what is not of it."""
    kind, is_text = key.type, isinstance(given, str)
    if kind is ConfigType.CLASS:
        return given
    if kind is ConfigType.LIST:
        return _elements(given, may_be_objects=bool(key.unit))
    if isinstance(given, bool):
        return given if kind is ConfigType.BOOLEAN else None
    if kind is ConfigType.BOOLEAN:
        return _BOOLEANS.get(given.strip().lower()) if is_text else None
    if key.validator is not None and key.validator.spelling is not None:
        return key.validator.spelling(given.strip() if is_text else str(given))
    if kind in (ConfigType.STRING, ConfigType.PASSWORD):
        return given if is_text else None
    try:
        if kind is not ConfigType.DOUBLE:
            return int(given.strip()) if is_text else operator.index(given)
        return float(given) if isinstance(given, int | float | str) else None
    except (TypeError, ValueError):
        return None


def _elements(given: Any, *, may_be_objects: bool) -> tuple[Any, ...] | None:
    if isinstance(given, str):
        return tuple(part.strip() for part in given.split(",") if part.strip())
    is_sequence = isinstance(given, Sequence) and not isinstance(given, bytes | bytearray)
    if may_be_objects:
        return tuple(given) if is_sequence else (given,)
    if is_sequence and all(isinstance(each, str) for each in given):
        return tuple(given)
    return None


def _limits(key: ConfigKey, words: str) -> str:
    return words if key.validator is None else f"{words}, {key.validator.limits}"


def _format_double(value: float) -> str:
    """As Java prints a double: plain between 1e-3 and 1e7, otherwise with an E exponent."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    mantissa, _, exponent = repr(value).partition("e")
    if not exponent:  # Python keeps plain digits up to 1e16, Java does not
        whole, _, fraction = mantissa.partition(".")
        sign, whole = ("-", whole[1:]) if whole.startswith("-") else ("", whole)
        exponent = str(len(whole) - 1)
        digits = (whole + fraction).rstrip("0") or "0"
        mantissa = f"{sign}{digits[0]}.{digits[1:] or '0'}"
    if "." not in mantissa:
        mantissa += ".0"
    return f"{mantissa}E{int(exponent)}"
