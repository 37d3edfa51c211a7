"""The removal of expired offsets, of those of deleted topics, and of groups.

Owns which offsets and groups are removed (`offsets.retention.minutes`), and in which portions.
Invariant: one portion looks at a bounded number of offsets and writes a bounded number of records,
so that it blocks neither the loop nor a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from moldau.broker.coordinator.core.result import (
    CancelTimer,
    CoordinatorRecord,
    CoordinatorResult,
    Portion,
    SetTimer,
    is_refused,
)
from moldau.broker.coordinator.group.core.classic_group import ClassicGroup
from moldau.broker.coordinator.group.core.offset_store import NO_EXPIRY, offset_tombstone
from moldau.protocol.coordinator_records import CONSUMER_OFFSETS
from moldau.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from moldau.broker.coordinator.group.core.consumer_group import ConsumerGroup, GroupContext
    from moldau.broker.coordinator.group.core.offset_store import PartitionKey, StoredOffset

MAX_RECORDS_AT_ONCE: Final = 1000
MAX_OFFSETS_AT_ONCE: Final = 5000
PAUSE_MS: Final = 10.0
"""The pause between two portions of one round."""
RETRY_MS: Final = 500.0
"""The pause before offsets of deleted topics that could not be removed are tried again."""


EXPIRY: Final = "offsets expiry"
DELETED_TOPICS: Final = "deleted topics"
"""The keys of the expiry timer, and of the timer for offsets of deleted topics."""


class _Deleted(NamedTuple):
    """An offset of a deleted topic, and the log end then: later records are of a topic that was
    created since under the same name.
    """

    key: PartitionKey
    end_offset: int


@dataclass(slots=True, eq=False)
class OffsetRemoval:
    """Removes offsets, and groups that have no offset and no member left."""

    _context: GroupContext
    _discard: Callable[[ClassicGroup], None]
    _left: list[tuple[str, int | None]] = field(default_factory=list)
    """Groups that this round of expiry has still to look at, with the number of offsets that the
    group had when a portion was full before all its expired ones were in it.
    """
    _deleted: list[_Deleted] = field(default_factory=list)

    def on_timer(self, key: str, now_ms: float) -> CoordinatorResult:
        """Look at the next groups, of a new round if the last one is over; or try again to remove
        the offsets of deleted topics.
        """
        if key == DELETED_TOPICS:
            return self._remove_deleted()
        if not self._left:
            self._left = [(group_id, None) for group_id in self._context.groups]
        portion = Portion(CONSUMER_OFFSETS, MAX_RECORDS_AT_ONCE)
        looked_at = 0
        while self._left and looked_at < MAX_OFFSETS_AT_ONCE and not portion.is_full:
            looked_at += 1 + self._expire(*self._left.pop(), portion, now_ms)
        timer = SetTimer(EXPIRY, PAUSE_MS) if self._left else self.next_round()

        def after(error: ErrorCode, _now_ms: float) -> CoordinatorResult:
            if not is_refused(error):
                return CoordinatorResult()
            # What could not be written is found again in the next round.
            self._left.clear()
            return CoordinatorResult(timers=[self.next_round()])

        return CoordinatorResult(
            records=portion.records,
            is_atomic=False,
            timers=[timer],
            after=after if portion.records else None,
        )

    def next_round(self) -> SetTimer:
        return SetTimer(EXPIRY, self._context.settings.offsets_check_interval_ms)

    def _expire(
        self, group_id: str, before_count: int | None, portion: Portion, now_ms: float
    ) -> int:
        """Tombstones for the expired offsets of a group, perhaps for the group too. Returns how
        many offsets were looked at. A group with more than a portion can hold takes several, as
        long as each of them makes it smaller.
        """
        group = self._context.groups.get(group_id)
        if group is None:
            return 0
        looked_at = 0
        expired: list[tuple[str, int]] = []
        is_anything_left = self._context.offsets.has_open_transactions(group_id)
        for topic, partitions in self._context.offsets.topics(group_id).items():
            looked_at += len(partitions)
            if group.is_subscribed_to(topic):
                is_anything_left = True
                continue
            for partition, stored in partitions.items():
                if self._has_expired(group, topic, partition, stored, now_ms):
                    expired.append((topic, partition))
                else:
                    is_anything_left = True
        if before_count is not None and looked_at >= before_count:
            return looked_at
        for number, (topic, partition) in enumerate(expired):
            if portion.is_full:
                self._context.count("offset-expiration", number)
                self._left.append((group_id, looked_at))
                return looked_at
            portion.add(offset_tombstone(group_id, topic, partition))
        self._context.count("offset-expiration", len(expired))
        if not is_anything_left and group.is_empty:
            self._remove_group(group, portion)
        return looked_at

    def _remove_group(self, group: ClassicGroup | ConsumerGroup, portion: Portion) -> None:
        if not isinstance(group, ClassicGroup):
            portion.add(*group.tombstones())
        elif group.pending_members:
            return  # they will join with the ids that they were given
        elif group.is_persisted or self._context.offsets.has_any(group.group_id):
            portion.add(*group.tombstones())
        else:
            self._discard(group)

    def _has_expired(
        self,
        group: ClassicGroup | ConsumerGroup,
        topic: str,
        partition: int,
        stored: StoredOffset,
        now_ms: float,
    ) -> bool:
        if self._context.offsets.is_pending(group.group_id, topic, partition):
            return False
        base_ms = group.expiration_base_ms(stored.commit_timestamp_ms)
        if base_ms is None:
            return False
        if stored.expire_timestamp_ms != NO_EXPIRY:
            return now_ms >= stored.expire_timestamp_ms
        return now_ms - base_ms >= self._context.settings.offsets_retention_ms

    def topics_deleted(self, topics: frozenset[str], end_offset: int) -> CoordinatorResult:
        """Remove all offsets of deleted topics, in portions; the log ends at `end_offset` now."""
        keys = self._context.offsets.partitions_of(topics)
        self._deleted += [_Deleted(key, end_offset) for key in keys]
        return self._remove_deleted()

    def remove_outlived(self, keys: Iterable[PartitionKey]) -> CoordinatorResult:
        """Remove the offsets that are committed now for these keys, but no newer ones."""
        for key in keys:
            stored = self._context.offsets.get(*key)
            if stored is not None:
                self._deleted.append(_Deleted(key, stored.log_offset + 1))
        return self._remove_deleted()

    def _remove_deleted(self) -> CoordinatorResult:
        portion = Portion(CONSUMER_OFFSETS, MAX_RECORDS_AT_ONCE)
        taken: list[_Deleted] = []
        waiting: list[_Deleted] = []
        while self._deleted and not portion.is_full:
            each = self._deleted.pop()
            if self._context.offsets.newest_log_offset(each.key) < each.end_offset:
                taken.append(each)
                portion.add(offset_tombstone(*each.key))
            elif self._context.offsets.is_pending(*each.key):
                waiting.append(each)  # a tombstone would take the open transaction's offset too
        self._deleted = waiting + self._deleted
        if not portion.records:
            return CoordinatorResult(timers=self._deleted_again())

        def after(error: ErrorCode, _now_ms: float) -> CoordinatorResult:
            if is_refused(error):
                self._deleted += taken
                return CoordinatorResult(timers=self._deleted_again())
            return self._remove_deleted()

        return CoordinatorResult(records=portion.records, is_atomic=False, after=after)

    def _deleted_again(self) -> list[SetTimer | CancelTimer]:
        return [SetTimer(DELETED_TOPICS, RETRY_MS)] if self._deleted else []

    def next_tombstones(self, group_id: str, max_count: int) -> list[CoordinatorRecord]:
        """The next portion of tombstones for all offsets of a group; none when there are none."""
        portion = Portion(CONSUMER_OFFSETS, max_count)
        for topic, partitions in self._context.offsets.topics(group_id).items():
            for partition in partitions:
                if portion.is_full:
                    return portion.records
                portion.add(offset_tombstone(group_id, topic, partition))
        for key in self._context.offsets.pending_partitions(group_id):
            if portion.is_full:
                break
            if self._context.offsets.get(*key) is None:
                portion.add(offset_tombstone(*key))
        return portion.records
