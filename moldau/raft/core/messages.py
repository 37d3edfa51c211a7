"""What replicas of the quorum say to each other, apart from how it is written on the wire.

One class per request and response of KIP-595, 630, 853, 996; the `wire` module knows versions,
cluster ids and topic names. Every response but the one about kraft.version names the leader, so
that every answer teaches the asker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import Buffer
from moldau.raft.core.values import NO_SNAPSHOT, Endpoints, EpochEnd, ReplicaKey, SnapshotId
from moldau.raft.core.voters import VoterDescription


@dataclass(frozen=True, slots=True)
class LeaderResponse:
    """What every response of a replica says: the error, and the leader as the replica knows it."""

    error: ErrorCode
    leader_id: int
    leader_epoch: int
    leader_endpoints: Endpoints = ()


class VoteRequest(NamedTuple):
    """`candidate` asks for a vote, or in a PreVote if it would get one (KIP-996).

    `voter` is the receiver as the candidate knows it; None in versions without it. `leader_epoch`
    is the candidate's epoch; a PreVote leaves it as it is.
    """

    candidate: ReplicaKey
    voter: ReplicaKey | None
    leader_epoch: int
    last_leader_epoch: int
    log_end_offset: int
    pre_vote: bool


@dataclass(frozen=True, slots=True)
class VoteResponse(LeaderResponse):
    """Whether the vote is granted."""

    vote_granted: bool = False


class BeginQuorumEpochRequest(NamedTuple):
    """A new leader says so, until every voter has answered or fetched."""

    leader_id: int
    leader_epoch: int
    voter: ReplicaKey | None
    leader_endpoints: Endpoints = ()


@dataclass(frozen=True, slots=True)
class BeginQuorumEpochResponse(LeaderResponse):
    """The leader as the voter now knows it."""


class EndQuorumEpochRequest(NamedTuple):
    """A leader resigns; the first of `preferred_candidates` starts an election at once.

    Our own addition: a leader that receives it about itself and its own epoch resigns in favour
    of them (`moldau quorum transfer-leader`).
    """

    leader_id: int
    leader_epoch: int
    preferred_candidates: tuple[ReplicaKey, ...]
    leader_endpoints: Endpoints = ()


@dataclass(frozen=True, slots=True)
class EndQuorumEpochResponse(LeaderResponse):
    """The leader as the voter now knows it."""


class FetchRequest(NamedTuple):
    """A follower or observer asks for records: everything below `fetch_offset` is durable there.

    `high_watermark` is the highest the replica knows, -1 when unknown (KIP-1166): the leader
    answers at once when it knows a higher one. `last_fetched_epoch` is the epoch of the record
    before `fetch_offset`, `leader_epoch` the fetcher's own.
    """

    replica: ReplicaKey
    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    high_watermark: int = -1
    max_wait_ms: int = 500
    max_bytes: int = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FetchResponse(LeaderResponse):
    """Records, or where the logs diverge, or which snapshot to fetch first."""

    high_watermark: int = -1
    log_start_offset: int = -1
    diverging: EpochEnd | None = None
    snapshot_id: SnapshotId | None = None
    records: Buffer = b""


class FetchSnapshotRequest(NamedTuple):
    """A replica asks for the bytes of a snapshot from `position` on (KIP-630)."""

    replica: ReplicaKey
    leader_epoch: int
    snapshot_id: SnapshotId
    position: int
    max_bytes: int = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FetchSnapshotResponse(LeaderResponse):
    """A stretch of the snapshot; `size_bytes` is the whole file's."""

    snapshot_id: SnapshotId = NO_SNAPSHOT
    size_bytes: int = 0
    position: int = 0
    data: Buffer = b""


class UpdateVoterRequest(NamedTuple):
    """A voter sends the leader its endpoints, its directory and the kraft.versions it speaks."""

    leader_epoch: int
    voter: VoterDescription
    min_kraft_version: int
    max_kraft_version: int


@dataclass(frozen=True, slots=True)
class UpdateVoterResponse(LeaderResponse):
    """Whether the leader has written it down."""


@dataclass(frozen=True, slots=True)
class KraftVersionRequest:
    """The leader asks a future voter which kraft.versions it speaks (ApiVersions on the wire)."""


class KraftVersionResponse(NamedTuple):
    """The range of kraft.version the node speaks; 0 to 0 when it names none."""

    error: ErrorCode
    min_kraft_version: int = 0
    max_kraft_version: int = 0


PeerRequest = (
    VoteRequest
    | BeginQuorumEpochRequest
    | EndQuorumEpochRequest
    | FetchRequest
    | FetchSnapshotRequest
    | UpdateVoterRequest
    | KraftVersionRequest
)
PeerResponse = (
    VoteResponse
    | BeginQuorumEpochResponse
    | EndQuorumEpochResponse
    | FetchResponse
    | FetchSnapshotResponse
    | UpdateVoterResponse
    | KraftVersionResponse
)
