"""The kinds of settings: which text and typed values a key takes, and how they are converted.

Owns conversion and ranges. Must not know any key by name. Invariant: a value that `convert` returns
is of the key's own type and within its range; anything else is one error that names the key, the
given value (unless it is a secret) and what is allowed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from moldau.client.errors import ConfigurationError

MAX_INT: Final = 2**31 - 1
"""Kafka's largest INT. Times are cut down to it (24 days), also those that Kafka counts as LONG."""

MAX_LONG: Final = 2**63 - 1

REDACTED: Final = "[hidden]"
"""Shown instead of a secret, as in Kafka."""

Declared: TypeAlias = Any
"""A key, for type checkers the value of the attribute that it declares (as `dataclasses.field`)."""


class _Wrong(Exception):
    """The key does not take the value; the text says what it takes."""


class Key(NamedTuple):
    """One setting. `default` is not converted; `convert` takes text, or a typed value."""

    default: object
    convert: Callable[[object], object]
    sensitive: bool = False

    def value(self, name: str, given: object) -> object:
        """Convert what was given under the dotted `name`. Raises: ConfigurationError when it is not
        of the key's type, or out of its range.
        """
        try:
            return self.convert(given)
        except _Wrong as wrong:
            shown = REDACTED if self.sensitive else repr(given)
            raise ConfigurationError(f"{name}={shown}: {wrong}") from None


def integer(default: int | None, lowest: int, highest: int = MAX_INT) -> Declared:
    return Key(default, _whole_number(lowest, highest, highest))


def milliseconds(default: int | None, lowest: int = 0) -> Declared:
    """A time that Kafka holds as INT."""
    return Key(default, _whole_number(lowest, MAX_INT, MAX_INT, "ms"))


def long_milliseconds(default: int | None, lowest: int = 0) -> Declared:
    """A time that Kafka holds as LONG: more than 24 days is allowed and means 24 days."""
    return Key(default, _whole_number(lowest, MAX_LONG, MAX_INT, "ms"))


def byte_count(default: int | None, lowest: int = 0, highest: int = MAX_INT) -> Declared:
    return Key(default, _whole_number(lowest, highest, highest, "bytes"))


def real(default: float, lowest: float, highest: float) -> Declared:
    def convert(given: object) -> object:
        wrong = _Wrong(f"a number from {lowest} to {highest}")
        if isinstance(given, bool) or not isinstance(given, int | float | str):
            raise wrong
        try:
            number = float(given)
        except ValueError:
            raise wrong from None
        if not lowest <= number <= highest:
            raise wrong
        return number

    return Key(default, convert)


def boolean(default: bool | None) -> Declared:
    def convert(given: object) -> object:
        if isinstance(given, bool):
            return given
        if isinstance(given, str) and given.strip().lower() in ("true", "false"):
            return given.strip().lower() == "true"
        raise _Wrong("true or false")

    return Key(default, convert)


def text(default: str | None, *, sensitive: bool = False, empty: bool = True) -> Declared:
    """Any text; None where the default is None. `empty`: whether "" is a value."""

    def convert(given: object) -> object:
        if given is None and default is None:
            return None
        if not isinstance(given, str):
            raise _Wrong("text")
        if not given and not empty:
            raise _Wrong("text that is not empty")
        return given

    return Key(default, convert, sensitive)


def secret() -> Declared:
    """Text that is never shown."""
    return text(None, sensitive=True)


def choice(default: str | None, *allowed: str, any_case: bool = False) -> Declared:
    found = {word.lower() if any_case else word: word for word in allowed}

    def convert(given: object) -> object:
        if given is None and default is None:
            return None
        word = given.strip() if isinstance(given, str) else str(given)
        chosen = found.get(word.lower() if any_case else word)
        if chosen is None or isinstance(given, bool):
            raise _Wrong(f"one of {', '.join(allowed)}")
        return chosen

    return Key(default, convert)


def texts(default: Sequence[str]) -> Declared:
    """A list of words; as text they are separated by commas."""

    def convert(given: object) -> object:
        if isinstance(given, str):
            return tuple(part.strip() for part in given.split(",") if part.strip())
        if isinstance(given, Sequence) and all(isinstance(each, str) for each in given):
            return tuple(given)
        raise _Wrong("a list of texts, or one text with commas between them")

    return Key(tuple(default), convert)


def things(default: Sequence[object]) -> Declared:
    """A list of names, classes or objects, which only the user of the key understands."""

    def convert(given: object) -> object:
        if isinstance(given, str):
            return tuple(part.strip() for part in given.split(",") if part.strip())
        if isinstance(given, Sequence) and not isinstance(given, bytes | bytearray):
            return tuple(given)
        return (given,)

    return Key(tuple(default), convert)


def thing(check: Callable[[object], bool], allowed: str) -> Declared:
    """An object that only code can give, or None."""

    def convert(given: object) -> object:
        if given is not None and not check(given):
            raise _Wrong(allowed)
        return given

    return Key(None, convert)


def checked(key: Declared, check: Callable[[Declared], str | None]) -> Declared:
    """The same key with one more rule: `check` returns what is wrong, or None."""
    inner: Key = key

    def convert(given: object) -> object:
        value = inner.convert(given)
        problem = check(value)
        if problem is not None:
            raise _Wrong(problem)
        return value

    return Key(inner.default, convert, inner.sensitive)


def _whole_number(
    lowest: int, highest: int, most: int, unit: str = ""
) -> Callable[[object], object]:
    number_of = f"a whole number of {unit}" if unit else "a whole number"
    allowed = f"{number_of} from {lowest} to {highest}"

    def convert(given: object) -> object:
        if isinstance(given, bool):
            raise _Wrong(allowed)
        try:
            number = int(given.strip()) if isinstance(given, str) else operator.index(given)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise _Wrong(allowed) from None
        if not lowest <= number <= highest:
            raise _Wrong(allowed)
        return min(number, most)

    return convert
