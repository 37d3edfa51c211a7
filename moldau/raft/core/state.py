"""What the quorum's parts share: role, epoch, vote, leader, high watermark, requests under way.

Owns: every transition between roles with its deadline (`controller.quorum.election.timeout.ms`),
the ledger of requests, and the effects of the current event. Must not: decide when to change, or
send. Invariant: the epoch never falls; within an epoch one vote is cast and one leader known;
whatever of this changes is persisted before any later effect of the event.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from moldau.constants import MAX_INT32
from moldau.protocol.errors import ErrorCode
from moldau.raft.core.effects import AdvanceHighWatermark, AppendEpochStart, Effect, Persist, Send
from moldau.raft.core.effects import Stop as StopEffect
from moldau.raft.core.messages import LeaderResponse, PeerRequest
from moldau.raft.core.roles import (
    TRANSITIONS,
    WITHIN_ONE_EPOCH,
    Campaign,
    Following,
    Leading,
    Resignation,
    Role,
    key_of,
)
from moldau.raft.core.settings import LogView, QuorumSettings, Random
from moldau.raft.core.values import (
    NO_NODE,
    Destination,
    ElectionState,
    Endpoints,
    Leadership,
    ReplicaKey,
)
from moldau.raft.core.voters import BASE_OFFSET, VoterHistory

MAX_BACKOFF_FACTOR: Final = 10
"""The longest backoff, in multiples of `controller.quorum.retry.backoff.ms`."""

_Kind = tuple[Destination, type[PeerRequest]]


@dataclass(slots=True)
class _Awaited:
    send: Send
    sent_ms: float


class RequestLedger:
    """The requests of one role in one epoch: which are under way, and which have to wait.

    Invariant: at most one awaited request per destination and kind; after a failure none before the
    backoff, which doubles up to a bound while failures follow one another. A change of role forgets
    what is awaited: the next round must not wait for the answers of the last. Those still come, and
    are judged by what they say.
    """

    def __init__(self, retry_backoff_ms: float) -> None:
        self._retry_backoff_ms = retry_backoff_ms
        self._awaited: dict[_Kind, _Awaited] = {}
        self._not_before_ms: dict[_Kind, float] = {}
        self._failures: dict[_Kind, int] = {}

    def reset(self) -> None:
        """Forget everything: a new role."""
        self._awaited.clear()
        self._not_before_ms.clear()
        self._failures.clear()

    def sent(self, send: Send, now_ms: float) -> None:
        kind = (send.destination, type(send.request))
        assert kind not in self._awaited, f"two requests at once: {kind}"
        self._awaited[kind] = _Awaited(send, now_ms)

    def answered(self, send: Send, now_ms: float, *, succeeded: bool) -> float | None:
        """Take note that a request was answered, or has failed.

        Returns:
            How long it took in milliseconds; None when it was forgotten before.
        """
        kind = (send.destination, type(send.request))
        awaited = self._awaited.get(kind)
        if awaited is None or awaited.send is not send:
            return None
        del self._awaited[kind]
        if succeeded:
            self._failures.pop(kind, None)
            self._not_before_ms.pop(kind, None)
        else:
            self.back_off(send, now_ms)
        return now_ms - awaited.sent_ms

    def back_off(self, send: Send, now_ms: float) -> None:
        """After a useless answer, hold back the next request of this kind."""
        kind = (send.destination, type(send.request))
        failures = self._failures.get(kind, 0)
        factor = min(2**failures, MAX_BACKOFF_FACTOR)
        self._failures[kind] = min(failures + 1, 30)
        self._not_before_ms[kind] = now_ms + factor * self._retry_backoff_ms

    def pause(self, send: Send, now_ms: float, pause_ms: float = 0.0) -> None:
        """After a good answer without news, hold back the next request for a moment, or longer."""
        pause_ms = max(pause_ms, self._retry_backoff_ms)
        self._not_before_ms[send.destination, type(send.request)] = now_ms + pause_ms

    def is_awaited(self, destination: Destination, request: type[PeerRequest]) -> bool:
        return (destination, request) in self._awaited

    def last_awaited_ms(
        self, request: type[PeerRequest], but: Destination | None = None
    ) -> float | None:
        """When the youngest that is under way to any destination other than `but` was sent."""
        sent = (
            awaited.sent_ms
            for (to, kind), awaited in self._awaited.items()
            if kind is request and to != but
        )
        return max(sent, default=None)

    def ready_ms(self, destination: Destination, request: type[PeerRequest]) -> float:
        """The time from which it may be sent; -inf for any. Not for one that is under way."""
        return self._not_before_ms.get((destination, request), float("-inf"))

    def has_failed(self, destination: Destination, request: type[PeerRequest]) -> bool:
        return (destination, request) in self._failures


NO_EPOCH = -1
T = TypeVar("T")
FETCH_TIMEOUT_JITTER = 0.25
"""The share of the election timeout: followers of one leader, whose fetches it answers at the same
moment, shall not all campaign at the same moment."""


class QuorumState:
    """One replica's state in the quorum."""

    def __init__(
        self,
        settings: QuorumSettings,
        random: Random,
        log: LogView,
        election: ElectionState,
        voters: VoterHistory,
        high_watermark: int,
    ) -> None:
        self.settings = settings
        self.random = random
        self.log = log
        self.voters = voters
        self.election = election
        self.high_watermark = high_watermark
        self.flushed_end_offset = 0
        self.role = Role.UNATTACHED
        self.leader_endpoints: Endpoints = ()
        self.deadline_ms: float | None = None
        self.gone_leader_epoch = NO_EPOCH
        self.lost_elections_count = 0
        self.transitions_count = 0
        self.now_ms = 0.0
        self.is_stopped = False
        self.is_shutting_down = False
        self.lacks_room = False
        """Whether the disk refuses to take more for the time being."""
        self.wants_tick = False
        self.effects: list[Effect] = []
        self.requests = RequestLedger(settings.retry_backoff_ms)
        self.campaign: Campaign | None = None
        self.following: Following | None = None
        self.leading: Leading | None = None
        self.resignation: Resignation | None = None

    @property
    def leader_epoch(self) -> int:
        return self.election.leader_epoch

    @property
    def local(self) -> ReplicaKey:
        return self.settings.local

    @property
    def is_voter(self) -> bool:
        """Whether the latest voter set, committed or not, has this replica."""
        return self.voters.latest.find(*self.local) is not None

    @property
    def is_last_epoch(self) -> bool:
        return self.leader_epoch >= MAX_INT32

    @property
    def may_stand(self) -> bool:
        """Whether this replica may campaign.

        A voter, and also one whose removal may not be committed yet: others may need its longer log
        to commit just that (Raft dissertation, 4.2.2). A replica without room could append nothing
        as a leader: it votes, if the vote finds room, and leaves the leadership to others. In the
        last epoch that there is, which only a peer's word brings about, no election is left.
        """
        return (
            self.settings.is_controller
            and not self.lacks_room
            and not self.is_last_epoch
            and any(
                voters.find(*self.local) is not None
                for voters in self.voters.since(self.high_watermark)
            )
        )

    @property
    def is_sole_voter(self) -> bool:
        """Whether this replica is the only voter, and has no other to ask for votes."""
        return len(self.voters.latest.voters) == 1 and self.is_voter

    @property
    def leadership(self) -> Leadership:
        """The leader of the epoch; none when it is known to have resigned."""
        if self.role is Role.LEADER:
            return Leadership(self.local.node_id, self.leader_epoch, self.settings.endpoints)
        if self.role is Role.RESIGNED or self.gone_leader_epoch == self.leader_epoch:
            return Leadership(NO_NODE, self.leader_epoch)
        return Leadership(self.election.leader_id, self.leader_epoch, self.leader_endpoints)

    @property
    def has_live_leader(self) -> bool:
        """Whether this replica leads, or its leader has answered and is not given up (KIP-996)."""
        if self.role is Role.LEADER:
            return True
        return (
            self.following is not None
            and self.following.has_fetched
            and self.gone_leader_epoch != self.leader_epoch
        )

    def is_up_to_date(self, last_leader_epoch: int, log_end_offset: int) -> bool:
        """Whether a log that ends so has everything this one has (Raft 5.4.1)."""
        return (last_leader_epoch, log_end_offset) >= (
            self.log.last_leader_epoch,
            self.log.log_end_offset,
        )

    def election_timeout_ms(self) -> float:
        """A fresh one: from once to twice the configured time."""
        return self.settings.election_timeout_ms * (1.0 + self.random.random())

    def soon_ms(self) -> float:
        """A moment soon, and hardly the same as on the other replicas."""
        jitter = self.random.random() * FETCH_TIMEOUT_JITTER * self.settings.election_timeout_ms
        return self.now_ms + jitter

    def fetch_deadline_ms(self) -> float:
        """When a follower that hears nothing from now on gives its leader up."""
        return self.soon_ms() + self.settings.fetch_timeout_ms

    def destination_of(self, node_id: int, endpoints: Endpoints) -> Destination | None:
        """Where to reach a node: on the listener by which this replica is known itself."""
        if not endpoints:
            voter = self.voters.latest.with_id(node_id)
            endpoints = voter.endpoints if voter is not None else ()
        if not endpoints:
            return None
        own = self.settings.endpoints
        chosen = endpoints[0]
        if own:
            chosen = next(
                (each for each in endpoints if each.listener_name == own[0].listener_name), chosen
            )
        return Destination(node_id, chosen.host, chosen.port)

    def send(self, destination: Destination, request: PeerRequest) -> None:
        """Send, and await the answer."""
        send = Send(destination, request, self.settings.request_timeout_ms)
        self.requests.sent(send, self.now_ms)
        self.effects.append(send)

    def ask(
        self, destination: Destination, kind: type[PeerRequest], request: Callable[[], PeerRequest]
    ) -> float:
        """Send a request, unless one of its kind is awaited or backed off there.

        Returns:
            When to look again: the end of the backoff, else infinity.
        """
        if self.requests.is_awaited(destination, kind):
            return float("inf")
        ready_ms = self.requests.ready_ms(destination, kind)
        if self.now_ms < ready_ms:
            return ready_ms
        self.send(destination, request())
        return float("inf")

    def note_answer(self, send: Send, response: LeaderResponse | None) -> bool:
        """Take note of the answer to a request and the leader it names; whether it succeeded."""
        succeeded = response is not None and response.error is ErrorCode.NONE
        self.requests.answered(send, self.now_ms, succeeded=succeeded)
        if response is not None:
            self.learn_from(send, response)
        return succeeded

    def answer(self, kind: Callable[..., T], error: ErrorCode, **fields: object) -> T:
        """A response of `kind` with the leader as this replica knows it."""
        leader = self.leadership
        return kind(
            error,
            leader.leader_id,
            leader.leader_epoch,
            leader_endpoints=leader.endpoints,
            **fields,
        )

    def stop(self, reason: str) -> None:
        """Stop for good: an invariant is broken."""
        if not self.is_stopped:
            self.is_stopped = True
            self.effects.append(StopEffect(reason))

    def persist(self, election: ElectionState) -> None:
        """Take over an election state; it is durable before any later effect."""
        before = self.election
        assert election.leader_epoch >= before.leader_epoch, f"{before} -> {election}"
        if election.leader_epoch == before.leader_epoch:
            assert before.voted in (None, election.voted), f"second vote: {before} -> {election}"
            assert NO_NODE in (before.leader_id, election.leader_id) or (
                before.leader_id == election.leader_id
            ), f"second leader: {before} -> {election}"
        if election == before:
            return
        self.election = election
        if self.effects and isinstance(self.effects[-1], Persist):
            self.effects.pop()
        self.effects.append(Persist(election))

    def raise_high_watermark(self, high_watermark: int) -> bool:
        """Everything below is committed. Returns whether that is news."""
        if high_watermark <= self.high_watermark:
            return False
        self.high_watermark = high_watermark
        self.effects.append(AdvanceHighWatermark(high_watermark))
        return True

    def restore(self) -> None:
        """Take the role that the election state and the log of the last run allow.

        A replica that led the epoch does not lead it again: records of it may have been lost with
        what was not flushed, and a second record would get the same offset and epoch.
        """
        self.flushed_end_offset = self.log.log_end_offset
        if self.leader_epoch < self.log.last_leader_epoch:
            self.persist(ElectionState(self.log.last_leader_epoch))
        election, latest = self.election, self.voters.latest
        if self.may_stand and self.is_sole_voter:
            # The sole voter campaigns at once.
            self.persist(ElectionState(self.leader_epoch, NO_NODE, election.voted))
            self.become_prospective()
        elif election.leader_id == self.local.node_id:
            others = (key_of(each) for each in latest.voters if each.voter_id != election.leader_id)
            self.role = Role.RESIGNED
            self.deadline_ms = self.now_ms + self.election_timeout_ms()
            self.resignation = Resignation(tuple(others))
        elif election.leader_id != NO_NODE and self.destination_of(election.leader_id, ()):
            self.become_follower(election.leader_epoch, election.leader_id, ())
        elif self.may_stand:
            self.deadline_ms = self.now_ms + self.election_timeout_ms()

    def _enter(
        self,
        role: Role,
        election: ElectionState,
        deadline_ms: float | None,
        endpoints: Endpoints = (),
    ) -> None:
        before = self.role, self.leader_epoch
        assert role in TRANSITIONS[self.role], f"{self.role} -> {role}"
        if election.leader_epoch == self.leader_epoch:
            assert (self.role, role) in WITHIN_ONE_EPOCH, f"{self.role} -> {role} in one epoch"
        self.persist(election)
        self.role = role
        self.deadline_ms = deadline_ms
        self.leader_endpoints = endpoints
        self.transitions_count += 1
        self.campaign = self.following = self.leading = self.resignation = None
        if before != (role, self.leader_epoch):
            self.requests.reset()

    def become_unattached(
        self, leader_epoch: int, *, leader_id: int = NO_NODE, voted: ReplicaKey | None = None
    ) -> None:
        """Enter `leader_epoch` without a leader to fetch from, having voted for `voted`."""
        same_epoch = leader_epoch == self.leader_epoch
        if same_epoch and self.election.voted is not None:
            voted = self.election.voted
        election = ElectionState(leader_epoch, leader_id, voted)
        if self.role is Role.UNATTACHED and election == self.election:
            return
        deadline_ms: float | None = None
        if self.may_stand:
            if self.role is Role.UNATTACHED and same_epoch and voted == self.election.voted:
                deadline_ms = self.deadline_ms
            elif self.is_sole_voter:
                deadline_ms = self.now_ms
            if deadline_ms is None:
                deadline_ms = self.now_ms + self.election_timeout_ms()
        self._enter(Role.UNATTACHED, election, deadline_ms)

    def become_follower(self, leader_epoch: int, leader_id: int, endpoints: Endpoints) -> None:
        """Follow this leader; become UNATTACHED when its address is not known."""
        assert leader_id != self.local.node_id
        destination = self.destination_of(leader_id, endpoints)
        if destination is None:
            self.become_unattached(leader_epoch, leader_id=leader_id)
            return
        same_epoch = leader_epoch == self.leader_epoch
        voted = self.election.voted if same_epoch else None
        election = ElectionState(leader_epoch, leader_id, voted)
        if not endpoints:
            voter = self.voters.latest.with_id(leader_id)
            endpoints = voter.endpoints if voter is not None else ()
        self._enter(Role.FOLLOWER, election, self.fetch_deadline_ms(), endpoints)
        self.following = Following(destination)
        self.lost_elections_count = 0

    def become_prospective(self) -> None:
        """Ask whether an election could be won (KIP-996), without forgetting the leader."""
        election, endpoints = self.election, self.leader_endpoints
        if self.gone_leader_epoch == self.leader_epoch and election.leader_id != NO_NODE:
            election = ElectionState(election.leader_epoch, NO_NODE, election.voted)
            endpoints = ()
        deadline_ms = self.now_ms + self.election_timeout_ms()
        self._enter(Role.PROSPECTIVE, election, deadline_ms, endpoints)
        self.campaign = self._new_campaign()

    def become_candidate(self) -> None:
        """Raise the epoch and vote for itself."""
        election = ElectionState(self.leader_epoch + 1, NO_NODE, self.local)
        deadline_ms = self.now_ms + self.election_timeout_ms()
        self._enter(Role.CANDIDATE, election, deadline_ms)
        self.campaign = self._new_campaign()

    def _new_campaign(self) -> Campaign:
        latest = self.voters.latest
        itself = latest.find(*self.local)
        return Campaign(latest.voters, [key_of(itself)] if itself is not None else [])

    def become_leader(self) -> None:
        """Lead the epoch, with the first batch of it on its way into the log (Raft 5.4.2, 8)."""
        campaign = self.campaign
        assert campaign is not None
        assert campaign.is_won
        granting = tuple(key.node_id for key in campaign.granted)
        local = self.local.node_id
        election = ElectionState(self.leader_epoch, local, self.election.voted)
        self._enter(Role.LEADER, election, None, self.settings.endpoints)
        self.lost_elections_count = 0
        self.leading = Leading(self.log.log_end_offset, self.now_ms)
        latest = self.voters.latest
        is_in_log = self.voters.latest_offset != BASE_OFFSET or self.log.log_start_offset > 0
        self.effects.append(
            AppendEpochStart(
                self.leader_epoch,
                tuple(voter.voter_id for voter in latest.voters),
                granting,
                latest if latest.kraft_version >= 1 and not is_in_log else None,
            )
        )

    def become_resigned(self, successors: tuple[ReplicaKey, ...]) -> None:
        """Stop leading, for the rest of this epoch; vote and leader stay as they are on disk."""
        deadline_ms = self.now_ms + (0.0 if self.is_sole_voter else self.election_timeout_ms())
        self._enter(Role.RESIGNED, self.election, deadline_ms)
        self.resignation = Resignation(successors)

    def learn_from(self, send: Send, response: LeaderResponse) -> None:
        """Every answer names the leader that its sender knows."""
        self.learn(
            response.leader_id,
            response.leader_epoch,
            response.leader_endpoints,
            from_leader=send.destination.node_id == response.leader_id,
        )

    def learn(
        self, leader_id: int, leader_epoch: int, endpoints: Endpoints, *, from_leader: bool
    ) -> bool:
        """A replica says which node leads which epoch; `from_leader`: the leader itself says so.

        Returns:
            False when that contradicts what is known of the epoch.
        """
        if leader_epoch < self.leader_epoch:
            return True
        is_ourselves = leader_id == self.local.node_id
        if leader_epoch > self.leader_epoch:
            if leader_id == NO_NODE or is_ourselves:
                self.become_unattached(leader_epoch)
            else:
                self.become_follower(leader_epoch, leader_id, endpoints)
            return True
        if leader_id == NO_NODE or is_ourselves:
            return True
        known = self.election.leader_id
        if known not in (NO_NODE, leader_id):
            return False
        if self.role in (Role.LEADER, Role.RESIGNED):
            return False
        if self.role is Role.FOLLOWER or self.gone_leader_epoch == leader_epoch:
            return True
        if self.role is Role.PROSPECTIVE and known == leader_id and not from_leader:
            return True  # it has just given this leader up: hearsay does not bring it back
        self.become_follower(leader_epoch, leader_id, endpoints)
        return True

    def leader_is_gone(self, within_ms: float) -> None:
        """The leader of this epoch leads no more: campaign `within_ms`, not only at the timeout."""
        self.gone_leader_epoch = self.leader_epoch
        if self.role in (Role.FOLLOWER, Role.UNATTACHED) and self.deadline_ms is not None:
            self.deadline_ms = min(self.deadline_ms, self.now_ms + within_ms)
