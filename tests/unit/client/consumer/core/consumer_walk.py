"""Several members of one group of the new protocol (KIP-848) and a model of its coordinator, in any
interleaving. After every event the rules of `check` must hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from uuid import UUID

from moldau.client.consumer.core.consumer_member import ConsumerMember, Wish
from moldau.client.consumer.core.rebalance_steps import (
    Assign,
    Fail,
    GroupRequest,
    Lose,
    PollWatch,
    Revoke,
    Standing,
)
from moldau.client.records import TopicPartition
from moldau.config.backoff import Backoff
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p68_consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from tests.unit.client.consumer.core.classic_walk import Violation
from tests.unit.client.consumer.core.decisions import Decisions

TOPIC_ID = UUID(int=7)
PARTITION_COUNT = 4
POLL_INTERVAL_MS = 1_000.0
POLL_PACES = (1, 9, 17)
"""While it settles, a member polls once in so many turns; between two polls of the slower ones
there is more than one heartbeat."""


def heartbeat_response(
    epoch: int, target: Iterable[tuple[UUID, int]] | None
) -> ConsumerGroupHeartbeatResponse:
    """A good answer, with these partitions in an assignment, or without one."""
    assignment = None
    if target is not None:
        entries = [TopicPartitions(topic_id=each, partitions=[index]) for each, index in target]
        assignment = Assignment(topic_partitions=entries)
    return ConsumerGroupHeartbeatResponse(
        member_epoch=epoch, heartbeat_interval_ms=100, assignment=assignment
    )


class SeatState(Enum):
    """How far a member is with its target, as Apache Kafka's coordinator keeps it."""

    STABLE = auto()
    UNREVOKED = auto()
    """It has to give partitions back before it gets others."""
    UNRELEASED = auto()
    """Other members have to give partitions back."""


@dataclass(frozen=True)
class Seat:
    """What the coordinator knows of a member, which may consume `assigned` and `pending`."""

    joined_epoch: int
    epoch: int = 0
    previous_epoch: int = 0
    state: SeatState = SeatState.STABLE
    assigned: frozenset[int] = frozenset()
    pending: frozenset[int] = frozenset()


class Coordinator:
    """One group, as the broker keeps it: who gets what changes with every member."""

    def __init__(self) -> None:
        self.epoch = 0
        self.seats: dict[str, Seat] = {}

    def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest
    ) -> tuple[ErrorCode, int, frozenset[int] | None]:
        """Serve one: error, member epoch, the assignment if the answer has one."""
        member_id = request.member_id
        seat = self.seats.get(member_id)
        said = None
        if request.topic_partitions is not None:
            said = frozenset(
                each for topic in request.topic_partitions for each in topic.partitions
            )
        if request.member_epoch < 0:
            self.remove(member_id)
            return ErrorCode.NONE, request.member_epoch, None
        if request.member_epoch == 0:
            if said is None or said:
                raise Violation("joins without saying that nothing is owned")
            if request.subscribed_topic_names is None or request.rebalance_timeout_ms < 0:
                raise Violation("joins without saying what is wanted")
            if seat is None:
                self.epoch += 1
                seat = self.seats[member_id] = Seat(self.epoch)
        elif seat is None:
            return ErrorCode.UNKNOWN_MEMBER_ID, 0, None
        elif request.member_epoch != seat.epoch and (
            request.member_epoch != seat.previous_epoch or said is None or not said <= seat.assigned
        ):
            return ErrorCode.FENCED_MEMBER_EPOCH, 0, None
        new = self.seats[member_id] = self.reconciled(member_id, seat, said)
        is_full = request.member_epoch == 0 or (
            request.subscribed_topic_names is not None
            and request.rebalance_timeout_ms >= 0
            and said is not None
        )
        shows_assignment = is_full or new.assigned != seat.assigned
        return ErrorCode.NONE, new.epoch, new.assigned if shows_assignment else None

    def reconciled(self, member_id: str, seat: Seat, said: frozenset[int] | None) -> Seat:
        """The next step of a member that says it owns `said`: first it gives back, then it gets.
        What it does not say that it owns, it does not have to give back.
        """
        if seat.state is SeatState.STABLE and seat.epoch == self.epoch:
            return seat
        if seat.state is SeatState.UNREVOKED and (said is None or said & seat.pending):
            return seat
        target = self.target(member_id)
        kept, surplus = seat.assigned & target, seat.assigned - target
        if surplus and (said is None or said & surplus):
            return replace(
                seat,
                previous_epoch=seat.epoch,
                state=SeatState.UNREVOKED,
                assigned=kept,
                pending=surplus,
            )
        free = target - kept - self.held_by_others(member_id)
        state = SeatState.STABLE if kept | free == target else SeatState.UNRELEASED
        new = replace(
            seat, epoch=self.epoch, state=state, assigned=kept | free, pending=frozenset()
        )
        return seat if new == seat else replace(new, previous_epoch=seat.epoch)

    def held_by_others(self, member_id: str) -> frozenset[int]:
        """What members other than this one may still consume."""
        others = (seat for each, seat in self.seats.items() if each != member_id)
        return frozenset[int]().union(*(seat.assigned | seat.pending for seat in others))

    def target(self, member_id: str) -> frozenset[int]:
        """Whose turn it is."""
        order = sorted(self.seats)
        return frozenset(
            index
            for index in range(PARTITION_COUNT)
            if order[(index + self.epoch) % len(order)] == member_id
        )

    def remove(self, member_id: str) -> None:
        """A session or a rebalance ends, or the member leaves."""
        if self.seats.pop(member_id, None) is not None:
            self.epoch += 1


