"""Producer ids, taken from blocks of the controller, and the requests that wait for one.

Owns the block in use, the next one, fetched before it is needed (KIP-730), and the line of requests
that came while none was at hand. Must not make blocks (`controller.core.cluster_control` does).
Invariants: an id is given once in the life of the cluster: the rest of a block that is lost in a
crash is never used; a waiting request is answered once, or leaves with its connection; at most
`MAX_WAITING` wait, and no principal takes the places of others; one task answers them, however many
they are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Final

from moldau.broker.replica.purgatory import DelayedOperation, Purgatory
from moldau.protocol.records.header import NO_PRODUCER_ID
from moldau.runtime.slices import Work, completed

if TYPE_CHECKING:
    from moldau.runtime.clock import Clock
    from moldau.runtime.timers import TimerWheel
    from moldau.server.request import RequestContext

logger = logging.getLogger(__name__)

PREFETCH_AT: Final = 0.9
"""The share of a block after which the next one is asked for."""

MAX_WAITING: Final = 10_000
"""Requests that may wait for an id; one more is answered at once, without an id."""


class ProducerIdsUnavailable(Exception):
    """The controller gave no block; the client may try again."""


class ProducerIds:
    """Hands out one id after the other, from blocks.

    Args:
        allocate: asks the controller for a block that no other broker has, and raises
            ProducerIdsUnavailable.
        start: runs a coroutine whose failure is reported to the node.
    """

    def __init__(
        self,
        allocate: Callable[[], Coroutine[object, None, range]],
        *,
        clock: Clock,
        timers: TimerWheel,
        start: Callable[[Work], object],
    ) -> None:
        self._allocate = allocate
        self._clock = clock
        self._start = start
        self._next = 0
        self._end = 0
        self._prefetch_from = 0
        self._next_block: range | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._waiting = Purgatory("InitProducerId", timers, MAX_WAITING)
        self._refused_count = 0
        """Requests that were waiting when the controller gave no block, and have no answer yet."""
        self._is_answering = False
        self._is_closed = False

    @property
    def waiting_count(self) -> int:
        return int(self._waiting.size())

    @property
    def spare(self) -> int:
        """The id that `use` takes next, -1 without one at hand: then a block is asked for."""
        if self._next >= self._end:
            block, self._next_block = self._next_block, None
            if block is None:
                self._start_fetching()
                return NO_PRODUCER_ID
            self._next, self._end = block.start, block.stop
            self._prefetch_from = self._next + int(len(block) * PREFETCH_AT)
        return self._next

    def use(self) -> None:
        """Give `spare` to a producer."""
        assert self._next < self._end, "the caller has seen a spare id"
        self._next += 1
        if self._next >= self._prefetch_from and self._next_block is None:
            self._start_fetching()

    def take(self) -> int:
        """An id that no producer had before, -1 without one at hand."""
        producer_id = self.spare
        if producer_id != NO_PRODUCER_ID:
            self.use()
        return producer_id

    def when_ready(self, context: RequestContext, action: Callable[[], object]) -> None:
        """Call `action`, which answers a request: now if an id is at hand, otherwise when one is,
        when the controller has failed to give one, or when there is no place to wait. Not at all if
        the connection ends before.
        """
        is_at_hand = not self.waiting_count and self.spare != NO_PRODUCER_ID
        if is_at_hand or self._is_closed:
            action()
            return
        if not self._waiting.add_request(_Waiter(self._waiting, context, action), context, None):
            action()

    async def stop(self) -> None:
        """Answer what waits, without an id; nothing waits from now on."""
        self._is_closed = True
        await completed(self._clock, self._answers())

    async def close(self) -> None:
        """Wait for a block that is on its way; its ids are lost."""
        self._is_closed = True
        if self._fetching is not None:
            await asyncio.wait([self._fetching])

    # -- inner workings --------------------------------------------------------------------------

    def _start_fetching(self) -> None:
        if self._fetching is None and not self._is_closed:
            self._fetching = asyncio.get_running_loop().create_task(self._fetch())
            self._fetching.add_done_callback(self._fetch_ended)

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
            self._refused_count = self.waiting_count
        self._answer_waiting()

    def _answer_waiting(self) -> None:
        if self.waiting_count and not self._is_answering:
            self._is_answering = True
            self._start(self._answer_in_slices())

    async def _answer_in_slices(self) -> None:
        try:
            await completed(self._clock, self._answers())
        finally:
            self._is_answering = False

    def _answers(self) -> Generator[None, None, None]:
        """Answer those that wait, while ids are at hand; without one only whom a failure met."""
        while self._refused_count or self._is_closed or self.spare != NO_PRODUCER_ID:
            waiter = self._waiting.take()
            if waiter is None:
                self._refused_count = 0
                break
            self._refused_count = max(self._refused_count - 1, 0)
            waiter.on_timeout()
            yield


class _Waiter(DelayedOperation):
    """A request that waits for an id."""

    __slots__ = ("_action", "_context", "_waiting")

    def __init__(
        self, waiting: Purgatory, context: RequestContext, action: Callable[[], object]
    ) -> None:
        super().__init__()
        self._waiting = waiting
        self._context = context
        self._action = action

    def on_timeout(self) -> None:
        """It is this request's turn, or its place is another principal's."""
        self._waiting.remove_request(self, self._context)
        self._action()

    def on_dropped(self) -> None:
        self._context.respond_nothing()
