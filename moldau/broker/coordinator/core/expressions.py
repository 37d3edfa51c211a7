"""Regular expressions of clients, in RE2's linear time and within limits.

Owns: which expressions are taken, and the memory of the last ones, refused ones included. Must not:
match anything. Invariant: an expression costs its compilation once while it is remembered, and no
expression costs more than `MAX_EXPRESSION_BYTES` and `MAX_EXPRESSION_MEMORY_BYTES` allow: 26 ms to
compile (1,024 bytes of `\\pL`), 4 ms to match a topic's name, half a second to match 32 KB.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import re2

MAX_EXPRESSION_BYTES: Final = 1024
"""How long an expression may be in UTF-8."""

MAX_EXPRESSION_MEMORY_BYTES: Final = 64 * 1024
"""What RE2 may take for one expression: it leaves room for about 5,000 instructions."""

MAX_REMEMBERED: Final = 256
"""Expressions that are remembered, compiled or refused."""

_OPTIONS: Final = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.never_capture = True
_OPTIONS.max_mem = MAX_EXPRESSION_MEMORY_BYTES


class InvalidExpression(ValueError):
    """No regular expression, or one that is beyond the limits; the message says why."""


def compile_expression(expression: str) -> Any:
    """The expression, ready to be matched (`fullmatch`).

    Raises:
        InvalidExpression: it cannot be taken.
    """
    if len(expression) > MAX_EXPRESSION_BYTES or len(expression.encode()) > MAX_EXPRESSION_BYTES:
        raise InvalidExpression(
            f"a regular expression may have {MAX_EXPRESSION_BYTES} bytes, this has more"
        )
    outcome = _compile(expression)
    if isinstance(outcome, str):
        raise InvalidExpression(f"{expression!r} is no regular expression: {outcome}")
    return outcome


@lru_cache(MAX_REMEMBERED)
def _compile(expression: str) -> Any:
    """The compiled expression, or the reason of its refusal: an exception is not remembered."""
    try:
        return re2.compile(expression, _OPTIONS)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
