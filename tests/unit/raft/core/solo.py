"""One replica, node 1, and a test that plays all others.

Owns: Solo, which carries out the effects in memory and holds back what is sent until the test
answers it. Every timeout is exact: the dice always show one half.
"""

from __future__ import annotations

from typing import TypeVar

from moldau.protocol.errors import ErrorCode
from moldau.raft.core import QuorumCore, Role
from moldau.raft.core.effects import Complete, Effect, Send
from moldau.raft.core.messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    FetchRequest,
    FetchResponse,
    PeerRequest,
    PeerResponse,
    VoteRequest,
    VoteResponse,
)
from moldau.raft.core.settings import QuorumSettings
from moldau.raft.core.values import ElectionState, ReplicaKey
from moldau.raft.core.voters import VoterEndpoint, VoterSet
from tests.unit.raft.core.harness import (
    Cluster,
    InFlight,
    Record,
    Replica,
    endpoints,
    key,
    voter_set,
)

ELECTION_TIMEOUT_MS = 1_500.0
FETCH_TIMEOUT_MS = 2_125.0
_Request = TypeVar("_Request", bound=PeerRequest)


class Dice:
    """Half of everything."""

    def random(self) -> float:
        return 0.5

    def randrange(self, stop: int, /) -> int:
        return stop // 2


