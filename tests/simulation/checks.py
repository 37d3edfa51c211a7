"""The checks of our own quorum, after every event and on every effect.

Owns: what a replica has promised before (votes, epochs, high watermarks) and the rules of
design/raft.md that need to look inside. Must not: change anything it looks at. Invariant: whatever
is checked here holds in every schedule, or Violation is raised in the event that broke it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import ZERO_UUID
from moldau.raft import core as raft_core
from moldau.raft.core import effects as ef
from moldau.raft.core.messages import (
    EndQuorumEpochRequest,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    KraftVersionRequest,
    KraftVersionResponse,
    PeerRequest,
    PeerResponse,
    VoteRequest,
    VoteResponse,
)
from moldau.raft.core.values import ElectionState, ReplicaKey
from moldau.raft.core.voters import VoterDescription, VoterSet
from tests.kit.seeds import Violation
from tests.simulation.disk import Batch, Snapshot

if TYPE_CHECKING:
    from tests.simulation.quorum import QuorumSimulation
    from tests.simulation.replica import Pending, Replica

STALE_LEADER_FACTOR = 1.5
"""A leader resigns so many fetch timeouts after a majority last fetched."""
TIMER_SLACK_MS = 20.0
STAYS_MS = 1_000.0
"""A leader that found no room leads no more after this time, unless it is the only voter."""
HEARD_FACTOR = 6
"""A candidate had its PreVotes within this many election timeouts."""


def key_of(voter: VoterDescription) -> ReplicaKey:
    """The voter's identity."""
    return ReplicaKey(voter.voter_id, voter.directory_id)


def may_be(one: ReplicaKey, other: ReplicaKey) -> bool:
    """Whether both can be the same replica; not the core's own judgement, which may be broken."""
    known = ZERO_UUID not in (one.directory_id, other.directory_id)
    return one.node_id == other.node_id and (not known or one == other)


