"""A streaming query's plan: where it begins, how far each batch goes, what its tasks read.

Owns what the driver remembers of one run of a query: ids of topics, the target of AvailableNow, the
time of the last batch. Must not read records. Invariants: offsets go into Spark's checkpoint before
anything is read, and the same two offsets always mean the same records; what was to be read and is
gone is reported before the batch that leaves it out.

The first offset is looked up again when a driver dies before its first batch is committed; `latest`
would then lie behind what that batch had planned, and records between would be lost:

1. driver A: initial offset 10, batch 0 planned as [10, 15), A dies in it
2. five records come
3. driver B: initial offset 20, batch 0 is [20, 15): nothing, and batch 1 begins at 15: 10–14 lost

So where a start is not fixed by itself, batch 0 is planned empty: it ends where it begins, which is
in the checkpoint from then on. Run again by driver B it is empty too, and batch 1 begins at 10.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final
from uuid import UUID

from moldau.protocol.types import TopicPartition
from moldau.spark_connector.core.admission import Admission
from moldau.spark_connector.core.continuity import (
    Loss,
    Missing,
    clamped,
    cut,
    gone,
    readable,
    replaced,
)
from moldau.spark_connector.core.offsets import Offsets, OffsetsJson, from_json, to_json
from moldau.spark_connector.core.planning import OffsetRange, split
from moldau.spark_connector.core.selection import AtOffsets
from moldau.spark_connector.options.source_options import SourceOptions
from moldau.spark_connector.source.losses import check_found, report
from moldau.spark_connector.source.offsets_reader import OffsetsSource, Topology

_log: Final = logging.getLogger("moldau.spark_connector")


class StreamPlanner:
    """Plans the batches of one run of one query.

    Args:
        now_ms: a clock that only goes forward.
        sleep_ms: waits.
    """

    def __init__(
        self,
        options: SourceOptions,
        source: OffsetsSource,
        now_ms: Callable[[], float],
        sleep_ms: Callable[[float], None],
    ) -> None:
        self._options = options
        self._starting = options.check_stream()
        self._source = source
        self._now_ms = now_ms
        self._sleep_ms = sleep_ms
        self._admission = Admission(options.limits)
        self._topic_ids: dict[str, UUID] = {}
        self._latest: Offsets | None = None
        self._planned_end: Offsets | None = None
        self._volatile_initial: Offsets | None = None
        self._fixes_initial = False
        self._has_warned = False
        self._planned_blindly = False

    def initial_offset(self) -> OffsetsJson:
        """Where a query begins that has no checkpoint yet.

        Raises:
            TopicsNotFound, OffsetsNotFound, DataLoss, and what the cluster refuses.
        """
        topology = self._source.topology(patient=True)
        check_found(topology.missing)
        self._topic_ids.update(topology.topic_ids)
        ends = self._source.ends(topology.partitions)
        beginnings = self._source.beginnings(topology.partitions)
        partitions = sorted(ends.keys() & beginnings.keys())
        times = self._starting.times(partitions)
        first_by_time = self._source.first_by_time(times) if times else {}
        found = self._starting.resolve(partitions, beginnings, ends, first_by_time)
        if isinstance(self._starting.selection, AtOffsets):
            found, losses = clamped(found, beginnings, ends)
            self._report(losses)
        if self._starting.is_volatile():
            self._volatile_initial = found
            self._fixes_initial = True
        return to_json(found)

    def latest_offset(self, start_value: object, *, everything: bool) -> OffsetsJson:
        """Where the batch that begins at `start_value` ends; the same value when there is none.

        Args:
            everything: Spark wants all there is, whatever the limits.

        Raises:
            DataLoss, InvalidCheckpoint, and what the cluster refuses.
        """
        start = from_json(start_value)
        ends, lost = self._look(start)
        self._latest = ends
        if self._fixes_initial and start == self._volatile_initial:
            self._fixes_initial = False
            return self._planned(start)
        kept = {name: offset for name, offset in start.items() if name not in lost}
        ends = {name: end for name, end in ends.items() if name not in lost}
        new = [name for name in sorted(ends) if name not in kept]
        begins = {**dict.fromkeys(new, 0), **self._source.beginnings(new), **kept}
        end = self._admission.next_end(begins, ends, everything=everything, now_ms=self._now_ms())
        if end is None:
            return self._planned(kept)
        return self._planned(end)

    def unlimited_latest(self) -> OffsetsJson:
        """Where all that is there ends, for a Spark that does not say where the batch begins."""
        topology = self._source.topology()
        self._latest = self._source.ends(topology.partitions)
        self._planned_blindly = True
        return self._planned(self._latest)

    def report_latest(self) -> OffsetsJson | None:
        """The ends of the logs when they were last looked at, for the query's progress."""
        return None if not self._latest else to_json(self._latest)

    def set_target(self) -> None:
        """The query ends at what is there now (AvailableNow)."""
        topology = self._source.topology()
        self._admission.set_target(self._source.ends(topology.partitions))

    def tasks(self, start_value: object, end_value: object) -> list[OffsetRange]:
        """What each task of the batch between two offsets reads.

        Raises:
            DataLoss, InvalidCheckpoint, and what the cluster refuses.
        """
        start, end = from_json(start_value), from_json(end_value)
        # `end` is in the checkpoint: Spark asks for the first offset again only to run the batch.
        self._fixes_initial = False
        moving = [name for name in end if name not in start or start[name] < end[name]]
        ranges, losses = readable(
            start,
            end,
            self._source.beginnings(moving),
            is_first=start == self._volatile_initial,
        )
        if self._planned_blindly:
            self._planned_blindly = False
            losses = gone(start, end) + losses
        if end != self._planned_end:
            # Planned by a driver before this one: the logs may have been cut meanwhile.
            ranges, shorter = self._within_ends(ranges)
            losses += shorter
        self._report(losses)
        return split(
            ranges,
            min_partitions=self._options.min_partitions,
            max_records=self._options.max_records_per_partition,
        )

    def close(self) -> None:
        """The query has ended."""
        self._source.close()

    def _look(self, start: Offsets) -> tuple[Offsets, frozenset[TopicPartition]]:
        """The ends of all logs, and the partitions of `start` that are gone or have been replaced.

        Brokers that have not heard of a new leader may tell an older end for a moment: they are
        asked again before that counts as a loss.
        """
        attempts = self._options.retry_count
        while True:
            topology = self._source.topology()
            self._check_known(topology, start)
            ends = self._source.ends(topology.partitions)
            others = replaced(start, self._topic_ids, topology.topic_ids)
            losses = gone(start, ends) + [loss for loss in others if loss.topic_partition in ends]
            lost = frozenset(loss.topic_partition for loss in losses)
            shorter = cut({name: at for name, at in start.items() if name not in lost}, ends)
            attempts -= 1
            if not shorter or attempts <= 0:
                break
            _log.warning("asking again: %s", "; ".join(map(str, shorter)))
            self._sleep_ms(self._options.retry_interval_ms)
        self._report([*losses, *shorter])
        for name in {partition.topic for partition in lost}:
            self._topic_ids.pop(name, None)
        for name, topic_id in topology.topic_ids.items():
            self._topic_ids.setdefault(name, topic_id)
        return ends, lost

    def _check_known(self, topology: Topology, start: Mapping[TopicPartition, int]) -> None:
        """Something missing that the query has read is a loss; anything else is a mistake, or a
        loss that was accepted before.
        """
        known = {partition.topic for partition in start} | set(map(str, start))
        unknown = [name for name in topology.missing if name not in known]
        if self._options.fail_on_data_loss:
            check_found(unknown)
        elif unknown and not self._has_warned:
            self._has_warned = True
            _log.warning("going on without what does not exist: %s", ", ".join(unknown))

    def _within_ends(self, ranges: list[OffsetRange]) -> tuple[list[OffsetRange], list[Loss]]:
        ends = self._source.ends([each.topic_partition for each in ranges])
        found, losses = [], []
        for each in ranges:
            end = ends.get(each.topic_partition, each.start_offset)
            if end < each.end_offset:
                losses.append(Loss(each.topic_partition, Missing.CUT, each.end_offset, end))
                each = OffsetRange(each.topic_partition, each.start_offset, end)
            found.append(each)
        return found, losses

    def _planned(self, end: Offsets) -> OffsetsJson:
        self._planned_end = end
        return to_json(end)

    def _report(self, losses: list[Loss]) -> None:
        report(losses, fail_on_data_loss=self._options.fail_on_data_loss)
