"""The broker's side of the quorum that lives in the same process.

Owns the way of requests to the controller (`ControllerChannel`), of committed metadata to the
loader, and of producer id blocks. Must not decide anything. Invariant: what the log commits reaches
the loader in log order, and before the response of the request that caused it is seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from moldau.broker.controller_channel import (
    DEFAULT_TIMEOUT_MS,
    ControllerChannel,
    ControllerUnavailable,
)
from moldau.broker.metadata_loader import MetadataLoader
from moldau.broker.producer_ids import ProducerIdBlock, ProducerIdsUnavailable
from moldau.controller_server import QuorumNode, RequestUndelivered
from moldau.metadata.image import Provenance
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p55_describe_quorum import (
    DescribeQuorumRequest,
    PartitionData,
    TopicData,
)
from moldau.protocol.messages.p67_allocate_producer_ids import AllocateProducerIdsRequest
from moldau.protocol.schema import Message
from moldau.raft import METADATA_TOPIC, CommittedBatch, LoadedSnapshot

CATCH_UP_TIMEOUT_S: Final = 120.0
INTERNAL_PRINCIPAL: Final = "User:ANONYMOUS"


class InProcessControllerChannel:
    """`ControllerChannel` to the controller of this very process."""

    def __init__(self, quorum: QuorumNode) -> None:
        self._quorum = quorum

    async def send(
        self, request: Message, principal: str, *, timeout_ms: int = DEFAULT_TIMEOUT_MS
    ) -> Any:
        """As the port says; a refusal by the controller is a response, not an exception."""
        try:
            return await self._quorum.send(request, principal, timeout_ms=timeout_ms)
        except RequestUndelivered as problem:
            raise ControllerUnavailable(str(problem)) from problem


class LoaderFeed:
    """Hands what the log delivers on the data loop to the loader."""

    def __init__(self, loader: MetadataLoader) -> None:
        self._loader = loader

    def on_snapshot(self, snapshot: LoadedSnapshot) -> None:
        """Replace everything."""
        provenance = Provenance(
            snapshot.end_offset - 1, snapshot.leader_epoch, snapshot.last_contained_log_time_ms
        )
        self._loader.handle_snapshot(snapshot.records, provenance)

    def on_commit(self, batch: CommittedBatch) -> None:
        """Apply one batch."""
        provenance = Provenance(batch.last_offset, batch.leader_epoch, batch.append_timestamp_ms)
        self._loader.handle_commit(batch.records, provenance)


async def follow_metadata(
    quorum: QuorumNode, channel: InProcessControllerChannel, loader: MetadataLoader
) -> None:
    """Feed the loader from now on; returns when it has everything that was committed by now.

    Raises:
        ControllerUnavailable: the quorum does not answer, or the log was not read in time.
    """
    await quorum.subscribe(LoaderFeed(loader))
    request = DescribeQuorumRequest(
        topics=[TopicData(topic_name=METADATA_TOPIC, partitions=[PartitionData(partition_index=0)])]
    )
    response = await channel.send(request, INTERNAL_PRINCIPAL)
    high_watermark = response.topics[0].partitions[0].high_watermark
    try:
        async with asyncio.timeout(CATCH_UP_TIMEOUT_S):
            await loader.wait_until(
                lambda image: image.provenance.last_contained_offset >= high_watermark - 1
            )
    except TimeoutError:
        read = loader.last_applied_offset + 1
        raise ControllerUnavailable(
            f"of {high_watermark} metadata records {read} were read in {CATCH_UP_TIMEOUT_S:.0f} s"
        ) from None


class ProducerIdBlocks:
    """Implements the broker's `ProducerIdAllocator` (KIP-730)."""

    def __init__(
        self,
        channel: ControllerChannel,
        broker_id: int,
        broker_epoch: Callable[[], int],
    ) -> None:
        self._channel = channel
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch

    async def allocate_block(self) -> ProducerIdBlock:
        """As the port says."""
        request = AllocateProducerIdsRequest(
            broker_id=self._broker_id, broker_epoch=self._broker_epoch()
        )
        try:
            response = await self._channel.send(request, INTERNAL_PRINCIPAL)
        except ControllerUnavailable as problem:
            raise ProducerIdsUnavailable(str(problem)) from problem
        if response.error_code != ErrorCode.NONE:
            raise ProducerIdsUnavailable(ErrorCode.of(response.error_code).name)
        return ProducerIdBlock(response.producer_id_start, response.producer_id_len)
