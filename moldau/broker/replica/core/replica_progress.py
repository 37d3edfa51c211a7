"""What a leader knows of one follower: how far its log reaches, and when it last had everything.

Owns the rule of "caught up". Must not know the ISR. Invariants: `caught_up_ms` never goes back;
who is level with the leader's log is caught up, whatever the clock says.

A follower was caught up at the moment of a fetch if that fetch asked for what the leader did not
have yet, or if its next fetch shows that it has got everything the leader had at that moment. Fetch
sessions name only what has changed (KIP-227): a follower that is level says nothing of a partition
until the log grows, so the time of its last fetch, of whichever partitions, counts for all it was
level in.
"""

from __future__ import annotations

from moldau.broker.replica.core.values import (
    UNKNOWN_BROKER_EPOCH,
    UNKNOWN_OFFSET,
    FollowerFetch,
    ReplicaFigures,
)

NEVER_MS = float("-inf")


class ReplicaProgress:
    """One follower in one leader epoch.

    Args:
        caught_up_ms: from when its time to catch up counts; NEVER_MS for one out of sync.

    `refused_ms` is when the controller refused to let it into the ISR, NEVER_MS if it did not.
    """

    __slots__ = (
        "_fetch_leader_end",
        "_fetch_ms",
        "broker_epoch",
        "caught_up_ms",
        "log_end_offset",
        "log_start_offset",
        "refused_ms",
        "replica_id",
    )

    def __init__(self, replica_id: int, caught_up_ms: float = NEVER_MS) -> None:
        self.replica_id = replica_id
        self.broker_epoch = UNKNOWN_BROKER_EPOCH
        self.log_end_offset = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET
        self.caught_up_ms = caught_up_ms
        self.refused_ms = NEVER_MS
        self._fetch_ms = NEVER_MS
        self._fetch_leader_end: float = float("inf")

    def is_stale(self, broker_epoch: int) -> bool:
        """Whether a request is of an earlier life of that broker (KIP-903)."""
        return UNKNOWN_BROKER_EPOCH < broker_epoch < self.broker_epoch

    def fetched(self, fetch: FollowerFetch, leader_end: int) -> None:
        """Take over what a fetch says of the follower's log.

        Args:
            leader_end: the leader's log end offset when it arrived.
        """
        if fetch.fetch_offset >= leader_end:
            self._caught_up_at(fetch.now_ms)
        elif fetch.fetch_offset >= self._fetch_leader_end:
            self._caught_up_at(self._fetch_ms)
        self.log_end_offset = fetch.fetch_offset
        self.log_start_offset = fetch.log_start_offset
        self.broker_epoch = max(fetch.broker_epoch, self.broker_epoch)
        self._fetch_ms = fetch.now_ms
        self._fetch_leader_end = leader_end

    def leader_grew(self, leader_end_before: int, last_fetch_ms: float | None) -> None:
        """The leader's log goes on from `leader_end_before`, which the follower had reached.

        Args:
            last_fetch_ms: when its last Fetch of any partitions arrived.
        """
        if last_fetch_ms is not None:
            self._fetch_ms = max(self._fetch_ms, last_fetch_ms)
        self._fetch_leader_end = leader_end_before
        self._caught_up_at(self._fetch_ms)

    def is_caught_up(self, leader_end: int, now_ms: float, max_lag_ms: float) -> bool:
        """Whether the follower had everything at some moment of the last `max_lag_ms`."""
        return self.log_end_offset >= leader_end or now_ms - self.caught_up_ms <= max_lag_ms

    def figures(self, leader_end: int, now_ms: float, *, is_in_sync: bool) -> ReplicaFigures:
        """For people to read."""
        is_known = self.log_end_offset != UNKNOWN_OFFSET
        age_ms = -1.0 if self.caught_up_ms == NEVER_MS else max(0.0, now_ms - self.caught_up_ms)
        return ReplicaFigures(
            self.replica_id,
            self.log_start_offset,
            self.log_end_offset,
            max(0, leader_end - self.log_end_offset) if is_known else UNKNOWN_OFFSET,
            is_in_sync,
            0.0 if is_known and self.log_end_offset >= leader_end else age_ms,
        )

    def describe(self, leader_end: int, now_ms: float) -> str:
        """For the log: which replica, how far behind, for how long."""
        figures = self.figures(leader_end, now_ms, is_in_sync=False)
        behind = f"{figures.lag} records behind" if figures.lag >= 0 else "not heard of yet"
        since = f"for {figures.caught_up_age_ms:.0f} ms" if figures.caught_up_age_ms >= 0 else "yet"
        return f"{self.replica_id} ({behind}, not caught up {since})"

    def _caught_up_at(self, moment_ms: float) -> None:
        self.caught_up_ms = max(self.caught_up_ms, moment_ms)