@dataclass
class Node:
    """A member, and what is between it and the coordinator."""

    member: ConsumerMember
    watch: PollWatch
    waiting: tuple[int, ConsumerGroupHeartbeatRequest] | None = None
    ready: list[Callable[[float], None]] = field(default_factory=list)


class ConsumerWalk:
    """One walk. `kind` may be a faulty member, to see that the rules notice."""

    def __init__(
        self,
        decisions: Decisions,
        *,
        kind: type[ConsumerMember] = ConsumerMember,
        coordinator: Coordinator | None = None,
    ) -> None:
        self.now_ms = 0.0
        self.decisions = decisions
        self.coordinator = coordinator or Coordinator()
        self.knows_name = True
        self.nodes = []
        for index in range(3):
            watch = PollWatch(POLL_INTERVAL_MS, 0.0)
            member = kind(
                group_id="g",
                member_id=f"m{index}",
                group_instance_id=None,
                rack_id=None,
                server_assignor=None,
                poll_watch=watch,
                backoff=Backoff(10.0, 50.0),
                name_of=lambda topic_id: "t" if self.knows_name else None,
            )
            member.subscribe(Wish(frozenset({"t"})))
            self.nodes.append(Node(member, watch))

    def run(self) -> None:
        """Run until the decisions are used up."""
        actions = (
            self._poll, self._poll, self._send, self._send, self._arrive, self._arrive,
            self._answer, self._answer, self._lose, self._pass_time, self._expel, self._forget,
        )  # fmt: skip
        for choice in self.decisions:
            actions[choice % len(actions)](self.decisions.one_of(self.nodes))
            self.check()

    def check_settles(self) -> None:
        """Without faults everything ends assigned, however seldom the members poll."""
        self.knows_name = True
        for turn in range(400):
            self.now_ms += 20.0
            for node, pace in zip(self.nodes, POLL_PACES, strict=True):
                for action in (self._poll, self._send, self._arrive, self._answer):
                    if action != self._poll or turn % pace == 0:
                        action(node)
                        self.check()
            owned = sorted(each.partition for node in self.nodes for each in node.member.owned)
            if owned == list(range(PARTITION_COUNT)) and all(
                node.member.is_settled for node in self.nodes
            ):
                return
        raise Violation("the group never settles")

    def check(self) -> None:
        """The rules."""
        owners: dict[TopicPartition, str] = {}
        for node in self.nodes:
            member = node.member
            seat = self.coordinator.seats.get(member.member_id)
            if seat is None or member.standing() is not Standing.MEMBER:
                continue
            if member.member_epoch < 1:
                raise Violation("commits could be signed without an epoch")
            if member.member_epoch < seat.joined_epoch:
                continue  # expelled, and back with a join whose answer has not come yet
            for partition in member.owned:
                other = owners.setdefault(partition, member.member_id)
                if other != member.member_id:
                    raise Violation(f"{partition} is consumed by {other} and {member.member_id}")

    # -- events ---------------------------------------------------------------------------------

    def _poll(self, node: Node) -> None:
        node.watch.note(self.now_ms)
        member = node.member
        member.has_step()
        match step := member.next_step(self.now_ms):
            case Revoke(partitions):
                if member.standing() is not Standing.MEMBER:
                    raise Violation("asks to commit and give up what is lost already")
                member.revoked(partitions, self.now_ms)
            case Lose(partitions):
                if member.standing() is Standing.MEMBER:
                    raise Violation("loses what it has")
                member.lost(partitions, self.now_ms)
            case Assign():
                member.assigned(step, self.now_ms)
                member.acknowledge(self.now_ms)
            case Fail(code, _):
                raise Violation(f"failed with {code.name}")

    def _send(self, node: Node) -> None:
        member = node.member
        request = member.next_request(self.now_ms)
        if request is GroupRequest.LEAVE:
            leave = member.take_leave()
            if leave is not None:
                self.coordinator.heartbeat(leave)
        elif request is GroupRequest.HEARTBEAT:
            node.waiting = member.sent(self.now_ms)

    def _arrive(self, node: Node) -> None:
        if node.waiting is None:
            return
        attempt, request = node.waiting
        node.waiting = None
        member = node.member
        code, epoch, assignment = self.coordinator.heartbeat(request)
        if code is not ErrorCode.NONE:
            node.ready.append(lambda now: member.refused(attempt, now, code))
            return
        target = None if assignment is None else [(TOPIC_ID, each) for each in assignment]
        response = heartbeat_response(epoch, target)
        node.ready.append(lambda now: member.answered(attempt, now, response))

    def _answer(self, node: Node) -> None:
        if node.ready:
            node.ready.pop(self.decisions.number(len(node.ready)))(self.now_ms)

    def _lose(self, node: Node) -> None:
        if node.waiting is not None:
            attempt, _ = node.waiting
            node.waiting = None
            node.member.failed(attempt, self.now_ms)
        elif node.ready:
            node.member.failed(node.member._attempt, self.now_ms)
            if self.decisions.number(2):
                node.ready.clear()

    def _pass_time(self, node: Node) -> None:
        self.now_ms += (5.0, 40.0, 120.0, 600.0)[self.decisions.number(4)]

    def _expel(self, node: Node) -> None:
        if self.decisions.number(4) == 0:
            self.coordinator.remove(node.member.member_id)

    def _forget(self, node: Node) -> None:
        self.knows_name = self.decisions.number(3) != 0
        node.member.names_changed()
