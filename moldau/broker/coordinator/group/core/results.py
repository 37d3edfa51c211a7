"""Putting results of a state machine together.

Owns: joining what several steps of one event want into one `CoordinatorResult`.
Must not: know groups. Invariant: nothing that a step wants is lost, and no reply is sent twice.
"""

from __future__ import annotations

from collections.abc import Callable

from moldau.broker.coordinator.core.result import After, CoordinatorResult
from moldau.protocol.errors import ErrorCode


def add_after(result: CoordinatorResult, after: After) -> None:
    """Have `after` called too, behind the one that `result` has already."""
    first = result.after
    if first is None:
        result.after = after
        return

    def both(error: ErrorCode, now_ms: float) -> CoordinatorResult:
        assert first is not None
        joined = first(error, now_ms)
        merge(joined, after(error, now_ms))
        return joined

    result.after = both


def merge(into: CoordinatorResult, other: CoordinatorResult) -> None:
    """Add everything of `other` to `into`."""
    assert into.producer == other.producer or not into.records or not other.records
    into.producer = into.producer or other.producer
    written = [each for each in (into, other) if each.records]
    into.is_atomic = not written or any(each.is_atomic for each in written)
    into.records += other.records
    into.timers += other.timers
    into.replies += other.replies
    into.commands += other.commands
    if other.after is not None:
        add_after(into, other.after)


def whatever_happens(
    result: CoordinatorResult, replayed_count: Callable[[], int]
) -> CoordinatorResult:
    """Let timers and replies of `result` come true even if its records cannot be appended.

    A result whose append fails is dropped but for its `after`. What a classic group has decided in
    memory holds all the same: those who wait for an answer must get it, and timers must run.

    Args:
        replayed_count: how many records the state machine has replayed so far; `after` tells by it
            whether the append happened.
    """
    if (
        not result.records
        or not result.is_atomic
        or not (result.timers or result.replies or result.commands)
    ):
        return result
    before = replayed_count()
    promised = CoordinatorResult(
        timers=result.timers, replies=result.replies, commands=result.commands
    )
    inner = result.after

    def after(error: ErrorCode, now_ms: float) -> CoordinatorResult:
        outcome = CoordinatorResult()
        if error is not ErrorCode.NONE and replayed_count() == before:
            merge(outcome, promised)
        if inner is not None:
            merge(outcome, inner(error, now_ms))
        return outcome

    result.after = after
    return result
