"""The broker's side of the quorum whose log this process holds.

Owns the way of leadership changes and of committed metadata from the quorum's loop to the broker's,
and of producer id blocks. Must not decide anything. Invariant: what the log commits reaches the
loader in log order; when the active controller is in this process, before the response of the
request that caused it is seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from moldau.broker.coordinator.producer_ids import ProducerIdsUnavailable
from moldau.broker.lifecycle.controller_channel import (
    INTERNAL_PRINCIPAL,
    ControllerChannel,
    ControllerUnavailable,
)
from moldau.broker.lifecycle.metadata_loader import MetadataLoader, high_watermark_of, wait_applied
from moldau.metadata.log import CommittedBatch, LoadedSnapshot
from moldau.node.quorum_node import QuorumNode
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p67_allocate_producer_ids import AllocateProducerIdsRequest
from moldau.runtime.leader_link import LeaderAddress

CATCH_UP_TIMEOUT_S: Final = 120.0


class LeaderRelay:
    """The active controller as the broker's loop knows it, set by the quorum's thread.

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
        self._loader.handle_snapshot(snapshot.records, snapshot.provenance)

    def on_commit(self, batch: CommittedBatch) -> None:
        self._loader.handle_commit(batch.records, batch.provenance)


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
        reasons = "; ".join(
            problem if problem.startswith(address) else f"{address}: {problem}"
            for address, problem in problems.items()
        )
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


async def allocate_producer_ids(
    channel: ControllerChannel, broker_id: int, broker_epoch: int
) -> range:
    """The next block of producer ids (KIP-730). Raises: ProducerIdsUnavailable."""
    request = AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=broker_epoch)
    try:
        response = await channel.send(request, INTERNAL_PRINCIPAL)
    except ControllerUnavailable as problem:
        raise ProducerIdsUnavailable(str(problem)) from problem
    if response.error_code != ErrorCode.NONE:
        raise ProducerIdsUnavailable(ErrorCode.of(response.error_code).name)
    first = response.producer_id_start
    return range(first, first + response.producer_id_len)