class Checks:
    """All of them."""

    def __init__(self, world: QuorumSimulation) -> None:
        self._world = world
        self._ledger = world.ledger
        self._votes: dict[tuple[int, int], ReplicaKey] = {}
        self._fetched_ms: dict[tuple[tuple[int, int], int], float] = {}
        self._heard_ms: dict[tuple[tuple[int, int], int], float] = {}
        self._told_to_stand: dict[tuple[int, int], int] = {}
        self._leader_since: dict[tuple[tuple[int, int], int], float] = {}
        self._states: dict[int, tuple[int, int]] = {}
        """Applied count and digest of the state machine by the offset behind it."""

    # After every event of a replica

    def after_event(self, replica: Replica) -> None:
        """Epoch, leadership and high watermark of the replica that has just moved."""
        core = replica.core
        if core.state.leader_epoch < replica.seen_epoch:
            raise Violation("epoch-back", f"{replica.who}: {core.state.leader_epoch}")
        replica.seen_epoch = core.state.leader_epoch
        leads = core.state.role is raft_core.Role.LEADER
        if leads and replica.disk.durable_election.leader_epoch == core.state.leader_epoch:
            # Until then it has answered no request, and a crash undoes it.
            self._ledger.leads(replica.who, core.state.leader_epoch, replica.log)
            since = self._leader_since
            if (replica.who, core.state.leader_epoch) not in since:
                since[replica.who, core.state.leader_epoch] = replica.now_ms()
                self._world.scheduler.counts["elections"] += 1
        # An event may commit a record and end the leadership; a voter that has become the only one
        # leads again in the same event.
        did_lead, replica.led_epoch = replica.led_epoch, core.state.leader_epoch if leads else -1
        high_watermark = core.state.high_watermark
        if high_watermark == replica.seen_high_watermark:
            return
        if high_watermark < replica.seen_high_watermark:
            raise Violation("high-watermark-back", f"{replica.who}: {high_watermark}")
        leads = leads or did_lead == core.state.leader_epoch
        led_epochs = {did_lead, core.state.leader_epoch} if leads else set()
        self._high_watermark_advanced(replica, high_watermark, led_epochs)
        replica.seen_high_watermark = high_watermark

    def _high_watermark_advanced(self, replica: Replica, end: int, led_epochs: set[int]) -> None:
        """`led_epochs`: in which it led, before the event and after; empty for a follower."""
        log = replica.log
        if end > log.end():
            raise Violation("high-watermark-ahead", f"{replica.who}: {end} > {log.end()}")
        first_new = self._ledger.end
        for offset in range(max(replica.seen_high_watermark, log.start()), end):
            entry = log.entry_at(offset)
            assert entry is not None
            if self._ledger.commit(replica.who, offset, entry):
                self._world.scheduler.counts["commits"] += 1
        if log.start() > self._ledger.end:
            raise Violation("commit-gap", f"{replica.who}: log starts at {log.start()}")
        if led_epochs:
            self._check_epoch_of_commit(replica, end, led_epochs)
        elif replica.settings.is_controller and end > max(
            replica.disk.durable_log.end, log.start()
        ):
            # A broker's disk counts for nothing in a majority: it never votes.
            raise Violation("high-watermark-not-durable", f"{replica.who}: {end}")
        if self._ledger.end > first_new:
            if not led_epochs:
                raise Violation("follower-commits-first", f"{replica.who} at {first_new}..{end}")
            self._check_majority(replica, end)

    def _check_epoch_of_commit(self, replica: Replica, end: int, led_epochs: set[int]) -> None:
        entry = replica.log.entry_at(end - 1)
        if entry is not None and entry[0] not in led_epochs:
            raise Violation(
                "commits-earlier-epoch",
                f"{replica.who} in epoch {replica.core.state.leader_epoch} commits up to {entry}",
            )

    def _check_majority(self, replica: Replica, end: int) -> None:
        """A majority of the voters in force holds the last committed record durably."""
        entry = self._ledger.at(end - 1)
        voters = replica.core.state.voters.latest.voters
        holders = [
            str(key)
            for key in map(key_of, voters)
            if (disk := self._world.disk_that_was(key)) is not None
            and disk.holds_durably(end - 1, entry[0])
        ]
        if 2 * len(holders) <= len(voters):
            raise Violation(
                "minority-commit",
                f"{replica.who} commits {end - 1} {entry}; held by {holders} of"
                f" {[str(key_of(voter)) for voter in voters]}",
            )

    # Liveness of leaders, calm of followers

    def heard(self, replica: Replica, peer: int, message: PeerRequest | PeerResponse) -> None:
        """The core is about to see a message of a peer."""
        now_ms = replica.now_ms()
        self._heard_ms[replica.who, peer] = now_ms
        if isinstance(message, FetchRequest | FetchSnapshotRequest):
            self._fetched_ms[replica.who, peer] = now_ms
        elif isinstance(message, EndQuorumEpochRequest):
            self._told_to_stand[replica.who] = message.leader_epoch

    def after_tick(self, replica: Replica) -> None:
        """A leader whose timer has run has heard from a majority not too long ago."""
        core = replica.core
        if core.state.role is not raft_core.Role.LEADER:
            return
        voters = [voter.voter_id for voter in core.state.voters.latest.voters]
        others = [node for node in voters if node != replica.node_id]
        needed = len(voters) // 2 + 1 - (len(voters) - len(others))
        since_ms = self._leader_since.get((replica.who, core.state.leader_epoch), replica.now_ms())
        if needed <= 0:
            return
        fetched = sorted(
            (max(since_ms, self._fetched_ms.get((replica.who, node), 0.0)) for node in others),
            reverse=True,
        )
        allowed_ms = STALE_LEADER_FACTOR * replica.settings.fetch_timeout_ms + TIMER_SLACK_MS
        if replica.now_ms() - fetched[needed - 1] > allowed_ms:
            raise Violation(
                "stale-leader",
                f"{replica.who} leads epoch {core.state.leader_epoch}; a majority last fetched"
                f" {replica.now_ms() - fetched[needed - 1]:.0f} ms ago",
            )

    def stood_still(self, replica: Replica, duration_ms: float) -> None:
        """A process goes on after a pause: the pause has made nothing older that it knew, so that a
        decision of before may be carried out now.
        """
        for who, peer in self._heard_ms:
            if who == replica.who:
                self._heard_ms[who, peer] += duration_ms

    def _check_candidacy(self, replica: Replica, state: ElectionState) -> None:
        """No voter raises the epoch without having heard from a majority (PreVote, KIP-996)."""
        voters = [voter.voter_id for voter in replica.core.state.voters.latest.voters]
        window_ms = HEARD_FACTOR * replica.settings.election_timeout_ms
        heard = [
            node
            for node in voters
            if node == replica.node_id
            or replica.now_ms() - self._heard_ms.get((replica.who, node), -window_ms * 2)
            <= window_ms
        ]
        told = self._told_to_stand.get(replica.who) == state.leader_epoch - 1
        if 2 * len(heard) <= len(voters) and not told:
            raise Violation(
                "epoch-inflation",
                f"{replica.who} stands for epoch {state.leader_epoch}; heard lately: {heard} of"
                f" {voters}",
            )

    # Effects

    def persist(self, replica: Replica, state: ElectionState) -> None:
        """The election state is about to be written."""
        before = replica.disk.election
        if state.leader_epoch < before.leader_epoch:
            raise Violation("epoch-back", f"{replica.who} writes {state} after {before}")
        stands = state.voted is not None and may_be(state.voted, replica.local)
        if stands and state.leader_epoch > before.leader_epoch:
            self._check_candidacy(replica, state)
        leader = self._ledger.leaders.get(state.leader_epoch)
        if state.leader_id >= 0 and leader is not None and leader[0] != state.leader_id:  # type: ignore[index]
            raise Violation("wrong-leader", f"{replica.who} writes {state}; it is {leader}")

    def persisted(self, replica: Replica, state: ElectionState) -> None:
        """The election state is durable: after writing it, or as a start finds it."""
        if state.voted is not None:
            self._vote(replica, state.leader_epoch, state.voted)

    def _vote(self, replica: Replica, leader_epoch: int, candidate: ReplicaKey) -> None:
        key = (replica.disk.number, leader_epoch)
        known = self._votes.setdefault(key, candidate)
        if not may_be(known, candidate):
            raise Violation(
                "two-votes", f"{replica.who} in {leader_epoch}: {known} and {candidate}"
            )

    def _check_durable_epoch(self, replica: Replica, leader_epoch: int, what: object) -> None:
        durable = replica.disk.durable_election.leader_epoch
        if leader_epoch > durable:
            raise Violation("epoch-not-durable", f"{replica.who} has {durable}, sends {what}")

    def found_no_room(self, replica: Replica) -> None:
        """A write was refused for want of room, and the core knows it."""
        self._world.scheduler.counts["no-room"] += 1
        if not self._is_only_voter(replica):
            arguments = (replica, replica.core.state.leader_epoch)
            self._world.scheduler.after(STAYS_MS, self._has_handed_over, *arguments)

    @staticmethod
    def _is_only_voter(replica: Replica) -> bool:
        voters = [key_of(voter) for voter in replica.core.state.voters.latest.voters]
        return len(voters) == 1 and may_be(voters[0], replica.local)

    def _has_handed_over(self, replica: Replica, leader_epoch: int) -> None:
        core = replica.core
        leads = core.state.role is raft_core.Role.LEADER and core.state.leader_epoch == leader_epoch
        if replica.alive and leads and not self._is_only_voter(replica) and replica.disk.is_full:
            raise Violation("full-leader-stays", f"{replica.who} leads {leader_epoch}")

    def sends(self, replica: Replica, request: PeerRequest) -> None:
        """A request is about to leave."""
        if isinstance(request, KraftVersionRequest):
            return
        if isinstance(request, VoteRequest) and replica.lacks_room:
            raise Violation("stands-without-room", f"{replica.who}: {request}")
        self._check_durable_epoch(replica, request.leader_epoch, request)
        if isinstance(request, VoteRequest) and not request.pre_vote:
            if replica.disk.durable_election.voted != replica.local:
                raise Violation("vote-not-durable", f"{replica.who} stands: {request}")
        elif isinstance(request, FetchRequest):
            durable_end = replica.disk.durable_log.end
            counts = replica.settings.is_controller
            if counts and request.fetch_offset > max(durable_end, replica.log.start()):
                raise Violation(
                    "fetch-not-durable", f"{replica.who} has {durable_end}, sends {request}"
                )

    def replies(self, replica: Replica, pending: Pending, response: PeerResponse) -> None:
        """An answer is about to leave."""
        if isinstance(response, KraftVersionResponse):
            return
        self._check_durable_epoch(replica, response.leader_epoch, response)
        request = pending.request
        if isinstance(response, VoteResponse) and isinstance(request, VoteRequest):
            if response.vote_granted and not request.pre_vote:
                self._granted(replica, request)
        elif (
            isinstance(response, FetchResponse)
            and isinstance(request, FetchRequest)
            and response.error is ErrorCode.NONE
            and request.leader_epoch != response.leader_epoch
        ):
            raise Violation("stale-epoch-served", f"{replica.who}: {request} got {response}")

    def _granted(self, replica: Replica, request: VoteRequest) -> None:
        durable = replica.disk.durable_election
        if request.voter is not None and not may_be(request.voter, replica.local):
            raise Violation("wrong-directory", f"{replica.local} grants {request}")
        self._vote(replica, request.leader_epoch, request.candidate)
        if durable.leader_epoch > request.leader_epoch:
            return
        if durable.voted is None or not may_be(durable.voted, request.candidate):
            raise Violation("vote-not-durable", f"{replica.who} has {durable}, grants {request}")

    def erase(self, replica: Replica, batch: Batch) -> None:
        """A batch is about to be removed from the end of a log."""
        for position, payload in enumerate(batch.payloads):
            self._ledger.erase(
                replica.who, batch.base_offset + position, (batch.leader_epoch, payload)
            )

    def install(self, replica: Replica, snapshot: Snapshot) -> None:
        """A fetched snapshot is about to replace the log."""
        end_offset = snapshot.snapshot_id.end_offset
        if end_offset < replica.seen_high_watermark or end_offset < replica.applied_offset:
            raise Violation(
                "snapshot-back", f"{replica.who} at {replica.applied_offset}: {snapshot}"
            )
        if end_offset > self._ledger.end:
            raise Violation("snapshot-uncommitted", f"{replica.who}: {snapshot}")
        for batch in replica.disk.log.batches:
            if batch.base_offset >= end_offset:
                self.erase(replica, batch)
        self._check_state(
            replica, end_offset, (snapshot.applied_count, snapshot.state_digest), "snapshot"
        )

    def applied(self, replica: Replica) -> None:
        """A state machine has taken in the record below its applied offset."""
        state = (replica.applied_count, replica.state_digest)
        self._check_state(replica, replica.applied_offset, state, "state")

    def _check_state(
        self, replica: Replica, end_offset: int, state: tuple[int, int], what: str
    ) -> None:
        known = self._states.setdefault(end_offset, state)
        if known != state:
            raise Violation("state-differs", f"{replica.who}: {what} at {end_offset} {state}")

    def data_appended(self, replica: Replica, batch: Batch) -> None:
        """A batch of data is about to be appended, by a leader or a follower: its epoch has begun
        with the leader's own batch.
        """
        if replica.log.last_leader_epoch != batch.leader_epoch:
            raise Violation("epoch-without-start", f"{replica.who}: {batch}")

    def voters_appended(self, replica: Replica, effect: ef.AppendVoters) -> None:
        """A leader is about to change the voters: one change at a time, and only after a record of
        the leader's epoch is committed (the bug of Raft's single-server changes).
        """
        core, before = replica.core, replica.history.latest
        if replica.history.latest_offset >= core.state.high_watermark:
            raise Violation("two-voter-changes", f"{replica.who}: {effect}")
        if core.state.high_watermark <= core.state.epoch_start_offset:
            raise Violation("early-voter-change", f"{replica.who}: {effect}")
        if effect.kraft_version_changed:
            return
        if _difference(before, effect.voters) > 1:
            raise Violation("two-voter-changes", f"{replica.who}: {before} to {effect.voters}")


def _difference(before: VoterSet, after: VoterSet) -> int:
    olds = [key_of(voter) for voter in before.voters]
    news = [key_of(voter) for voter in after.voters]
    return sum(key not in news for key in olds) + sum(key not in olds for key in news)
