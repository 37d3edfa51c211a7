"""Regular expressions of clients, in RE2's linear time and within limits.

Owns which expressions are taken, and the memory of the last ones, refused ones included. It matches
nothing. Invariant: an expression costs its compilation once while it is remembered, and no
expression costs more than the limits allow: 4 ms to compile, during which Python's lock is held
(`(?i)[^\\PL][^\\PL]`), 4 ms to match a topic's name, half a second to match 32 KB.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from types import ModuleType
from typing import Final, NamedTuple, Protocol

MAX_EXPRESSION_BYTES: Final = 1024
"""How long an expression may be in UTF-8."""

MAX_EXPRESSION_MEMORY_BYTES: Final = 64 * 1024
"""What RE2 may take for one expression: it leaves room for about 5,000 instructions."""

MAX_UNICODE_CLASSES: Final = 4
"""How many classes like `\\pL` an expression may name: RE2 takes 0.1 to 0.7 ms to build each of
them, also when it then refuses the expression.
"""

MAX_REPETITIONS: Final = 1_000
"""What the numbers in `{1,249}` and the like may add up to, the larger one of each: RE2's time
grows faster than they do, to 4 ms for 1,000.
"""

MAX_REMEMBERED: Final = 256
"""Expressions that are remembered, compiled or refused ones."""

_COSTLY: Final = re.compile(
    r"\\(?:x\{[^}]*\}|(?P<unicode>[pP])|.)|\{(?P<least>\d+)(?:,(?P<most>\d*))?\}", re.DOTALL
)
"""Escapes and repetitions, one after the other; what is neither is passed over."""


class Pattern(Protocol):
    """A compiled expression of RE2."""

    pattern: str
    programsize: int

    def fullmatch(self, text: str) -> object | None: ...


class InvalidExpression(ValueError):
    """An invalid regular expression, or one beyond the limits; the message says why."""


class _Re2(NamedTuple):
    """RE2, and how we compile with it."""

    library: ModuleType
    options: object


@cache
def _re2() -> _Re2 | None:
    """None on a broker without `moldau[server]`, which refuses every expression. Loaded with the
    first expression: it takes 3 ms of a start, and most brokers never see one.
    """
    try:
        import re2
    except ImportError:
        return None
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = MAX_EXPRESSION_MEMORY_BYTES
    return _Re2(re2, options)


def load_library() -> None:
    """Load RE2, so that the first expression is not charged for it."""
    _re2()


def compile_expression(expression: str) -> Pattern:
    """The expression, ready to be matched. Raises: InvalidExpression."""
    if _re2() is None:
        raise InvalidExpression("this broker has no google-re2: pip install 'moldau[server]'")
    if len(expression) > MAX_EXPRESSION_BYTES or len(expression.encode()) > MAX_EXPRESSION_BYTES:
        raise InvalidExpression(
            f"a regular expression may have {MAX_EXPRESSION_BYTES} bytes, this has more"
        )
    outcome = _compile(expression)
    if isinstance(outcome, str):
        raise InvalidExpression(f"{expression!r} is no regular expression: {outcome}")
    return outcome


def compile_once_more(expression: str) -> None:
    """Compile an expression as if it were not remembered, to be timed."""
    if (re2 := _re2()) is not None:
        re2.library.purge()  # RE2 has its own memory.
    _compile.__wrapped__(expression)


@lru_cache(MAX_REMEMBERED)
def _compile(expression: str) -> Pattern | str:
    """The compiled expression, or the reason of its refusal: an exception is not remembered."""
    re2 = _re2()
    assert re2 is not None, "asked for before"
    refusal = _limit_reached(expression)
    if refusal is not None:
        return refusal
    try:
        compiled: Pattern = re2.library.compile(expression, re2.options)
        return compiled
    except re2.library.error as error:
        reason = error.args[0] if error.args else ""
        return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)


def _limit_reached(expression: str) -> str | None:
    unicode_class_count = repetitions = 0
    for found in _COSTLY.finditer(expression):
        if found["unicode"]:
            unicode_class_count += 1
        elif found["least"]:
            repetitions += max(int(found["least"]), int(found["most"] or 0))
    if unicode_class_count > MAX_UNICODE_CLASSES:
        return f"it names {unicode_class_count} Unicode classes, {MAX_UNICODE_CLASSES} are allowed"
    if repetitions > MAX_REPETITIONS:
        return f"its repetitions add up to {repetitions}, {MAX_REPETITIONS} are allowed"
    return None
