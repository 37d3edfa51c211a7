"""A member of a consumer group of the new protocol, as a state machine (KIP-848, KIP-1082).

Owns the member's epoch, what it owns and what the coordinator wants it to own, which heartbeat is
sent when and with what in it, and what each answer means. Must not send, read clocks or know
topics' metadata (names of topic ids are given to it). Invariants: one heartbeat is under way at a
time, an answer to an older one changes nothing; what is owned changes only when the driver says
that a step was carried out; after the epoch is lost nothing owned under it is ever acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from types import MappingProxyType
from typing import Final, TypeAlias
from uuid import UUID

from moldau.client.consumer.core.rebalance_steps import (
    NEVER_MS,
    NO_GENERATION,
    NOTHING,
    Assign,
    Fail,
    GroupRequest,
    Identity,
    Lose,
    Partitions,
    PollWatch,
    Revoke,
    Standing,
    Step,
)
from moldau.client.records import TopicPartition
from moldau.config.backoff import Backoff
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p68_consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
LEAVE_FOR_A_WHILE_EPOCH: Final = -2
"""A static member leaves and will be back."""

Target: TypeAlias = frozenset[tuple[UUID, int]]


@dataclass(frozen=True, slots=True)
class Wish:
    """What the member subscribes to: names, or a regular expression that the broker matches."""

    topics: frozenset[str] = frozenset()
    pattern: str | None = None


class ConsumerState(Enum):
    """Where the member is with its coordinator."""

    UNSUBSCRIBED = auto()
    """The consumer is in no group and sends no heartbeats."""
    JOINING = auto()
    """A heartbeat with epoch 0 is to be sent, or under way."""
    STABLE = auto()
    """The member owns what the coordinator wants it to, and the coordinator knows that."""
    RECONCILING = auto()
    """The coordinator wants another assignment; the next poll gives up and takes over."""
    ACKNOWLEDGING = auto()
    """Taken over; the next heartbeat reports what is owned now."""
    FENCED = auto()
    """Expelled; the next poll reports that all is lost, then the member joins again."""
    STALE = auto()
    """Left because the user does not poll; the next poll joins again."""
    FATAL = auto()
    """Refused for good, until the user subscribes again."""


_ANYWHERE: Final = frozenset(
    {ConsumerState.UNSUBSCRIBED, ConsumerState.FENCED, ConsumerState.STALE, ConsumerState.FATAL}
)

TRANSITIONS: Final[Mapping[ConsumerState, frozenset[ConsumerState]]] = MappingProxyType(
    {
        ConsumerState.UNSUBSCRIBED: frozenset({ConsumerState.JOINING, ConsumerState.UNSUBSCRIBED}),
        ConsumerState.JOINING: _ANYWHERE
        | {ConsumerState.JOINING, ConsumerState.STABLE, ConsumerState.RECONCILING},
        ConsumerState.STABLE: _ANYWHERE | {ConsumerState.RECONCILING},
        ConsumerState.RECONCILING: _ANYWHERE | {ConsumerState.ACKNOWLEDGING, ConsumerState.STABLE},
        ConsumerState.ACKNOWLEDGING: _ANYWHERE | {ConsumerState.STABLE, ConsumerState.RECONCILING},
        ConsumerState.FENCED: frozenset(
            {ConsumerState.JOINING, ConsumerState.UNSUBSCRIBED, ConsumerState.FATAL}
        ),
        ConsumerState.STALE: frozenset({ConsumerState.JOINING, ConsumerState.UNSUBSCRIBED}),
        ConsumerState.FATAL: frozenset({ConsumerState.UNSUBSCRIBED}),
    }
)

_IN_GROUP: Final = frozenset(
    {ConsumerState.STABLE, ConsumerState.RECONCILING, ConsumerState.ACKNOWLEDGING}
)
"""The coordinator has given an epoch with which commits are signed."""

_ACTIVE: Final = _IN_GROUP | {ConsumerState.JOINING}
"""Heartbeats are sent."""

_FENCED_CODES: Final = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID})
"""The membership is over; a new one can begin."""

_PASSING_CODES: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""The same heartbeat may succeed later, maybe elsewhere."""


