"""The roles of a quorum replica, their legal transitions, and what it remembers in each role.

Owns: the table of transitions, and one class per role that remembers something. Must not: act, or
decide on changes (`election`, `fetching` and `replication` do). Invariant: every change of role
goes through `QuorumState`, which checks it against the table; nothing that a role remembers
outlives the role and its epoch, so that no count of one election or leadership can leak into the
next.

Observer is no role: a replica that is not among the voters is UNATTACHED or FOLLOWER like any
other, except that it never campaigns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Final

from moldau.protocol.types import ZERO_UUID
from moldau.raft.core.values import Destination, ReplicaKey, ReplicaProgress, SnapshotId
from moldau.raft.core.voters import VoterDescription


class Role(Enum):
    """The states of KIP-595, with the Prospective of KIP-996."""

    UNATTACHED = "unattached"
    """Knows an epoch, but no leader it could fetch from; may have voted."""
    FOLLOWER = "follower"
    """Fetches from the leader of its epoch."""
    PROSPECTIVE = "prospective"
    """Asks in a PreVote whether an election could be won, before it raises the epoch."""
    CANDIDATE = "candidate"
    """Has raised the epoch, voted for itself and asks for votes."""
    LEADER = "leader"
    """A majority has voted for it in this epoch."""
    RESIGNED = "resigned"
    """Led this epoch, and never will again; notifies the others, so that they elect."""


TRANSITIONS: Final[Mapping[Role, frozenset[Role]]] = MappingProxyType(
    {
        Role.UNATTACHED: frozenset({Role.UNATTACHED, Role.FOLLOWER, Role.PROSPECTIVE}),
        Role.FOLLOWER: frozenset({Role.UNATTACHED, Role.FOLLOWER, Role.PROSPECTIVE}),
        Role.PROSPECTIVE: frozenset({Role.UNATTACHED, Role.FOLLOWER, Role.CANDIDATE}),
        Role.CANDIDATE: frozenset({Role.UNATTACHED, Role.FOLLOWER, Role.PROSPECTIVE, Role.LEADER}),
        Role.LEADER: frozenset({Role.UNATTACHED, Role.FOLLOWER, Role.RESIGNED}),
        Role.RESIGNED: frozenset({Role.UNATTACHED, Role.FOLLOWER}),
    }
)
"""From each role, the roles that may follow it."""

WITHIN_ONE_EPOCH: Final[frozenset[tuple[Role, Role]]] = frozenset(
    {
        (Role.UNATTACHED, Role.UNATTACHED),
        (Role.UNATTACHED, Role.FOLLOWER),
        (Role.UNATTACHED, Role.PROSPECTIVE),
        (Role.FOLLOWER, Role.UNATTACHED),
        (Role.FOLLOWER, Role.PROSPECTIVE),
        (Role.PROSPECTIVE, Role.UNATTACHED),
        (Role.PROSPECTIVE, Role.FOLLOWER),
        (Role.CANDIDATE, Role.UNATTACHED),
        (Role.CANDIDATE, Role.FOLLOWER),
        (Role.CANDIDATE, Role.PROSPECTIVE),
        (Role.CANDIDATE, Role.LEADER),
        (Role.LEADER, Role.RESIGNED),
        (Role.RESIGNED, Role.UNATTACHED),
    }
)
"""The transitions that leave the epoch as it is; every other one raises it.

