"""Offsets that go without a client asking for each: expired ones, and those of deleted topics.

Owns: which offsets and groups are removed, and in which portions. Must not: read a clock.
Invariant: one portion looks at a bounded number of offsets and writes a bounded number of records,
so that neither the loop nor a batch is taken up by it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from moldau.broker.coordinator.core.result import (
    CoordinatorRecord,
    CoordinatorResult,
    SetTimer,
    is_refused,
)
from moldau.broker.group.core.classic_group import ClassicGroup
from moldau.broker.group.core.records import NO_EXPIRY, offset_tombstone
from moldau.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from moldau.broker.group.core.offset_store import OffsetStore, StoredOffset
    from moldau.broker.group.core.settings import GroupSettings

MAX_RECORDS_AT_ONCE: Final = 1000
MAX_OFFSETS_AT_ONCE: Final = 5000
PAUSE_MS: Final = 10.0
"""Between two portions of one round."""


MAX_BYTES_AT_ONCE: Final = 400_000
"""Well below the batch size that brokers take by default; names can be long."""

_RECORD_BYTES: Final = 40
"""A tombstone without its names, generously."""


class _Portion:
    """The tombstones of one batch."""

    __slots__ = ("_bytes", "records")

    def __init__(self) -> None:
        self.records: list[CoordinatorRecord] = []
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        return len(self.records) >= MAX_RECORDS_AT_ONCE or self._bytes >= MAX_BYTES_AT_ONCE

    def add_offset(self, group_id: str, topic: str, partition: int) -> None:
        self.records.append(offset_tombstone(group_id, topic, partition))
        self._bytes += _RECORD_BYTES + len(group_id) + len(topic)

    def add_group(self, group: Any) -> None:
        records = group.tombstones()
        self.records += records
        self._bytes += len(records) * (_RECORD_BYTES + len(group.group_id))


class OffsetsTimer(NamedTuple):
    """The key of the timer of expiry."""

    kind: str = "offsets expiry"


class OffsetRemoval:
    """Removes offsets, and groups that nothing is left of.

    Args:
        discard: forgets a group of which the log knows nothing.
        count: counts events for the metrics.
    """

    def __init__(
        self,
        groups: dict[str, Any],
        offsets: OffsetStore,
        settings: GroupSettings,
        discard: Callable[[ClassicGroup], None],
        count: Callable[[str, int], None],
    ) -> None:
        self._groups = groups
        self._offsets = offsets
        self._settings = settings
        self._discard = discard
        self._count = count
        self._left: list[str] = []
        """Groups that this round of expiry has still to look at."""

    # -- expiry ----------------------------------------------------------------------------------

    def loaded(self) -> CoordinatorResult:
        """Begin to look for expired offsets from time to time."""
        return CoordinatorResult(timers=[self._next_round()])

    def on_timer(self, now_ms: float) -> CoordinatorResult:
        """Look at the next groups, of a new round if the last one is over."""
        if not self._left:
            self._left = list(self._groups)
        portion = _Portion()
        looked_at = 0
        while self._left and looked_at < MAX_OFFSETS_AT_ONCE and not portion.is_full:
            looked_at += 1 + self._expire(self._left.pop(), portion, now_ms)
        timer = SetTimer(OffsetsTimer(), PAUSE_MS) if self._left else self._next_round()

        def after(error: ErrorCode, now_ms: float) -> CoordinatorResult:
            del now_ms
            if not is_refused(error):
                return CoordinatorResult()
            # What could not be written is found again in the next round.
            self._left.clear()
            return CoordinatorResult(timers=[self._next_round()])

        records = portion.records
        return CoordinatorResult(records=records, timers=[timer], after=after if records else None)

    def _next_round(self) -> SetTimer:
        return SetTimer(OffsetsTimer(), self._settings.offsets_check_interval_ms)

    def _expire(self, group_id: str, portion: _Portion, now_ms: float) -> int:
        """Tombstones for what has expired of a group, perhaps the group too. Returns how many
        offsets were looked at; a group with more than the portion can hold is done bit by bit.
        """
        group = self._groups.get(group_id)
        if group is None:
            return 0
        looked_at = 0
        expired: list[tuple[str, int]] = []
        is_anything_left = self._offsets.has_open_transactions(group_id)
        for topic, partitions in self._offsets.topics(group_id).items():
            looked_at += len(partitions)
            if group.is_subscribed_to(topic):
                is_anything_left = True
                continue
            for partition, stored in partitions.items():
                if self._has_expired(group, topic, partition, stored, now_ms):
                    expired.append((topic, partition))
                else:
                    is_anything_left = True
        for number, (topic, partition) in enumerate(expired):
            if portion.is_full:
                self._count("offset-expiration", number)
                self._left.append(group_id)
                return looked_at
            portion.add_offset(group_id, topic, partition)
        self._count("offset-expiration", len(expired))
        if not is_anything_left and group.is_empty:
            self._remove_group(group, portion)
        return looked_at

    def _remove_group(self, group: Any, portion: _Portion) -> None:
        if not isinstance(group, ClassicGroup):
            portion.add_group(group)
        elif group.pending_members:
            return  # they are about to come back with the ids they were given
        elif group.is_persisted or self._offsets.has_any(group.group_id):
            portion.add_group(group)
        else:
            self._discard(group)

    def _has_expired(
        self, group: Any, topic: str, partition: int, stored: StoredOffset, now_ms: float
    ) -> bool:
        if self._offsets.is_pending(group.group_id, topic, partition):
            return False
        base_ms = group.expiration_base_ms(stored.commit_timestamp_ms)
        if base_ms is None:
            return False
        if stored.expire_timestamp_ms != NO_EXPIRY:
            return bool(now_ms >= stored.expire_timestamp_ms)
        return bool(now_ms - base_ms >= self._settings.offsets_retention_ms)

    # -- deleted topics and groups ---------------------------------------------------------------

    def topics_deleted(self, topics: frozenset[str]) -> CoordinatorResult:
        """Remove all offsets of topics that are no more, portion by portion."""
        portion = _Portion()
        is_more = False
        for key in self._offsets.partitions_of(topics):
            if portion.is_full:
                is_more = True
                break
            portion.add_offset(*key)
        records = portion.records
        if not is_more:
            return CoordinatorResult(records=records)

        def after(error: ErrorCode, now_ms: float) -> CoordinatorResult:
            del now_ms
            return CoordinatorResult() if is_refused(error) else self.topics_deleted(topics)

        return CoordinatorResult(records=records, after=after)

    def next_tombstones(self, group_id: str) -> list[CoordinatorRecord]:
        """The next portion of tombstones for all offsets of a group; none when there are none."""
        portion = _Portion()
        for topic, partitions in self._offsets.topics(group_id).items():
            for partition in partitions:
                if portion.is_full:
                    return portion.records
                portion.add_offset(group_id, topic, partition)
        for key in self._offsets.pending_partitions(group_id):
            if portion.is_full:
                break
            if self._offsets.get(*key) is None:
                portion.add_offset(*key)
        return portion.records
