"""Waiting for a condition with a deadline, the only way tests may wait.

Owns the two polling loops. Invariant: neither returns unless the condition held.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

Value = TypeVar("Value")

POLL_INTERVAL_S = 0.01
DEFAULT_DEADLINE_S = 30.0


def wait_until(
    condition: Callable[[], Value], *, what: str, deadline_s: float = DEFAULT_DEADLINE_S
) -> Value:
    """Poll `condition` until it is truthy and return its value. Raises: TimeoutError: it was not
    within `deadline_s`; the text names `what`
    """
    end = time.monotonic() + deadline_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= end:
            raise TimeoutError(f"not within {deadline_s} s: {what}")
        time.sleep(POLL_INTERVAL_S)


async def wait_until_async(
    condition: Callable[[], Awaitable[Value]], *, what: str, deadline_s: float = DEFAULT_DEADLINE_S
) -> Value:
    """As `wait_until`, for a condition that has to be awaited; by the running loop's clock."""
    time_s = asyncio.get_running_loop().time
    end = time_s() + deadline_s
    while True:
        value = await condition()
        if value:
            return value
        if time_s() >= end:
            raise TimeoutError(f"not within {deadline_s} s: {what}")
        await asyncio.sleep(POLL_INTERVAL_S)
