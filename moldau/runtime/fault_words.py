"""What an exception says of itself, in a log line or in another error's text."""

from __future__ import annotations


def words_of(fault: BaseException) -> str:
    """The exception's text, never empty: many have none, such as asyncio's own TimeoutError."""
    text = str(fault)
    if not text and isinstance(fault, TimeoutError):
        return "no answer in time"
    return text or type(fault).__name__
