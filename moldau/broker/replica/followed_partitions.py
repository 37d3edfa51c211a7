"""The partitions of one fetcher: what their leader sends is applied to their logs, or they wait.

Owns which partitions wait for the end of a back-off, for the throttle or for the leader's offsets,
what an answer to a fetch does to a log (cuts: `core.truncation`), and how far each partition lags.
Must not know connections. Invariants: a partition is in the session or in exactly one of the waits,
or it is stopped until its metadata changes; an answer is applied only to the log that it was
requested for (leader epoch and end offset are those of the request); a cut below the local high
watermark is logged as an error; a log that fails stops its partition, and nothing else does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Final

from moldau.broker.replica.core.partition_core import ReplicaRole
from moldau.broker.replica.core.truncation import LogCut, cut_for_divergence, cut_out_of_range
from moldau.broker.replica.follower_session import (
    FollowerAnswer,
    FollowerPosition,
    FollowerSession,
    PartitionKey,
)
from moldau.protocol.errors import ErrorCode
from moldau.storage.faults import DiskFull, LogOffline

if TYPE_CHECKING:
    from moldau.broker.replica.partition import Partition
    from moldau.broker.replica.throttle import ReplicationQuota
    from moldau.protocol.messages.p01_fetch import PartitionData
    from moldau.runtime.clock import Clock, TimerHandle
    from moldau.storage.log import Log

logger = logging.getLogger(__name__)

ORDINARY_ERRORS: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OFFSET_OUT_OF_RANGE,
    }
)
"""Answers while metadata is on its way to the leader or the follower: no line in the log."""


class FollowerStep(Enum):
    """What to do next for a partition that was fetched."""

    FETCH_ON = "fetch on"
    BACK_OFF = "back off"
    ASK_OFFSETS = "ask for the leader's offsets"
    STOP = "stop until its metadata changes"


class FollowedPartition:
    """One partition that follows a leader. `lag` is in records, -1 while nothing was fetched yet.
    `has_failed`: it is stopped, because its log or its leader epoch cannot be used.
    """

    __slots__ = ("has_failed", "key", "lag", "partition")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.key: PartitionKey = (partition.topic_id, partition.topic_partition.partition)
        self.lag = -1
        self.has_failed = False

    @property
    def has_leader(self) -> bool:
        """Whether the replica has a leader to follow, its own log usable or not."""
        partition = self.partition
        core = partition.core
        return (
            core.role is ReplicaRole.FOLLOWER and core.leader_id >= 0 and not partition.is_deleted
        )

    def position(self) -> FollowerPosition | None:
        """Where to fetch from; None for a replica that follows no leader or has no usable log."""
        partition = self.partition
        core = partition.core
        log = partition.log
        if log is None or log.offline or not self.has_leader:
            return None
        return FollowerPosition(
            partition.topic_partition,
            partition.topic_id,
            core.leader_id,
            core.leader_epoch,
            log.log_end_offset,
            log.leader_epoch_cache.latest_epoch,
            log.log_start_offset,
            log.high_watermark,
        )

    def apply_fetched(self, requested: FollowerPosition, data: PartitionData) -> FollowerStep:
        """Apply the leader's answer to a fetch from `requested`.

        `data.records` are not kept. An answer for another state of the replica came too late and is
        ignored.
        """
        if self.position() is None:
            return FollowerStep.STOP
        partition = self.partition
        log = partition.log
        assert log is not None
        if not self._is_still_at(log, requested):
            return FollowerStep.FETCH_ON
        try:
            if data.error_code != ErrorCode.NONE:
                return self._refused(ErrorCode.of(data.error_code))
            diverging = data.diverging_epoch
            if diverging.epoch >= 0 or diverging.end_offset >= 0:
                return self._diverging(log, data)
            return self._append(log, data)
        except LogOffline:
            partition.changed()
            return FollowerStep.STOP
        except DiskFull as problem:
            self._note_problem(str(problem))
            return FollowerStep.BACK_OFF

    def apply_leader_offsets(
        self, requested: FollowerPosition, leader_start_offset: int, leader_end_offset: int
    ) -> FollowerStep:
        """Apply the ends of the leader's log, after the fetch from `requested` was out of range."""
        if self.position() is None:
            return FollowerStep.STOP
        log = self.partition.log
        assert log is not None
        if not self._is_still_at(log, requested):
            return FollowerStep.FETCH_ON
        cut = cut_out_of_range(
            leader_start_offset,
            leader_end_offset,
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
            is_blank=log.leader_epoch_cache.latest_epoch < 0,
        )
        latest_epoch, leader_epoch = log.leader_epoch_cache.latest_epoch, requested.leader_epoch
        if cut is None and latest_epoch > leader_epoch:
            # The leader has answered under its epoch, so that none of its records has a newer one.
            log.take_offline(f"leader epoch {latest_epoch} is in it, the leader has {leader_epoch}")
            return FollowerStep.STOP
        if cut is None:
            # In range by now, or nonsense: either way not to be asked again without a pause.
            return FollowerStep.BACK_OFF
        reason = f"the leader's log reaches from {leader_start_offset} to {leader_end_offset}"
        try:
            self._apply_cut(log, cut, reason)
        except LogOffline:
            self.partition.changed()
            return FollowerStep.STOP
        except DiskFull as problem:
            self._note_problem(str(problem))
            return FollowerStep.BACK_OFF
        return FollowerStep.FETCH_ON

    def _is_still_at(self, log: Log, requested: FollowerPosition) -> bool:
        """Whether the replica is what it was when the request was made."""
        return (
            self.partition.core.leader_epoch == requested.leader_epoch
            and log.log_end_offset == requested.fetch_offset
            and self.partition.topic_id == requested.topic_id
        )

    def _refused(self, error: ErrorCode) -> FollowerStep:
        if error is ErrorCode.OFFSET_OUT_OF_RANGE:
            return FollowerStep.ASK_OFFSETS
        if error is ErrorCode.FENCED_LEADER_EPOCH:
            # The leader knows a newer epoch; its metadata is on the way here.
            return FollowerStep.STOP
        if error not in ORDINARY_ERRORS:
            self._note_problem(f"leader {self.partition.core.leader_id} answers {error.name}")
        return FollowerStep.BACK_OFF

    def _diverging(self, log: Log, data: PartitionData) -> FollowerStep:
        """Raises: LogOffline, DiskFull."""
        epoch, end_offset = data.diverging_epoch.epoch, data.diverging_epoch.end_offset
        cut = cut_for_divergence(
            epoch,
            end_offset,
            leader_start_offset=data.log_start_offset,
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
            end_offset_for_epoch=log.end_offset_for_epoch,
        )
        before = (log.log_end_offset, log.leader_epoch_cache.latest_epoch)
        if cut is not None:
            reason = f"the leader's log has epoch {epoch} up to offset {end_offset}"
            self._apply_cut(log, cut, reason)
        if (log.log_end_offset, log.leader_epoch_cache.latest_epoch) == before:
            # The same request would get the same answer.
            self._note_problem(
                f"leader {self.partition.core.leader_id} says that the logs part at offset "
                f"{end_offset} of epoch {epoch}, where ours has nothing to cut"
            )
            return FollowerStep.BACK_OFF
        return FollowerStep.FETCH_ON

    def _apply_cut(self, log: Log, cut: LogCut, reason: str) -> None:
        """Raises: LogOffline, DiskFull."""
        if cut.begins_empty:
            self._begin_empty(log, cut.offset, reason)
            return
        log_end_offset, high_watermark = log.log_end_offset, log.high_watermark
        core = self.partition.core
        if not log.truncate_to(cut.offset):
            return
        if log.log_end_offset < high_watermark:
            logger.error(
                "%s: cut from %d back to %d, below the high watermark %d: committed records are "
                "lost here; leader %d of epoch %d does not have them (%s)",
                log.name,
                log_end_offset,
                log.log_end_offset,
                high_watermark,
                core.leader_id,
                core.leader_epoch,
                reason,
            )
        else:
            logger.info(
                "%s: cut from %d back to %d to follow leader %d of epoch %d: %s",
                log.name,
                log_end_offset,
                log.log_end_offset,
                core.leader_id,
                core.leader_epoch,
                reason,
            )
        core.local_log_was_cut(log.high_watermark)
        self.partition.changed()

    def _begin_empty(self, log: Log, log_start_offset: int, reason: str) -> None:
        """Raises: LogOffline, DiskFull."""
        logger.warning(
            "%s: log of %d to %d is given up and starts again, empty, at %d: %s",
            log.name,
            log.log_start_offset,
            log.log_end_offset,
            log_start_offset,
            reason,
        )
        log.truncate_fully_and_start_at(log_start_offset)
        self.partition.core.local_log_was_cut(log.high_watermark)
        self.partition.changed()

    def _append(self, log: Log, data: PartitionData) -> FollowerStep:
        """Raises: LogOffline, DiskFull."""
        partition = self.partition
        step = FollowerStep.FETCH_ON
        records = data.records or b""
        assert isinstance(records, (bytearray, bytes, memoryview)), "records come from the network"
        if isinstance(records, bytes):
            records = memoryview(records)
        if log.log_start_offset < log.log_end_offset == data.log_start_offset:
            first_offset = int.from_bytes(records[:8]) if records else log.log_end_offset
            self._leave_all(log, first_offset)
        if records:
            result = log.append_as_follower(records, leader_epoch=partition.core.leader_epoch)
            if log.offline:
                partition.changed()
                return FollowerStep.STOP
            if result.error is not ErrorCode.NONE:
                self._note_problem(f"fetched records are not appended: {result.error_message}")
                step = FollowerStep.BACK_OFF
            elif result.last_offset < 0:
                # Nothing of it is of the leader's epoch: the same request would bring the same.
                step = FollowerStep.BACK_OFF
        if step is FollowerStep.FETCH_ON and partition.follower_problem:
            logger.info("%s: follows again from offset %d", log.name, log.log_end_offset)
            partition.follower_problem = ""
        self._follow_offsets(log, data.high_watermark, data.log_start_offset)
        return step

    def _leave_all(self, log: Log, first_offset: int) -> None:
        """The leader has deleted all offsets of this log, and so cannot report whether its records
        were others. The new segment lets these go from the disk: a crash loses the log start
        offset, and none of another history must come back by that.

        Args:
            first_offset: of what the leader has next.

        Raises: LogOffline, DiskFull.
        """
        end = log.log_end_offset
        if first_offset < end:
            # Only an empty log may begin inside a batch.
            self._begin_empty(log, end, "the leader's log begins there, inside a batch")
            return
        with suppress(DiskFull):  # they are deleted, as at the leader
            log.roll()

    def _follow_offsets(self, log: Log, high_watermark: int, log_start_offset: int) -> None:
        """Take over the leader's offsets. A new leader may know less of what is committed than this
        replica: the high watermark here does not go back.

        Raises: LogOffline.
        """
        core = self.partition.core
        has_changed = core.follow_high_watermark(high_watermark, log.log_end_offset)
        if has_changed:
            log.update_high_watermark(core.high_watermark)
        if log_start_offset > log.log_start_offset:
            has_changed |= log.advance_log_start_offset(log_start_offset)
        if has_changed:
            self.partition.changed()

    def _note_problem(self, problem: str) -> None:
        """Log a problem once, until it is over or another one."""
        if self.partition.follower_problem != problem:
            self.partition.follower_problem = problem
            logger.warning("%s: %s; trying again", self.partition.topic_partition, problem)


