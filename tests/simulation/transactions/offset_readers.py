"""Consumers that ask where partitions begin and end, at both isolation levels, as restores do.

Owns: the consumer's questions for the earliest and latest offset and by timestamp, and what each
answer must agree with: the committed records, and what was answered before. Must not: choose whom a
consumer asks. Invariants: what is answered is committed, and for read_committed decided; the latest
offset of a partition never goes back, whichever leader answers (KIP-207); a leader that knows that
everything of the leaders before it is committed names an offset, whatever transactions are open;
a consumer reports what the leader has answered.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from moldau.client import Consumer
from moldau.client.errors import KafkaError
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p02_list_offsets import ListOffsetsRequest
from moldau.protocol.types import TopicPartition
from moldau.runtime.ports import Ports
from tests.kit.seeds import Violation
from tests.simulation.transactions.transactional_producer import keep_open
from tests.virtual.loop import Process, VirtualClock

if TYPE_CHECKING:
    from tests.simulation.replication.ledger import Key, PartitionTruth
    from tests.simulation.transactions.world import TransactionWorld

LATEST, EARLIEST = -1, -2
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
ISOLATION_LEVELS = (READ_COMMITTED, READ_UNCOMMITTED)
FIRST_WITH_OFFSET_NOT_AVAILABLE = 5
VERSIONS = (4, 5, 7, 11)
"""The newest that a reader's consumer may use."""

PATIENCE_MS = 2_000.0
RETRIED = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
    }
)
NOT_AVAILABLE = frozenset({ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.LEADER_NOT_AVAILABLE})


@dataclass(slots=True)
class Told:
    """The largest latest offset that was answered for a partition, and the leader epoch then."""

    offset: int = 0
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class Question:
    """One partition's question, and what was known when it was sent."""

    place: tuple[str, int]
    leader_epoch: int
    timestamp: int
    isolation_level: int
    who: str
    """The leader's process."""
    could_answer: bool
    """Whether that leader has a high watermark that passes where its epoch began."""
    high_watermark: int
    """That leader's own: one that was deposed and has not heard of it has an old one."""
    expected: int
    """The offset of a committed record that a search by time may not miss; -1 for no search."""
    before: Told

    def __str__(self) -> str:
        level = "committed" if self.isolation_level == READ_COMMITTED else "uncommitted"
        topic, index = self.place
        return (
            f"{topic}-{index} at {self.timestamp}, read_{level}, from {self.who} in epoch "
            f"{self.leader_epoch}"
        )


