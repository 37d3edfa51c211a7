"""The transactional half of a simulated client: the wire protocol of versions 1 and 2.

Owns: producer id, epoch and sequences of one instance, and the steps of one transaction. Must not:
choose what is written or when. Invariants: a transaction is committed only if everything in it was
acknowledged; a request whose outcome is unknown is sent again until it is known, or the transaction
is aborted.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from uuid import UUID

from moldau.metadata.features import TRANSACTION_VERSION
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p24_add_partitions_to_txn as adding
from moldau.protocol.messages import p28_txn_offset_commit as offsets
from moldau.protocol.messages.p00_produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from moldau.protocol.messages.p22_init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.p25_add_offsets_to_txn import AddOffsetsToTxnRequest
from moldau.protocol.messages.p26_end_txn import EndTxnRequest
from moldau.protocol.records import Record, encode_batch
from tests.kit.seeds import Violation
from tests.simulation.replication.cluster_link import NO_ANSWER
from tests.simulation.transactions.coordinator_link import (
    ELSEWHERE,
    GROUP,
    TRANSACTION,
    CoordinatorLink,
)
from tests.simulation.transactions.ledger import ClientTransaction

if TYPE_CHECKING:
    from tests.simulation.transactions.world import TransactionWorld

OLDEST_VERSION = 1
HEARS_OF_LEVEL = 0.3
PRODUCE_TIMEOUT_MS = 1_500
PATIENCE_MS = 8_000.0
"""After so long a step of a transaction is given up."""

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
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)
FENCED = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)
ABORTED = frozenset(
    {
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.REBALANCE_IN_PROGRESS,
    }
)


class MustAbort(Exception):
    """This transaction cannot be committed."""


class Fenced(Exception):
    """Somebody else is this id now."""


class TransactionalClient:
    """One instance. States: new → initialized ⇄ in a transaction → fenced."""

    def __init__(
        self,
        world: TransactionWorld,
        link: CoordinatorLink,
        transactional_id: str,
        instance: str,
        version: int,
        timeout_ms: int,
    ) -> None:
        self.world = world
        self.link = link
        self.transactional_id = transactional_id
        self.instance = instance
        self.version = version
        self.timeout_ms = timeout_ms
        self.producer_id = self.producer_epoch = -1
        self.goes_on_when_fenced = False
        self.reuses_sequences = False
        """As librdkafka: what NOT_LEADER_OR_FOLLOWER was said of is taken for not written; an abort
        drops it, and the next transaction gets its sequences.
        """
        self._number = 0
        self._newest_version = version
        self._asked_ids: dict[tuple[str, int], UUID] = {}
        """Which topic the last batch of a partition was sent to."""
        self._sequences: dict[tuple[str, int], int] = {}
        self._has_unknown = False
        self._unended: list[ClientTransaction] = []
        """What it has begun and not heard the end of. To the brokers these are one transaction, if
        it goes on when told that it is fenced and is not: a coordinator that does not know yet that
        another has taken its place knows older epochs than the producer's.
        """

    @property
    def pair(self) -> tuple[int, int]:
        """Who it is."""
        return (self.producer_id, self.producer_epoch)

    async def initialize(self, *, is_recovery: bool = False) -> None:
        """InitProducerId until it is answered. Raises Fenced."""
        known = self.pair if is_recovery else (-1, -1)
        while True:
            response = await self.link.ask_coordinator(
                TRANSACTION,
                self.transactional_id,
                InitProducerIdRequest(
                    transactional_id=self.transactional_id,
                    transaction_timeout_ms=self.timeout_ms,
                    producer_id=known[0],
                    producer_epoch=known[1],
                ),
                api_version=5,
            )
            error = self._error(response, "init")
            if error is ErrorCode.NONE:
                break
            if error in FENCED:
                raise Fenced
            await self.link.pause()
        self.producer_id, self.producer_epoch = response.producer_id, response.producer_epoch
        self._sequences.clear()
        self._has_unknown = False
        self.world.guard(self.world.data.initialized, self.transactional_id, *self.pair)

    async def adopt_level(self) -> None:
        """Before a transaction: take over the version that the cluster has now, and an epoch of
        its own if that has gone up (KIP-890); sooner or later, as it hears of it. Raises Fenced.
        """
        if self.world.draws.levels and self.link.random.random() < HEARS_OF_LEVEL:
            level = max(self.world.level_of(TRANSACTION_VERSION), OLDEST_VERSION)
            before, self.version = self.version, min(level, self._newest_version)
            if self.version > before:
                await self.initialize(is_recovery=True)

    def begin(self) -> ClientTransaction:
        """A transaction that nobody knows yet."""
        self._number += 1
        name = f"{self.transactional_id}/{self.instance}/{self._number}"
        transaction = ClientTransaction(name, self.transactional_id, *self.pair, self.version)
        self.world.data.begun(transaction)
        self._unended.append(transaction)
        return transaction

    async def add(self, transaction: ClientTransaction, places: list[tuple[str, int]]) -> None:
        """AddPartitionsToTxn, in version 1. Raises MustAbort, Fenced."""
        if self.version >= 2:
            return
        topics: dict[str, list[int]] = {}
        for topic, index in places:
            topics.setdefault(topic, []).append(index)
        request = adding.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=transaction.producer_id,
            v3_and_below_producer_epoch=transaction.producer_epoch,
            v3_and_below_topics=[
                adding.AddPartitionsToTxnTopic(name=name, partitions=indexes)
                for name, indexes in topics.items()
            ],
        )

        def errors(response: Any) -> list[int]:
            return [
                each.partition_error_code
                for topic in response.results_by_topic_v3_and_below
                for each in topic.results_by_partition
            ]

        await self._insist(TRANSACTION, self.transactional_id, request, 3, errors, "add")

    async def send(
        self, transaction: ClientTransaction, topic: str, index: int, values: list[bytes]
    ) -> None:
        """One batch, until it is acknowledged. Raises MustAbort, Fenced."""
        place = (topic, index)
        sequence = self._sequences.get(place, 0)
        self._sequences[place] = sequence + len(values)
        now_ms = self.world.clock.now_ms()
        batch = encode_batch(
            [Record(0, now_ms, value[-1:], value) for value in values],
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        deadline = self.world.loop.time() + PATIENCE_MS / 1000
        while True:
            error = await self._produce(topic, index, bytes(batch))
            if error in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                self._acknowledged(transaction, place, values)
                self.world.counts["transactional_batches"] += 1
                return
            if error in FENCED and not self.goes_on_when_fenced:
                raise Fenced
            if error in ABORTED or error in FENCED or self.world.loop.time() > deadline:
                self._has_unknown = True
                raise MustAbort
            if error is ErrorCode.NOT_LEADER_OR_FOLLOWER and self.reuses_sequences:
                self._sequences[place] = sequence
                self.world.counts["sequences_reused"] += 1
                raise MustAbort
            await self.link.pause()
            await self.link.refresh(topic)

    def _acknowledged(
        self, transaction: ClientTransaction, place: tuple[str, int], values: list[bytes]
    ) -> None:
        data = self.world.data
        name = f"{place[0]}-{place[1]}"
        if place[0] in data.recreated:
            # By name it may have been any of them.
            if self.version < 2:
                return
            name = data.truth((self._asked_ids[place], place[1])).name
        transaction.acknowledged.setdefault(name, set()).update(values)

    async def _produce(self, topic: str, index: int, batch: bytes) -> ErrorCode:
        view = await self.link.leader(topic, index)
        if view is None:
            return ErrorCode.LEADER_NOT_AVAILABLE
        topic_id = self._asked_ids[(topic, index)] = self.link.topic_ids[topic]
        request = ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=PRODUCE_TIMEOUT_MS,
            topic_data=[
                TopicProduceData(
                    name=topic,
                    topic_id=topic_id,
                    partition_data=[PartitionProduceData(index=index, records=batch)],
                )
            ],
        )
        version = 13 if self.version >= 2 else 11
        try:
            response = await self.link.ask(view.leader_id, request, api_version=version)
        except NO_ANSWER:
            return ErrorCode.REQUEST_TIMED_OUT
        result = response.responses[0].partition_responses[0]
        return self._known(ErrorCode.of(result.error_code), f"produce: {result.error_message}")

    async def commit_offsets(
        self,
        transaction: ClientTransaction,
        group: str,
        member: tuple[str, str | None, int],
        positions: dict[tuple[str, int], int],
    ) -> None:
        """The group's offsets as part of it; `member`: id, instance id, generation or epoch.

        Raises MustAbort, Fenced.
        """
        if self.version < 2:
            request: Any = AddOffsetsToTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=transaction.producer_id,
                producer_epoch=transaction.producer_epoch,
                group_id=group,
            )
            await self._insist(
                TRANSACTION, self.transactional_id, request, 3, lambda r: [r.error_code], "offsets"
            )
        request = offsets.TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            generation_id=member[2],
            member_id=member[0],
            group_instance_id=member[1],
            topics=[
                offsets.TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        offsets.TxnOffsetCommitRequestPartition(
                            partition_index=index,
                            committed_offset=offset,
                            committed_metadata=transaction.name,
                        )
                    ],
                )
                for (topic, index), offset in positions.items()
            ],
        )

        def errors(response: Any) -> list[int]:
            return [each.error_code for topic in response.topics for each in topic.partitions]

        version = 5 if self.version >= 2 else 3
        await self._insist(GROUP, group, request, version, errors, "txn_offset_commit")
        for (topic, index), offset in positions.items():
            transaction.offsets[(group, topic, index)] = offset

    async def end(self, transaction: ClientTransaction, *, is_commit: bool) -> None:
        """EndTxn until it is answered. Raises MustAbort (only of a commit), Fenced."""
        own = transaction.producer_id, transaction.producer_epoch
        for each in self._unended:
            if (each.producer_id, each.producer_epoch) == own:
                each.asked.add(is_commit)
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            committed=is_commit,
        )
        version = 5 if self.version >= 2 else 4
        self.world.counts["ends_above_level"] += self.version > self.world.level_of(
            TRANSACTION_VERSION
        )
        while True:
            response = await self.link.ask_coordinator(
                TRANSACTION, self.transactional_id, request, api_version=version
            )
            error = self._error(response, "end")
            if error is ErrorCode.NONE:
                break
            if error in FENCED:
                raise Fenced
            if error in ABORTED:
                if is_commit:
                    raise MustAbort
                self._unended.clear()
                return  # there was nothing to be aborted
            if response is None and self.version < 2:
                self.world.data.excuse(self.transactional_id)
            await self.link.pause()
        self._unended.clear()
        self.world.guard(lambda: self.world.data.ended(transaction, is_commit=is_commit))
        if self.version >= 2:
            before, self.producer_id = self.pair, response.producer_id
            self.producer_epoch = response.producer_epoch
            self._sequences.clear()
            data = self.world.data
            self.world.guard(data.continued, self.transactional_id, before, self.pair)
        elif self._has_unknown:
            await self.initialize(is_recovery=True)
        self._has_unknown = False

    async def _insist(
        self, kind: int, key: str, request: Any, version: int, errors: Any, what: str
    ) -> None:
        """Ask a coordinator until all is well. Raises MustAbort, Fenced."""
        deadline = self.world.loop.time() + PATIENCE_MS / 1000
        while True:
            response = await self.link.ask_coordinator(kind, key, request, api_version=version)
            found = [ErrorCode.REQUEST_TIMED_OUT]
            if response is None:
                if self.version < 2:
                    self.world.data.excuse(self.transactional_id)
            else:
                found = [self._known(ErrorCode.of(each), what) for each in errors(response)]
            if ELSEWHERE.intersection(found):
                self.link.forget(kind, key)
            if all(error is ErrorCode.NONE for error in found):
                return
            if FENCED.intersection(found) and not self.goes_on_when_fenced:
                raise Fenced
            if (ABORTED | FENCED).intersection(found) or self.world.loop.time() > deadline:
                self._has_unknown = True
                raise MustAbort
            await self.link.pause()

    def _error(self, response: Any, what: str) -> ErrorCode:
        """Of a transaction coordinator's answer."""
        if response is None:
            return ErrorCode.REQUEST_TIMED_OUT
        error = self._known(ErrorCode.of(response.error_code), what)
        if error in ELSEWHERE:
            self.link.forget(TRANSACTION, self.transactional_id)
        return error

    def _known(self, error: ErrorCode, what: str) -> ErrorCode:
        # Of several partitions none is added while one of them is not there.
        is_passing = error is ErrorCode.OPERATION_NOT_ATTEMPTED and self.world.draws.has_visitors
        if not is_passing and error not in RETRIED | FENCED | ABORTED | {
            ErrorCode.NONE,
            ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
        }:
            raise Violation("unexpected-error", f"{self.link.process.name}: {what}: {error.name}")
        if error is not ErrorCode.NONE:
            self.world.counts[f"{what.partition(':')[0]} {error.name}"] += 1
        return error


async def gathered(*steps: Any) -> None:
    """All of them to their ends; the worst of their failures."""
    failures = [each for each in await asyncio.gather(*steps, return_exceptions=True) if each]
    for kind in (Violation, Fenced, MustAbort):
        for failure in failures:
            if isinstance(failure, kind):
                raise failure
    for failure in failures:
        raise failure