No transition leads back to LEADER: a replica that resigned or restarted in an epoch cannot lead it
again.
"""


UNKNOWN_OFFSET: Final = -1
MAX_OBSERVERS: Final = 10_000
"""Observers a leader keeps count of; those beyond are served and not counted."""
OBSERVER_SESSION_TIMEOUT_MS: Final = 300_000
"""An observer that has not fetched for so long is forgotten (Kafka's figure)."""


def key_of(voter: VoterDescription) -> ReplicaKey:
    return ReplicaKey(voter.voter_id, voter.directory_id)


@dataclass(slots=True)
class Campaign:
    """What a Prospective or a Candidate remembers: the voters' answers.

    `electorate` are all voters, this replica among them when it is one; `granted` begins with it.
    """

    electorate: tuple[VoterDescription, ...]
    granted: list[ReplicaKey]
    refused: list[ReplicaKey] = field(default_factory=list)
    failed: list[ReplicaKey] = field(default_factory=list)
    is_backing_off: bool = False

    @property
    def majority(self) -> int:
        return len(self.electorate) // 2 + 1

    @property
    def is_won(self) -> bool:
        return len(self.granted) >= self.majority

    @property
    def is_lost(self) -> bool:
        """Whether so many have refused that a majority is impossible."""
        return len(self.electorate) - len(self.refused) < self.majority

    @property
    def is_hopeless(self) -> bool:
        """Whether every voter has answered or failed, and the campaign is not won."""
        asked = len(self.granted) + len(self.refused)
        asked += sum(each not in self.granted and each not in self.refused for each in self.failed)
        return not self.is_won and asked >= len(self.electorate)

    def record(self, voter: ReplicaKey, granted: bool) -> None:
        """An answer; the first one of a voter counts."""
        if voter in self.granted or voter in self.refused:
            return
        (self.granted if granted else self.refused).append(voter)

    def has_answered(self, voter: ReplicaKey) -> bool:
        return voter in self.granted or voter in self.refused


@dataclass(slots=True)
class Download:
    """A snapshot on its way from the leader: the next byte wanted; the file's size once known."""

    snapshot_id: SnapshotId
    position: int = 0
    size_bytes: int | None = None


@dataclass(slots=True)
class Following:
    """What a follower or observer remembers of one leader.

    `is_busy`: an append or an installation is under way, and nothing is fetched until it ends.
    `refusals_count`: fetches in a row that failed at once, as a refused connection does.
    `unusable_count`: answers in a row that could not be used here, damaged or without room.
    """

    destination: Destination
    has_fetched: bool = False
    refusals_count: int = 0
    unusable_count: int = 0
    leader_high_watermark: int = UNKNOWN_OFFSET
    is_busy: bool = False
    download: Download | None = None
    has_reported_itself: bool = False
    next_update_voter_ms: float = float("-inf")


@dataclass(slots=True)
class Progress:
    """How far a replica is: below `log_end_offset` everything is durable there."""

    log_end_offset: int = UNKNOWN_OFFSET
    last_fetch_ms: float | None = None
    last_caught_up_ms: float | None = None
    leader_end_at_last_fetch: int = UNKNOWN_OFFSET

    def fetched(self, fetch_offset: int, leader_end_offset: int, now_ms: float) -> None:
        """The replica has everything up to `fetch_offset`.

        It counts as caught up now when it has the whole log, and as caught up at its last fetch
        when it has all that the log held then.
        """
        if fetch_offset >= leader_end_offset:
            self.last_caught_up_ms = now_ms
        elif (
            self.last_fetch_ms is not None
            and 0 <= self.leader_end_at_last_fetch <= fetch_offset
            and (self.last_caught_up_ms is None or self.last_caught_up_ms < self.last_fetch_ms)
        ):
            self.last_caught_up_ms = self.last_fetch_ms
        self.log_end_offset = fetch_offset
        self.leader_end_at_last_fetch = leader_end_offset
        self.last_fetch_ms = now_ms

    def of(self, replica: ReplicaKey) -> ReplicaProgress:
        """For DescribeQuorum."""
        return ReplicaProgress(
            replica, self.log_end_offset, self.last_fetch_ms, self.last_caught_up_ms
        )


@dataclass(slots=True)
class Reported:
    """What a voter has said about itself in this epoch (UpdateVoter)."""

    voter: VoterDescription
    min_kraft_version: int
    max_kraft_version: int


@dataclass(slots=True)
class Leading:
    """What a leader remembers. `begun` is when each voter last answered BeginQuorumEpoch;
    `reported` is what voters have said about themselves at kraft.version 0. The leader will resign
    in favour of `heirs` as soon as the first of them has every record, or at
    `handover_deadline_ms`.
    """

    epoch_start_offset: int
    since_ms: float
    progress: dict[ReplicaKey, Progress] = field(default_factory=dict)
    latest_key: dict[int, ReplicaKey] = field(default_factory=dict)
    begun: dict[ReplicaKey, float] = field(default_factory=dict)
    reported: dict[int, Reported] = field(default_factory=dict)
    has_corrected_itself: bool = False
    observers_swept_ms: float = float("-inf")
    heirs: tuple[ReplicaKey, ...] = ()
    handover_deadline_ms: float = float("inf")

    def progress_of(self, voter: VoterDescription) -> Progress | None:
        """A voter's; one without a directory id is whichever replica of its id fetched last."""
        key = key_of(voter)
        if voter.directory_id == ZERO_UUID:
            key = self.latest_key.get(voter.voter_id, key)
        return self.progress.get(key)


@dataclass(slots=True)
class Resignation:
    """What a resigned leader remembers: its successors, best first, and those that know."""

    successors: tuple[ReplicaKey, ...]
    acknowledged: list[ReplicaKey] = field(default_factory=list)
