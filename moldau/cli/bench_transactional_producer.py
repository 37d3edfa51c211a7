"""A transactional producer at the level of requests, for measuring brokers.

Owns one transactional id: its producer id and epoch, the sequences of its partitions, the order of
requests that a transaction is made of, with either version of the protocol (KIP-98, KIP-890). Must
not batch, print or measure. Invariant: as a client: an error that passes is retried with the same
bytes, any other ends the load.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from moldau.client.cluster.cluster_client import ClusterClient, Versions
from moldau.client.cluster.coordinators import Coordinators, KeyType
from moldau.client.cluster.faults import PASSING_FAULTS
from moldau.client.cluster.metadata_cache import Broker, TopicMetadata
from moldau.client.errors import KafkaError, error_for
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p00_produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from moldau.protocol.messages.p22_init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.p24_add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from moldau.protocol.messages.p26_end_txn import EndTxnRequest
from moldau.protocol.records import Record, encode_batch
from moldau.protocol.schema import Message

TRANSACTION_TIMEOUT_MS: Final = 60_000
PRODUCE_TIMEOUT_MS: Final = 30_000
GIVE_UP_S: Final = 60.0
RETRY_PAUSE_S: Final = 0.002
"""Short, for the brokers' own time to show: they are what is measured."""

#: The versions of requests with and without an epoch per transaction (transaction.version 2).
PRODUCE_VERSIONS: Final[dict[int, Versions]] = {1: (3, 11), 2: (12, 13)}
END_TXN_VERSIONS: Final[dict[int, Versions]] = {1: (0, 4), 2: (5, 5)}
ADD_PARTITIONS_VERSIONS: Final[Versions] = (0, 3)
INIT_PRODUCER_ID_VERSIONS: Final[Versions] = (0, 5)