class FollowedPartitions:
    """The partitions that one fetcher follows, in its session and its waits.

    A `throttle` of None (`follower.replication.throttled.*`, KIP-73) limits nothing. `on_work` is
    called when there may be something to fetch or to ask again.
    """

    def __init__(
        self,
        *,
        partition_max_bytes: int,
        backoff_ms: float,
        clock: Clock,
        throttle: ReplicationQuota | None,
        on_work: Callable[[], None],
    ) -> None:
        self.session = FollowerSession(partition_max_bytes)
        self.asking: dict[FollowedPartition, FollowerPosition] = {}
        """The partitions out of range: their leader is asked where its logs begin and end."""
        self._backoff_ms = backoff_ms
        self._clock = clock
        self._throttle = throttle
        self._on_work = on_work
        self._followed: dict[PartitionKey, FollowedPartition] = {}
        self._delayed: dict[FollowedPartition, float] = {}  # until when; earliest first
        self._throttled: dict[FollowedPartition, None] = {}
        self._lagging: dict[FollowedPartition, None] = {}
        self._delay_timer: TimerHandle | None = None
        self._throttle_timer: TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._followed)

    @property
    def is_idle(self) -> bool:
        return self.session.is_idle and not self.asking

    @property
    def max_lag(self) -> int:
        return max((followed.lag for followed in self._lagging), default=0)

    @property
    def failed_count(self) -> int:
        """Partitions that cannot be followed until something changes."""
        return sum(followed.has_failed for followed in self._followed.values())

    @property
    def waiting_count(self) -> int:
        return len(self._delayed) + len(self._throttled) + len(self.asking)

    def get(self, key: PartitionKey) -> FollowedPartition | None:
        return self._followed.get(key)

    # -- what comes from outside -----------------------------------------------------------------

    def follow(self, partition: Partition) -> None:
        """Fetch the partition from its log end; an earlier wait of it has lost its meaning."""
        key = (partition.topic_id, partition.topic_partition.partition)
        followed = self._followed.get(key)
        if followed is None or followed.partition is not partition:
            if followed is not None:
                self._forget(followed)
            followed = self._followed[key] = FollowedPartition(partition)
        self._leave_waits(followed)
        self._fetch(followed)
        self._on_work()

    def unfollow(self, partition: Partition) -> None:
        key = (partition.topic_id, partition.topic_partition.partition)
        followed = self._followed.get(key)
        if followed is not None and followed.partition is partition:
            self._forget(followed)
            self._on_work()

    def close(self) -> None:
        for followed in list(self._followed.values()):
            self._forget(followed)
        for timer in (self._delay_timer, self._throttle_timer):
            if timer is not None:
                timer.cancel()
        self._delay_timer = self._throttle_timer = None

    # -- what comes from the leader --------------------------------------------------------------

    def applied(
        self,
        followed: FollowedPartition,
        step: FollowerStep,
        answer: FollowerAnswer,
        size_bytes: int,
    ) -> None:
        """Note that an answer with `size_bytes` of records was applied, and go by its step."""
        data = answer.data
        if step is FollowerStep.FETCH_ON and not data.error_code:
            self._note_lag(followed, data.high_watermark)
        if size_bytes and self._throttle is not None:
            self._throttle.record(followed.partition.topic_partition, size_bytes)
        if step is FollowerStep.FETCH_ON:
            self._fetch(followed)
        else:
            self._hold(followed, step, answer.requested)

    def look_again(self, key: PartitionKey) -> None:
        followed = self._followed.get(key)
        if followed is not None and followed.position() is None:
            self._hold(followed, FollowerStep.STOP, None)

    def take_asking(self) -> dict[FollowedPartition, FollowerPosition]:
        """The partitions to ask the leader about now; call `asked` for each of them afterwards."""
        asking, self.asking = self.asking, {}
        return asking

    def asked(self, followed: FollowedPartition, step: FollowerStep) -> None:
        if self._followed.get(followed.key) is not followed:
            return
        if step is FollowerStep.FETCH_ON:
            self._fetch(followed)
        else:
            self._hold(followed, step, None)

    # -- waits -----------------------------------------------------------------------------------

    def _fetch(self, followed: FollowedPartition) -> None:
        """Put the partition into the session, from its log end, or into the throttle's wait."""
        position = followed.position()
        if position is None:
            self._hold(followed, FollowerStep.STOP, None)
            return
        followed.has_failed = False
        throttle = self._throttle
        if throttle is not None and not throttle.allows(
            followed.partition.topic_partition, followed.lag == 0
        ):
            self._leave_waits(followed)
            is_first = self._throttle_timer is None
            self._throttle_off(followed)
            if is_first:
                self._throttle_others(throttle)
            return
        self._leave_waits(followed)
        self.session.want(position)

    def _throttle_others(self, throttle: ReplicationQuota) -> None:
        """The quota is used up: partitions that lag must not fetch more until it is free again."""
        for other in list(self._lagging):
            if not throttle.allows(other.partition.topic_partition, False):
                self._throttle_off(other)

    def _throttle_off(self, followed: FollowedPartition) -> None:
        assert self._throttle is not None
        if followed in self._delayed or followed in self.asking or followed.has_failed:
            return
        self.session.drop(followed.key)
        self._throttled[followed] = None
        if self._throttle_timer is None:
            self._throttle_timer = self._clock.call_later(
                self._throttle.retry_ms(), self._retry_throttled
            )

    def _retry_throttled(self) -> None:
        self._throttle_timer = None
        throttled, self._throttled = self._throttled, {}
        for followed in throttled:
            self._fetch(followed)
        self._on_work()

    def _hold(
        self, followed: FollowedPartition, step: FollowerStep, requested: FollowerPosition | None
    ) -> None:
        """Take the partition out of the session and put it into the wait that `step` means."""
        self._leave_waits(followed)
        self.session.drop(followed.key)
        if step is FollowerStep.ASK_OFFSETS and requested is not None:
            self.asking[followed] = requested
        elif step is FollowerStep.STOP:
            self._no_lag(followed)
            followed.has_failed = followed.has_leader and not followed.partition.is_opening
        else:
            self._delayed[followed] = self._clock.monotonic_ms() + self._backoff_ms
            self._arm_delay()

    def _arm_delay(self) -> None:
        if self._delay_timer is None and self._delayed:
            due_ms = next(iter(self._delayed.values()))
            self._delay_timer = self._clock.call_later(
                max(due_ms - self._clock.monotonic_ms(), 0.0), self._end_delays
            )

    def _end_delays(self) -> None:
        self._delay_timer = None
        # All delays are of one length: they end in the order they began.
        now_ms = self._clock.monotonic_ms()
        due = []
        for followed, due_ms in self._delayed.items():
            if due_ms > now_ms:
                break
            due.append(followed)
        for followed in due:
            del self._delayed[followed]
            self._fetch(followed)
        self._arm_delay()
        self._on_work()

    def _leave_waits(self, followed: FollowedPartition) -> None:
        self._delayed.pop(followed, None)
        self._throttled.pop(followed, None)
        self.asking.pop(followed, None)

    def _forget(self, followed: FollowedPartition) -> None:
        self._followed.pop(followed.key, None)
        self._leave_waits(followed)
        self._no_lag(followed)
        self.session.drop(followed.key)

    # -- lag -------------------------------------------------------------------------------------

    def _note_lag(self, followed: FollowedPartition, high_watermark: int) -> None:
        log = followed.partition.log
        assert log is not None
        lag = max(high_watermark - log.log_end_offset, 0)
        followed.lag = lag
        if lag:
            self._lagging[followed] = None
        else:
            self._lagging.pop(followed, None)

    def _no_lag(self, followed: FollowedPartition) -> None:
        followed.lag = -1
        self._lagging.pop(followed, None)