class OffsetReader:
    """One client that looks at its partitions again and again."""

    def __init__(
        self, world: TransactionWorld, number: int, random: Random, places: list[tuple[str, int]]
    ) -> None:
        self.world = world
        self.random = random
        self.places = places
        self.host = f"offset-reader-{number}"
        self.process = Process(world.loop, self.host)
        self._network = world.fabric.port_of(self.process, self.host)
        self._told: dict[tuple[tuple[str, int], int], Told] = {}
        self._turns: dict[tuple[str, int], asyncio.Lock] = {}
        self._expected: dict[tuple[tuple[str, int], int], int] = {}
        self._answers: dict[tuple[tuple[str, int], int], Any] = {}
        """What the leader has answered last, by place and isolation level."""
        self._consumers = {level: self._consumer(level) for level in ISOLATION_LEVELS}
        for place in places:
            self.process.spawn(self._run(place))

    def _consumer(self, isolation_level: int) -> Consumer[bytes, bytes]:
        world, random = self.world, self.random
        consumer: Consumer[bytes, bytes] = Consumer(
            ",".join(f"{host}:{port}" for _, host, port in world.broker_addresses),
            ports=Ports(VirtualClock(world.loop), self._network, Random(random.getrandbits(64))),
            isolation_level=("read_uncommitted", "read_committed")[isolation_level],
            request_timeout_ms=random.choice((600, 2_500)),
            retry_backoff_ms=random.choice((10, 100)),
            reconnect_backoff_max_ms=300,
            socket_connection_setup_timeout_ms=800,
            metadata_max_age_ms=2_000,
        )
        keep_open(consumer)
        ask = consumer._client.ask_node

        async def asking(node_id: int, request: Any, **options: Any) -> Any:
            if not isinstance(request, ListOffsetsRequest):
                return await ask(node_id, request, **options)
            questions = self._questions(node_id, request)
            version = random.choice(VERSIONS)
            response = await ask(node_id, request, versions=(1, version))
            for topic in response.topics:
                for answer in topic.partitions:
                    question = questions[(topic.name, answer.partition_index)]
                    world.guard(self._heard, question, answer, version)
            return response

        consumer._client.ask_node = asking  # type: ignore[method-assign, assignment]
        return consumer

    def told(self, place: tuple[str, int]) -> int:
        """The largest latest offset that it got for a partition, at either isolation level."""
        known = [self._told.get((place, level), Told()) for level in ISOLATION_LEVELS]
        return max(each.offset for each in known)

    async def _run(self, place: tuple[str, int]) -> None:
        while True:
            await self.world.loop.elapse(self.random.uniform(20.0, 400.0))
            await self._look(place)

    async def _look(self, place: tuple[str, int]) -> bool:
        """Both isolation levels, one after the other; False when something was not answered."""
        async with self._turns.setdefault(place, asyncio.Lock()):
            return await self._look_once(place)

    async def _look_once(self, place: tuple[str, int]) -> bool:
        earliest = await self._ask(place, EARLIEST, self.random.choice(ISOLATION_LEVELS))
        stable = await self._ask(place, LATEST, READ_COMMITTED)
        latest = await self._ask(place, LATEST, READ_UNCOMMITTED)
        by_time = await self._by_time(place)
        if earliest is None or stable is None or latest is None:
            return False
        if stable.leader_epoch == latest.leader_epoch and stable.offset > latest.offset:
            raise Violation("stable-above-latest", f"{place}: {stable}, then {latest}")
        return by_time

    async def _by_time(self, place: tuple[str, int]) -> bool:
        placed = self.world.data.stream(f"{place[0]}-{place[1]}").placed
        if not placed or self.world.data.is_spoilt:
            return True
        some = self.random.choice(placed)
        level = self.random.choice(ISOLATION_LEVELS)
        found = await self._ask(place, some.record.timestamp_ms, level, some.offset)
        return found is not None

    async def name_both_ends(self, place: tuple[str, int]) -> None:
        """When nothing is wrong any more every question has its answer. Raises Violation."""
        deadline = self.world.loop.time() + 20
        while not await self._look(place):
            if self.world.loop.time() > deadline:
                raise Violation("unlistable", f"{place}")

    # -- one question ----------------------------------------------------------------------------

    async def _ask(
        self, place: tuple[str, int], timestamp: int, isolation_level: int, expected: int = -1
    ) -> Any:
        """The leader's answer that the consumer reports; None for an error. Raises Violation."""
        consumer, partition = self._consumers[isolation_level], TopicPartition(*place)
        key = (place, isolation_level)
        self._expected[key] = expected
        self._answers.pop(key, None)
        try:
            if timestamp == LATEST:
                reported = (await consumer.end_offsets([partition], PATIENCE_MS))[partition]
            elif timestamp == EARLIEST:
                reported = (await consumer.beginning_offsets([partition], PATIENCE_MS))[partition]
            else:
                found = await consumer.offsets_for_times({partition: timestamp}, PATIENCE_MS)
                one = found[partition]
                reported = -1 if one is None else one.offset
        except KafkaError as error:
            self.world.counts[f"list {type(error).__name__} {error.code.name}"] += 1
            if error.code not in RETRIED:
                raise Violation("unexpected-error", f"{self.host}: {place}: {error!r}") from error
            return None
        answer = self._answers[key]
        if reported != answer.offset:
            raise Violation("reported-otherwise", f"{self.host}: {place}: {reported}, {answer}")
        return answer

    def _questions(
        self, node_id: int, request: ListOffsetsRequest
    ) -> dict[tuple[str, int], Question]:
        broker = self.world.brokers[node_id - 1]
        who = broker.name if broker.process is not None else ""
        questions = {}
        for topic in request.topics:
            for each in topic.partitions:
                place = (topic.name, each.partition_index)
                told = self._told.setdefault((place, request.isolation_level), Told())
                known = self._truth(place).high_watermarks
                epoch = each.current_leader_epoch
                data = self.world.data
                questions[place] = Question(
                    place,
                    epoch,
                    each.timestamp,
                    request.isolation_level,
                    who,
                    data.has_committed_its_past(self._key(place), who, epoch),
                    known.get((who, epoch), -1),
                    self._expected[(place, request.isolation_level)],
                    Told(told.offset, told.leader_epoch),
                )
        return questions

    def _heard(self, question: Question, answer: Any, version: int) -> None:
        error = ErrorCode.of(answer.error_code)
        if error is ErrorCode.NONE:
            self.world.counts["offsets_listed"] += 1
            self._answers[(question.place, question.isolation_level)] = answer
            self._check(question, answer)
            return
        self.world.counts[f"list {error.name}"] += 1
        if error not in RETRIED:
            raise Violation("unexpected-error", f"{self.host}: {error.name}, {question}")
        if error in NOT_AVAILABLE:
            self._check_excuse(question, error, version)

    # -- what an answer must agree with ----------------------------------------------------------

    def _check_excuse(self, question: Question, error: ErrorCode, version: int) -> None:
        """An offset is not available only until the epoch's beginning is committed (KIP-207)."""
        if (error is ErrorCode.LEADER_NOT_AVAILABLE) != (version < FIRST_WITH_OFFSET_NOT_AVAILABLE):
            raise Violation("unexpected-error", f"{error.name} in v{version}: {question}")
        self.world.counts["offsets_not_available"] += 1
        if question.could_answer:
            raise Violation("offset-not-available", f"{question}: its past is committed")

    def _check(self, question: Question, answer: Any) -> None:
        data, truth = self.world.data, self._truth(question.place)
        if data.is_spoilt or truth.lost:
            return
        if question.timestamp == EARLIEST:
            if answer.offset > truth.deleted_to:
                raise Violation("earliest-ahead", f"{question}: {answer}, {truth.deleted_to}")
        elif question.timestamp == LATEST:
            self._check_reach(question, truth, answer.offset)
            self._check_progress(question, answer)
        else:
            self._check_search(question, truth, answer)

    def _check_reach(self, question: Question, truth: PartitionTruth, end_offset: int) -> None:
        """What lies below is committed, and for read_committed decided."""
        if end_offset > truth.committed.end_offset:
            raise Violation(
                "listed-uncommitted",
                f"{question}: {end_offset}, committed up to {truth.committed.end_offset}",
            )
        if question.isolation_level != READ_COMMITTED:
            return
        stream = self.world.data.stream(truth.name)
        for producer_id, known in stream.open.items():
            first = known.first_offset
            if first < end_offset and stream.marker_after(producer_id, first) is None:
                raise Violation("listed-open", f"{question}: {end_offset}, open from {first}")

    def _check_progress(self, question: Question, answer: Any) -> None:
        """A leader of an older epoch may still tell what it knew."""
        before = question.before
        if answer.leader_epoch >= before.leader_epoch and answer.offset < before.offset:
            raise Violation(
                "listed-back", f"{question}: {answer.offset}, told before: {before.offset}"
            )
        told = self._told[(question.place, question.isolation_level)]
        if answer.leader_epoch >= told.leader_epoch and answer.offset >= told.offset:
            told.offset, told.leader_epoch = answer.offset, answer.leader_epoch

    def _check_search(self, question: Question, truth: PartitionTruth, answer: Any) -> None:
        """The first record so late that is committed, and for read_committed below what is open."""
        if answer.offset < 0:
            is_shown = question.isolation_level == READ_UNCOMMITTED and question.could_answer
            if is_shown and truth.deleted_to <= question.expected < question.high_watermark:
                raise Violation("not-found-by-time", f"{question}: {question.expected} is so late")
            self.world.counts["nothing_by_time"] += 1
            return
        self.world.counts["found_by_time"] += 1
        self._check_reach(question, truth, answer.offset + 1)
        if answer.timestamp < question.timestamp or answer.offset > question.expected:
            raise Violation("found-other-by-time", f"{question}: {answer}, {question.expected} is")
        stream = self.world.data.stream(truth.name)
        for placed in stream.between(truth.deleted_to, answer.offset):
            if placed.record.timestamp_ms >= question.timestamp:
                raise Violation("found-late-by-time", f"{question}: {answer}, {placed} is first")

    def _key(self, place: tuple[str, int]) -> Key:
        return (self.world.ledger.image.topics.topics_by_name[place[0]].topic_id, place[1])

    def _truth(self, place: tuple[str, int]) -> PartitionTruth:
        return self.world.data.truth(self._key(place))
