"""A batch read's plan: from what the user asks for to ranges of offsets.

Owns the order of questions to the cluster. Must not read records. Invariant: the ends are looked up
before anything that narrows the ranges, so that nothing written meanwhile is half in.
"""

from __future__ import annotations

from moldau.protocol.types import TopicPartition
from moldau.spark_connector.core.continuity import clamped
from moldau.spark_connector.core.filters import Narrowing
from moldau.spark_connector.core.offsets import Offsets, TopicIds
from moldau.spark_connector.core.planning import OffsetRange, split
from moldau.spark_connector.core.selection import AtOffsets, Wanted
from moldau.spark_connector.errors import OffsetsNotFound
from moldau.spark_connector.options.source_options import SourceOptions
from moldau.spark_connector.source.losses import check_found, report
from moldau.spark_connector.source.offsets_reader import OffsetsSource


def plan_batch(
    options: SourceOptions, source: OffsetsSource, narrowing: Narrowing
) -> tuple[list[OffsetRange], TopicIds]:
    """What each task reads, of the topics as they are now.

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
    bounds = _Bounds(options, source, partitions, beginnings, ends, topology.topic_ids)
    start, end = bounds.resolve(starting), bounds.resolve(ending)
    # Nothing of this topic lies before an end that is in a former one.
    end |= {partition: start[partition] for partition in bounds.in_former_topics(ending)}
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
    pieces = split(
        ranges,
        min_partitions=options.min_partitions,
        max_records=options.max_records_per_partition,
    )
    return pieces, topology.topic_ids


class _Bounds:
    """The first and last offsets there are, and what places mean between them."""

    def __init__(
        self,
        options: SourceOptions,
        source: OffsetsSource,
        partitions: list[TopicPartition],
        beginnings: Offsets,
        ends: Offsets,
        topic_ids: TopicIds,
    ) -> None:
        self._options = options
        self._source = source
        self._partitions = partitions
        self._beginnings = beginnings
        self._ends = ends
        self._topic_ids = topic_ids

    def resolve(self, wanted: Wanted) -> Offsets:
        """The offset of each partition, inside its log."""
        times = wanted.times(self._partitions)
        first_by_time = self._source.first_by_time(times) if times else {}
        found = wanted.resolve(self._partitions, self._beginnings, self._ends, first_by_time)
        if isinstance(wanted.selection, AtOffsets):
            others = self.in_former_topics(wanted)
            found, losses = clamped(found, self._beginnings, self._ends, others)
            report(losses, fail_on_data_loss=self._options.fail_on_data_loss)
        return found

    def in_former_topics(self, wanted: Wanted) -> frozenset[TopicPartition]:
        """The partitions for which the place is an offset in a former topic of the same name."""
        if not isinstance(wanted.selection, AtOffsets):
            return frozenset()
        return wanted.selection.in_former_topics(self._topic_ids)
