"""Plays one sequence to both clusters, step by step, and compares what comes back.

Owns: the order of requests, and when an answer counts as one that waits for other members. Must
not: judge differences. Invariant: no step is sent before both clusters have dealt with the one
before; what is compared at a step does not depend on time.

An answer waits when it is not there after three questions, one after the other, on another
connection. That is certain for brokers that take requests in one order, as both do here: with one
network and one request thread Apache Kafka has read the request when the first question is
answered, has decided about it at the second, and has written its answer at the third.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from moldau.protocol.headers import decode_response
from moldau.protocol.messages.consumer_protocol import ConsumerProtocolAssignment
from moldau.protocol.messages.p08_offset_commit import OffsetCommitRequest
from moldau.protocol.messages.p15_describe_groups import DescribeGroupsRequest
from moldau.protocol.messages.p68_consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from moldau.protocol.messages.p69_consumer_group_describe import ConsumerGroupDescribeRequest
from tests.interop.differential.asking import CLOSED, Node, build
from tests.interop.differential.comparing import Divergence, compare, normalise
from tests.interop.differential.differences import DifferenceList
from tests.interop.differential.groups.consumer_steps import PATTERN_VERSION
from tests.interop.differential.groups.sequences import Group, Memory, Sequence, Step, learn
from tests.interop.differential.groups.wire import Connection

QUESTIONS: Final = 3
ANSWER_DEADLINE_S: Final = 10.0
"""A request that must be answered, and is not until then, counts as one that waits."""

OUR_LOOK_UPS: Final = 2
LOOK_UP_DEADLINE_S: Final = 900.0
"""More than a machine with much else to do needs."""

LOOKED_UP_EPOCH: Final = 2
"""The epoch of a new group whose only member subscribes by a pattern, when its topics are known."""

NUDGE_VERSION: Final = 9
READING: Final = (ApiKey.DESCRIBE_GROUPS, ApiKey.CONSUMER_GROUP_DESCRIBE)
QUESTION_VERSION: Final = 5
DESCRIBE_VERSION: Final = 1
UNSEEN: Final = "an unseen member"
"""Stands for an id that a cluster made for a member whose JoinGroup has no answer yet."""

_MADE_ID: Final = re.compile(rb"(?:c\d|i\d|)-[0-9a-f]{8}-[0-9a-f-]{27}")
REBALANCING: Final = ("PreparingRebalance", "CompletingRebalance")
CLASSIC: Final = ("Stable", *REBALANCING)
ALL_BUT_ONE_CLASSIC: Final = ("consumer group of 2, 1 classic", "consumer group of 3, 2 classic")
ALL_OTHERS_CLASSIC: Final = ("consumer group of 1, 0 classic", *ALL_BUT_ONE_CLASSIC)
SKIP_ASSIGNMENT_VERSION: Final = 9
"""The version of JoinGroup from which on an answer can tell a leader to assign nothing
(KIP-814).
"""

EMPTY_CONSUMER_GROUP: Final = "consumer group of 0, 0 classic"
ANSWERED: Final = "answered"
ASSIGNMENTS: Final = ("assignment", "member_assignment")
TEACHING: Final = (ApiKey.JOIN_GROUP, ApiKey.CONSUMER_GROUP_HEARTBEAT)
"""Whose answers clients remember."""


@dataclass
class Side:
    """One cluster, with the connections that no sequence uses at the moment."""

    name: str
    bootstrap: str
    topic_ids: Mapping[str, UUID]
    free: list[Connection] = field(default_factory=list)

    async def connection(self) -> Connection:
        """One that is open and waits for nothing."""
        while self.free:
            connection = self.free.pop()
            if connection.is_open:
                return connection
        return await Connection.open(self.bootstrap)

    def close(self) -> None:
        """End those that are free."""
        while self.free:
            self.free.pop().abort()


@dataclass(frozen=True)
class Failure:
    """Where the two clusters first differed.

    Attributes:
        number: the step whose answer differs.
        at: the step that was being played, a later one for an answer that waited.
        has_made_ids: whether a cluster made up ids of members.
        case: the step's kind and, of a JoinGroup, the state of the group before it.
    """

    sequence: Sequence
    number: int
    at: int
    case: str
    has_made_ids: bool
    found: tuple[Divergence, ...]

    @property
    def kind(self) -> tuple[str, ...]:
        """The same for failures that are probably the same."""
        step, first = self.sequence.steps[self.number], self.found[0]
        return tuple(_general(each) for each in (step.api, *first))

    def __str__(self) -> str:
        lines = [
            f"{'>' if number == self.number else ' '} {number:2} {step}"
            for number, step in enumerate(self.sequence.steps[: self.at + 1])
        ]
        lines.append(f"   {self.case}")
        lines += [f"   {each.path}: ours {each.ours}, Kafka's {each.kafka}" for each in self.found]
        return "\n".join(lines)


def _general(text: str) -> str:
    for pattern, word in _PARTICULARS:
        text = pattern.sub(word, text)
    return text


_PARTICULARS: Final = (
    (
        re.compile(
            r"the member of step \d+( again \d)?|\bm\d\b|an unseen member of \S*( again \d)?"
        ),
        "member",
    ),
    (re.compile(r"(id of )?\b(alpha|alpine|beta)\b"), "topic"),
    (re.compile(r"s\d+(-again)?-g"), "group"),
    (re.compile(r"b'.+'"), "bytes"),
    (re.compile(r"\[[\d, ]+\]"), "some"),
)


@dataclass
class Outcome:
    """What came of one sequence.

    Attributes:
        cut: why the rest cannot be compared, as the list says it; empty when it was.
        different: the steps whose answers differed, also those that the list excuses.
    """

    request_count: int = 0
    failure: Failure | None = None
    cut: str = ""
    different: set[int] = field(default_factory=set)


class _Player:
    """A sequence on one side."""

    def __init__(self, side: Side, prefix: str) -> None:
        self.side = side
        self.wheres: dict[int, str] = {}
        self.history: list[str] = []
        self.memory = Memory(prefix, side.topic_ids)
        self.group_id = Group().resolve(self.memory)
        self.node = Node(side.name, side.bootstrap, self.memory.names, dict(side.topic_ids))
        self._nudge = build(
            OffsetCommitRequest,
            group_id="nudge",
            topics=[{"name": "alpha", "partitions": [{"partition_index": 0}]}],
        )
        self._question = DescribeGroupsRequest(groups=[self.group_id])
        self._asking: Connection | None = None
        self._pending: dict[int, tuple[asyncio.Future[bytes], Connection]] = {}
        self._throttled: set[int] = set()
        self._is_committed = False
        self._is_downgrading = False

    async def show_everything(self) -> None:
        """Have a record committed after all that was sent: Apache Kafka shows what is committed, a
        group too that it has made without a record.
        """
        if not self._is_committed:
            await self._ask(self._nudge, NUDGE_VERSION)
            self._is_committed = True

    async def answers_at_once(self, step: Step) -> bool:
        """Whether the answer to the step's request waits for no other member's."""
        if step.api_key is ApiKey.JOIN_GROUP:
            # Alone in its group it is answered when the first rebalance ends, right away.
            return await self._state() in ("Empty", "Dead")
        return not step.may_wait

    async def send(self, number: int, step: Step) -> None:
        """Send a step's request."""
        self._is_committed = self._is_committed and step.api_key in READING
        connection = await self.side.connection()
        future = connection.ask(step.request(self.memory), step.api_version, f"c{step.actor}")
        self._pending[number] = future, connection
        if step.fields.get("subscribed_topic_regex"):
            self._throttled.add(number)

    async def look(self, number: int, step: Step) -> None:
        """Note what group a member is about to join or tell something to, for the list."""
        if step.api_key is ApiKey.HEARTBEAT:
            if (await self._described()).group_state == "Assigning":
                self.history.append("after a Heartbeat of a classic member while assigning")
            return
        if step.api_key not in TEACHING:
            return
        where = await self._state()
        if where == "Dead":
            group = await self._described()
            where = _where(group)
            request: Any = step.request(self.memory)
            if step.api_key is ApiKey.CONSUMER_GROUP_HEARTBEAT and any(
                each.member_id == request.member_id
                and request.instance_id not in (None, each.instance_id)
                for each in group.members
            ):
                self.history.append("after a member took another instance id")
        fields = step.fields
        if fields.get("subscribed_topic_regex") and not fields.get("subscribed_topic_names"):
            self.history.append("after a subscription by pattern alone")
        if step.api_key is ApiKey.CONSUMER_GROUP_HEARTBEAT and where in CLASSIC:
            within = " within a rebalance" if where in REBALANCING else ""
            self.history.append(f"after an upgrade{within}")
        if step.api_key is ApiKey.JOIN_GROUP:
            self.wheres[number] = where
            if where.startswith("consumer group"):
                self.history.append("after a JoinGroup to a consumer group")
            names = [each["name"] for each in fields["protocols"]]
            if len(set(names)) < len(names):
                self.history.append("after a protocol named twice")
            if where in ALL_BUT_ONE_CLASSIC and fields.get("group_instance_id"):
                self.history.append("after a downgrade by a JoinGroup")
            self._is_downgrading = (
                where in ALL_OTHERS_CLASSIC and fields.get("group_instance_id") is not None
            )
            if where == EMPTY_CONSUMER_GROUP:
                self.history.append("after a JoinGroup to an empty consumer group")

    def note(self, step: Step, answer: Any) -> None:
        """Note what an answer did to the group, for the list."""
        is_turned_away = answer.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
        if step.api_key is ApiKey.JOIN_GROUP and step.fields.get("member_id") and is_turned_away:
            self.history.append("after a member was turned away")
        if step.api_key is ApiKey.JOIN_GROUP and self._is_downgrading:
            is_told = step.api_version >= SKIP_ASSIGNMENT_VERSION
            if answer.error_code == ErrorCode.NONE and not is_told:
                self.history.append("after a downgrade that cannot tell the leader")
            self._is_downgrading = False

    def case(self, number: int, step: Step) -> str:
        """How the list names an answer."""
        where = [self.wheres[number]] if number in self.wheres else []
        return ", ".join([step.label, *where, *self.history])

    async def answers(self, number: int, *, waits: bool) -> dict[int, bytes]:
        """The answers that have come when the cluster has dealt with the step.

        Args:
            waits: whether the step's own answer may wait for requests of other members.
        """
        pending = self._pending
        if not waits:
            await asyncio.wait([pending[number][0]], timeout=ANSWER_DEADLINE_S)
        for _ in range(QUESTIONS):
            if all(future.done() for future, _ in pending.values()):
                break
            await self._ask(self._question, QUESTION_VERSION)
        there = {each: future for each, (future, _) in pending.items() if future.done()}
        for each in there:
            connection = pending.pop(each)[1]
            if each in self._throttled:
                # Ours may not read it for a while: the next request would be late, as if it waited.
                connection.abort()
            else:
                self.side.free.append(connection)
        return {each: future.result() for each, future in there.items()}

    async def patterns_looked_up(self, number: int, look_ups: int) -> None:
        """Wait until the topics are known that the group's members subscribe to by pattern.

        Both look them up in the background, Apache Kafka one after the other, ours in slices by
        turns. So those of groups of its own, which are asked to do so later, are known later.

        Args:
            look_ups: how many of them; ours are more, in case a slice ends before its look-up.
        """
        for turn in range(look_ups):
            group_id = f"{self.group_id}-{number}-{turn}"
            joining = build(
                ConsumerGroupHeartbeatRequest,
                group_id=group_id,
                member_id="m",
                rebalance_timeout_ms=60_000,
                subscribed_topic_regex="alpha",
                topic_partitions=[],
            )
            await self._ask(joining, PATTERN_VERSION)
            async with asyncio.timeout(LOOK_UP_DEADLINE_S):
                while (await self._described(group_id)).group_epoch < LOOKED_UP_EPOCH:
                    pass

    def forget(self, number: int) -> None:
        """Wait no more for the answer to step `number` if it is not there: there will be none."""
        if number in self._pending:
            self._pending.pop(number)[1].abort()

    def close(self) -> None:
        """Keep the connections that can serve another sequence."""
        for _, connection in self._pending.values():
            connection.abort()
        if self._asking is not None:
            self.side.free.append(self._asking)

    async def _state(self) -> str:
        frame = await self._ask(self._question, QUESTION_VERSION)
        answer: Any = decode_response(self._question.API_KEY, QUESTION_VERSION, frame)[1]
        return str(answer.groups[0].group_state)

    async def _described(self, group_id: str = "") -> Any:
        request = ConsumerGroupDescribeRequest(group_ids=[group_id or self.group_id])
        frame = await self._ask(request, DESCRIBE_VERSION)
        answer: Any = decode_response(request.API_KEY, DESCRIBE_VERSION, frame)[1]
        return answer.groups[0]

    async def _ask(self, request: Any, api_version: int) -> bytes:
        if self._asking is None:
            self._asking = await self.side.connection()
        return await self._asking.ask(request, api_version)


