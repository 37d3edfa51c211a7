"""How far the next micro-batch goes: `maxOffsetsPerTrigger`, `minOffsetsPerTrigger`, AvailableNow.

Owns the shares of partitions and the time of the last batch. Must not ask the cluster, nor read a
clock. Invariants: an end lies between its partition's start and what is there; every partition with
records advances; with a target nothing behind it is ever read, and it is reached.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from moldau.protocol.types import TopicPartition
from moldau.spark_connector.core.offsets import Offsets

DEFAULT_MAX_TRIGGER_DELAY_MS: Final = 15 * 60_000


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """The limits of one query.

    Attributes:
        max_offsets: at most so many offsets per batch, of all partitions together; None for all.
            Every partition that has something gets one at least, so with fewer than one per
            partition a batch has as many offsets as there are such partitions.
        min_offsets: a batch waits for so many; None to take what is there.
        max_trigger_delay_ms: but no longer than this since the batch before.
    """

    max_offsets: int | None = None
    min_offsets: int | None = None
    max_trigger_delay_ms: int = DEFAULT_MAX_TRIGGER_DELAY_MS


class Admission:
    """Decides the end of each batch of a query. States: without a target → with a target."""

    def __init__(self, limits: AdmissionLimits) -> None:
        self.limits: AdmissionLimits = limits
        self._target: Offsets | None = None
        self._last_batch_ms: float | None = None

    @property
    def has_target(self) -> bool:
        """Whether the query ends at what was there when it began (AvailableNow)."""
        return self._target is not None

    def set_target(self, latest: Mapping[TopicPartition, int]) -> None:
        """From now on, behave as if nothing came behind these offsets, nor any new partition."""
        self._target = dict(latest)

    def next_end(
        self,
        start: Mapping[TopicPartition, int],
        latest: Mapping[TopicPartition, int],
        *,
        everything: bool,
        now_ms: float,
    ) -> Offsets | None:
        """Where the batch that begins at `start` ends; None to wait for more records.

        Args:
            start: where every partition of `latest` begins, the new ones too.
            latest: the ends of all partitions that are there now.
            everything: Spark wants all there is, whatever the limits.
            now_ms: a clock that only goes forward.
        """
        ends = dict(latest)
        if self._target is not None:
            target = self._target
            ends = {
                partition: min(end, max(target[partition], start[partition]))
                for partition, end in latest.items()
                if partition in target
            }
        if everything:
            return ends
        # A query with a target must end, however little is left.
        if self._target is None and self._waits(_backlog(start, ends), now_ms):
            return None
        limit = self.limits.max_offsets
        return ends if limit is None else admit(start, ends, limit)

    def _waits(self, backlog: Mapping[TopicPartition, int], now_ms: float) -> bool:
        """Whether there is too little for a batch, and it may still wait."""
        least = self.limits.min_offsets
        if least is None:
            return False
        last_ms = self._last_batch_ms
        is_due = last_ms is None or now_ms - last_ms >= self.limits.max_trigger_delay_ms
        if not is_due and sum(backlog.values()) < least:
            return True
        self._last_batch_ms = now_ms
        return False


def admit(
    start: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], limit: int
) -> Offsets:
    """At most `limit` offsets, shared out in proportion to what each partition has.

    Every partition that has something gets one at least; the largest shares pay for that.
    Remainders go to the largest fractions, of equal ones to the first by name.
    """
    backlog = _backlog(start, ends)
    total = sum(backlog.values())
    if total <= limit:
        return dict(ends)
    shares: dict[TopicPartition, int] = {}
    fractions: list[tuple[int, TopicPartition]] = []
    for partition in sorted(backlog):
        share, fraction = divmod(limit * backlog[partition], total)
        shares[partition] = max(1, share)
        if share:
            fractions.append((-fraction, partition))
    left = max(limit, len(shares)) - sum(shares.values())
    for _, partition in sorted(fractions)[: max(0, left)]:
        shares[partition] += 1
    largest = [(-share, partition) for partition, share in shares.items() if left < 0]
    heapq.heapify(largest)
    for _ in range(-left):
        share, partition = largest[0]
        shares[partition] -= 1
        heapq.heapreplace(largest, (share + 1, partition))
    return {
        partition: start[partition] + shares[partition] if partition in shares else end
        for partition, end in ends.items()
    }


def _backlog(
    start: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """How many offsets each partition has, of those that have any."""
    return {
        partition: end - start[partition]
        for partition, end in ends.items()
        if end > start[partition]
    }