@dataclass(slots=True, eq=False, repr=False, kw_only=True)
class ConsumerMember:
    """One member's life in one group. Legal transitions: `TRANSITIONS`.

    Args:
        member_id: chosen by the client for its whole life (KIP-1082).
        server_assignor: `group.remote.assignor`, None for the broker's choice.
        poll_watch: the user's polls; its interval is the member's rebalance timeout too.
        name_of: the name of a topic id, None when it is not known (yet).
        on_attention: called when a poll has something to do.

    Attributes:
        owned: what the user may consume at the moment.
        needs_coordinator: whether the coordinator is to be looked up again; the driver resets it.
        needs_topic_names: whether the coordinator wants topics whose names are not known.
    """

    group_id: str
    member_id: str
    group_instance_id: str | None
    rack_id: str | None
    server_assignor: str | None
    poll_watch: PollWatch
    backoff: Backoff
    name_of: Callable[[UUID], str | None]
    on_attention: Callable[[], None] = lambda: None
    state: ConsumerState = ConsumerState.UNSUBSCRIBED
    member_epoch: int = NO_GENERATION
    owned: Partitions = NOTHING
    needs_coordinator: bool = False
    _wish: Wish | None = None
    _told: dict[str, object] = field(default_factory=dict)
    _telling: dict[str, object] = field(default_factory=dict)
    _acknowledged: object = field(default_factory=dict)
    _owned_ids: dict[TopicPartition, UUID] = field(default_factory=dict)
    _target: Target = frozenset()
    _failure: Fail | None = None
    _in_flight: bool = False
    _owned_is_unanswered: bool = False
    _attempt: int = 0
    _heartbeat_at_ms: float = 0.0
    _not_before_ms: float = 0.0
    _leave_epoch: int | None = None

    # -- the user's side ------------------------------------------------------------------------

    def subscribe(self, wish: Wish, *, is_new: bool = False) -> None:
        if self.state is ConsumerState.FATAL and is_new:
            self._move(ConsumerState.UNSUBSCRIBED)
            self._failure = None
        changed = wish != self._wish
        self._wish = wish
        if self.state is ConsumerState.UNSUBSCRIBED:
            if not self.owned:
                self._join()
        elif changed and self.state in _ACTIVE:
            self._heartbeat_at_ms = 0.0

    def unsubscribe(self) -> tuple[Partitions, bool]:
        owned, was_lost = self.owned, self._has_lost()
        self._wish = None
        self._own(NOTHING, {})
        self._failure = None
        self._leave()
        self._move(ConsumerState.UNSUBSCRIBED)
        return owned, was_lost

    def next_step(self, now_ms: float) -> Step | None:
        if self._has_lost() and self.owned:
            return Lose(self.owned)
        if self._failure is not None:
            failure = self._failure
            if self.state is not ConsumerState.FATAL:
                self._failure = None
            return failure
        if self.state in (ConsumerState.FENCED, ConsumerState.STALE):
            self._join()
            return None
        return self._reconciling_step()

    def has_step(self) -> bool:
        """Whether `next_step` has one, or joins again."""
        if self._failure is not None or (self._has_lost() and self.owned):
            return True
        if self.state in (ConsumerState.FENCED, ConsumerState.STALE):
            return True
        return self._reconciling_step() is not None

    @property
    def is_settled(self) -> bool:
        return self._wish is None or (
            self.state in (ConsumerState.STABLE, ConsumerState.ACKNOWLEDGING)
        )

    @property
    def needs_topic_names(self) -> bool:
        return self.state is ConsumerState.RECONCILING and self._unresolved()

    def revoked(self, partitions: Partitions, now_ms: float) -> None:
        self._own(self.owned - partitions, self._owned_ids)

    def lost(self, partitions: Partitions, now_ms: float) -> None:
        self._own(self.owned - partitions, self._owned_ids)
        if self.state is ConsumerState.UNSUBSCRIBED and self._wish is not None and not self.owned:
            self._join()

    def assigned(self, step: Assign, now_ms: float) -> None:
        """As the step says: the coordinator may want something else by now."""
        self._own(step.partitions, step.topic_ids)

    def acknowledge(self, now_ms: float) -> None:
        """The listener has been called: the next heartbeat reports what is owned now."""
        if self.state is ConsumerState.RECONCILING and self._owned_ids == self._resolved():
            self._move(ConsumerState.ACKNOWLEDGING)
            self._heartbeat_at_ms = now_ms

    def names_changed(self) -> None:
        """The metadata were updated: topics whose names were missing may be taken over now."""
        if self.state is ConsumerState.RECONCILING and self.has_step():
            self.on_attention()

    # -- commits --------------------------------------------------------------------------------

    def standing(self) -> Standing:
        if self.state in _IN_GROUP:
            return Standing.MEMBER
        return Standing.REBALANCING if self.state is ConsumerState.JOINING else Standing.OUT

    def identity(self) -> Identity:
        member_id = self.member_id if self.member_epoch >= 0 else ""
        return Identity(self.member_epoch, member_id, self.group_instance_id)

    def commit_refused(self, identity: Identity, code: ErrorCode) -> None:
        if code is ErrorCode.FENCED_INSTANCE_ID:
            self._fail(code, None)
        elif code is ErrorCode.STALE_MEMBER_EPOCH:
            self._heartbeat_at_ms = 0.0
        elif code is ErrorCode.UNKNOWN_MEMBER_ID and identity == self.identity():
            self._fence()

    # -- requests -------------------------------------------------------------------------------

    def next_request(self, now_ms: float) -> GroupRequest | None:
        if self.state in _ACTIVE and now_ms >= self.poll_watch.deadline_ms:
            # A user that does not poll makes no progress: other members get the partitions.
            self._leave()
            self._move(ConsumerState.STALE)
            self.on_attention()
        if self._leave_epoch is not None:
            return GroupRequest.LEAVE
        if self._in_flight or self.state not in _ACTIVE or now_ms < self._not_before_ms:
            return None
        return GroupRequest.HEARTBEAT if now_ms >= self._heartbeat_at_ms else None

    def due_ms(self) -> float:
        if self._leave_epoch is not None:
            return 0.0
        if self.state not in _ACTIVE:
            return NEVER_MS
        due = self.poll_watch.deadline_ms
        if not self._in_flight:
            due = min(due, max(self._not_before_ms, self._heartbeat_at_ms))
        return due

    def sent(self, now_ms: float) -> tuple[int, ConsumerGroupHeartbeatRequest]:
        assert self._wish is not None, "there are no heartbeats without a subscription"
        self._attempt += 1
        self._in_flight = True
        self._heartbeat_at_ms = NEVER_MS
        joins = self.state is ConsumerState.JOINING
        if joins:
            self._told = {}
        wish = self._wish
        saying: dict[str, object] = {
            "subscribed_topic_names": None if wish.pattern is not None else sorted(wish.topics),
            "subscribed_topic_regex": wish.pattern,
            "server_assignor": self.server_assignor,
            "rebalance_timeout_ms": min(int(self.poll_watch.interval_ms), 2**31 - 1),
            "rack_id": self.rack_id,
            "topic_partitions": self._owned_by_topic(),
        }
        if wish.pattern is None and self._told.get("subscribed_topic_regex"):
            saying["subscribed_topic_regex"] = ""  # takes back the one before
        elif wish.pattern is not None and self._told.get("subscribed_topic_names"):
            saying["subscribed_topic_names"] = []
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=JOIN_EPOCH if joins else self.member_epoch,
            instance_id=self.group_instance_id,
        )
        # The coordinator waits for an answer to each assignment. One that another took back before
        # the member had it leaves the member with what it has reported already.
        again = "topic_partitions" if self.state is ConsumerState.ACKNOWLEDGING else ""
        for name, value in saying.items():
            if name not in self._told or self._told[name] != value or name == again:
                if name == "topic_partitions":
                    value = _topic_partitions(value)
                setattr(request, name, value)
        self._telling = saying
        if request.topic_partitions is not None:
            self._owned_is_unanswered = True
        if self.state is ConsumerState.ACKNOWLEDGING:
            self._move(ConsumerState.RECONCILING if self._differs() else ConsumerState.STABLE)
        return self._attempt, request

    def take_leave(self) -> ConsumerGroupHeartbeatRequest | None:
        """The heartbeat with which the member leaves; None when it is not in the group."""
        epoch, self._leave_epoch = self._leave_epoch, None
        if epoch is None:
            return None
        return ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=self.group_instance_id,
        )

    def failed(self, attempt: int, now_ms: float) -> None:
        """No answer came. It is unknown what arrived, so the next heartbeat says everything."""
        if self._answered(attempt):
            self.needs_coordinator = True
            self._try_again(now_ms)

    def answered(
        self, attempt: int, now_ms: float, response: ConsumerGroupHeartbeatResponse
    ) -> None:
        """A heartbeat succeeded. Without an assignment in it the target has not changed."""
        if not self._answered(attempt) or self.state not in _ACTIVE:
            return
        self.backoff.reset()
        self._told = self._telling
        self._owned_is_unanswered = False
        self._acknowledged = self._told["topic_partitions"]
        if response.member_id:
            self.member_id = response.member_id
        self.member_epoch = response.member_epoch
        # Sooner when there is something new to report.
        interval_ms = response.heartbeat_interval_ms
        self._heartbeat_at_ms = min(self._heartbeat_at_ms, now_ms + interval_ms)
        target = response.assignment
        if target is not None:
            self._target = frozenset(
                (each.topic_id, partition)
                for each in target.topic_partitions
                for partition in each.partitions
            )
        if self.state is ConsumerState.JOINING:
            # An empty target counts as well: the listener is called.
            self._move(ConsumerState.RECONCILING if target is not None else ConsumerState.STABLE)
        elif self.state is ConsumerState.STABLE and self._differs():
            self._move(ConsumerState.RECONCILING)
        if self.state is ConsumerState.RECONCILING:
            self.on_attention()

    def refused(
        self, attempt: int, now_ms: float, code: ErrorCode, message: str | None = None
    ) -> None:
        if not self._answered(attempt) or self.state not in _ACTIVE:
            return
        if code in _FENCED_CODES:
            self._fence()
        elif code in _PASSING_CODES:
            if code is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                self.needs_coordinator = True
            self._try_again(now_ms)
        elif code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            self._failure = Fail(code, message)
            self._try_again(now_ms)
            self.on_attention()
        elif code.retriable:
            self._try_again(now_ms)
        else:
            self._fail(code, message)

    def _join(self) -> None:
        self._move(ConsumerState.JOINING)
        self._forget_epoch()
        self._heartbeat_at_ms = 0.0
        self._not_before_ms = 0.0

    def _leave(self) -> None:
        static = self.group_instance_id is not None
        if self.state in _ACTIVE:
            self._leave_epoch = LEAVE_FOR_A_WHILE_EPOCH if static else LEAVE_EPOCH
        self._forget_epoch()

    def _forget_epoch(self) -> None:
        self.member_epoch = NO_GENERATION
        self._in_flight = self._owned_is_unanswered = False
        self._attempt += 1
        self._told = {}
        self._acknowledged = {}
        self._target = frozenset()

    def _fence(self) -> None:
        self._forget_epoch()
        self._move(ConsumerState.FENCED)
        self.on_attention()

    def _fail(self, code: ErrorCode, message: str | None) -> None:
        self._forget_epoch()
        if self.state is not ConsumerState.FATAL:
            self._move(ConsumerState.FATAL)
        self._failure = Fail(code, message)
        self.on_attention()

    def _reconciling_step(self) -> Step | None:
        """What brings the member closer to its target, None while that is not possible.

        New partitions wait while a heartbeat that says what is owned has no answer. What the
        coordinator has assigned, and the heartbeat does not name, counts as given back:

        1. m1 owns A; the target is A and B; a heartbeat that names A is under way.
        2. m2 joins: the coordinator wants B for m2. It reads the heartbeat, and B is free at once.
        3. m2 takes B. If m1 took B before it had the answer, both would consume it.
        """
        if self.state is not ConsumerState.RECONCILING:
            return None
        gone = frozenset(
            each
            for each, topic_id in self._owned_ids.items()
            if (topic_id, each.partition) not in self._target
        )
        if gone:
            return Revoke(gone)
        resolved = self._resolved()
        wanted = frozenset(resolved)
        new = wanted - self.owned
        if self._waits_for_names(wanted) or (new and self._owned_is_unanswered):
            return None
        return Assign(wanted, new, resolved)

    def _has_lost(self) -> bool:
        return self.state not in _ACTIVE

    def _own(self, partitions: Partitions, ids: Mapping[TopicPartition, UUID]) -> None:
        self.owned = partitions
        self._owned_ids = {each: ids[each] for each in partitions}

    def _resolved(self) -> dict[TopicPartition, UUID]:
        """The target, as far as the topics' names are known."""
        names = {topic_id: each.topic for each, topic_id in self._owned_ids.items()}
        found: dict[TopicPartition, UUID] = {}
        for topic_id, partition in self._target:
            name = names.get(topic_id) or self.name_of(topic_id)
            if name is not None:
                names[topic_id] = name
                found[TopicPartition(name, partition)] = topic_id
        return found

    def _waits_for_names(self, resolved: Partitions) -> bool:
        """Whether everything possible about the target is done and reported."""
        return (
            resolved == self.owned
            and self._unresolved()
            and self._acknowledged == self._owned_by_topic()
        )

    def _unresolved(self) -> bool:
        return len(self._resolved()) < len(self._target)

    def _differs(self) -> bool:
        return self._target != {
            (topic_id, each.partition) for each, topic_id in self._owned_ids.items()
        }

    def _owned_by_topic(self) -> dict[UUID, list[int]]:
        by_topic: dict[UUID, list[int]] = {}
        for each in sorted(self._owned_ids):
            by_topic.setdefault(self._owned_ids[each], []).append(each.partition)
        return by_topic

    def _try_again(self, now_ms: float) -> None:
        self._told = {}
        self._not_before_ms = now_ms + self.backoff.next_ms()
        self._heartbeat_at_ms = now_ms

    def _answered(self, attempt: int) -> bool:
        if attempt != self._attempt or not self._in_flight:
            return False
        self._in_flight = False
        return True

    def _move(self, state: ConsumerState) -> None:
        assert state is self.state or state in TRANSITIONS[self.state], f"{self.state} → {state}"
        self.state = state


def _topic_partitions(by_topic: object) -> list[TopicPartitions]:
    assert isinstance(by_topic, dict)
    return [
        TopicPartitions(topic_id=topic_id, partitions=partitions)
        for topic_id, partitions in by_topic.items()
    ]
