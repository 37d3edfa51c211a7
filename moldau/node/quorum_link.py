"""The broker's side of the quorum whose log this process holds.

Owns the choice between a controller of this very process and one across the network, the way of
leadership changes and of committed metadata from the quorum's loop to the broker's, and of producer
id blocks. Must not decide anything. Invariant: what the log commits reaches the loader in log
order; when the active controller is in this process, before the response of the request that caused
it is seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from moldau.broker.coordinator.producer_ids import ProducerIdBlock, ProducerIdsUnavailable
from moldau.broker.lifecycle.controller_channel import (
    INTERNAL_PRINCIPAL,
    ControllerAnswer,
    ControllerChannel,
    ControllerUnavailable,
    ForwardedClient,
    NetworkControllerChannel,
    TryAgain,
)
from moldau.broker.lifecycle.metadata_loader import (
    MetadataLoader,
    high_watermark_of,
    wait_applied,
)
from moldau.metadata.image import Provenance
from moldau.metadata.log import CommittedBatch, LoadedSnapshot
from moldau.node.quorum_node import QuorumNode, RequestUndelivered
from moldau.protocol.error_responses import has_error
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p67_allocate_producer_ids import AllocateProducerIdsRequest
from moldau.protocol.schema import AnyRequest
from moldau.runtime.leader_link import LeaderAddress

CATCH_UP_TIMEOUT_S: Final = 120.0


class ControllerRouter(NetworkControllerChannel):
    """`ControllerChannel` to the active controller: in this process, or across the network.

    Args:
        node_id: this node's.
        own: this node, None when it has no controller.
        leader, options: as `NetworkControllerChannel`.
    """

    def __init__(
        self,
        leader: Callable[[], LeaderAddress | None],
        *,
        node_id: int,
        own: QuorumNode | None,
        **options: Any,
    ) -> None:
        super().__init__(leader, **options)
        self._node_id = node_id
        self._own = own

    async def _attempt(
        self,
        leader: LeaderAddress,
        request: AnyRequest,
        principal: str,
        timeout_ms: float,
        client: ForwardedClient | None,
    ) -> ControllerAnswer:
        own = self._own
        if own is None or leader.node_id != self._node_id:
            return await super()._attempt(leader, request, principal, timeout_ms, client)
        # The controller carries out what it was asked even when no caller waits any more: the
        # limit is this caller's.
        try:
            async with asyncio.timeout(max(timeout_ms, 0.0) / 1000):
                limit_ms = int(timeout_ms)
                if client is None:
                    response = await own.send(request, principal, timeout_ms=limit_ms)
                else:
                    response = await own.send(
                        request,
                        principal,
                        timeout_ms=limit_ms,
                        client_host=client.host,
                        client_id=client.client_id,
                        api_version=client.api_version,
                        is_forwarded=True,
                    )
        except (TimeoutError, RequestUndelivered) as problem:
            raise TryAgain(f"{leader}: {str(problem) or 'no answer in time'}") from problem
        if has_error(response, ErrorCode.NOT_CONTROLLER):
            raise TryAgain(f"{leader} is not the active controller")
        if client is None:
            return ControllerAnswer(response)
        return ControllerAnswer(response, own.committed_end_offset)


class LeaderRelay:
    """The active controller as the broker's loop knows it, told by the quorum's thread.

    Args:
        loop: the broker's; `on_change` is called there, after `leader` says the new one.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._leader: LeaderAddress | None = None
        self.on_change: Callable[[], object] | None = None

    def leader(self) -> LeaderAddress | None:
        """The leader, None while none is known; on the broker's loop."""
        return self._leader

    def publish(self, leader: LeaderAddress | None) -> None:
        """Tell the broker's loop; from any thread, in order."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._take, leader)

    def _take(self, leader: LeaderAddress | None) -> None:
        if leader == self._leader:
            return
        self._leader = leader
        if self.on_change is not None:
            self.on_change()


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


class NoActiveController(ControllerUnavailable):
    """The quorum has none, or none that answers; the text says why, by address."""


async def follow_metadata(
    quorum: QuorumNode,
    channel: ControllerChannel,
    loader: MetadataLoader,
    *,
    leader_timeout_ms: int,
) -> None:
    """Feed the loader from now on; returns when it has everything that was committed by now.

    Args:
        leader_timeout_ms: how long to look for the active controller.

    Raises:
        NoActiveController: none was found in time.
        ControllerUnavailable: the log was not read in time.
    """
    await quorum.subscribe(LoaderFeed(loader))
    try:
        async with asyncio.timeout(leader_timeout_ms / 1000):
            high_watermark = await high_watermark_of(channel, leader_timeout_ms)
    except (TimeoutError, ControllerUnavailable):
        problems = await quorum.peer_problems()
        reasons = "; ".join(f"{address}: {problem}" for address, problem in problems.items())
        raise NoActiveController(reasons or "none of them knows one") from None
    try:
        async with asyncio.timeout(CATCH_UP_TIMEOUT_S):
            await wait_applied(loader, high_watermark)
    except TimeoutError:
        read = loader.last_applied_offset + 1
        raise ControllerUnavailable(
            f"of {high_watermark} metadata records not all were read in "
            f"{CATCH_UP_TIMEOUT_S:.0f} s; {read} are here"
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
