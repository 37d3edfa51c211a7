"""What the active controller does by itself from time to time: rebalance leaders, elect uncleanly,
sweep.

Owns: when each of these is due, and how far the sweep has come. Must not: keep time. Invariant:
nothing is due on a standby, and one turn changes at most as many partitions as fit one batch
without holding up requests.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from moldau.controller.core.broker_changes import Step, election_step, leaving_step
from moldau.controller.core.elections import (
    preferred_leaders_pass,
    unclean_leaders_pass,
)
from moldau.controller.core.partition_index import PartitionKey
from moldau.controller.core.result import VersionedRecord
from moldau.controller.core.settings import ControllerSettings
from moldau.controller.core.state import ControllerState

NEXT_TURN_DELAY_MS: Final = 10.0
"""How long a task that is not done leaves the loop to others."""

_AT_ONCE: Final = float("-inf")
_NEVER: Final = float("inf")


class PeriodicTasks:
    """The tasks of one active controller. Times are monotonic milliseconds."""

    __slots__ = (
        "_rebalance_due_ms",
        "_settings",
        "_state",
        "_sweep_brokers",
        "_sweep_due_ms",
        "_sweep_partitions",
        "_unclean_due_ms",
    )

    def __init__(self, state: ControllerState, settings: ControllerSettings) -> None:
        self._state = state
        self._settings = settings
        self._sweep_brokers: deque[int] = deque()
        self._sweep_partitions: deque[PartitionKey] = deque()
        self.stop()

    def stop(self) -> None:
        """Lead no more: nothing is due."""
        self._rebalance_due_ms = self._unclean_due_ms = self._sweep_due_ms = _NEVER
        self._sweep_brokers.clear()
        self._sweep_partitions.clear()

    def start(self, now_ms: float) -> None:
        """Begin to lead: the intervals begin to run, and what an earlier leader left half done is
        finished at once.
        """
        settings = self._settings
        if settings.auto_leader_rebalance_enabled:
            self._rebalance_due_ms = now_ms + settings.leader_imbalance_check_interval_ms
        self._unclean_due_ms = now_ms + settings.unclean_leader_election_interval_ms
        index = self._state.index
        self._sweep_brokers.extend(
            broker_id for broker_id in index.members() if not self._state.is_active(broker_id)
        )
        self.sweep()

    def sweep(self) -> None:
        """Look at once for leaders of all partitions that have none."""
        self._sweep_partitions = deque(self._state.index.without_leader())
        if self._sweep_partitions or self._sweep_brokers:
            self._sweep_due_ms = _AT_ONCE

    def next_due_ms(self) -> float | None:
        """When `run_due` may have something to do; None when never."""
        due_ms = min(self._rebalance_due_ms, self._unclean_due_ms, self._sweep_due_ms)
        return None if due_ms == _NEVER else due_ms

    def run_due(self, now_ms: float) -> list[VersionedRecord]:
        """One turn of one task that is due: records to append as one batch, maybe none."""
        if now_ms >= self._sweep_due_ms:
            step = self._sweep_turn()
            self._sweep_due_ms = _NEVER if step.is_last else now_ms + NEXT_TURN_DELAY_MS
            return step.records
        if now_ms >= self._rebalance_due_ms:
            step = preferred_leaders_pass(self._state, self._settings)
            interval_ms = self._settings.leader_imbalance_check_interval_ms
            self._rebalance_due_ms = now_ms + (interval_ms if step.is_last else NEXT_TURN_DELAY_MS)
            return step.records
        if now_ms >= self._unclean_due_ms:
            step = unclean_leaders_pass(self._state, self._settings)
            interval_ms = self._settings.unclean_leader_election_interval_ms
            self._unclean_due_ms = now_ms + (interval_ms if step.is_last else NEXT_TURN_DELAY_MS)
            return step.records
        return []

    def _sweep_turn(self) -> Step:
        """Brokers that may not lead, but do; then partitions that nobody leads."""
        while self._sweep_brokers:
            broker_id = self._sweep_brokers[0]
            if self._state.is_active(broker_id):
                self._sweep_brokers.popleft()  # it was let in meanwhile
                continue
            step = leaving_step(self._state, self._settings, broker_id, is_clean=True)
            if step.is_last:
                self._sweep_brokers.popleft()
            if step.records:
                return Step(step.records, is_last=False)
        keys = [
            self._sweep_partitions.popleft()
            for _ in range(min(self._settings.max_changes_per_step, len(self._sweep_partitions)))
        ]
        step = election_step(self._state, self._settings, keys)
        assert step.is_last, "a turn has no more candidates than a step may change"
        return Step(step.records, is_last=not self._sweep_partitions)
