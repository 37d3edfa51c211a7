"""The phantom broker that holds very many partitions, and the clocks of a cluster that has them.

Owns: the phantom broker, the topics on it, and the clocks of the creation rate, of a change on its
way to every broker, and of a controller failover. Must not start or stop processes, or print.
Invariant: every figure is about requests that were answered without an error, and every wait has a
deadline.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from moldau.client.cluster.cluster_client import ClusterClient
from moldau.client.cluster.faults import PASSING_FAULTS
from moldau.client.errors import KafkaError, raise_for
from moldau.metadata.features import SUPPORTED_FEATURES
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p03_metadata import MetadataRequest, MetadataRequestTopic
from moldau.protocol.messages.p19_create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from moldau.protocol.messages.p62_broker_registration import (
    BrokerRegistrationRequest,
    Feature,
    Listener,
)
from moldau.protocol.messages.p63_broker_heartbeat import BrokerHeartbeatRequest

PHANTOM_ID: Final = 100
NEVER_BEHIND: Final = 2**63 - 1
HEARTBEAT_S: Final = 1.0
REGISTRATION_TIMEOUT_MS: Final = 60_000
CREATE_TIMEOUT_MS: Final = 60_000
RECORDS_PER_REQUEST: Final = 5_000
"""Well below the 10,000 that one request may make, so that the controller's loop gives way."""
POLL_S: Final = 0.001
RETRY_S: Final = 0.01
SEEN_DEADLINE_S: Final = 30.0
FAILOVER_DEADLINE_S: Final = 60.0


class BenchFailed(Exception):
    """The cluster did not do what is to be measured; one line."""


class PhantomBroker:
    """A broker that only the controllers know: it registers and sends heartbeats, and has neither
    logs nor listeners. States: made → `start` → registered and unfenced → `close`. The client of
    the controllers is not closed here.
    """

    def __init__(self, controllers: ClusterClient) -> None:
        self._controllers = controllers
        self._broker_epoch = -1
        self._heartbeats: asyncio.Task[None] | None = None
        self.fenced_count = 0
        """How many heartbeats found it fenced after the start; then the figures mean nothing."""

    async def start(self) -> None:
        """Register, and wait until the controller has let it in. Raises: KafkaError."""
        await self._controllers.refresh_metadata([])
        request = BrokerRegistrationRequest(
            broker_id=PHANTOM_ID,
            cluster_id=self._controllers.metadata.cluster_id or "",
            incarnation_id=uuid.uuid4(),
            listeners=[Listener(name="PLAINTEXT", host="127.0.0.1", port=9)],  # discard
            features=[
                Feature(
                    name=name,
                    min_supported_version=levels.minimum_level,
                    max_supported_version=levels.maximum_level,
                )
                for name, levels in SUPPORTED_FEATURES.items()
            ],
            rack=None,
            log_dirs=[uuid.uuid4()],
        )

        async def register() -> int:
            response = await self._controllers.ask_controller(request)
            raise_for(response.error_code, None, "register the phantom broker")
            return response.broker_epoch

        async def be_let_in() -> None:
            if await self._beat():
                raise_for(ErrorCode.BROKER_NOT_AVAILABLE, None, "unfence the phantom broker")

        timeout_ms, retry = REGISTRATION_TIMEOUT_MS, self._controllers.retry
        self._broker_epoch = await retry(
            register, what="register the phantom broker", timeout_ms=timeout_ms
        )
        await retry(be_let_in, what="unfence the phantom broker", timeout_ms=timeout_ms)
        self._heartbeats = asyncio.create_task(self._beat_on())

    async def close(self) -> None:
        if self._heartbeats is not None:
            self._heartbeats.cancel()
            await asyncio.wait([self._heartbeats])

    async def _beat(self) -> bool:
        """One heartbeat; whether this broker is fenced. Raises: KafkaError, PASSING_FAULTS."""
        request = BrokerHeartbeatRequest(
            broker_id=PHANTOM_ID,
            broker_epoch=self._broker_epoch,
            # It needs to read nothing; no broker that wants to leave has to wait for it.
            current_metadata_offset=NEVER_BEHIND,
        )
        response = await self._controllers.ask_controller(request, timeout_ms=2_000)
        raise_for(response.error_code, None, "heartbeat of the phantom broker")
        return response.is_fenced

    async def _beat_on(self) -> None:
        while True:
            try:
                self.fenced_count += await self._beat()
            except (KafkaError, *PASSING_FAULTS):
                # The active controller changes: another one is asked next.
                self._controllers.metadata.controller_id = -1
                await asyncio.sleep(RETRY_S)
            else:
                await asyncio.sleep(HEARTBEAT_S)


@dataclass(frozen=True, slots=True)
class CreationFigures:
    """What creating the topics took."""

    topic_count: int
    partition_count: int
    seconds: float


def phantom_topics(partition_count: int, partitions_per_topic: int) -> Iterator[CreatableTopic]:
    """Topics with `partition_count` partitions together, all of them on the phantom broker alone;
    the last topic may have fewer than the others.
    """
    number = 0
    while partition_count > 0:
        here = min(partition_count, partitions_per_topic)
        yield _placed_topic(f"bench-{number:06d}", [[PHANTOM_ID]] * here)
        number += 1
        partition_count -= here


