"""The product's consumers: they read from leaders and followers, seek, pause, and ask for offsets.

Owns: what is read, when, and with which settings; where each reading stands. Must not: know how
brokers or the consumer work, or commit offsets. Invariants: a consumer is shown every committed
record behind its position, in order, once; the position moves otherwise only where records were
deleted or lawfully lost, or the topic is another one of its name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import UUID

from moldau.client import Consumer
from moldau.client.errors import (
    KafkaError,
    LogTruncated,
    NoOffsetForPartition,
    OffsetOutOfRange,
    RequestTimeout,
)
from moldau.protocol.types import TopicPartition
from tests.kit.seeds import Violation
from tests.simulation.clients import ClientHost, is_passing

if TYPE_CHECKING:
    from moldau.client.records import ConsumerRecord
    from tests.simulation.replication.ledger import PartitionTruth
    from tests.simulation.replication.world import ReplicationWorld

RESETS = ("earliest", "earliest", "latest", "none", "by_duration:PT1S")
LIFE_MS = (1_500.0, 30_000.0)
READ_ALL_S = 20.0

Found = Mapping[TopicPartition, "list[ConsumerRecord[bytes, bytes]]"]


def choose_settings(random: Random) -> dict[str, Any]:
    """The settings of one consumer."""
    return {
        "auto_offset_reset": random.choice(RESETS),
        "isolation_level": random.choice(("read_uncommitted", "read_committed")),
        "client_rack": random.choice(("", "rack-1", "rack-2", "rack-3")),
        "fetch_max_bytes": random.choice((1, 2_000, 1_000_000)),
        "max_partition_fetch_bytes": random.choice((1, 1_000, 1_048_576)),
        "fetch_min_bytes": random.choice((1, 1, 2_000)),
        "fetch_max_wait_ms": random.choice((10, 300, 500)),
        "max_poll_records": random.choice((1, 7, 500)),
        "request_timeout_ms": random.choice((600, 1_500, 3_000)),
        "default_api_timeout_ms": random.choice((600, 3_000, 8_000)),
        "metadata_max_age_ms": random.choice((300, 2_000, 300_000)),
        "retry_backoff_ms": random.choice((10, 100)),
        "retry_backoff_max_ms": random.choice((200, 1_000)),
        "reconnect_backoff_max_ms": random.choice((100, 1_000)),
        "socket_connection_setup_timeout_ms": random.choice((500, 2_000)),
        "connections_max_idle_ms": random.choice((500, 540_000, 540_000)),
    }


@dataclass(slots=True)
class Reading:
    """Where a consumer stands in a partition of the topic `topic_id`: behind what it was shown, or
    where it went.

    Attributes:
        position: None while it is not known.
        is_ambiguous: whether, when it came to stand there, the committed metadata or a broker took
            another topic for the one of this name.
    """

    topic_id: UUID | None = None
    position: int | None = None
    is_ambiguous: bool = False
    is_paused: bool = False


class ConsumerClient(ClientHost):
    """A machine with one consumer after the other, for some partitions."""

    def __init__(
        self,
        world: ReplicationWorld,
        number: int,
        random: Random,
        places: list[tuple[str, int]],
        **settings: Any,
    ) -> None:
        """`settings` are fixed, whatever is drawn."""
        super().__init__(world, f"consumer-{number}", random)
        self.world = world
        self.settings = settings
        self.places = [TopicPartition(*place) for place in places]
        self.pause_ms = random.choice((10.0, 50.0, 200.0))
        self.readings: dict[TopicPartition, Reading] = {}
        self.start()

    async def live(self) -> None:
        while True:
            await self._use_one()

    async def _use_one(self) -> None:
        world, random = self.world, self.random
        settings = {**choose_settings(random), **self.settings}
        world.note(f"{self.process.name} {settings}")
        world.counts["consumers"] += 1
        consumer: Consumer[bytes, bytes] = self.made(
            Consumer(self.servers, ports=self.ports(), **settings)
        )
        self.readings = {place: Reading() for place in self.places}
        consumer.assign(self.places)
        until = world.loop.time() + random.uniform(*LIFE_MS) / 1000
        actions = (
            *(self._poll,) * 30,
            *(
                self._poll_cut_short,
                self._poll_one,
                self._seek,
                self._go_to_an_end,
                self._pause,
                self._resume,
            ),
            *(self._ask_position, self._ask_for_ends, self._ask_for_times, self._assign),
        )
        while world.loop.time() < until:
            await world.loop.elapse(random.expovariate(1 / self.pause_ms))
            try:
                await random.choice(actions)(consumer)
            except KafkaError as error:
                world.guard(self._judge, error)
                if isinstance(error, NoOffsetForPartition | OffsetOutOfRange | LogTruncated):
                    self._begin_again(consumer)
        await consumer.close(random.choice((None, 0.0, 500.0)))
        world.counts["consumers_closed"] += 1

    # -- reading ---------------------------------------------------------------------------------

    async def _poll(self, consumer: Consumer[bytes, bytes]) -> None:
        limit = self.random.choice((None, None, 1, 5))
        found = await consumer.getmany(limit, self.random.choice((0, 0, 100, 400)))
        self.world.guard(self._take, consumer, found)

    async def _poll_cut_short(self, consumer: Consumer[bytes, bytes]) -> None:
        """What it was about to return, the next poll does."""
        await self.cut_short(self._poll(consumer), self.random.uniform(0.0, 200.0))

    async def _poll_one(self, consumer: Consumer[bytes, bytes]) -> None:
        """It waits as long as it takes, unless it is cancelled."""
        await self.cut_short(self._one(consumer), self.random.uniform(50.0, 500.0))

    async def _one(self, consumer: Consumer[bytes, bytes]) -> None:
        record = await consumer.getone()
        self.world.guard(self._take, consumer, {record.topic_partition: [record]})

    def _take(self, consumer: Consumer[bytes, bytes], found: Found) -> None:
        positions = consumer.positions()
        for place, records in found.items():
            reading, after = self.readings[place], positions.get(place)
            if reading.is_paused:
                raise Violation("read-while-paused", f"{self.host}: {place}")
            # None: behind these records the position was out of range, and is looked up now.
            topic_id = reading.topic_id if after is None else after.topic_id
            if topic_id is None:
                reading.position = None
                continue
            if topic_id != reading.topic_id:
                reading.topic_id, reading.position = topic_id, None
            key = (topic_id, place.partition)
            truth = self.world.data.truth(key)
            self._advance(truth, place, reading, records)
            if after is None:
                continue
            if self._passed_over(truth, key, reading, after.offset):
                raise Violation("position-ahead", f"{self.host}: {place} is at {after}: {reading}")
            self._stand(place, reading, after.offset)
            self._check_lag(consumer, place, truth, after.offset)

    def _advance(
        self,
        truth: PartitionTruth,
        place: TopicPartition,
        reading: Reading,
        records: list[ConsumerRecord[bytes, bytes]],
    ) -> None:
        assert reading.topic_id is not None
        key = (reading.topic_id, place.partition)
        for record in records:
            if (record.topic, record.partition) != place:
                raise Violation("read-elsewhere", f"{self.host}: {record} of {place}")
            self.world.data.records.on_read(self.host, key, record)
            position = reading.position
            if position is not None and not self._may_jump(truth, reading, position):
                what = f"{self.host}: {record.offset} of {truth.name} at {position}"
                if record.offset < position:
                    raise Violation("read-twice", what)
                missed = self._passed_over(truth, key, reading, record.offset)
                if missed:
                    raise Violation("consumer-gap", f"{what}, not {missed[:3]}")
            self._stand(place, reading, record.offset + 1)

    def _passed_over(
        self, truth: PartitionTruth, key: tuple[UUID, int], reading: Reading, end: int
    ) -> list[int]:
        """Records that going on from `end` would leave out; none where it may."""
        start = reading.position
        if start is None or self._may_jump(truth, reading, start):
            return []
        return self.world.data.records.offsets_in(truth, key, start, end)

    def _may_jump(self, truth: PartitionTruth, reading: Reading, position: int) -> bool:
        """Whether a position may be given up: records were lawfully lost, or those behind it have
        been deleted, or leaders may have been asked since for offsets of another topic: consumers
        ask by name, as Kafka's do.
        """
        may_be_lost = truth.lost or truth.allows_unclean or position < truth.deleted_to
        return bool(may_be_lost) or reading.is_ambiguous

    def _stand(self, place: TopicPartition, reading: Reading, position: int | None) -> None:
        reading.position = position
        reading.is_ambiguous = bool(self.world.topic_ids(place.topic) - {reading.topic_id})

    def _check_lag(
        self,
        consumer: Consumer[bytes, bytes],
        place: TopicPartition,
        truth: PartitionTruth,
        position: int,
    ) -> None:
        lag = consumer.lag(place)
        if lag is None or truth.lost or truth.allows_unclean:
            return
        if lag and position + lag > max(truth.committed.end_offset, truth.deleted_to):
            raise Violation(
                "lag-ahead",
                f"{self.host}: {lag} at {position} of {truth.name}, committed up to "
                f"{truth.committed.end_offset}",
            )

    # -- moving ----------------------------------------------------------------------------------

    def _some_place(self) -> TopicPartition:
        return self.random.choice(list(self.readings))

    def _truth_of(self, place: TopicPartition) -> PartitionTruth | None:
        topic = self.world.ledger.image.topics.topics_by_name.get(place.topic)
        return None if topic is None else self.world.data.truth((topic.topic_id, place.partition))

    async def _seek(self, consumer: Consumer[bytes, bytes]) -> None:
        place = self._some_place()
        truth = self._truth_of(place)
        if truth is not None:
            end = max(truth.committed.end_offset, truth.deleted_to)
            offset = self.random.randint(truth.deleted_to, end)
            self._go_to(consumer, place, offset)

    def _go_to(self, consumer: Consumer[bytes, bytes], place: TopicPartition, offset: int) -> None:
        """A seek is into the topic that the consumer takes for the one of this name. While it knows
        none, that can only be said where there has been no other one.
        """
        consumer.seek(place, offset)
        topic_id = consumer.positions()[place].topic_id
        if topic_id is None and place.topic not in self.world.ledger.deletions_asked:
            topic = self.world.ledger.image.topics.topics_by_name.get(place.topic)
            topic_id = None if topic is None else topic.topic_id
        reading = self.readings[place]
        reading.topic_id = topic_id
        self._stand(place, reading, None if topic_id is None else offset)

    async def _go_to_an_end(self, consumer: Consumer[bytes, bytes]) -> None:
        place = self._some_place()
        self._stand(place, self.readings[place], None)
        if self.random.random() < 0.5:
            await consumer.seek_to_beginning(place)
        else:
            await consumer.seek_to_end(place)

    async def _pause(self, consumer: Consumer[bytes, bytes]) -> None:
        place = self._some_place()
        consumer.pause(place)
        self.readings[place].is_paused = True

    async def _resume(self, consumer: Consumer[bytes, bytes]) -> None:
        for place in sorted(consumer.paused()):
            consumer.resume(place)
            self.readings[place].is_paused = False

    async def _assign(self, consumer: Consumer[bytes, bytes]) -> None:
        """Other partitions; those that stay keep their position, and stay paused."""
        chosen = self.random.sample(self.places, self.random.randint(1, len(self.places)))
        consumer.assign(chosen)
        known = self.readings
        self.readings = {place: known.get(place) or Reading() for place in chosen}

    def _begin_again(self, consumer: Consumer[bytes, bytes]) -> None:
        """Without `auto.offset.reset` the application says where reading goes on."""
        for place in self.readings:
            truth = self._truth_of(place)
            self._go_to(consumer, place, 0 if truth is None else truth.deleted_to)

    def _judge(self, error: KafkaError) -> None:
        """What may be raised: what faults lead to, and lost positions where that is lawful."""
        self.world.counts[f"consumer {type(error).__name__} {error.code.name}"] += 1
        lost: dict[TopicPartition, int] = getattr(error, "positions", {})
        if isinstance(error, LogTruncated):
            lost = {error.topic_partition: error.position}
        for place, position in lost.items():
            reading = self.readings.get(place)
            if reading is None or reading.topic_id is None:
                continue
            truth = self.world.data.truth((reading.topic_id, place.partition))
            # What was deleted and then lost with the unflushed tail leaves no trace of its epoch.
            if position == truth.deleted_to or self._may_jump(truth, reading, position):
                continue
            kind = "consumer-truncated" if isinstance(error, LogTruncated) else "offset-lost"
            raise Violation(kind, f"{self.host}, {place} {reading}: {error}")
        if not (lost or isinstance(error, NoOffsetForPartition) or is_passing(error)):
            raise Violation("unexpected-error", f"{self.host}: {error!r}")

    # -- asking ----------------------------------------------------------------------------------

    async def _ask_position(self, consumer: Consumer[bytes, bytes]) -> None:
        place = self._some_place()
        told = await consumer.position(place)
        self.world.guard(self._check_position, place, told)

    def _check_position(self, place: TopicPartition, told: int) -> None:
        reading = self.readings[place]
        topic_id, position = reading.topic_id, reading.position
        if topic_id is None or position is None:
            return
        key = (topic_id, place.partition)
        truth = self.world.data.truth(key)
        is_back = told < position and not self._may_jump(truth, reading, position)
        if is_back or self._passed_over(truth, key, reading, told):
            raise Violation("position-moved", f"{self.host}: {place} is at {told}, not {reading}")

    async def _ask_for_ends(self, consumer: Consumer[bytes, bytes]) -> None:
        place = self._some_place()
        truth, meant = self._truth_of(place), self.world.topic_ids(place.topic)
        first = (await consumer.beginning_offsets([place]))[place]
        end = (await consumer.end_offsets([place]))[place]
        if truth is None or not self._is_about(truth, place, meant):
            return
        self.world.counts["ends_asked"] += 1
        if first > truth.deleted_to or end > max(truth.committed.end_offset, truth.deleted_to):
            detail = f"{self.host}: {first} to {end} of {truth.name}, not {truth.committed}"
            self.world.violated("ends-ahead", detail)

    async def _ask_for_times(self, consumer: Consumer[bytes, bytes]) -> None:
        place = self._some_place()
        truth, meant = self._truth_of(place), self.world.topic_ids(place.topic)
        time_ms = self.world.clock.now_ms() - self.random.randrange(5_000)
        found = (await consumer.offsets_for_times({place: time_ms}))[place]
        if truth is not None and found is not None and self._is_about(truth, place, meant):
            self.world.counts["times_asked"] += 1
            if found.timestamp_ms < time_ms or found.offset >= truth.committed.end_offset:
                self.world.violated("found-early", f"{found} of {truth.name} at {time_ms}")

    def _is_about(self, truth: PartitionTruth, place: TopicPartition, meant: set[UUID]) -> bool:
        """Whether an answer is about this partition, and what is promised of it holds. `meant`:
        the topics of its name when the question was asked. Consumers ask by name, as Kafka's do:
        a leader that has not heard that the topic was deleted speaks of that one.
        """
        is_one = len(meant | self.world.topic_ids(place.topic)) == 1
        return is_one and not (truth.lost or truth.allows_unclean)

    # -- at the end ------------------------------------------------------------------------------

    async def read_all(self, topic: str, index: int) -> tuple[set[int], int]:
        """The offsets of everything from the beginning to the high watermark of now, read by a
        consumer that begins with it, and the high watermark. Raises Violation.
        """
        place = TopicPartition(topic, index)
        topic_id = self.world.ledger.image.topics.topics_by_name[topic].topic_id
        truth = self.world.data.truth((topic_id, index))
        wanted = truth.committed.end_offset
        deadline = self.world.loop.time() + READ_ALL_S
        read: set[int] = set()
        settings = {**choose_settings(self.random), "auto_offset_reset": "earliest"}
        settings.update(client_rack="", fetch_min_bytes=1, isolation_level="read_uncommitted")
        consumer: Consumer[bytes, bytes] = self.made(
            Consumer(self.servers, ports=self.ports(), **settings)
        )
        reading, position = Reading(topic_id), 0
        consumer.assign([place])
        while position < wanted:
            if self.world.loop.time() > deadline:
                raise Violation("unreadable", f"{truth.name} ends at {position}, not at {wanted}")
            records = (await consumer.getmany(None, 300)).get(place, [])
            self.world.guard(self._advance, truth, place, reading, records)
            read.update(record.offset for record in records)
            # The time limit of its calls may be short; that of this reading counts.
            with contextlib.suppress(RequestTimeout):
                position = await consumer.position(place)
        await consumer.close()
        return read, wanted
