"""The transaction coordinator of one broker: from requests to state machines, and to partitions.

Joins the runtime, the marker sender and the producer ids. Must not decide about transactions
(`core` does), nor know API versions (the handlers do). Invariant: every request is answered exactly
once, with an error where nothing could be done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

from moldau.broker.coordinator.core.kept_memory import KeptMemory
from moldau.broker.coordinator.core.result import (
    Answerable,
    CallbackReply,
    Producer,
)
from moldau.broker.coordinator.ports import RuntimeSettings, memory_limit
from moldau.broker.coordinator.runtime import CoordinatorRuntime
from moldau.broker.coordinator.transaction.core.rules import TransactionSettings
from moldau.broker.coordinator.transaction.core.state import (
    ProducerAnswer,
    SendMarkers,
    TransactionState,
)
from moldau.broker.coordinator.transaction.core.transaction import (
    EPOCH_BUMP_VERSION,
    Transaction,
)
from moldau.broker.coordinator.transaction.marker_sender import MarkerSender, WriteMarkers
from moldau.metadata.features import TRANSACTION_VERSION
from moldau.metadata.image import NO_LEADER
from moldau.protocol.coordinator_records import TRANSACTION_STATE
from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import TopicPartition

if TYPE_CHECKING:
    from moldau.broker.coordinator.other_brokers import OtherBrokers
    from moldau.broker.coordinator.ports import RuntimePorts
    from moldau.broker.coordinator.producer_ids import ProducerIds
    from moldau.config import NodeConfig
    from moldau.metadata.image import MetadataDelta, MetadataImage
    from moldau.protocol.messages.p22_init_producer_id import InitProducerIdRequest
    from moldau.server.request import RequestContext

logger = logging.getLogger(__name__)


class TransactionCoordinator:
    """Belongs to the data loop.

    Args:
        write_here: writes the markers of partitions that this broker leads.
    """

    def __init__(
        self,
        config: NodeConfig,
        ports: RuntimePorts,
        brokers: OtherBrokers,
        producer_ids: ProducerIds,
        write_here: WriteMarkers,
    ) -> None:
        self._producer_ids = producer_ids
        self._image = brokers.image
        settings = TransactionSettings.from_config(config)
        memory = memory_limit(config["moldau.transaction.coordinator.max.bytes"], "transactions")
        self.runtime: CoordinatorRuntime[TransactionState] = CoordinatorRuntime(
            TRANSACTION_STATE,
            lambda _partition_index: TransactionState(
                settings,
                producer_ids,
                lambda: self._image().features.level(TRANSACTION_VERSION),
                KeptMemory(memory),
            ),
            self._execute,
            RuntimeSettings.for_transactions(config),
            ports,
        )
        self.ask = self.runtime.ask
        self._markers = MarkerSender(
            ports, brokers, self.runtime.coordinator_epoch, write_here, self._written
        )

    # -- the cluster -----------------------------------------------------------------------------

    def leader_of(self, transactional_id: str) -> int | None:
        """The broker that coordinates the id as far as known here; None without one."""
        partition_index = self.runtime.partition_of(transactional_id)
        if partition_index is None:
            return None
        topic = self._image().topics.topics_by_name[self.runtime.topic]
        leader = topic.partitions[partition_index].leader
        return None if leader == NO_LEADER else leader

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self.runtime.on_metadata_update(delta, image)
        self._markers.on_metadata_update()

    async def close(self) -> None:
        await self._producer_ids.stop()
        await self.runtime.close()
        await self._markers.close()

    # -- requests --------------------------------------------------------------------------------

    def init_producer_id(
        self,
        request: InitProducerIdRequest,
        context: RequestContext,
        done: Callable[[ProducerAnswer], None],
    ) -> None:
        """A producer begins, or comes back (KIP-98, KIP-360, KIP-939); `context` is of the request,
        which may wait for a producer id.
        """
        reply_to = CallbackReply(done)
        self._producer_ids.when_ready(
            context,
            lambda: self.ask(
                request.transactional_id or "",
                reply_to,
                lambda state, now_ms: state.init_producer_id(
                    request, context.principal, reply_to, now_ms
                ),
                ProducerAnswer,
            ),
        )

    def add_partitions(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Collection[TopicPartition],
        *,
        verify_only: bool = False,
        done: Callable[[dict[TopicPartition, ErrorCode]], None],
        client_version: int = EPOCH_BUMP_VERSION,
    ) -> None:
        """Add partitions to the producer's transaction, or see if they are in it (KIP-890).

        Args:
            client_version: the transaction version of the producer, as far as the request shows it.
            done: gets NONE or an error of AddPartitionsToTxn for each partition.
        """
        reply_to = CallbackReply(done)
        self.ask(
            transactional_id,
            reply_to,
            lambda state, now_ms: state.add_partitions(
                transactional_id,
                producer,
                partitions,
                reply_to,
                now_ms,
                client_version=client_version,
                verify_only=verify_only,
            ),
            partial(dict.fromkeys, partitions),
        )

    def describe(self, transactional_id: str, reply_to: Answerable) -> None:
        """Answer with the Transaction, or an ErrorCode."""
        self.ask(
            transactional_id,
            reply_to,
            lambda state, _now_ms: state.describe(transactional_id, reply_to),
            lambda error: error,
        )

    def list_transactions(
        self,
        wanted: Callable[[Transaction], bool],
        done: Callable[[ErrorCode, list[Transaction]], None],
    ) -> None:
        """List the `wanted` ids kept here; COORDINATOR_LOAD_IN_PROGRESS while a partition loads."""
        if self.runtime.is_loading:
            done(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, [])
            return
        self.runtime.list_each(
            [partition_index for partition_index, _ in self.runtime.states()],
            lambda state, reply_to: state.list_transactions(wanted, reply_to),
            lambda errors, listed: done(max(errors, default=ErrorCode.NONE), listed),
        )

    # -- inner workings --------------------------------------------------------------------------

    def _execute(self, partition_index: int, command: object) -> None:
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
