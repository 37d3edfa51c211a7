"""The queues of a topic's partitions, and where its records without a key go.

Owns the sticky choice (KIP-480, KIP-794) and what compression was seen to achieve. Must not know
records or requests. Invariant: the index of a queue is its partition.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Final, TypeAlias

from moldau.client.producer.core.partition_queue import PartitionQueue
from moldau.client.producer.core.settings import AccumulatorSettings
from moldau.protocol.records import Codec

RandRange: TypeAlias = Callable[[int], int]
"""A number from 0 up to, not including, the argument."""

RATIO_MARGIN: Final = 1.05
"""How much worse than expected compression may turn out before a batch is too large."""
RATIO_WORSE_STEP: Final = 0.05
RATIO_BETTER_STEP: Final = 0.005
MAX_UNCOMPRESSED_BYTES: Final = 64 * 1024 * 1024
"""No batch holds more than this before compression, however well it compresses."""


class TopicQueues:
    """One topic. `leaders` of `set_leaders` say how many partitions it has.

    Attributes:
        queues: by partition.
        sticky: where records without a key go at the moment; None before the first.
        ratio: compressed / uncompressed size, as expected.
    """

    __slots__ = ("_produced_bytes", "_settings", "name", "queues", "ratio", "sticky")

    def __init__(self, name: str, settings: AccumulatorSettings) -> None:
        self.name: str = name
        self.queues: list[PartitionQueue] = []
        self.sticky: PartitionQueue | None = None
        self.ratio: float = 1.0
        self._settings = settings
        self._produced_bytes = 0.0

    def set_leaders(self, leaders: Sequence[tuple[int, int]]) -> None:
        """Take over (leader id or -1, leader epoch) of each partition."""
        for partition, (leader_id, leader_epoch) in enumerate(leaders):
            if partition == len(self.queues):
                self.queues.append(PartitionQueue(self.name, partition))
            queue = self.queues[partition]
            queue.leader_id = leader_id
            queue.leader_epoch = leader_epoch
        # A topic that was made anew may have fewer. What is for the others runs out of time.
        for queue in self.queues[len(leaders) :]:
            queue.leader_id = -1
        while len(self.queues) > len(leaders) and self.queues[-1].is_empty:
            self.queues.pop()
        self.sticky = self.sticky if self.sticky in self.queues else None

    # -- compression -----------------------------------------------------------------------------

    def batch_limit_bytes(self) -> int:
        """How much a new batch may hold before compression, so that it gets `batch.size` after."""
        settings = self._settings
        if settings.codec is Codec.NONE:
            return min(settings.batch_size_bytes, settings.max_request_size_bytes)
        expected = int(settings.batch_size_bytes / (self.ratio * RATIO_MARGIN))
        return min(expected, settings.buffer_memory_bytes, MAX_UNCOMPRESSED_BYTES)

    def compressed(self, uncompressed_bytes: int, compressed_bytes: int) -> None:
        """Learn from a batch: quickly what is bad, slowly what is good."""
        seen = compressed_bytes / max(uncompressed_bytes, 1)
        if seen > self.ratio:
            self.ratio = max(self.ratio + RATIO_WORSE_STEP, seen)
        elif seen < self.ratio:
            self.ratio = max(self.ratio - RATIO_BETTER_STEP, seen, 0.01)

    def too_large(self) -> None:
        """A batch was too large for the broker: expect nothing of compression."""
        self.ratio = max(self.ratio, 1.0)

    # -- records without a key -------------------------------------------------------------------

    def count(self, queue: PartitionQueue, size_bytes: int) -> None:
        """A batch of that size was closed; after `batch.size` bytes another partition is due."""
        if queue is self.sticky:
            self._produced_bytes += size_bytes * self.ratio
            if self._produced_bytes >= self._settings.batch_size_bytes:
                self.sticky = None

    def filled(self, queue: PartitionQueue) -> None:
        """A batch was closed since the next record did not fit: another partition is due."""
        if queue is self.sticky:
            self.sticky = None

    def choose_sticky(
        self, randrange: RandRange, slow_since_ms: Mapping[int, float], now_ms: float
    ) -> PartitionQueue:
        """Choose where records without a key go from now on: at random, the shorter its queue the
        more likely, among partitions with a leader that takes what is sent to it.

        Args:
            slow_since_ms: nodes that have not been ready for a request, and since when.
        """
        settings = self._settings
        timeout_ms = settings.availability_timeout_ms
        led = [queue for queue in self.queues if queue.leader_id >= 0] or self.queues
        if timeout_ms > 0:
            led = [
                queue
                for queue in led
                if now_ms - slow_since_ms.get(queue.leader_id, now_ms) <= timeout_ms
            ] or led
        chosen = self._chosen(led, randrange)
        self.sticky = chosen
        self._produced_bytes = 0.0
        return chosen

    def _chosen(self, candidates: list[PartitionQueue], randrange: RandRange) -> PartitionQueue:
        if self._settings.adaptive and len(candidates) > 1:
            sizes = [len(queue.waiting) for queue in candidates]
            most = max(sizes)
            if most:
                totals = list(accumulate(most + 1 - size for size in sizes))
                return candidates[bisect_right(totals, randrange(totals[-1]))]
        return candidates[randrange(len(candidates))]
