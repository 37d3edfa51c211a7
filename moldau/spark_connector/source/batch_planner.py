"""A batch read's plan: from what the user asks for to ranges of offsets.

Owns the order of questions to the cluster. Must not read records. Invariant: the ends are looked up
before anything that narrows the ranges, so that nothing written meanwhile is half in.
"""

from __future__ import annotations

from moldau.protocol.types import TopicPartition
from moldau.spark_connector.core.continuity import clamped
from moldau.spark_connector.core.filters import Narrowing
from moldau.spark_connector.core.offsets import Offsets
from moldau.spark_connector.core.planning import OffsetRange, split
from moldau.spark_connector.core.selection import AtOffsets, Wanted
from moldau.spark_connector.errors import OffsetsNotFound
from moldau.spark_connector.options.source_options import SourceOptions
from moldau.spark_connector.source.losses import check_found, report
from moldau.spark_connector.source.offsets_reader import OffsetsSource


def plan_batch(
    options: SourceOptions, source: OffsetsSource, narrowing: Narrowing
) -> list[OffsetRange]:
    """What each task reads.

    Raises:
        InvalidOption, TopicsNotFound, OffsetsNotFound, DataLoss, and what the cluster refuses.
    """
    starting, ending = options.check_batch()
    topology = source.topology(patient=True)
    check_found(topology.missing)
    partitions = sorted(topology.partitions)
    ends = source.ends(partitions)
    beginnings = source.beginnings(partitions)
    partitions = [each for each in partitions if each in ends and each in beginnings]
    bounds = _Bounds(options, source, partitions, beginnings, ends)
    start, end = bounds.resolve(starting), bounds.resolve(ending)
    ranges = []
    for partition in partitions:
        if start[partition] > end[partition]:
            raise OffsetsNotFound(
                f"{partition}: {starting.option} leads to offset {start[partition]}, which is "
                f"behind {end[partition]}, where {ending.option} leads to"
            )
        ranges.append(OffsetRange(partition, start[partition], end[partition]))
    ranges = narrowing.apply(ranges)
    if narrowing.first_timestamp_ms is not None:
        times = {each.topic_partition: narrowing.first_timestamp_ms for each in ranges}
        ranges = narrowing.apply(ranges, source.first_by_time(times))
    return split(
        ranges,
        min_partitions=options.min_partitions,
        max_records=options.max_records_per_partition,
    )


class _Bounds:
    """The first and last offsets there are, and what places mean between them."""

    def __init__(
        self,
        options: SourceOptions,
        source: OffsetsSource,
        partitions: list[TopicPartition],
        beginnings: Offsets,
        ends: Offsets,
    ) -> None:
        self._options = options
        self._source = source
        self._partitions = partitions
        self._beginnings = beginnings
        self._ends = ends

    def resolve(self, wanted: Wanted) -> Offsets:
        """The offset of each partition, inside its log."""
        times = wanted.times(self._partitions)
        first_by_time = self._source.first_by_time(times) if times else {}
        found = wanted.resolve(self._partitions, self._beginnings, self._ends, first_by_time)
        if isinstance(wanted.selection, AtOffsets):
            found, losses = clamped(found, self._beginnings, self._ends)
            report(losses, fail_on_data_loss=self._options.fail_on_data_loss)
        return found