def _where(group: Any) -> str:
    """The number of a consumer group's members and how many of them are classic."""
    if group.error_code != ErrorCode.NONE:
        return "no group"
    classic_count = sum(not each.member_type for each in group.members)
    return f"consumer group of {len(group.members)}, {classic_count} classic"


Trace = Callable[[int, tuple[Any, ...]], None]


def _silent(_number: int, _answers: tuple[Any, ...]) -> None:
    """Traces nothing."""


async def play(
    sequence: Sequence,
    prefix: str,
    sides: Iterable[Side],
    differences: DifferenceList,
    trace: Trace = _silent,
) -> Outcome:
    """Play a sequence on both sides, ours first, up to the first difference.

    Where the two differ, the sequence is played once more, with looks at its group before the
    steps whose rows of the list are about the group's state: most sequences need none of them.

    Args:
        prefix: of group names; no other sequence may have had it.
        trace: is called with a step's number and what both answered.
    """
    both = tuple(sides)
    plain = Outcome()
    if trace is _silent:
        plain = await _Round(sequence, prefix, both, None, trace).play()
        if plain.failure is None:
            return plain
    outcome = await _Round(sequence, f"{prefix}-again", both, differences, trace).play()
    if (
        outcome.failure is None
        and plain.failure is not None
        and plain.failure.number not in outcome.different
    ):
        outcome.failure, outcome.cut = plain.failure, ""
    return outcome


