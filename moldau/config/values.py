"""Text to typed value and back, by Kafka's rules; no error text carries a sensitive value.

`format_value(key, parse_value(key, text))` parses to the same value again.
"""

from __future__ import annotations

import re

from moldau.config.definition import HIDDEN, ConfigError, ConfigKey, ConfigType, Password, Status
from moldau.constants import MAX_INT16, MAX_INT32, MAX_INT64, MIN_INT16, MIN_INT32, MIN_INT64

_INTEGER = re.compile(r"[+-]?[0-9]+")
_DOUBLE = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[dDfF]?")
_BOUNDS = {
    ConfigType.SHORT: (MIN_INT16, MAX_INT16, "a 16-bit whole number"),
    ConfigType.INT: (MIN_INT32, MAX_INT32, "a 32-bit whole number"),
    ConfigType.LONG: (MIN_INT64, MAX_INT64, "a 64-bit whole number"),
}


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
        lowered = stripped.lower()
        if lowered not in ("true", "false"):
            raise ConfigError(key.name, text, "must be true or false")
        return lowered == "true"
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
