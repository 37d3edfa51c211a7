"""The product's producers: one configuration after the other, everything they report is compared.

Owns: what is sent, when, and with which settings. Must not: know how brokers or the producer work.
Invariants: a value names its record; every record that was handed over is decided when its producer
is closed; a producer that knows of no record that its leader has hears so from the ledger.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from itertools import chain
from random import Random
from typing import TYPE_CHECKING, Any

from moldau.client import Producer
from moldau.client.errors import BufferFull, KafkaError, RequestTimeout
from moldau.client.records import RecordMetadata
from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import decode_records
from tests.kit.seeds import Violation
from tests.simulation.clients import ClientHost
from tests.simulation.replication.record_ledger import Sent, Writer

if TYPE_CHECKING:
    from tests.simulation.replication.world import ReplicationWorld

KEYS = (None, b"key-0", b"key-1", b"", b"key-3")
BURSTS = (1, 1, 1, 2, 3, 6, 15)
CODECS = ("none", "none", "none", "gzip", "snappy", "lz4", "zstd")
UNLIMITED = None
CALM = {
    "delivery_timeout_ms": 20_000,
    "request_timeout_ms": 3_000,
    "max_block_ms": 20_000,
    "buffer_memory": 33_554_432,
    "retries": 2**31 - 1,
    "max_request_size": 1_048_576,
}
"""With these a producer has room, time and tries enough."""
CALM_ROUNDS = 8

LIFE_MS = (1_500.0, 20_000.0)
UNKNOWN_SEQUENCE = frozenset(
    {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID}
)


def choose_settings(random: Random) -> dict[str, Any]:
    """The settings of one producer; half of them are as idempotent as by default."""
    request_ms = random.choice((600, 1_500, 1_500, 3_000))
    linger_ms = random.choice((0, 0, 5, 5, 60, 400))
    settings: dict[str, Any] = {
        "linger_ms": linger_ms,
        "batch_size": random.choice((1, 300, 1_000, 16_384)),
        "buffer_memory": random.choice((4_000, 40_000, 33_554_432)),
        "max_request_size": random.choice((3_000, 1_048_576)),
        "compression_type": random.choice(CODECS),
        "max_in_flight_requests_per_connection": random.choice((1, 3, 5, 5)),
        "request_timeout_ms": request_ms,
        "delivery_timeout_ms": linger_ms + request_ms + random.choice((0, 500, 3_000, 12_000)),
        "max_block_ms": random.choice((200, 2_000, 6_000)),
        "metadata_max_age_ms": random.choice((300, 2_000, 300_000)),
        "retry_backoff_ms": random.choice((10, 100)),
        "retry_backoff_max_ms": random.choice((200, 1_000)),
        "reconnect_backoff_max_ms": random.choice((100, 1_000)),
        "socket_connection_setup_timeout_ms": random.choice((500, 2_000)),
        "connections_max_idle_ms": random.choice((500, 540_000, 540_000)),
        "partitioner_ignore_keys": random.random() < 0.2,
        "partitioner_adaptive_partitioning_enable": random.random() < 0.7,
        "partitioner_availability_timeout_ms": random.choice((0, 0, 300)),
        "metadata_recovery_rebootstrap_trigger_ms": random.choice((800, 300_000)),
    }
    if random.random() < 0.4:
        settings["enable_idempotence"] = False
        settings["acks"] = random.choice((0, 1, "all", "all"))
        settings["retries"] = random.choice((0, 2, 2**31 - 1))
    return settings


class ProducerClient(ClientHost):
    """A machine with one producer after the other, for some partitions."""

    world: ReplicationWorld

    def __init__(
        self, world: ReplicationWorld, number: int, random: Random, places: list[tuple[str, int]]
    ) -> None:
        super().__init__(world, f"producer-{number}", random)
        self.world = world
        self.records = world.data.records
        self.places = places
        self.pause_ms = random.choice((40.0, 120.0, 300.0))
        self.writer: Writer | None = None
        self.start()

    def __repr__(self) -> str:
        return f"{self.host}({self.writer})"

    @property
    def is_drained(self) -> bool:
        """Whether everything has been acknowledged or given up."""
        return self.writer is None or not self.writer.undecided

    def forget(self) -> None:
        super().forget()
        if self.writer is not None:
            self.records.abandoned(self.writer)
            self.writer = None

    async def live(self) -> None:
        """Live until it is killed; when nothing is to be sent any more it closes what it has."""
        number = 0
        while True:
            if self.world.producers_may_act:
                number += 1
                await self._use_one(f"{self.process.name}.{number}")
            await self.world.loop.elapse(self.random.expovariate(1 / self.pause_ms))

    def settings(self) -> dict[str, Any]:
        """The settings of the next producer."""
        return choose_settings(self.random)

    async def _use_one(self, name: str) -> None:
        world, random = self.world, self.random
        settings = self.settings()
        partitioner = random.choice((None, None, None, "murmur2", "random", "round_robin"))
        producer: Producer[bytes, bytes] = self.made(
            Producer(self.servers, ports=self.ports(), partitioner=partitioner, **settings)
        )
        config = producer.config
        self.writer = writer = Writer(
            name,
            config.required_acks,
            config.enable_idempotence,
            config.retries if "retries" in settings and config.retries < 3 else UNLIMITED,
        )
        self.records.writers.append(writer)
        world.note(f"{writer} {settings} {partitioner}")
        world.counts["producers"] += 1
        self._watch(producer, writer)
        until = world.loop.time() + random.uniform(*LIFE_MS) / 1000
        while world.producers_may_act and world.loop.time() < until:
            await world.loop.elapse(random.expovariate(1 / self.pause_ms))
            await self._act(producer, writer)
        timeout_ms = random.choice((None, None, 0.0, 300.0))
        if random.random() < 0.3:
            # What a cancelled close leaves undecided fails.
            await self.cut_short(producer.close(timeout_ms), random.uniform(0.0, 300.0))
        await producer.close(timeout_ms)
        await world.loop.elapse(1.0)  # for those who await a single record
        world.guard(self.records.ended, writer, f"close({timeout_ms})")
        world.counts["producers_closed"] += 1
        self.writer = None

    async def _act(self, producer: Producer[bytes, bytes], writer: Writer) -> None:
        dice = self.random.random()
        if dice < 0.04:
            await self._flush(producer, writer)
        elif dice < 0.06:
            await self.cut_short(self._flush(producer, writer), self.random.uniform(1.0, 300.0))
        elif dice < 0.08:
            with suppress(BufferFull):
                await producer.wait_for_room()
        elif self.world.producers_may_act:
            topic, index = self.random.choice(self.places)
            for _ in range(self.random.choice(BURSTS)):
                if self.random.random() < 0.2:
                    topic, index = self.random.choice(self.places)
                self._send(producer, writer, topic, index)

    async def _flush(self, producer: Producer[bytes, bytes], writer: Writer) -> None:
        before = [each for each in writer.undecided if not each.is_awaited]
        timeout_ms = self.random.choice((None, None, 20.0, 500.0))
        try:
            await producer.flush(timeout_ms)
        except RequestTimeout:
            assert timeout_ms is not None, "only a flush with a time limit runs out of time"
            return
        left = [each for each in before if not each.is_decided]
        if left:
            detail = f"{writer} after flush({timeout_ms}): {left[:3]}"
            self.world.violated("undecided", detail)

    def _record(
        self, producer: Producer[bytes, bytes], writer: Writer, topic: str, index: int
    ) -> tuple[Sent, dict[str, Any]]:
        """The next record, and the arguments of the call that sends it."""
        random, number = self.random, len(writer.sent)
        padding = b"." * random.choice((0, 0, 0, 0, 500))
        timestamp_ms = producer._clock.now_ms()
        sent = Sent(
            writer,
            number,
            topic,
            None if random.random() < 0.3 else index,
            random.choice(KEYS),
            f"{writer.name} {number}".encode() + padding,
            random.choice(((), (), (("h", b"1"), ("h", None), ("é", b"")))),
            timestamp_ms if random.random() < 0.8 else random.randrange(timestamp_ms),
        )
        self.records.handed_over(sent)
        arguments: dict[str, Any] = {
            "key": sent.key,
            "headers": sent.headers,
            "partition": sent.partition,
            "timestamp_ms": sent.timestamp_ms,
        }
        return sent, arguments

    def _send(
        self, producer: Producer[bytes, bytes], writer: Writer, topic: str, index: int
    ) -> None:
        """Without waiting, or by a task that waits and is perhaps cancelled."""
        if self.random.random() < 0.2:
            self.process.spawn(self._send_and_wait(producer, writer, topic, index))
            return
        sent, arguments = self._record(producer, writer, topic, index)
        decided = partial(self._decided, sent)
        try:
            producer.send_nowait(topic, sent.value, on_delivery=decided, **arguments)
        except BufferFull as error:
            self.world.guard(self.records.refused, sent, error)

    async def _send_and_wait(
        self, producer: Producer[bytes, bytes], writer: Writer, topic: str, index: int
    ) -> None:
        """A cancelled call says nothing about its record, and nothing else asks for it."""
        call = self._sent(producer, writer, topic, index)
        if self.random.random() < 0.7:
            await call
        else:
            await self.cut_short(call, self.random.uniform(0.0, 400.0))

    async def _sent(
        self, producer: Producer[bytes, bytes], writer: Writer, topic: str, index: int
    ) -> None:
        if not self.world.producers_may_act or self.writer is not writer:
            return
        sent, arguments = self._record(producer, writer, topic, index)
        sent.is_awaited = True
        try:
            metadata = await producer.send(topic, sent.value, **arguments)
        except BufferFull as error:
            self.world.guard(self.records.refused, sent, error)
        except KafkaError as error:
            self._decided(sent, None, error)
        except asyncio.CancelledError:
            sent.is_decided = True
            raise
        else:
            self._decided(sent, metadata, None)

    def _decided(
        self, sent: Sent, metadata: RecordMetadata | None, error: Exception | None
    ) -> None:
        if metadata is not None:
            self.world.guard(self.records.acknowledged, sent, metadata)
        else:
            assert error is not None
            self.world.guard(self.records.failed, sent, error)

    async def deliver(self) -> None:
        """When nothing is wrong any more, everything that is sent is acknowledged, whatever else a
        producer is configured with. Raises Violation.
        """
        settings = self.settings()
        settings.update(CALM)
        producer: Producer[bytes, bytes] = self.made(
            Producer(self.servers, ports=self.ports(), **settings)
        )
        config = producer.config
        name = f"{self.process.name}.calm"
        self.writer = writer = Writer(name, config.required_acks, config.enable_idempotence, None)
        self.records.writers.append(writer)
        self.world.note(f"{writer} {settings}")
        self._watch(producer, writer)
        for topic, index in self.places * CALM_ROUNDS:
            sent, arguments = self._record(producer, writer, topic, index)
            producer.send_nowait(
                topic, sent.value, on_delivery=partial(self._delivered, sent), **arguments
            )
        await producer.flush()
        self.world.guard(self.records.ended, writer, "flush()")
        await producer.close()
        self.writer = None

    def _delivered(
        self, sent: Sent, metadata: RecordMetadata | None, error: Exception | None
    ) -> None:
        self._decided(sent, metadata, error)
        if error is not None:
            self.world.violated("undelivered", f"{sent}: {error!r}")

    # -- what the producer does ------------------------------------------------------------------

    def _watch(self, producer: Producer[bytes, bytes], writer: Writer) -> None:
        """Look at every batch that goes out, and at every refusal before the producer does."""
        results, accumulator = producer._sender.results, producer._accumulator
        original, drain = results.refused, accumulator.drain
        take_answer = producer._sender._take_answer
        answering = -1
        epochs: dict[tuple[Any, int], int] = {}

        def forget() -> None:
            """Forget a topic that is deleted: a broker that lags behind may name a former
            leader.
            """
            known = {each.topic_id for each in producer._client.metadata.topics.values()}
            for place in [each for each in epochs if each[0] not in known]:
                del epochs[place]

        producer._client.updates.on_update(forget)

        def drained(*arguments: Any) -> list[Any]:
            batches = drain(*arguments)
            for batch in batches:
                self.world.guard(self._check_leader, producer, epochs, batch)
            return batches

        accumulator.drain = drained  # type: ignore[method-assign]

        def refused(batch: Any, code: ErrorCode, message: Any, now_ms: float, **more: Any) -> None:
            self.world.counts[f"produce {code.name}"] += 1
            if code in UNKNOWN_SEQUENCE and writer.is_idempotent:
                queue = producer._accumulator.queue_of(batch)
                if queue.outstanding[0] is batch and not queue.is_broken:
                    self.world.guard(self._lost_sequence, answering, batch, queue, code)
            original(batch, code, message, now_ms, **more)

        def taken(node_id: int, *arguments: Any) -> None:
            nonlocal answering
            answering = node_id
            take_answer(node_id, *arguments)

        results.refused = refused  # type: ignore[method-assign]
        producer._sender._take_answer = taken  # type: ignore[method-assign]

    def _check_leader(
        self, producer: Producer[bytes, bytes], epochs: dict[tuple[Any, int], int], batch: Any
    ) -> None:
        """A batch goes to the newest leader that the producer has heard of (KIP-320, KIP-951)."""
        topic = producer._client.metadata.topics.get(batch.topic)
        known = None if topic is None else topic.partitions.get(batch.partition)
        if topic is None or known is None:
            return
        place, epoch = (topic.topic_id, batch.partition), batch.sent_leader_epoch
        what = f"{self.writer}: {batch.topic}-{batch.partition} in epoch {epoch}"
        if epoch < known.leader_epoch:
            raise Violation("sent-to-former-leader", f"{what}, known is {known}")
        if epoch < epochs.get(place, -1):
            raise Violation("leader-epoch-back", f"{what} after {epochs[place]}")
        epochs[place] = epoch

    def _lost_sequence(self, broker_id: int, batch: Any, queue: Any, code: ErrorCode) -> None:
        """The leader does not know what it has acknowledged: lawful only after a loss, or when it
        has the batch itself, or had it until records were deleted. Kafka's snapshots of producers
        hold the last batch of each: who starts from one does not know older batches of a window
        again, and may only refuse them. They are sent again under another epoch, as by Kafka's
        producer. A batch that only another leader has was refused by one that leads no more.
        """
        data = self.world.data
        name = f"{batch.topic}-{batch.partition}"
        truths = [each for each in data.partitions.values() if each.name == name]
        producer_id, sequence = batch.pair.producer_id, batch.base_sequence
        is_there = any(
            (each.producer_id, each.base_sequence) == (producer_id, sequence)
            for truth in truths
            for each in chain(
                truth.replicas[broker_id].batches if broker_id in truth.replicas else (),
                (each for each, _ in truth.written.values() if each.last_offset < truth.deleted_to),
            )
        )
        if is_there:
            self.world.counts["window_forgotten"] += 1
            for each in queue.outstanding:
                self.records.resent(record.value or b"" for record in decode_records(each.encoded))
        elif queue.confirmed_sequence != sequence:
            self.world.counts["behind_what_was_given_up"] += 1
        elif not any(truth.lost or truth.allows_unclean for truth in truths):
            raise Violation("sequence-lost", f"{self.writer}, {name}: {code.name}")