class _Round:
    """One time that a sequence is played.

    Args:
        differences: the list; None to end at the first difference, whatever it is.
    """

    def __init__(
        self,
        sequence: Sequence,
        prefix: str,
        sides: tuple[Side, ...],
        differences: DifferenceList | None,
        trace: Trace,
    ) -> None:
        self._sequence = sequence
        self._ours, self._kafka = (_Player(side, prefix) for side in sides)
        self._differences = differences
        self._trace = trace
        self._outcome = Outcome()

    async def play(self) -> Outcome:
        """Play it to its end, or to the first difference that ends it."""
        try:
            for number, step in enumerate(self._sequence.steps):
                await self._step(number, step)
                if self._outcome.failure is not None or self._outcome.cut:
                    break
        finally:
            self._ours.close()
            self._kafka.close()
        return self._outcome

    async def _step(self, number: int, step: Step) -> None:
        ours, kafka = self._ours, self._kafka
        if self._differences is not None:
            await kafka.look(number, step)
        if step.api_key in READING:
            await kafka.show_everything()
        waits = not await kafka.answers_at_once(step)
        await ours.send(number, step)
        await kafka.send(number, step)
        both = (
            await ours.answers(number, waits=waits),
            await kafka.answers(number, waits=waits),
        )
        self._outcome.request_count += 1
        for answered in sorted({*both[0], *both[1]}):
            found = _compared(self._sequence, answered, ours, kafka, *both, self._trace)
            if answered != number and found[:1] and found[0].path == ANSWERED:
                found = [found[0]._replace(path=f"{ANSWERED} later")]
            if found:
                self._judge(answered, number, found)
                if self._outcome.failure is not None or self._outcome.cut:
                    return
        if step.fields.get("subscribed_topic_regex"):
            await ours.patterns_looked_up(number, OUR_LOOK_UPS)
            await kafka.patterns_looked_up(number, 1)

    def _judge(self, answered: int, number: int, found: list[Divergence]) -> None:
        """Note what a difference means."""
        sequence, kafka = self._sequence, self._kafka
        self._outcome.different.add(answered)
        named = sequence.steps[answered]
        case = kafka.case(answered, named)
        left = found
        if self._differences is not None:
            self._outcome.cut = self._differences.end(named.api, case, found)
            if self._outcome.cut:
                return
            left = self._differences.unexplained(named.api, case, found)
            for player in (self._ours, kafka):
                player.forget(answered)
        if left:
            self._outcome.failure = Failure(
                sequence, answered, number, case, bool(kafka.memory.names), tuple(left)
            )


