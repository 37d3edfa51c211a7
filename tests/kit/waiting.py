"""How long tests wait for something to come true: the public loops, times this machine's patience.

Owns: the one patience factor. Must not: poll by itself, or limit how long something may take
(`what` has to come true, or the test fails). Invariant: nothing returns unless the condition held.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable
from typing import TypeVar

from moldau.testing import waiting

Value = TypeVar("Value")
PATIENCE = "MOLDAU_TEST_PATIENCE"
"""Every time limit of a test is so many times as long, on a machine that is that slow."""

DEADLINE_S = waiting.DEFAULT_DEADLINE_S


def patience() -> float:
    """The factor; 1 if nothing is said. Raises: ValueError: it is no number, or below 1"""
    factor = float(os.environ.get(PATIENCE, "1"))
    if not 1 <= factor < float("inf"):
        raise ValueError(f"{PATIENCE}={factor:g}: a number from 1 on is asked for")
    return factor


def until(
    condition: Callable[[], Value], what: str = "", *, deadline_s: float = DEADLINE_S
) -> Value:
    """The value of `condition`, once it is true. Raises: TimeoutError: it did not become true; the
    text names `what`
    """
    return waiting.wait_until(condition, what=what, deadline_s=deadline_s * patience())


async def until_async(
    condition: Callable[[], Value | Awaitable[Value]],
    what: str = "",
    *,
    deadline_s: float = DEADLINE_S,
) -> Value:
    """As `until`, for a condition that is awaited, or that looks at what the loop does."""

    async def value() -> Value:
        found = condition()
        return await found if inspect.isawaitable(found) else found

    return await waiting.wait_until_async(value, what=what, deadline_s=deadline_s * patience())
