"""What the quorum's core is given: settings (`controller.quorum.*`), a view of its log, dice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from moldau.config.settings import KeyedSettings, of_key
from moldau.raft.core.values import Destination, Endpoints, EpochEnd, ReplicaKey, SnapshotId


class Random(Protocol):
    """The part of `random.Random` that elections need."""

    def random(self) -> float:
        """At least 0, below 1."""

    def randrange(self, stop: int, /) -> int:
        """At least 0, below `stop`."""


@dataclass(frozen=True, slots=True)
class QuorumSettings(KeyedSettings):
    """The identity of a replica, its timings in milliseconds, and its limits.

    `endpoints` are this controller's own; `is_controller` is false for brokers, which never become
    voters. `bootstrap_servers` are asked for the leader by a replica that knows none
    (`controller.quorum.bootstrap.servers`, or the configured voters).
    """

    local: ReplicaKey
    endpoints: Endpoints
    is_controller: bool = True
    bootstrap_servers: tuple[Destination, ...] = ()
    election_timeout_ms: int = of_key("controller.quorum.election.timeout.ms")
    election_backoff_max_ms: int = of_key("controller.quorum.election.backoff.max.ms")
    fetch_timeout_ms: int = of_key("controller.quorum.fetch.timeout.ms")
    request_timeout_ms: int = of_key("controller.quorum.request.timeout.ms")
    retry_backoff_ms: int = of_key("controller.quorum.retry.backoff.ms")
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = of_key("controller.quorum.fetch.max.bytes")
    fetch_snapshot_max_bytes: int = of_key("controller.quorum.fetch.snapshot.max.bytes")


class LogView(Protocol):
    """The log as its driver knows it."""

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""

    @property
    def log_end_offset(self) -> int:
        """The offset the next record will get."""

    @property
    def last_leader_epoch(self) -> int:
        """The epoch of the last record, or of the latest snapshot when there is none after it; 0 in
        an empty log.
        """

    def end_of_epoch(self, leader_epoch: int) -> EpochEnd:
        """The largest epoch at or below `leader_epoch` that the log or the snapshot at its start
        has, and where it ends; EpochEnd(0, log start) when there is none.
        """

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        """The newest finished snapshot."""

    @property
    def earliest_snapshot(self) -> SnapshotId | None:
        """The oldest one that is still there."""

    def has_snapshot(self, snapshot_id: SnapshotId) -> bool:
        """Whether exactly this snapshot can be read."""