def _compared(
    sequence: Sequence,
    number: int,
    ours: _Player,
    kafka: _Player,
    our_frames: Mapping[int, bytes],
    kafka_frames: Mapping[int, bytes],
    trace: Trace,
) -> list[Divergence]:
    if number not in our_frames or number not in kafka_frames:
        return [Divergence(ANSWERED, str(number in our_frames), str(number in kafka_frames))]
    step = sequence.steps[number]
    our_frame, kafka_frame = our_frames[number], kafka_frames[number]
    answers: list[Any] = []
    if step.api_key in TEACHING:
        answers = _decoded(step, our_frame, kafka_frame)
        for player, answer in zip((ours, kafka), answers, strict=True):
            if answer is not CLOSED:
                learn(player.memory, number, step, answer)
                player.note(step, answer)
    is_traced = trace is not _silent
    if not is_traced and our_frame[4:] == _in_our_words(kafka_frame[4:], ours, kafka):
        return []
    answers = answers or _decoded(step, our_frame, kafka_frame)
    for player, frame in ((ours, our_frame), (kafka, kafka_frame)):
        unseen = {
            each.decode(): f"{UNSEEN} of {each.decode().partition('-')[0]}"
            for each in _MADE_ID.findall(frame)
        }
        player.node.aliases = unseen | player.memory.names
    plain = tuple(
        _with_readable_assignments(normalise(answer, player.node))
        for answer, player in zip(answers, (ours, kafka), strict=True)
    )
    if step.api_key is ApiKey.CONSUMER_GROUP_HEARTBEAT:
        for each in plain:
            each.pop("throttle_time_ms", None)  # Ours goes by how long an expression compiles.
    trace(number, plain)
    return compare(*plain)


