"""Several members of one classic group and a model of its coordinator, in any interleaving.

Requests and answers are delivered, delayed or lost one by one; polls carry out one step at a time.
After every event the rules of `check` must hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from moldau.client.consumer.core.classic_member import ClassicMember, ClassicState
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
from tests.unit.client.consumer.core.decisions import Decisions

Partitions = frozenset[TopicPartition]
ALL: Partitions = frozenset(TopicPartition("t", index) for index in range(4))
POLL_INTERVAL_MS = 1_000.0


class Violation(AssertionError):
    """A rule was broken."""


@dataclass
class _Seat:
    """What the coordinator knows of a member."""

    owned: Partitions = frozenset()
    assignment: Partitions = frozenset()
    joined: bool = False


class Coordinator:
    """One group, as the broker keeps it, and its leader's assignor.

    Attributes:
        is_sticky: whether each partition has one taker as long as the members stay the same.
            Without it the takers change with every generation, and nothing ever settles.
    """

    def __init__(self, cooperative: bool) -> None:
        self.cooperative = cooperative
        self.is_sticky = False
        self.generation_id = 0
        self.seats: dict[str, _Seat] = {}
        self.rebalances = False
        self.awaits_sync = False
        self.leader = ""
        self._made = 0

    def join(self, member_id: str, owned: Partitions) -> str:
        """A JoinGroup arrives; the member's id from now on, "" when it has to begin again."""
        if member_id and member_id not in self.seats:
            return ""
        if not member_id:
            self._made += 1
            member_id = f"m{self._made}"
            self.seats[member_id] = _Seat()
        seat = self.seats[member_id]
        seat.owned, seat.joined = owned, True
        if not self.rebalances:
            self.rebalances, self.awaits_sync = True, False
            for other_id, other in self.seats.items():
                other.joined = other_id == member_id
        return member_id

    def try_to_complete(self, *, by_force: bool) -> bool:
        """End the join phase when all have joined; by force without those that are not."""
        if not self.rebalances:
            return False
        missing = [each for each, seat in self.seats.items() if not seat.joined]
        if missing and not by_force:
            return False
        for each in missing:
            del self.seats[each]
        self.rebalances = False
        self.awaits_sync = bool(self.seats)
        self.generation_id += 1
        self.leader = min(self.seats, default="")
        return bool(self.seats)

    def expel(self, member_id: str) -> None:
        """A session ends, or the member leaves: the others rebalance."""
        if self.seats.pop(member_id, None) is not None and self.seats and not self.rebalances:
            self.rebalances, self.awaits_sync = True, False
            for seat in self.seats.values():
                seat.joined = False

    def lead(self) -> None:
        """The leader's assignment: round robin, nothing that another one still owns."""
        order = sorted(self.seats)
        for seat in self.seats.values():
            seat.assignment = frozenset()
        for index, partition in enumerate(sorted(ALL)):
            turn = index if self.is_sticky else index + self.generation_id
            taker = order[turn % len(order)]
            holders = [each for each in order if partition in self.seats[each].owned]
            if self.cooperative and holders and holders != [taker]:
                continue
            self.seats[taker].assignment |= {partition}
        if self.cooperative:
            return
        for seat in self.seats.values():
            seat.owned = frozenset()


@dataclass
class Node:
    """A member, and what is between it and the coordinator."""

    member: ClassicMember
    watch: PollWatch
    waiting: tuple[GroupRequest, int, str, int] | None = None
    ready: list[Callable[[float], None]] = field(default_factory=list)
    join_arrived: bool = False


