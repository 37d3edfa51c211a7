"""The broker's copy of the cluster's metadata.

Owns the current image, the delta under construction and the list of publishers that are told of
each change. Must not change metadata: it only replays what the log has committed. Invariant:
publishers see every image in log order, each exactly once, and `image` is the last one they were
told of.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, Protocol

from moldau.metadata.image import MetadataDelta, MetadataImage, Provenance, TransactionFilter
from moldau.protocol.schema import Message

logger = logging.getLogger("moldau.broker.metadata")

MAX_WAITERS: Final = 10_000


class MetadataPublisher(Protocol):
    """Told of every new image, in order."""

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Take over `image`, which is what `delta` made of the one before."""
        ...


@dataclass(slots=True)
class _Waiter:
    condition: Callable[[MetadataImage], bool]
    future: asyncio.Future[None]


class TooManyWaiters(Exception):
    """More callers wait for a metadata change than the limit allows."""


class MetadataLoader:
    """Builds images from committed batches and hands them to the publishers.

    A metadata transaction (KIP-868) is held back until its end record: publishers never see half of
    one.
    """

    def __init__(self, broker_id: int) -> None:
        self.image = MetadataImage.EMPTY
        self._broker_id = broker_id
        self._publishers: list[MetadataPublisher] = []
        self._transaction = TransactionFilter()
        self._waiters: list[_Waiter] = []

    def add_publisher(self, publisher: MetadataPublisher) -> None:
        """Register a publisher, which at once hears of everything there is."""
        self._publishers.append(publisher)
        if self.image is not MetadataImage.EMPTY:
            publisher.on_metadata_update(MetadataDelta.from_nothing(self.image), self.image)

    @property
    def last_applied_offset(self) -> int:
        """Offset of the last metadata record in the image, -1 before the first."""
        return self.image.provenance.last_contained_offset

    def handle_snapshot(self, records: Sequence[Message], provenance: Provenance) -> None:
        """Replace everything by a snapshot's content."""
        delta = MetadataDelta(self.image)
        delta.begin_snapshot()
        for record in records:
            delta.replay(record)
        delta.finish_snapshot()
        self._transaction.reset()
        self._publish(delta, provenance)

    def handle_commit(self, records: Sequence[Message], provenance: Provenance) -> None:
        """Apply one committed batch; `provenance` names its last offset, epoch and time."""
        ready = self._transaction.feed(records)
        delta = MetadataDelta(self.image)
        for record in ready:
            delta.replay(record)
        self._publish(delta, provenance)

    def controller_id_for_clients(self) -> int:
        """The node clients should take for the controller: a broker, which forwards (KIP-590)."""
        alive = [
            broker_id
            for broker_id, registration in self.image.cluster.brokers.items()
            if not registration.fenced
        ]
        if self._broker_id in alive:
            return self._broker_id
        return min(alive, default=-1)

    async def wait_until(self, condition: Callable[[MetadataImage], bool]) -> None:
        """Return when an image satisfies `condition`; callers bring their own time limit.

        Raises:
            TooManyWaiters: MAX_WAITERS callers wait already.
        """
        if condition(self.image):
            return
        if len(self._waiters) >= MAX_WAITERS:
            raise TooManyWaiters(f"{MAX_WAITERS} callers already wait for a metadata change")
        waiter = _Waiter(condition, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        try:
            await waiter.future
        finally:
            self._waiters = [other for other in self._waiters if other is not waiter]

    def _publish(self, delta: MetadataDelta, provenance: Provenance) -> None:
        image = delta.apply(provenance)
        self.image = image
        with ExitStack() as calls:
            # One that fails is somebody's bug and is told as such; the others hear of it all the
            # same. Called last to first.
            calls.callback(self._tell_waiters, image)
            for publisher in reversed(self._publishers):
                calls.callback(publisher.on_metadata_update, delta, image)

    def _tell_waiters(self, image: MetadataImage) -> None:
        for waiter in self._waiters:
            if not waiter.future.done() and waiter.condition(image):
                waiter.future.set_result(None)
