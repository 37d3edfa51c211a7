"""Producer ids, taken from blocks that the controller hands out.

Owns the block in use and the next one, fetched before it is needed (KIP-730), and the spare id of
the transaction coordinator. Must not know how the controller is reached. Invariant: an id is given
once in the life of the cluster: the rest of a block that is lost in a crash is never used.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Final

from moldau.protocol.records.header import NO_PRODUCER_ID

logger = logging.getLogger("moldau.broker.coordinator.producer_ids")

PREFETCH_AT: Final = 0.9
"""The share of a block after which the next one is asked for."""


class ProducerIdsUnavailable(Exception):
    """The controller gave no block; the client may try again."""


class ProducerIds:
    """Hands out one id after the other, from blocks.

    Args:
        allocate: asks the controller for a block that no other broker has, and raises
            ProducerIdsUnavailable.
    """

    def __init__(self, allocate: Callable[[], Coroutine[object, None, range]]) -> None:
        self._allocate = allocate
        self._next = 0
        self._end = 0
        self._prefetch_from = 0
        self._next_block: range | None = None
        self._fetching: asyncio.Task[None] | None = None

    async def next_producer_id(self) -> int:
        """An id that no producer had before. Raises: ProducerIdsUnavailable."""
        while (producer_id := self.next_at_hand()) is None:
            await self._fetched()
        return producer_id

    def next_at_hand(self) -> int | None:
        """As `next_producer_id`, but only an id that is here already, otherwise None."""
        if self._next >= self._end:
            block, self._next_block = self._next_block, None
            if block is None:
                return None
            self._next, self._end = block.start, block.stop
            self._prefetch_from = self._next + int(len(block) * PREFETCH_AT)
        producer_id = self._next
        self._next += 1
        if self._next >= self._prefetch_from and self._next_block is None:
            self._start_fetching()
        return producer_id

    async def close(self) -> None:
        """Wait for a block that is on its way; its ids are lost."""
        if self._fetching is not None:
            await asyncio.wait([self._fetching])

    def _start_fetching(self) -> asyncio.Task[None]:
        if self._fetching is None:
            self._fetching = asyncio.get_running_loop().create_task(self._fetch())
            self._fetching.add_done_callback(self._fetch_ended)
        return self._fetching

    async def _fetched(self) -> None:
        # `wait` shields the fetch: a caller that gives up must not take the block from the others.
        fetching = self._start_fetching()
        await asyncio.wait([fetching])
        error = fetching.exception()
        if error is not None:
            raise ProducerIdsUnavailable(str(error)) from error

    async def _fetch(self) -> None:
        block = await self._allocate()
        if not block:
            raise ProducerIdsUnavailable("the controller gave an empty block")
        self._next_block = block

    def _fetch_ended(self, fetching: asyncio.Task[None]) -> None:
        self._fetching = None
        error = None if fetching.cancelled() else fetching.exception()
        if error is not None:
            logger.warning("no block of producer ids: %s", error)


MAX_WAITING: Final = 10_000
"""Actions that may wait for an id; one more is called at once, without an id."""


class ProducerIdSource:
    """One spare producer id for the transaction coordinator, whose rules cannot wait for one.

    Invariant: an id is used once; a waiting action is called exactly once, when there is a spare id
    or the controller has failed to give one.
    """

    def __init__(
        self, producer_ids: ProducerIds, start: Callable[[Coroutine[object, object, None]], object]
    ) -> None:
        self._producer_ids = producer_ids
        self._start = start
        self._spare = NO_PRODUCER_ID
        self._is_fetching = False
        self._is_closed = False
        self._waiting: deque[Callable[[], object]] = deque()

    @property
    def spare(self) -> int:
        """See the port; without a spare id a fetch begins."""
        if self._spare == NO_PRODUCER_ID:
            self._fetch()
        return self._spare

    def use(self) -> None:
        """See the port. The next one is spare at once, unless an action waits or the block is used
        up: then it is fetched.
        """
        assert self._spare != NO_PRODUCER_ID
        self._spare = NO_PRODUCER_ID
        if not self._waiting and not self._is_closed:
            next_one = self._producer_ids.next_at_hand()
            if next_one is not None:
                self._spare = next_one
                return
        self._fetch()

    def when_ready(self, action: Callable[[], object]) -> None:
        """Call `action`: now if there is a spare id, otherwise when there is one or the controller
        has failed to give one.
        """
        has_to_wait = self._spare == NO_PRODUCER_ID or bool(self._waiting)
        if has_to_wait and not self._is_closed and len(self._waiting) < MAX_WAITING:
            self._waiting.append(action)
            self._fetch()
        else:
            action()

    def close(self) -> None:
        """Call the waiting actions, without an id."""
        self._is_closed = True
        self._call_waiting()

    def _fetch(self) -> None:
        if not self._is_fetching and not self._is_closed:
            self._is_fetching = True
            self._start(self._fetch_one())

    async def _fetch_one(self) -> None:
        is_available = True
        try:
            self._spare = await self._producer_ids.next_producer_id()
        except ProducerIdsUnavailable:
            is_available = False
        finally:
            self._is_fetching = False
        if is_available:
            # An action may use the id, which fetches another one for the next action.
            while self._waiting and self._spare != NO_PRODUCER_ID:
                self._waiting.popleft()()
        else:
            self._call_waiting()

    def _call_waiting(self) -> None:
        for _ in range(len(self._waiting)):
            self._waiting.popleft()()