class Solo:
    """Node 1 of voters 1, 2, 3 unless the test says otherwise; started."""

    def __init__(
        self,
        voters: VoterSet | None = None,
        *,
        records: tuple[Record, ...] = (),
        election: ElectionState | None = None,
        node_id: int = 1,
        settings: QuorumSettings | None = None,
        start: bool = True,
        flushes: bool = True,
    ) -> None:
        voters = voters or voter_set(1, 2, 3)
        observers = () if voters.with_id(node_id) else (node_id,)
        self.cluster = Cluster(voters, random=Dice(), observers=observers)
        self.replica: Replica = self.cluster[node_id]
        self.replica.flushes = flushes
        self.replica.settings = settings
        self.replica.log.append(*records)
        self.replica.election = election or ElectionState()
        self._tokens = 0
        if start:
            self.replica.start()

    @property
    def core(self) -> QuorumCore:
        assert self.replica.core is not None
        return self.replica.core

    @property
    def role(self) -> Role:
        return self.core.state.role

    @property
    def now_ms(self) -> float:
        return self.cluster.now_ms

    @property
    def effects(self) -> list[Effect]:
        """Everything so far."""
        return self.replica.effects

    def of(self, kind: type[Effect]) -> list[Effect]:
        """Everything of a kind so far."""
        return [each for each in self.effects if isinstance(each, kind)]

    def completed(self) -> list[tuple[object, ErrorCode]]:
        return [(each.token, each.error) for each in self.effects if isinstance(each, Complete)]

    # -- time ---------------------------------------------------------------------------------

    def wait(self, duration_ms: float) -> None:
        """Let time go by, with a tick whenever one is due."""
        until_ms = self.cluster.now_ms + duration_ms
        for _ in range(10_000):
            due_ms = self.core.next_tick_ms()
            if due_ms is None or due_ms > until_ms:
                break
            self.cluster.now_ms = max(self.cluster.now_ms, due_ms)
            self.replica.run(self.core.tick(self.cluster.now_ms))
        else:
            raise AssertionError("ticks without end")
        self.cluster.now_ms = until_ms

    # -- what it sends ------------------------------------------------------------------------

    def sent(self, kind: type[_Request]) -> list[tuple[int, _Request]]:
        """What is under way of a kind: receiver and request."""
        return [
            (self.cluster.node_at(each.send.destination), each.send.request)
            for each in self.cluster.requests
            if isinstance(each.send.request, kind)
        ]

    def _take(self, kind: type[PeerRequest], node_id: int) -> InFlight:
        for each in reversed(self.cluster.requests):
            if (
                isinstance(each.send.request, kind)
                and self.cluster.node_at(each.send.destination) == node_id
            ):
                self.cluster.requests.remove(each)
                return each
        raise AssertionError(f"no {kind.__name__} to {node_id}: {self.cluster.requests}")

    def respond(self, kind: type[PeerRequest], node_id: int, response: PeerResponse | None) -> Send:
        """Answer the latest of a kind that is under way to a node."""
        in_flight = self._take(kind, node_id)
        self.again(in_flight.send, response)
        return in_flight.send

    def again(self, send: Send, response: PeerResponse | None) -> None:
        """An answer to something sent earlier."""
        self.replica.run(self.core.on_response(send, response, self.now_ms))

    # -- what it is asked ---------------------------------------------------------------------

    def ask(self, request: PeerRequest) -> PeerResponse | None:
        """Its answer; None when it waits."""
        self._tokens += 1
        token = (99, self._tokens)
        self.cluster.waiting[token] = InFlight(99, 0, None, token)  # type: ignore[arg-type]
        self.replica.run(self.core.on_request(request, token, self.now_ms))
        for in_flight, response in self.cluster.responses:
            if in_flight.token == token:
                return response
        return None

    def answers(self) -> list[PeerResponse | None]:
        """All answers so far."""
        return [response for _, response in self.cluster.responses]

    # -- short cuts ---------------------------------------------------------------------------

    def grant(self, node_id: int) -> None:
        """The node grants the vote, or the PreVote, that it is asked for."""
        epoch = self.core.state.leader_epoch
        self.respond(
            VoteRequest, node_id, VoteResponse(ErrorCode.NONE, -1, epoch, vote_granted=True)
        )

    def stand(self) -> None:
        """Become a candidate."""
        self.wait(max(ELECTION_TIMEOUT_MS, FETCH_TIMEOUT_MS))
        assert self.role is Role.PROSPECTIVE
        self.grant(2)
        assert self.role is Role.CANDIDATE

    def lead(self) -> None:
        """Become the leader, acknowledged by no voter yet."""
        self.stand()
        self.grant(2)
        assert self.role is Role.LEADER

    def begin(
        self, leader_id: int, leader_epoch: int, voter: ReplicaKey | None = None
    ) -> PeerResponse | None:
        """A leader says so."""
        request = BeginQuorumEpochRequest(leader_id, leader_epoch, voter, endpoints(leader_id))
        return self.ask(request)

    def ask_begin_with(self, leader_id: int, leader_epoch: int, host: str) -> None:
        """A leader says that it is to be reached somewhere else."""
        elsewhere = (VoterEndpoint("CONTROLLER", host, 1),)
        self.ask(BeginQuorumEpochRequest(leader_id, leader_epoch, None, elsewhere))

    def sent_hosts(self, kind: type[PeerRequest]) -> list[str]:
        """Where to what is under way goes."""
        return [
            each.send.destination.host
            for each in self.cluster.requests
            if isinstance(each.send.request, kind)
        ]

    def refuse(self, node_id: int, *, leader_id: int = -1) -> None:
        """The node refuses the vote that it is asked for."""
        epoch = self.core.state.leader_epoch
        where = endpoints(leader_id) if leader_id >= 0 else ()
        response = VoteResponse(ErrorCode.NONE, leader_id, epoch, where)
        self.respond(VoteRequest, node_id, response)

    def follow(self, leader_id: int = 2, leader_epoch: int = 1) -> None:
        """Become a follower."""
        response = self.begin(leader_id, leader_epoch)
        assert isinstance(response, BeginQuorumEpochResponse)
        assert self.role is Role.FOLLOWER

    def fetched(self, **fields: object) -> None:
        """The leader answers the fetch, some milliseconds after it was sent."""
        self.cluster.now_ms += 50
        leader = self.core.state.leadership
        response = FetchResponse(
            ErrorCode.NONE,
            leader.leader_id,
            leader.leader_epoch,
            **fields,  # type: ignore[arg-type]
        )
        self.respond(FetchRequest, leader.leader_id, response)

    def fetch_by(
        self,
        node_id: int,
        fetch_offset: int | None = None,
        *,
        last_epoch: int | None = None,
        high_watermark: int | None = None,
        max_wait_ms: int = 500,
        leader_epoch: int | None = None,
        replica: ReplicaKey | None = None,
    ) -> PeerResponse | None:
        """A replica fetches; by default it has everything and knows everything."""
        log = self.replica.log
        offset = log.log_end_offset if fetch_offset is None else fetch_offset
        if last_epoch is None:
            record = log.records[offset - log.start - 1] if offset > log.start else None
            last_epoch = record.leader_epoch if record is not None else 0
        request = FetchRequest(
            replica or key(node_id),
            self.core.state.leader_epoch if leader_epoch is None else leader_epoch,
            offset,
            last_epoch,
            self.core.state.high_watermark if high_watermark is None else high_watermark,
            max_wait_ms,
        )
        return self.ask(request)
