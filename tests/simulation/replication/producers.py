"""Simulated producers: idempotent and not, with every kind of acknowledgement.

Owns: what was sent, in which order, and what was acknowledged. Must not: know how brokers work.
Invariant: a value names its producer, its partition and its place in the order; an idempotent
producer keeps the order of its batches through every retry. When another topic has the name, what
was not acknowledged goes to it under a fresh producer id.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from itertools import chain
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import UUID

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p00_produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from moldau.protocol.messages.p22_init_producer_id import InitProducerIdRequest
from moldau.protocol.records import Record, encode_batch, increment_sequence, read_batch_header
from moldau.protocol.types import ZERO_UUID
from tests.kit.seeds import Violation
from tests.simulation.replication.cluster_link import NO_ANSWER, ClusterLink
from tests.virtual.loop import Process

if TYPE_CHECKING:
    from tests.simulation.replication.world import ReplicationWorld

ALL = -1
PRODUCE_TIMEOUT_MS = 1_500
KEYS = 3
RETRIED = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
    }
)
UNKNOWN_SEQUENCE = frozenset(
    {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID}
)


@dataclass(slots=True, eq=False)
class Outgoing:
    """A batch until it is acknowledged or given up."""

    first_number: int
    count: int
    data: bytes = b""
    crc: int = 0


class Line:
    """One producer's way to one partition: numbers, sequences, and what is not acknowledged."""

    def __init__(self, topic: str, index: int) -> None:
        self.topic = topic
        self.index = index
        self.topic_id: UUID | None = None
        """The topic that the window's batches are sent to."""
        self.next_number = 0
        self.window: deque[Outgoing] = deque()
        self.producer_id = -1
        self.producer_epoch = -1
        self.next_sequence = 0


