"""Offsets that go without a client asking for each: expired ones, and those of deleted topics.

Owns: which offsets and groups are removed, and in which portions. Must not: read a clock.
Invariant: one portion looks at a bounded number of offsets and writes a bounded number of records,
so that neither the loop nor a batch is taken up by it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from moldau.broker.coordinator.core.result import CoordinatorRecord, CoordinatorResult, SetTimer
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
        records: list[CoordinatorRecord] = []
        looked_at = 0
        while self._left and looked_at < MAX_OFFSETS_AT_ONCE and len(records) < MAX_RECORDS_AT_ONCE:
            looked_at += 1 + self._expire(self._left.pop(), records, now_ms)
        timer = SetTimer(OffsetsTimer(), PAUSE_MS) if self._left else self._next_round()

        def after(error: ErrorCode, now_ms: float) -> CoordinatorResult:
            del now_ms
            if error is ErrorCode.NONE:
                return CoordinatorResult()
            # What could not be written is found again in the next round.
            self._left.clear()
            return CoordinatorResult(timers=[self._next_round()])

        return CoordinatorResult(records=records, timers=[timer], after=after if records else None)

    def _next_round(self) -> SetTimer:
        return SetTimer(OffsetsTimer(), self._settings.offsets_check_interval_ms)

    def _expire(self, group_id: str, records: list[CoordinatorRecord], now_ms: float) -> int:
        """Tombstones for what has expired of a group, perhaps the group too. Returns how many
        offsets were looked at; a group with more than one portion can hold is done bit by bit.
        """
        group = self._groups.get(group_id)
        if group is None:
            return 0
        looked_at = 0
        expired: list[CoordinatorRecord] = []
        is_anything_left = self._offsets.has_open_transactions(group_id)
        for topic, partitions in self._offsets.topics(group_id).items():
            looked_at += len(partitions)
            if group.is_subscribed_to(topic):
                is_anything_left = True
                continue
            for partition, stored in partitions.items():
                if len(expired) < MAX_RECORDS_AT_ONCE and self._has_expired(
                    group, topic, partition, stored, now_ms
                ):
                    expired.append(offset_tombstone(group_id, topic, partition))
                else:
                    is_anything_left = True
        if len(expired) == MAX_RECORDS_AT_ONCE:
            self._left.append(group_id)
            is_anything_left = True
        self._count("offset-expiration", len(expired))
        records += expired
        if not is_anything_left and group.is_empty:
            self._remove_group(group, records)
        return looked_at

    def _remove_group(self, group: Any, records: list[CoordinatorRecord]) -> None:
        if not isinstance(group, ClassicGroup):
            records += group.tombstones()
        elif group.is_persisted or self._offsets.has_any(group.group_id):
            # Pending members are about to come back with the ids they were given.
            if not group.pending_members:
                records += group.tombstones()
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
        records: list[CoordinatorRecord] = []
        is_more = False
        for key in self._offsets.partitions_of(topics):
            if len(records) == MAX_RECORDS_AT_ONCE:
                is_more = True
                break
            records.append(offset_tombstone(*key))
        if not is_more:
            return CoordinatorResult(records=records)

        def after(error: ErrorCode, now_ms: float) -> CoordinatorResult:
            del now_ms
            return self.topics_deleted(topics) if error is ErrorCode.NONE else CoordinatorResult()

        return CoordinatorResult(records=records, after=after)

    def next_tombstones(self, group_id: str) -> list[CoordinatorRecord]:
        """The next portion of tombstones for all offsets of a group; none when there are none."""
        records = [
            offset_tombstone(group_id, topic, partition)
            for topic, partitions in self._offsets.topics(group_id).items()
            for partition in partitions
        ]
        written = {(record.key.topic, record.key.partition) for record in records}  # type: ignore[attr-defined]
        records += [
            offset_tombstone(*key)
            for key in self._offsets.pending_partitions(group_id)
            if (key.topic, key.partition) not in written
        ]
        return records[:MAX_RECORDS_AT_ONCE]