class ClassicWalk:
    """One walk. `make` builds a member (a faulty one, to see that the rules notice)."""

    def __init__(
        self,
        decisions: Decisions,
        *,
        cooperative: bool,
        kind: type[ClassicMember] = ClassicMember,
        node_count: int = 3,
    ) -> None:
        self.now_ms = 0.0
        self.decisions = decisions
        self.coordinator = Coordinator(cooperative)
        self.nodes = []
        for _ in range(node_count):
            watch = PollWatch(POLL_INTERVAL_MS, 0.0)
            member = kind(
                group_instance_id=None,
                cooperative=cooperative,
                heartbeat_interval_ms=100.0,
                session_timeout_ms=500.0,
                poll_watch=watch,
                backoff=Backoff(10.0, 50.0),
            )
            member.subscribe(frozenset({"t"}))
            self.nodes.append(Node(member, watch))

    def run(self) -> None:
        """Run until the decisions are used up."""
        actions = (
            self._poll, self._poll, self._send, self._send, self._arrive, self._arrive,
            self._answer, self._answer, self._lose, self._pass_time, self._expel, self._force,
        )  # fmt: skip
        for choice in self.decisions:
            actions[choice % len(actions)](self.decisions.one_of(self.nodes))
            self.check()

    def check_settles(self) -> None:
        """Without faults any group ends with everything assigned, to those who poll."""
        coordinator = self.coordinator
        coordinator.is_sticky = True
        rebalances_since_ms: float | None = None
        for turn in range(400):
            self.now_ms += 20.0
            if not coordinator.rebalances:
                rebalances_since_ms = None
            elif rebalances_since_ms is None:
                rebalances_since_ms = self.now_ms
            elif self.now_ms >= rebalances_since_ms + POLL_INTERVAL_MS:
                # The rebalance timeout. Before it, a member that lives may not have joined yet:
                # completing without it in a rhythm could expel the same one again and again.
                coordinator.try_to_complete(by_force=True)
            if turn % 20 == 19:
                # Sessions end of members that no client is any more.
                alive = {node.member.member_id for node in self.nodes}
                for member_id in set(coordinator.seats) - alive:
                    coordinator.expel(member_id)
            for node in self.nodes:
                for action in (self._poll, self._send, self._arrive, self._answer):
                    action(node)
                    self.check()
            if all(node.member.is_settled for node in self.nodes) and not self._open():
                owned = [each for node in self.nodes for each in node.member.owned]
                if sorted(owned) == sorted(ALL):
                    return
        raise Violation("the group never settles")

    def _open(self) -> bool:
        return self.coordinator.rebalances or self.coordinator.awaits_sync

    def check(self) -> None:
        """The rules."""
        seats = self.coordinator.seats
        owners: dict[TopicPartition, str] = {}
        for node in self.nodes:
            member = node.member
            if member.member_id not in seats or member.generation_id < 0:
                continue
            for partition in member.owned:
                other = owners.setdefault(partition, member.member_id)
                if other != member.member_id:
                    raise Violation(f"{partition} is consumed by {other} and {member.member_id}")
            identity = member.identity()
            if (
                member.standing() is Standing.MEMBER
                and identity.generation_id == self.coordinator.generation_id
                and not self._open()
            ):
                others = frozenset[TopicPartition]().union(
                    *(seat.assignment for each, seat in seats.items() if each != member.member_id)
                )
                if member.owned & others:
                    raise Violation(f"{member.member_id} can commit what others were given")

    # -- events ---------------------------------------------------------------------------------

    def _poll(self, node: Node) -> None:
        node.watch.note(self.now_ms)
        member = node.member
        had = member.has_step()
        step = member.next_step(self.now_ms)
        if (step is not None) != had:
            raise Violation(f"has_step says {had}, the step is {step}")
        match step:
            case Revoke(partitions):
                if partitions and member.standing() is Standing.OUT:
                    raise Violation("asks to commit and give up what is lost already")
                member.revoked(partitions, self.now_ms)
            case Lose(partitions):
                member.lost(partitions, self.now_ms)
            case Assign():
                if member.generation_id < 0:
                    raise Violation("assigned outside of a generation")
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
                self.coordinator.expel(leave[0])
            return
        if request is None:
            return
        attempt = member.sent(request, self.now_ms)
        node.waiting = (request, attempt, member.member_id, member.generation_id)
        node.join_arrived = False

    def _arrive(self, node: Node) -> None:
        """What a node has sent is served, if it can be already."""
        if node.waiting is None:
            return
        request, attempt, member_id, generation_id = node.waiting
        member, coordinator = node.member, self.coordinator
        if request is GroupRequest.JOIN:
            self._serve_join(node, attempt, member_id)
            return
        if request is GroupRequest.LEAD:
            node.waiting = None
            member.led(attempt)
            return
        seat = coordinator.seats.get(member_id)
        code = ErrorCode.NONE
        if seat is None:
            code = ErrorCode.UNKNOWN_MEMBER_ID
        elif generation_id != coordinator.generation_id:
            code = ErrorCode.ILLEGAL_GENERATION
        elif coordinator.rebalances:
            code = ErrorCode.REBALANCE_IN_PROGRESS
        if code is not ErrorCode.NONE:
            self._reply(
                node, lambda now: member.refused(attempt, now, request, code, member_id=member_id)
            )
            return
        if request is GroupRequest.HEARTBEAT:
            self._reply(node, lambda now: member.heartbeat_succeeded(attempt, now))
            return
        assert seat is not None, "checked above"
        if coordinator.awaits_sync and member_id != coordinator.leader:
            return  # waits for the leader
        if coordinator.awaits_sync:
            coordinator.lead()
            coordinator.awaits_sync = False
        assignment = seat.assignment
        self._reply(node, lambda now: member.synced(attempt, now, assignment))

    def _serve_join(self, node: Node, attempt: int, member_id: str) -> None:
        member, coordinator = node.member, self.coordinator
        if not node.join_arrived:
            given = coordinator.join(member_id, member.owned)
            if not given:
                code = ErrorCode.UNKNOWN_MEMBER_ID
                self._reply(node, lambda now: member.refused(attempt, now, GroupRequest.JOIN, code))
                return
            if not member_id:
                code = ErrorCode.MEMBER_ID_REQUIRED
                self._reply(
                    node,
                    lambda now: member.refused(
                        attempt, now, GroupRequest.JOIN, code, member_id=given
                    ),
                )
                return
            node.join_arrived = True
        coordinator.try_to_complete(by_force=False)
        if coordinator.rebalances:
            return
        generation_id = coordinator.generation_id
        leads = coordinator.leader == member_id
        if member_id not in coordinator.seats:
            code = ErrorCode.UNKNOWN_MEMBER_ID
            self._reply(node, lambda now: member.refused(attempt, now, GroupRequest.JOIN, code))
            return
        self._reply(
            node,
            lambda now: _ignore(
                member.joined(
                    attempt,
                    now,
                    generation_id=generation_id,
                    member_id=member_id,
                    is_leader=leads,
                )
            ),
        )

    def _reply(self, node: Node, tell: Callable[[float], None]) -> None:
        node.waiting = None
        node.ready.append(tell)

    def _answer(self, node: Node) -> None:
        if node.ready:
            # Out of order too: they may come over different connections.
            node.ready.pop(self.decisions.number(len(node.ready)))(self.now_ms)

    def _lose(self, node: Node) -> None:
        """The connection breaks: what was under way gets no answer, or a late one."""
        if node.waiting is not None:
            _, attempt, _, _ = node.waiting
            node.waiting = None
            node.member.failed(attempt, self.now_ms)
        elif node.ready and node.member.state is not ClassicState.FATAL:
            # The answer is on its way, and the client has given up on it already.
            node.member.failed(node.member._attempt, self.now_ms)

    def _pass_time(self, node: Node) -> None:
        self.now_ms += (5.0, 40.0, 120.0, 600.0)[self.decisions.number(4)]

    def _expel(self, node: Node) -> None:
        if self.decisions.number(4) == 0:
            self.coordinator.expel(node.member.member_id)

    def _force(self, node: Node) -> None:
        if self.decisions.number(3) == 0:
            self.coordinator.try_to_complete(by_force=True)


def _ignore(outcome: object) -> None:
    """Whether the member still wanted the answer is its own business."""
