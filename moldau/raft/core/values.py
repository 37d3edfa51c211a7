"""The small immutable values of the quorum: replicas, ends of logs, what an election left."""

from __future__ import annotations

from typing import Final, NamedTuple
from uuid import UUID

from moldau.protocol.types import ZERO_UUID, uuid_to_base64
from moldau.raft.core.voters import VoterEndpoint

NO_NODE: Final = -1
"""Stands for no node where an id is expected."""

Endpoints = tuple[VoterEndpoint, ...]


class ReplicaKey(NamedTuple):
    """A replica: its node id and the id of the directory that holds its log.

    The directory id is zero where it is not known: in a quorum at kraft.version 0, whose voters are
    configured, and in requests of versions without it. A wiped disk is another replica (KIP-853).
    """

    node_id: int
    directory_id: UUID = ZERO_UUID

    def __str__(self) -> str:
        return f"{self.node_id}@{uuid_to_base64(self.directory_id)}"

    def matches(self, other: ReplicaKey) -> bool:
        """Whether both can be the same replica; an unknown directory id fits every other."""
        return self.node_id == other.node_id and (
            self.directory_id == other.directory_id
            or self.directory_id == ZERO_UUID
            or other.directory_id == ZERO_UUID
        )


class SnapshotId(NamedTuple):
    """A snapshot stands for everything below `end_offset`; its last record has `leader_epoch`."""

    end_offset: int
    leader_epoch: int


NO_SNAPSHOT: Final = SnapshotId(-1, -1)


class EpochEnd(NamedTuple):
    """Where a leader epoch ends in a log (exclusive)."""

    leader_epoch: int
    end_offset: int


class ElectionState(NamedTuple):
    """What must be durable before it is sent or acted upon: epoch, vote, leader (KIP-595)."""

    leader_epoch: int = 0
    leader_id: int = NO_NODE
    voted: ReplicaKey | None = None


class Leadership(NamedTuple):
    """The leader as this replica knows it; `leader_id` is -1 when none is known."""

    leader_id: int
    leader_epoch: int
    endpoints: Endpoints = ()


class Destination(NamedTuple):
    """Where a request goes. `node_id` is negative for a bootstrap server whose id is not known."""

    node_id: int
    host: str
    port: int


class ReplicaProgress(NamedTuple):
    """How far a replica is, as its leader knows (DescribeQuorum). Times are monotonic
    milliseconds of the core's own clock; None for never.
    """

    replica: ReplicaKey
    log_end_offset: int
    last_fetch_ms: float | None
    last_caught_up_ms: float | None
