"""Waiting for work that goes on when one of its callers gives up.

Owns: what becomes of the work's failure then. Must not: begin or end work. Invariant: a caller that
is cancelled neither ends the work nor leaves a failure for the loop to report: from Python 3.14 on
`asyncio.shield` has it reported.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

T = TypeVar("T")


async def outcome_of(work: asyncio.Future[T]) -> T:
    """The result of work that others may wait for too. Raises what the work raises."""
    try:
        await asyncio.wait([work])
    except asyncio.CancelledError:
        work.add_done_callback(look_at_failure)
        raise
    return work.result()


def look_at_failure(work: asyncio.Future[Any]) -> None:
    """A failure of ended work is no report of the loop's: a caller that has gone never looks."""
    if not work.cancelled():
        work.exception()
