"""A producer id at hand for the transaction coordinator, whose rules cannot wait for one.

Owns the one spare id, and who waits until there is one. Must not know what it is used for.
Invariant: an id is used once; whoever waits is called exactly once, with an id at hand or after the
controller has failed to give one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

from moldau.broker.coordinator.producer_ids import ProducerIds, ProducerIdsUnavailable
from moldau.broker.coordinator.transaction.core.transaction import NO_PRODUCER_ID

MAX_WAITING: Final = 10_000
"""Who may wait for an id; one more is called at once, without."""


class ProducerIdSource:
    """Implements `SpareProducerIds`.

    Args:
        start: runs a coroutine whose failure is told to the node.
    """

    def __init__(
        self, producer_ids: ProducerIds, start: Callable[[Coroutine[Any, Any, None]], object]
    ) -> None:
        self._producer_ids = producer_ids
        self._start = start
        self._spare = NO_PRODUCER_ID
        self._is_fetching = False
        self._is_closed = False
        self._waiting: deque[Callable[[], object]] = deque()

    @property
    def spare(self) -> int:
        """As the port says; if there is none, one is being fetched."""
        if self._spare == NO_PRODUCER_ID:
            self._fetch()
        return self._spare

    def use(self) -> None:
        """As the port says; the next one is at hand at once unless another caller waits, or the
        block of ids is used up: then it is being fetched.
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
        """Call `action`: now if there is a spare id, otherwise when there is one or none is to be
        had.
        """
        has_to_wait = self._spare == NO_PRODUCER_ID or bool(self._waiting)
        if has_to_wait and not self._is_closed and len(self._waiting) < MAX_WAITING:
            self._waiting.append(action)
            self._fetch()
        else:
            action()

    def close(self) -> None:
        """Whoever waits is called without an id."""
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
            # Each may use the id up, which fetches another one for those behind it.
            while self._waiting and self._spare != NO_PRODUCER_ID:
                self._waiting.popleft()()
        else:
            self._call_waiting()

    def _call_waiting(self) -> None:
        for _ in range(len(self._waiting)):
            self._waiting.popleft()()
