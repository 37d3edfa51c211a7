"""A coordinator as small as they come: offsets by group, committed at once or by transactions.

Its records are real ones of `__consumer_offsets`; its answers are what the tests look at.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from moldau.broker.coordinator.core.result import (
    CoordinatorRecord,
    CoordinatorResult,
    Producer,
    Reply,
    SetTimer,
)
from moldau.protocol.coordinator_records.classic_groups import OffsetCommitKey, OffsetCommitValue
from moldau.protocol.errors import ErrorCode


def commit_record(group: str, offset: int | None, metadata: str = "") -> CoordinatorRecord:
    key = OffsetCommitKey(group=group, topic="t", partition=0)
    if offset is None:
        return CoordinatorRecord(key, None)
    value = OffsetCommitValue(offset=offset, metadata=metadata, commit_timestamp=1)
    return CoordinatorRecord(key, value, 3)


class ToyState:
    """Committed offsets by group. `replayed` is everything that was ever replayed, with offsets."""

    def __init__(self, partition_index: int = 0) -> None:
        self.partition_index = partition_index
        self.offsets: dict[str, int] = {}
        self.pending: dict[int, dict[str, int | None]] = {}
        self.replayed: list[tuple[int, str, int | None]] = []
        self.markers: list[tuple[Producer, bool]] = []
        self.waiting: list[Any] = []
        self.timers_run: list[Hashable] = []
        self.is_loaded = False
        self.is_unloaded = False
        self.fails_on: str | None = None
        self.timer_result = CoordinatorResult()
        self.loaded_result = CoordinatorResult()

    # -- CoordinatorState ------------------------------------------------------------------------

    def replay(self, record: CoordinatorRecord, offset: int, producer: Producer | None) -> None:
        assert not self.is_unloaded
        key, value = record.key, record.value
        assert isinstance(key, OffsetCommitKey)
        if key.group == self.fails_on:
            raise ValueError(f"{key.group} cannot be replayed")
        new = value.offset if isinstance(value, OffsetCommitValue) else None
        self.replayed.append((offset, key.group, new))
        if producer is not None:
            self.pending.setdefault(producer.producer_id, {})[key.group] = new
        else:
            self._apply(key.group, new)

    def replay_end_marker(self, producer: Producer, *, is_commit: bool) -> None:
        self.markers.append((producer, is_commit))
        for group, new in self.pending.pop(producer.producer_id, {}).items():
            if is_commit:
                self._apply(group, new)

    def keys(self) -> Iterable[str]:
        return self.offsets

    def loaded(self, now_ms: float) -> CoordinatorResult:
        assert not self.is_loaded
        self.is_loaded = True
        return self.loaded_result

    def on_timer(self, key: Hashable, now_ms: float) -> CoordinatorResult:
        assert not self.is_unloaded, "no timer runs after unload"
        self.timers_run.append(key)
        return self.timer_result

    def unloaded(self) -> list[Reply]:
        self.is_unloaded = True
        return [Reply(to, ErrorCode.NOT_COORDINATOR) for to in self.waiting]

    def _apply(self, group: str, new: int | None) -> None:
        if new is None:
            self.offsets.pop(group, None)
        else:
            self.offsets[group] = new


def write(to: Any, group: str, offset: int | None, producer: Producer | None = None) -> Any:
    """An operation that commits an offset and is answered with the outcome."""

    def operation(state: ToyState, now_ms: float) -> CoordinatorResult:
        result = CoordinatorResult.reply_when_committed(
            to,
            ErrorCode.NONE,
            on_error=lambda error: error,
            records=[commit_record(group, offset)],
        )
        result.producer = producer
        return result

    return operation


def read(to: Any, group: str) -> Any:
    """An operation that is answered with `(offset,)`, or with an error."""

    def operation(state: ToyState, now_ms: float) -> CoordinatorResult:
        return CoordinatorResult.reply_when_committed(
            to, (state.offsets.get(group),), on_error=lambda error: error
        )

    return operation


def wait_inside(to: Any) -> Any:
    """An operation that is answered only when the state is unloaded."""

    def operation(state: ToyState, now_ms: float) -> CoordinatorResult:
        state.waiting.append(to)
        return CoordinatorResult()

    return operation


def set_timer(key: Hashable, delay_ms: float) -> Any:
    def operation(state: ToyState, now_ms: float) -> CoordinatorResult:
        return CoordinatorResult(timers=[SetTimer(key, delay_ms)])

    return operation
