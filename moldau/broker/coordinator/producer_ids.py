"""Producer ids for idempotent producers, taken from blocks the controller hands out.

Owns the block in use and the next one, fetched before it is needed (KIP-730). Must not know how the
controller is reached. Invariant: an id is given once in the life of the cluster: a block whose rest
is lost in a crash is never used again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, NamedTuple, Protocol

logger = logging.getLogger("moldau.broker.coordinator.producer_ids")

PREFETCH_AT: Final = 0.9
"""The share of a block after which the next one is asked for."""


class ProducerIdBlock(NamedTuple):
    """Ids from `first_producer_id`, `producer_id_count` of them."""

    first_producer_id: int
    producer_id_count: int


class ProducerIdsUnavailable(Exception):
    """The controller gave no block; the client may try again."""


class ProducerIdAllocator(Protocol):
    """Asks the controller for ids."""

    async def allocate_block(self) -> ProducerIdBlock:
        """A block nobody else has.

        Raises:
            ProducerIdsUnavailable: no controller answered, or it refused.
        """
        ...


class ProducerIds:
    """Hands out one id after the other."""

    __slots__ = ("_allocator", "_end", "_fetching", "_next", "_next_block", "_prefetch_from")

    def __init__(self, allocator: ProducerIdAllocator) -> None:
        self._allocator = allocator
        self._next = 0
        self._end = 0
        self._prefetch_from = 0
        self._next_block: ProducerIdBlock | None = None
        self._fetching: asyncio.Task[None] | None = None

    async def next_producer_id(self) -> int:
        """An id that no producer had before.

        Raises:
            ProducerIdsUnavailable: there is none left here and none to be had.
        """
        while (producer_id := self.next_at_hand()) is None:
            await self._fetched()
        return producer_id

    def next_at_hand(self) -> int | None:
        """As `next_producer_id`, but only an id that is here already; None if there is none."""
        if self._next >= self._end:
            if self._next_block is None:
                return None
            self._use(self._next_block)
        producer_id = self._next
        self._next += 1
        if self._next >= self._prefetch_from and self._next_block is None:
            self._start_fetching()
        return producer_id

    async def close(self) -> None:
        """Wait for a block that is on its way; its ids are lost."""
        if self._fetching is not None:
            await asyncio.wait([self._fetching])

    def _use(self, block: ProducerIdBlock) -> None:
        self._next_block = None
        self._next = block.first_producer_id
        self._end = self._next + block.producer_id_count
        self._prefetch_from = self._next + int(block.producer_id_count * PREFETCH_AT)

    def _start_fetching(self) -> asyncio.Task[None]:
        if self._fetching is None:
            self._fetching = asyncio.get_running_loop().create_task(self._fetch())
            self._fetching.add_done_callback(self._fetch_ended)
        return self._fetching

    async def _fetched(self) -> None:
        # Shielded by `wait`: one caller that gives up must not take the block from the others.
        fetching = self._start_fetching()
        await asyncio.wait([fetching])
        error = fetching.exception()
        if error is not None:
            raise ProducerIdsUnavailable(str(error)) from error

    async def _fetch(self) -> None:
        block = await self._allocator.allocate_block()
        if block.producer_id_count <= 0:
            raise ProducerIdsUnavailable("the controller gave an empty block")
        self._next_block = block

    def _fetch_ended(self, fetching: asyncio.Task[None]) -> None:
        self._fetching = None
        error = None if fetching.cancelled() else fetching.exception()
        if error is not None:
            logger.warning("no block of producer ids: %s", error)
