"""The transaction coordinator of one broker: from requests to state machines, and to partitions.

Owns the joining of the runtime, the marker sender and the producer ids. Must not decide about
transactions (`core` does), nor know API versions (the handlers do). Invariant: whoever asks is
answered exactly once, with an error where nothing could be done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final

from moldau.broker.coordinator import CallbackReply, RuntimeSettings
from moldau.broker.coordinator.transaction.core.answers import (
    DescribeAnswer,
    EndTransactionAnswer,
    InitProducerIdAnswer,
    ListAnswer,
    PartitionsAnswer,
)
from moldau.broker.coordinator.transaction.core.markers import SendMarkers
from moldau.broker.coordinator.transaction.core.settings import TransactionSettings
from moldau.broker.coordinator.transaction.core.state import TransactionState
from moldau.broker.coordinator.transaction.core.transaction import (
    EPOCH_BUMP_VERSION,
    ProducerIdAndEpoch,
    Transaction,
)
from moldau.broker.coordinator.transaction.marker_sender import MarkerPorts, MarkerSender
from moldau.broker.coordinator.transaction.producer_id_source import ProducerIdSource
from moldau.metadata.features import TRANSACTION_VERSION
from moldau.protocol.coordinator_records import TRANSACTION_STATE
from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import TopicPartition

if TYPE_CHECKING:
    from moldau.broker.api.services import BrokerServices
    from moldau.broker.coordinator import CoordinatorRuntimes
    from moldau.broker.coordinator.transaction.core.init_producer_id import InitProducerId
    from moldau.metadata.image import MetadataDelta, MetadataImage
    from moldau.protocol.messages.p27_write_txn_markers import (
        WriteTxnMarkersRequest,
        WriteTxnMarkersResponse,
    )

logger = logging.getLogger("moldau.broker.transactions")

NO_LEADER: Final = -1


class TransactionCoordinator:
    """Belongs to the data loop.

    Args:
        services: complete but for the coordinators.
        runtimes: where state machines run.
    """

    def __init__(self, services: BrokerServices, runtimes: CoordinatorRuntimes) -> None:
        self._services = services
        self._settings = TransactionSettings.from_config(services.node_config)
        self._producer_ids = ProducerIdSource(
            services.producer_ids, lambda work: services.start(work, "producer id for transactions")
        )
        self.runtime = runtimes.make(
            TRANSACTION_STATE,
            self._make_state,
            execute=self._execute,
            settings=RuntimeSettings.for_transactions(services.node_config),
        )
        self._markers = MarkerSender(
            MarkerPorts(
                broker_id=services.broker_id,
                listener_name=services.inter_broker_listener_name,
                image=lambda: services.metadata.image,
                coordinator_epoch=self.runtime.coordinator_epoch,
                write_here=self._write_here,
                written=self._written,
                start=services.start,
                timers=services.timers,
                clock=services.clock,
                registry=services.registry,
                network=services.network,
                request_timeout_ms=services.node_config["request.timeout.ms"],
            )
        )

    # -- who coordinates -------------------------------------------------------------------------

    def partition_of(self, transactional_id: str) -> int | None:
        """The partition of `__transaction_state` that keeps the id; None without the topic."""
        return self.runtime.partition_of(transactional_id)

    def leader_of(self, transactional_id: str) -> int | None:
        """The broker that coordinates the id as far as known here; None while nobody does."""
        partition_index = self.partition_of(transactional_id)
        if partition_index is None:
            return None
        topic = self._services.metadata.image.topics.topics_by_name[self.runtime.topic]
        leader = topic.partitions[partition_index].leader
        return None if leader == NO_LEADER else leader

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Load and unload partitions; markers may find their leaders now."""
        self.runtime.on_metadata_update(delta, image)
        self._markers.on_metadata_update()

    async def close(self) -> None:
        """Everybody who waits is told to look for another coordinator."""
        self._producer_ids.close()
        await self.runtime.close()
        await self._markers.close()

    # -- requests --------------------------------------------------------------------------------

    def init_producer_id(
        self, request: InitProducerId, done: Callable[[InitProducerIdAnswer], None]
    ) -> None:
        """A producer comes, or comes back (KIP-98, KIP-360, KIP-939)."""

        def go_on() -> None:
            reply_to = CallbackReply(done)
            error = self.runtime.call(
                request.transactional_id,
                lambda state, now_ms: state.init_producer_id(request, reply_to, now_ms),
            )
            if error is not ErrorCode.NONE:
                done(InitProducerIdAnswer(error))

        self._producer_ids.when_ready(go_on)

    def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        *,
        verify_only: bool,
        done: Callable[[dict[TopicPartition, ErrorCode]], None],
        client_version: int = EPOCH_BUMP_VERSION,
    ) -> None:
        """Add partitions to the producer's transaction, or see if they are in it (KIP-890).

        Args:
            client_version: the transaction version of the producer, as far as the request tells.
            done: told NONE or an error of AddPartitionsToTxn for each partition.
        """
        producer = ProducerIdAndEpoch(producer_id, producer_epoch)

        def answered(answer: PartitionsAnswer) -> None:
            done(answer.errors)

        reply_to = CallbackReply(answered)
        if verify_only:
            error = self.runtime.call(
                transactional_id,
                lambda state, now_ms: state.verify_partitions(
                    transactional_id, producer, partitions, reply_to, now_ms
                ),
            )
        else:
            error = self.runtime.call(
                transactional_id,
                lambda state, now_ms: state.add_partitions(
                    transactional_id,
                    producer,
                    partitions,
                    reply_to,
                    now_ms,
                    client_version=client_version,
                ),
            )
        if error is not ErrorCode.NONE:
            done(dict.fromkeys(partitions, error))

    def end_transaction(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        *,
        is_commit: bool,
        client_version: int,
        done: Callable[[EndTransactionAnswer], None],
    ) -> None:
        """Commit or abort; answered when the outcome is committed, before the markers are."""
        producer = ProducerIdAndEpoch(producer_id, producer_epoch)
        reply_to = CallbackReply(done)
        error = self.runtime.call(
            transactional_id,
            lambda state, now_ms: state.end_transaction(
                transactional_id,
                producer,
                reply_to,
                now_ms,
                is_commit=is_commit,
                client_version=client_version,
            ),
        )
        if error is not ErrorCode.NONE:
            done(EndTransactionAnswer(error))

    def describe(self, transactional_id: str, done: Callable[[DescribeAnswer], None]) -> None:
        """What is known of an id that is coordinated here."""
        reply_to = CallbackReply(done)
        error = self.runtime.call(
            transactional_id,
            lambda state, now_ms: state.describe(transactional_id, reply_to, now_ms),
        )
        if error is not ErrorCode.NONE:
            done(DescribeAnswer(error))

    def list_transactions(
        self, wanted: Callable[[Transaction], bool], done: Callable[[ListAnswer], None]
    ) -> None:
        """All that are coordinated here and `wanted`; COORDINATOR_LOAD_IN_PROGRESS while that is
        not known.
        """
        if self.runtime.is_loading:
            done(ListAnswer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, []))
            return
        collected = _Collected(done)
        for partition_index, _ in self.runtime.states():
            collected.expect()
            reply_to = CallbackReply(collected.take)
            error = self.runtime.call(
                partition_index,
                lambda state, now_ms, reply_to=reply_to: state.list_transactions(  # type: ignore[misc]
                    wanted, reply_to, now_ms
                ),
            )
            if error is not ErrorCode.NONE:
                collected.take(ListAnswer(error, []))
        collected.finish()

    # -- inner workings --------------------------------------------------------------------------

    def _make_state(self, partition_index: int) -> TransactionState:
        del partition_index
        return TransactionState(
            settings=self._settings,
            producer_ids=self._producer_ids,
            transaction_version=self._transaction_version,
        )

    def _transaction_version(self) -> int:
        return self._services.metadata.image.features.level(TRANSACTION_VERSION)

    def _execute(self, partition_index: int, command: Any) -> None:
        assert isinstance(command, SendMarkers)
        self._markers.send(partition_index, command)

    def _written(
        self, partition_index: int, command: SendMarkers, partitions: list[TopicPartition]
    ) -> None:
        self.runtime.call(
            partition_index,
            lambda state, now_ms: state.markers_written(command, partitions, now_ms),
            passes_limit=True,
        )

    def _write_here(
        self,
        request: WriteTxnMarkersRequest,
        done: Callable[[WriteTxnMarkersResponse], None],
    ) -> None:
        from moldau.broker.coordinator.transaction.marker_writer import write_markers

        self._services.go_on(write_markers(self._services, request, done))


class _Collected:
    """The answers of several partitions, put together when the last one is there."""

    __slots__ = ("_answer", "_done", "_expected_count", "_is_whole")

    def __init__(self, done: Callable[[ListAnswer], None]) -> None:
        self._done = done
        self._answer = ListAnswer(ErrorCode.NONE, [])
        self._expected_count = 0
        self._is_whole = False

    def expect(self) -> None:
        """One more will come."""
        self._expected_count += 1

    def take(self, answer: ListAnswer) -> None:
        """One has come. A partition that was lost meanwhile is another coordinator's to list."""
        self._expected_count -= 1
        if answer.error not in (ErrorCode.NONE, ErrorCode.NOT_COORDINATOR):
            self._answer = self._answer._replace(error=answer.error)
        self._answer.transactions.extend(answer.transactions)
        self._tell()

    def finish(self) -> None:
        """All that are expected are known."""
        self._is_whole = True
        self._tell()

    def _tell(self) -> None:
        if self._is_whole and not self._expected_count:
            self._done(self._answer)