COORDINATOR_MOVED: Final = frozenset(
    (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
)
#: Of the coordinator and of leaders, which ask the coordinator.
PASSING: Final = COORDINATOR_MOVED | {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NETWORK_EXCEPTION,
}


class TransactionalProducer:
    """One transactional id. States: made → `begin_session` → any number of `run`."""

    def __init__(
        self,
        client: ClusterClient,
        transactional_id: str,
        topic: TopicMetadata,
        *,
        transaction_version: int,
        record_bytes: int,
    ) -> None:
        """`client` is this producer's own: its connections are not shared with others."""
        self.retry_count = 0
        self._client = client
        self._coordinators = Coordinators(client)
        self._id = transactional_id
        self._topic = topic
        self._version = transaction_version
        self._value = bytes((i * 131 + (i >> 8) * 31) & 0xFF for i in range(record_bytes))
        self._coordinator: Broker | None = None
        self._producer_id, self._producer_epoch = -1, -1
        self._sequences: defaultdict[int, int] = defaultdict(int)

    @property
    def partition_count(self) -> int:
        """How many partitions the topic has."""
        return len(self._topic.partitions)

    async def begin_session(self) -> None:
        """Get the producer id; open transactions of the id are aborted by that."""
        response = await self._ask_coordinator(
            lambda: InitProducerIdRequest(
                transactional_id=self._id, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS
            ),
            INIT_PRODUCER_ID_VERSIONS,
            lambda response: response.error_code,
            "initialise",
        )
        self._producer_id, self._producer_epoch = response.producer_id, response.producer_epoch

    async def run(self, partitions: Sequence[int]) -> float:
        """One transaction with a record on each partition, committed; the seconds that ending it
        took.
        """
        if self._version == 1:
            await self._add(partitions)
        await self._produce(partitions)
        begin = time.perf_counter()
        await self._end(committed=True)
        return time.perf_counter() - begin

    async def _add(self, partitions: Sequence[int]) -> None:
        def worst(response: Any) -> int:
            codes = [
                each.partition_error_code
                for topic in response.results_by_topic_v3_and_below
                for each in topic.results_by_partition
            ]
            # One that may not join stops the others, which is told of those as well.
            return next((code for code in codes if code), ErrorCode.NONE)

        await self._ask_coordinator(
            lambda: AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self._id,
                v3_and_below_producer_id=self._producer_id,
                v3_and_below_producer_epoch=self._producer_epoch,
                v3_and_below_topics=[
                    AddPartitionsToTxnTopic(name=self._topic.name, partitions=list(partitions))
                ],
            ),
            ADD_PARTITIONS_VERSIONS,
            worst,
            "add partitions",
        )

    async def _produce(self, partitions: Sequence[int]) -> None:
        now_ms = time.time_ns() // 1_000_000
        batches = {
            partition: encode_batch(
                [Record(0, now_ms, None, self._value)],
                producer_id=self._producer_id,
                producer_epoch=self._producer_epoch,
                base_sequence=self._sequences[partition],
                is_transactional=True,
            )
            for partition in partitions
        }
        await self._retry(lambda: self._produce_once(batches), "produce")
        for partition in partitions:
            self._sequences[partition] = (self._sequences[partition] + 1) % 2**31

    async def _produce_once(self, batches: dict[int, bytearray]) -> int:
        """Send what is not acknowledged yet, by leader; the first error, NONE when all are."""
        by_leader: defaultdict[int, list[int]] = defaultdict(list)
        for partition in batches:
            by_leader[await self._client.leader_of(self._topic.name, partition)].append(partition)

        async def send(leader_id: int, partitions: list[int]) -> int:
            request = ProduceRequest(
                transactional_id=self._id,
                acks=-1,
                timeout_ms=PRODUCE_TIMEOUT_MS,
                topic_data=[
                    TopicProduceData(
                        name=self._topic.name,
                        topic_id=self._topic.topic_id,
                        partition_data=[
                            PartitionProduceData(index=each, records=memoryview(batches[each]))
                            for each in partitions
                        ],
                    )
                ],
            )
            response = await self._client.ask_node(
                leader_id, request, versions=PRODUCE_VERSIONS[self._version]
            )
            code: int = ErrorCode.NONE
            for entry in response.responses[0].partition_responses:
                if entry.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                    batches.pop(entry.index, None)
                else:
                    code = entry.error_code
            return code

        codes = await asyncio.gather(*(send(*group) for group in by_leader.items()))
        code = next((code for code in codes if code), ErrorCode.NONE)
        if ErrorCode.of(code).invalidates_metadata:
            self._client.metadata.forget_leader(self._topic.name)
        return code

    async def _end(self, *, committed: bool) -> None:
        response = await self._ask_coordinator(
            lambda: EndTxnRequest(
                transactional_id=self._id,
                producer_id=self._producer_id,
                producer_epoch=self._producer_epoch,
                committed=committed,
            ),
            END_TXN_VERSIONS[self._version],
            lambda response: response.error_code,
            "end",
        )
        if self._version == 2:
            self._producer_id, self._producer_epoch = response.producer_id, response.producer_epoch
            self._sequences.clear()

    async def _ask_coordinator(
        self,
        request: Callable[[], Message],
        versions: Versions,
        error_of: Callable[[Any], int],
        what: str,
    ) -> Any:
        answers: list[Any] = []

        async def once() -> int:
            if self._coordinator is None:
                found = (await self._coordinators.find(KeyType.TRANSACTION, [self._id]))[self._id]
                if isinstance(found, KafkaError):
                    raise found
                self._coordinator = found
            broker = self._coordinator
            response = await self._client.ask_address(
                broker.host, broker.port, request(), versions=versions
            )
            code = error_of(response)
            if code in COORDINATOR_MOVED:
                self._coordinator = None
            answers[:] = [response]
            return code

        await self._retry(once, what)
        return answers[0]

    async def _retry(self, once: Callable[[], Awaitable[int]], what: str) -> None:
        """Until the answer is NONE. Raises: KafkaError"""
        deadline = time.perf_counter() + GIVE_UP_S
        while True:
            try:
                code = await once()
            except PASSING_FAULTS:
                self._coordinator = None
                self._client.metadata.forget_leader(self._topic.name)
                code = ErrorCode.NETWORK_EXCEPTION
            if code == ErrorCode.NONE:
                return
            if code not in PASSING or time.perf_counter() > deadline:
                raise error_for(code, None, f"{self._id}: {what}")
            self.retry_count += 1
            await asyncio.sleep(RETRY_PAUSE_S)