class SimulatedProducer:
    """One client that writes to a few partitions."""

    def __init__(
        self,
        world: ReplicationWorld,
        number: int,
        random: Random,
        places: list[tuple[str, int]],
    ) -> None:
        self.world = world
        self.random = random
        self.host = f"producer-{number}"
        self.process = Process(world.loop, self.host)
        self.is_idempotent = random.random() < 0.6
        self.acks = ALL if self.is_idempotent else random.choice((0, 1, ALL, ALL))
        self.in_flight = random.choice((1, 3, 5)) if self.is_idempotent else 1
        self.pause_ms = random.choice((40.0, 120.0, 300.0))
        self.link = ClusterLink(
            world.loop,
            self.process,
            world.fabric.port_of(self.process, self.host),
            random,
            world.broker_addresses,
        )
        self.lines = [Line(topic, index) for topic, index in places]
        for line in self.lines:
            self.process.spawn(self._run(line))

    def __repr__(self) -> str:
        kind = "idempotent" if self.is_idempotent else f"acks={self.acks}"
        waiting = {f"{each.topic}-{each.index}": len(each.window) for each in self.lines}
        return f"{self.host}({kind}, {waiting})"

    @property
    def is_drained(self) -> bool:
        """Whether everything has been acknowledged or given up."""
        return not any(line.window for line in self.lines)

    async def _run(self, line: Line) -> None:
        while True:
            await self.world.loop.elapse(self.random.expovariate(1 / self.pause_ms))
            if self.is_idempotent and line.producer_id < 0 and not await self._identify(line):
                await self.link.pause()
                continue
            self._fill(line)
            if line.window:
                await self._send(line)

    async def _identify(self, line: Line) -> bool:
        """A fresh producer id, and the window's batches under it."""
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1_000)
        try:
            response = await self.link.ask(self.link.some_broker(), request)
        except NO_ANSWER:
            return False
        if response.error_code != ErrorCode.NONE:
            return False
        line.producer_id, line.producer_epoch = response.producer_id, response.producer_epoch
        line.next_sequence = 0
        for outgoing in line.window:
            self._encode(line, outgoing)
        return True

    def _fill(self, line: Line) -> None:
        if not self.world.producers_may_act:
            return
        while len(line.window) < self.in_flight and (not line.window or self.random.random() < 0.6):
            outgoing = Outgoing(line.next_number, self.random.choice((1, 1, 2, 5)))
            line.next_number += outgoing.count
            self._encode(line, outgoing)
            line.window.append(outgoing)

    def _encode(self, line: Line, outgoing: Outgoing) -> None:
        now_ms = self.world.clock.now_ms()
        numbers = range(outgoing.first_number, outgoing.first_number + outgoing.count)
        padding = b"." * self.random.choice((0, 0, 0, 500))
        records = [
            Record(
                0,
                now_ms,
                b"key-%d" % (number % KEYS),
                f"{self.host} {line.topic}-{line.index} {number}".encode() + padding,
            )
            for number in numbers
        ]
        sequence = line.next_sequence if self.is_idempotent else -1
        outgoing.data = bytes(
            encode_batch(
                records,
                producer_id=line.producer_id,
                producer_epoch=line.producer_epoch,
                base_sequence=sequence,
            )
        )
        outgoing.crc = read_batch_header(outgoing.data).crc
        if self.is_idempotent:
            line.next_sequence = increment_sequence(line.next_sequence, outgoing.count)

    async def _send(self, line: Line) -> None:
        """The whole window, pipelined; then its answers in order."""
        view = await self.link.leader(line.topic, line.index)
        if view is None or line.topic not in self.link.topic_ids:
            await self._look_again(line)
            return
        topic_id = self.link.topic_ids[line.topic]
        if topic_id != line.topic_id:
            is_first, line.topic_id = line.topic_id is None, topic_id
            if not is_first and self.is_idempotent:
                line.producer_id = -1
                return
        waiting = list(line.window)
        futures: list[asyncio.Future[Any]] = []
        retried = False
        try:
            connection = await self.link.connection(view.leader_id)
            for outgoing in waiting:
                request = self._request(line, outgoing)
                if self.acks:
                    futures.append(connection.submit(request))
                else:
                    connection.send_and_forget(request)
                    line.window.remove(outgoing)
        except NO_ANSWER:
            retried = True
        answers = await asyncio.gather(*futures, return_exceptions=True)
        for outgoing, answer in zip(waiting, answers, strict=False):
            if isinstance(answer, NO_ANSWER):
                retried = True
            elif isinstance(answer, BaseException):
                raise answer
            else:
                result = answer.responses[0].partition_responses[0]
                retried |= self._take(line, outgoing, ErrorCode.of(result.error_code), result)
        if any(isinstance(answer, NO_ANSWER) for answer in answers):
            self.link.drop(view.leader_id)
            self.world.counts["produce_unanswered"] += 1
        if retried:
            await self._look_again(line)

    def _request(self, line: Line, outgoing: Outgoing) -> ProduceRequest:
        return ProduceRequest(
            transactional_id=None,
            acks=self.acks,
            timeout_ms=PRODUCE_TIMEOUT_MS,
            topic_data=[
                TopicProduceData(
                    name=line.topic,
                    topic_id=line.topic_id or ZERO_UUID,
                    partition_data=[PartitionProduceData(index=line.index, records=outgoing.data)],
                )
            ],
        )

    def _take(self, line: Line, outgoing: Outgoing, error: ErrorCode, result: Any) -> bool:
        """What an answer means for its batch; whether it has to be sent again."""
        if error is ErrorCode.NONE or error is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            # One before it may have been appended and not told in time: it is sent again.
            line.window.remove(outgoing)
            if self.acks == ALL and result.base_offset >= 0:
                assert line.topic_id is not None, "sent"
                key = (line.topic_id, line.index)
                data = self.world.data
                self.world.guard(
                    data.acknowledged, key, result.base_offset, outgoing.crc, self.host
                )
            return False
        is_head = line.window[0] is outgoing
        if error in UNKNOWN_SEQUENCE and self.is_idempotent:
            if is_head:
                self._lost_sequence(line, error)
            return True
        if error not in RETRIED:
            raise Violation("unexpected-error", f"{self.host}: {error.name} {result.error_message}")
        self.world.counts[f"produce {error.name}"] += 1
        if not self.is_idempotent and self.random.random() < 0.3:
            line.window.remove(outgoing)
            return False
        return True

    def _lost_sequence(self, line: Line, error: ErrorCode) -> None:
        """The leader does not know what it has acknowledged: lawful only after a loss, or when the
        batch is there, or was until records were deleted. Kafka's snapshots of producers hold the
        last batch of each: who starts from one does not know older batches of a window again, and
        may only refuse them.
        """
        assert line.topic_id is not None, "sent"
        truth = self.world.data.truth((line.topic_id, line.index))
        sequence = read_batch_header(line.window[0].data).base_sequence
        deleted = (
            batch for batch, _ in truth.written.values() if batch.last_offset < truth.deleted_to
        )
        kept = (batch for mirror in truth.replicas.values() for batch in mirror.batches)
        is_there = any(
            (batch.producer_id, batch.base_sequence) == (line.producer_id, sequence)
            for batch in chain(kept, deleted)
        )
        if is_there:
            self.world.counts["window_forgotten"] += 1
        elif not truth.lost and not truth.allows_unclean:
            raise Violation("sequence-lost", f"{self.host}, {truth.name}: {error.name}")
        line.producer_id = -1

    async def _look_again(self, line: Line) -> None:
        await self.link.pause()
        await self.link.refresh(line.topic)
