"""The partitions of one fetcher: in its session, or waiting for something.

Owns who waits for the end of a back-off, for the throttle, for the leader's offsets, and how far
each lags. Must not talk to anybody. Invariants: a partition is in the session or in exactly one of
the waits, or it is stopped until its metadata changes; one timer serves each wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from moldau.broker.replica.follower_session import (
    FollowerAnswer,
    FollowerSession,
    PartitionKey,
)
from moldau.broker.replica.following import FollowerPosition, FollowerStep, is_follower

if TYPE_CHECKING:
    from moldau.broker.replica import Partition
    from moldau.broker.replica.fetcher_settings import FetcherSettings, FollowerThrottle
    from moldau.runtime.clock import Clock, TimerHandle


class Followed:
    """One partition. `lag` is in records; -1 while nothing was fetched yet. `has_failed`: it is
    stopped, because its log or its leader epoch cannot be used.
    """

    __slots__ = ("has_failed", "key", "lag", "partition")

    def __init__(self, partition: Partition, key: PartitionKey) -> None:
        self.partition = partition
        self.key = key
        self.lag = -1
        self.has_failed = False


class FetchedPartitions:
    """See the module.

    Args:
        on_work: called when there may be something to fetch or to ask again.
    """

    def __init__(
        self,
        settings: FetcherSettings,
        clock: Clock,
        throttle: FollowerThrottle | None,
        on_work: Callable[[], None],
    ) -> None:
        self.session = FollowerSession(settings.partition_max_bytes)
        self.asking: dict[Followed, FollowerPosition] = {}
        """Out of range: their leader is asked where its logs begin and end."""
        self._backoff_ms = settings.backoff_ms
        self._clock = clock
        self._throttle = throttle
        self._on_work = on_work
        self._followed: dict[PartitionKey, Followed] = {}
        self._delayed: dict[Followed, float] = {}  # until when; earliest first
        self._throttled: dict[Followed, None] = {}
        self._lagging: dict[Followed, None] = {}
        self._delay_timer: TimerHandle | None = None
        self._throttle_timer: TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._followed)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to ask the leader for."""
        return self.session.is_idle and not self.asking

    @property
    def max_lag(self) -> int:
        """The largest lag of a partition, in records."""
        return max((followed.lag for followed in self._lagging), default=0)

    @property
    def failed_count(self) -> int:
        """Partitions that cannot be followed until something changes."""
        return sum(followed.has_failed for followed in self._followed.values())

    @property
    def waiting_count(self) -> int:
        """Partitions that are put off for now."""
        return len(self._delayed) + len(self._throttled) + len(self.asking)

    def get(self, key: PartitionKey) -> Followed | None:
        """The partition of that name, if it is followed."""
        return self._followed.get(key)

    def partitions(self) -> list[Partition]:
        """All of them."""
        return [followed.partition for followed in self._followed.values()]

    # -- what comes from outside -----------------------------------------------------------------

    def follow(self, partition: Partition) -> None:
        """Fetch it from where it stands; whatever it waited for has lost its meaning."""
        key = (partition.topic_id, partition.topic_partition.partition)
        followed = self._followed.get(key)
        if followed is None or followed.partition is not partition:
            if followed is not None:
                self._forget(followed)
            followed = self._followed[key] = Followed(partition, key)
        self._leave_waits(followed)
        self._fetch(followed)
        self._on_work()

    def unfollow(self, partition: Partition) -> None:
        """Fetch it no more; unknown ones are fine."""
        key = (partition.topic_id, partition.topic_partition.partition)
        followed = self._followed.get(key)
        if followed is not None and followed.partition is partition:
            self._forget(followed)
            self._on_work()

    def close(self) -> None:
        """Let go of everything."""
        for followed in list(self._followed.values()):
            self._forget(followed)
        for timer in (self._delay_timer, self._throttle_timer):
            if timer is not None:
                timer.cancel()
        self._delay_timer = self._throttle_timer = None

    # -- what comes from the leader --------------------------------------------------------------

    def applied(
        self, followed: Followed, step: FollowerStep, answer: FollowerAnswer, size_bytes: int
    ) -> None:
        """An answer was applied; `size_bytes` of records came with it."""
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
        """Its log may have failed meanwhile."""
        followed = self._followed.get(key)
        if followed is not None and followed.partition.follower_position() is None:
            self._hold(followed, FollowerStep.STOP, None)

    def take_asking(self) -> dict[Followed, FollowerPosition]:
        """Those whose leader is to be asked now; `asked` is called for each of them afterwards."""
        asking, self.asking = self.asking, {}
        return asking

    def asked(self, followed: Followed, step: FollowerStep) -> None:
        """What came of the question about the leader's offsets."""
        if self._followed.get(followed.key) is not followed:
            return
        if step is FollowerStep.FETCH_ON:
            self._fetch(followed)
        else:
            self._hold(followed, step, None)

    # -- waits -----------------------------------------------------------------------------------

    def _fetch(self, followed: Followed) -> None:
        """Into the session, from where its log ends now; or into the throttle's wait."""
        position = followed.partition.follower_position()
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

    def _throttle_others(self, throttle: FollowerThrottle) -> None:
        """The quota is used up: none of those behind shall bring in more in the meantime."""
        for other in list(self._lagging):
            if not throttle.allows(other.partition.topic_partition, False):
                self._throttle_off(other)

    def _throttle_off(self, followed: Followed) -> None:
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
        self, followed: Followed, step: FollowerStep, requested: FollowerPosition | None
    ) -> None:
        """Out of the session, and into the wait that `step` means."""
        self._leave_waits(followed)
        self.session.drop(followed.key)
        if step is FollowerStep.ASK_OFFSETS and requested is not None:
            self.asking[followed] = requested
        elif step is FollowerStep.STOP:
            self._no_lag(followed)
            partition = followed.partition
            followed.has_failed = is_follower(partition) and not partition.is_opening
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

    def _leave_waits(self, followed: Followed) -> None:
        self._delayed.pop(followed, None)
        self._throttled.pop(followed, None)
        self.asking.pop(followed, None)

    def _forget(self, followed: Followed) -> None:
        self._followed.pop(followed.key, None)
        self._leave_waits(followed)
        self._no_lag(followed)
        self.session.drop(followed.key)

    # -- lag -------------------------------------------------------------------------------------

    def _note_lag(self, followed: Followed, high_watermark: int) -> None:
        log = followed.partition.log
        assert log is not None
        lag = max(high_watermark - log.log_end_offset, 0)
        followed.lag = lag
        if lag:
            self._lagging[followed] = None
        else:
            self._lagging.pop(followed, None)

    def _no_lag(self, followed: Followed) -> None:
        followed.lag = -1
        self._lagging.pop(followed, None)