def _placed_topic(name: str, replicas: Sequence[Sequence[int]]) -> CreatableTopic:
    """A topic with a partition on each of these lists of brokers."""
    return CreatableTopic(
        name=name,
        num_partitions=-1,
        replication_factor=-1,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=list(broker_ids))
            for index, broker_ids in enumerate(replicas)
        ],
    )


def creation_requests(topics: Iterator[CreatableTopic]) -> Iterator[CreateTopicsRequest]:
    """`topics` in requests that make at most RECORDS_PER_REQUEST records each."""
    chunk: list[CreatableTopic] = []
    record_count = 0
    for topic in topics:
        needed = 1 + len(topic.assignments)
        if chunk and record_count + needed > RECORDS_PER_REQUEST:
            yield CreateTopicsRequest(topics=chunk, timeout_ms=CREATE_TIMEOUT_MS)
            chunk, record_count = [], 0
        chunk.append(topic)
        record_count += needed
    if chunk:
        yield CreateTopicsRequest(topics=chunk, timeout_ms=CREATE_TIMEOUT_MS)


async def create_partitions(
    brokers: ClusterClient,
    partition_count: int,
    partitions_per_topic: int,
    on_progress: Callable[[int], None],
) -> CreationFigures:
    """Make the many partitions, one request after the other, through a broker."""
    done = topic_count = 0
    begin = time.perf_counter()
    for request in creation_requests(phantom_topics(partition_count, partitions_per_topic)):
        response = await brokers.ask_any(request, timeout_ms=CREATE_TIMEOUT_MS)
        for result in response.topics:
            raise_for(result.error_code, result.error_message, f"create topic {result.name}")
        topic_count += len(request.topics)
        done += sum(len(topic.assignments) for topic in request.topics)
        on_progress(done)
    return CreationFigures(topic_count, done, time.perf_counter() - begin)


@dataclass(frozen=True, slots=True)
class ChangeSample:
    """One created topic's way to every broker, milliseconds."""

    answered_ms: float
    seen_after_sent_ms: float
    seen_after_answer_ms: float


async def one_change(
    brokers: ClusterClient, broker_ids: Sequence[int], topic_name: str
) -> ChangeSample:
    """Create a topic on all of `broker_ids`, and see when the Metadata of each one shows it.

    Every broker is asked again a millisecond after its last answer, so that what is measured is
    late by a round trip at most. Connections must be open.
    """
    request = _real_topic(topic_name, broker_ids)
    begin = time.perf_counter()
    watchers = [
        asyncio.create_task(_seen(brokers, broker_id, topic_name)) for broker_id in broker_ids
    ]
    try:
        response = await brokers.ask_node(broker_ids[0], request)
        answered = time.perf_counter()
        [result] = response.topics
        raise_for(result.error_code, result.error_message, f"create topic {topic_name}")
        seen = max(await asyncio.gather(*watchers))
    finally:
        for watcher in watchers:
            watcher.cancel()
    return ChangeSample(
        answered_ms=(answered - begin) * 1e3,
        seen_after_sent_ms=(seen - begin) * 1e3,
        seen_after_answer_ms=max(seen - answered, 0.0) * 1e3,
    )


async def _seen(brokers: ClusterClient, broker_id: int, topic_name: str) -> float:
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=topic_name)], allow_auto_topic_creation=False
    )
    deadline = time.perf_counter() + SEEN_DEADLINE_S
    while time.perf_counter() < deadline:
        response = await brokers.ask_node(broker_id, request)
        if response.topics[0].error_code == ErrorCode.NONE:
            return time.perf_counter()
        await asyncio.sleep(POLL_S)
    raise BenchFailed(f"broker {broker_id} has not heard of {topic_name} in {SEEN_DEADLINE_S} s")


async def failover_seconds(
    brokers: ClusterClient,
    broker_ids: Sequence[int],
    topic_name: str,
    kill: Callable[[], Awaitable[None]],
) -> float:
    """Kill the active controller and create a topic: seconds from just before the kill until that
    has succeeded. Raises: BenchFailed
    """
    request = _real_topic(topic_name, broker_ids[:1])
    begin = time.perf_counter()
    await kill()
    problem = "no answer"
    while time.perf_counter() < begin + FAILOVER_DEADLINE_S:
        try:
            response = await brokers.ask_node(broker_ids[0], request)
        except PASSING_FAULTS as fault:
            problem = str(fault)
        else:
            error = ErrorCode.of(response.topics[0].error_code)
            # An earlier try may have succeeded after all.
            if error in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                return time.perf_counter() - begin
            problem = error.name
        await asyncio.sleep(RETRY_S)
    raise BenchFailed(f"no topic created {FAILOVER_DEADLINE_S:.0f} s after the kill: {problem}")


def _real_topic(topic_name: str, broker_ids: Sequence[int]) -> CreateTopicsRequest:
    """A topic of one partition with a replica on each of the brokers."""
    topic = _placed_topic(topic_name, [broker_ids])
    return CreateTopicsRequest(topics=[topic], timeout_ms=CREATE_TIMEOUT_MS)
