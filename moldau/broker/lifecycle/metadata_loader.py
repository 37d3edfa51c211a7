"""The broker's copy of the cluster's metadata, and how far it has applied what is committed.

Owns the current image, the delta under construction and the list of publishers of each change. Must
not change metadata: it only replays what the log has committed. Invariant: publishers see every
image in log order, each exactly once, and `image` is the last one that they have got.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final, Protocol

from moldau.broker.lifecycle.controller_channel import (
    DEFAULT_TIMEOUT_MS,
    INTERNAL_PRINCIPAL,
    RETRY_BACKOFF_MS,
    ControllerChannel,
)
from moldau.metadata.image import (
    MetadataDelta,
    MetadataImage,
    PartitionRegistration,
    Provenance,
    TransactionFilter,
)
from moldau.metadata.image.values import NO_LEADER
from moldau.protocol.error_responses import error_codes
from moldau.protocol.messages.p55_describe_quorum import (
    DescribeQuorumRequest,
    PartitionData,
    TopicData,
)
from moldau.protocol.schema import Message
from moldau.protocol.types import METADATA_TOPIC_NAME
from moldau.runtime.telemetry.metrics import Registry

MAX_WAITERS: Final = 10_000
UNCLEAN_ELECTIONS: Final = "kafka.controller:type=ControllerStats,name=UncleanLeaderElectionsPerSec"


class MetadataPublisher(Protocol):
    """Takes every new image, in order."""

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Take over `image`, which is what `delta` made of the one before."""


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
        self._waiters: dict[asyncio.Future[None], Callable[[MetadataImage], bool]] = {}

    def add_publisher(self, publisher: MetadataPublisher) -> None:
        """Register a publisher and give it everything there is."""
        self._publishers.append(publisher)
        if self.image is not MetadataImage.EMPTY:
            publisher.on_metadata_update(MetadataDelta.from_nothing(self.image), self.image)

    @property
    def last_applied_offset(self) -> int:
        """Offset of the last metadata record in the image, -1 before the first."""
        return self.image.provenance.last_contained_offset

    def handle_snapshot(self, records: Sequence[Message], provenance: Provenance) -> None:
        delta = MetadataDelta(self.image)
        for record in records:
            delta.replay(record)
        delta.finish_snapshot()
        self._transaction.reset()
        self._publish(delta, provenance)

    def handle_commit(self, records: Sequence[Message], provenance: Provenance) -> None:
        """Apply one committed batch; `provenance` names its last offset, epoch and time."""
        delta = MetadataDelta(self.image)
        for record in self._transaction.feed(records):
            delta.replay(record)
        self._publish(delta, provenance)

    def controller_id_for_clients(self) -> int:
        """The controller as clients see it: a broker, which forwards their requests (KIP-590)."""
        brokers = self.image.cluster.brokers
        alive = [broker_id for broker_id in brokers if not brokers[broker_id].fenced]
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
        waiter = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = condition
        try:
            await waiter
        finally:
            del self._waiters[waiter]

    def _publish(self, delta: MetadataDelta, provenance: Provenance) -> None:
        image = delta.apply(provenance)
        self.image = image
        with ExitStack() as calls:
            # An exception of one publisher goes on; the others get the image all the same. Called
            # last to first.
            calls.callback(self._tell_waiters, image)
            for publisher in reversed(self._publishers):
                calls.callback(publisher.on_metadata_update, delta, image)

    def _tell_waiters(self, image: MetadataImage) -> None:
        for waiter, condition in self._waiters.items():
            if not waiter.done() and condition(image):
                waiter.set_result(None)


async def catch_up(channel: ControllerChannel, loader: MetadataLoader) -> None:
    """Return when the loader has everything that was committed when this was called.

    Raises:
        ControllerUnavailable: no active controller answered in time.
        TooManyWaiters: see MetadataLoader.
    """
    await wait_applied(loader, await high_watermark_of(channel, DEFAULT_TIMEOUT_MS))


async def wait_applied(loader: MetadataLoader, end_offset: int) -> None:
    """Return when the loader has everything below `end_offset`. Raises: TooManyWaiters."""
    await loader.wait_until(lambda image: image.provenance.last_contained_offset >= end_offset - 1)


async def high_watermark_of(channel: ControllerChannel, timeout_ms: int) -> int:
    """The high watermark of the metadata log; asks until the quorum's leader knows it.

    Raises:
        ControllerUnavailable: an attempt was not answered in `timeout_ms`.
    """
    request = DescribeQuorumRequest(
        topics=[
            TopicData(topic_name=METADATA_TOPIC_NAME, partitions=[PartitionData(partition_index=0)])
        ]
    )
    while True:
        response = await channel.send(request, INTERNAL_PRINCIPAL, timeout_ms=timeout_ms)
        if not any(error_codes(response)):
            high_watermark: int = response.topics[0].partitions[0].high_watermark
            return high_watermark
        # That controller does not lead any more, or not yet for certain.
        await asyncio.sleep(RETRY_BACKOFF_MS / 1000)


class ElectionMeters:
    """A publisher that counts unclean elections. Each counts once, when its change is read; those
    in the first image do not count.
    """

    def __init__(self, registry: Registry) -> None:
        self._unclean = registry.meter(UNCLEAN_ELECTIONS)
        self._last: MetadataImage | None = None

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        last, self._last = self._last, image
        if last is None:
            return
        for topic_id, topic in delta.topics_delta.changed.items():
            for index, partition in topic.partition_changes.items():
                before = last.topics.partition(topic_id, index)
                if before is not None and is_unclean(before, partition):
                    self._unclean.mark()


def is_unclean(before: PartitionRegistration, now: PartitionRegistration) -> bool:
    """Whether the elected leader may lack committed records (KIP-966)."""
    return (
        now.leader not in (NO_LEADER, before.leader)
        and now.leader not in before.isr
        and now.leader not in before.elr
    )