def _with_readable_assignments(value: Any) -> Any:
    """The same, with what classic members were assigned as topics and sorted partitions."""
    if not isinstance(value, dict):
        return value
    return {
        name: _readable(each)
        if name in ASSIGNMENTS and isinstance(each, bytes)
        else _with_readable_assignments(each)
        for name, each in value.items()
    }


def _readable(assignment: bytes) -> Any:
    try:
        version = int.from_bytes(assignment[:2], signed=True)
        decoded, end = ConsumerProtocolAssignment.decode(assignment, version, 2)
    except (RemoteProtocolError, LocalProtocolError):
        return assignment
    if end != len(assignment):
        return assignment
    topics = {each.topic: sorted(each.partitions) for each in decoded.assigned_partitions}
    return {"version": version, "topics": topics, "user data": decoded.user_data}


def _decoded(step: Step, *frames: bytes) -> list[Any]:
    return [
        decode_response(step.api_key, step.api_version, frame)[1] if frame else CLOSED
        for frame in frames
    ]


def _in_our_words(frame: bytes, ours: _Player, kafka: _Player) -> bytes:
    """A frame of Apache Kafka's with our ids of topics and members in it."""
    for topic, topic_id in kafka.side.topic_ids.items():
        frame = frame.replace(topic_id.bytes, ours.side.topic_ids[topic].bytes)
    if kafka.memory.names:
        our_ids = {word: member_id for member_id, word in ours.memory.names.items()}
        for member_id, word in kafka.memory.names.items():
            if word in our_ids:
                frame = frame.replace(member_id.encode(), our_ids[word].encode())
    return frame
