"""An exception's words are never empty."""

from __future__ import annotations

import asyncio

import pytest

from moldau.runtime.fault_words import words_of


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device"),
        (TimeoutError(), "no answer in time"),
        (TimeoutError("after 5 s"), "after 5 s"),
        (ConnectionResetError(), "ConnectionResetError"),
        (asyncio.CancelledError(), "CancelledError"),
    ],
)
def test_words(fault: BaseException, words: str) -> None:
    assert words_of(fault) == words
