"""From what the user asks for to ranges of offsets: the plans of a batch read and of a stream.

Owns the questions to the cluster (one admin client, from the first to `close`) and their order, and
what the driver remembers of one run of a streaming query: the target of AvailableNow, the time of
the last batch, which losses were reported. Must not read records, nor decide where a batch ends
(`core.ranges` does). Invariants: an answer is of one
moment, and what does not exist is said, not left out; a batch read looks up the ends before
anything that narrows the ranges, so that records written during the planning are in completely or
not at all. A stream's offsets go into Spark's checkpoint before anything is read, with the ids of
their topics, and the same two offsets always mean the same records; a loss is reported before the
batch that leaves the records out.

A topic that was deleted and created again is known by its id. The batch that finds it ends without
the topic, so that offsets of one topic never stand beside those of another under the same name;
the next batch begins the new one at its first record, as it does any topic that comes. Offsets
without ids (an older release's, or those of Spark's own source) count for the topic that there is,
and get its id with the next batch, which may be empty.

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
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from moldau.client import ConsumerConfig, OffsetSpec, TopicDescription, UnknownTopicOrPartition
from moldau.client.sync import Admin
from moldau.protocol.types import ZERO_UUID, TopicPartition
from moldau.spark_connector.core.offsets import (
    AtOffsets,
    Offsets,
    OffsetsJson,
    TopicIds,
    Wanted,
    from_json,
    is_replaced,
    to_json,
    topic_ids_of,
)
from moldau.spark_connector.core.ranges import (
    Admission,
    Loss,
    Missing,
    Narrowing,
    OffsetRange,
    clamped,
    cut,
    gone,
    readable,
    replaced,
    split,
)
from moldau.spark_connector.errors import ClusterError, OffsetsNotFound
from moldau.spark_connector.failures import check_found, cluster_errors, report
from moldau.spark_connector.source.options import SourceOptions

_log: Final = logging.getLogger(__name__)
ENDED: Final = (Missing.GONE, Missing.REPLACED)
"""What is missing when there is no such topic any more."""
PATTERN_FRESH_S: Final = 1.0
"""How long the topics that match a pattern may be taken for the same."""

MAX_CHANGES: Final = 5
CHANGE_PAUSE_S: Final = 0.1
"""How often topics may come and go between two questions before that is an error."""

PATIENT_TRIES: Final = 4
PATIENT_PAUSE_S: Final = 0.25
"""How often, and how long after, a topic is looked for again: one that was made just now is not
known to every broker yet."""


@dataclass(frozen=True, slots=True)
class Topology:
    """What a subscription finds.

    Attributes:
        partitions: those that are to be read and exist.
        topic_ids: by topic; all zeros where the brokers have no such ids (before 2.8).
        missing: topics, or partitions, that are named and do not exist.
    """

    partitions: frozenset[TopicPartition]
    topic_ids: Mapping[str, UUID]
    missing: tuple[str, ...] = ()


class OffsetsReader:
    """Asks the brokers the planners' questions. States: unused → connected → closed.

    Every question raises ClusterUnreachable when no broker answers within `default.api.timeout.ms`,
    AccessDenied, or ClusterError.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._admin: Admin | None = None
        self._matched: list[str] | None = None
        self._matched_at_s = 0.0

    def topology(self, *, patient: bool = False) -> Topology:
        """What the subscription finds now; if `patient`, what is missing is looked for again."""
        for _ in range(PATIENT_TRIES if patient else 0):
            found = self._topology()
            if not found.missing:
                return found
            time.sleep(PATIENT_PAUSE_S)
        return self._topology()

    def _topology(self) -> Topology:
        subscription = self._options.subscription
        with cluster_errors("looking up the topics to read"):
            if subscription.pattern is not None:
                names = self._matching(subscription.pattern)
            else:
                assigned = {partition.topic for partition in subscription.partitions}
                names = [*subscription.names, *sorted(assigned)]
            found, missing = self._describe(names)
        there = {partition for topic in found for partition in _partitions_of(topic)}
        if subscription.partitions:
            wanted = set(subscription.partitions)
            missing, there = tuple(map(str, sorted(wanted - there))), wanted & there
        elif subscription.pattern is not None:
            missing = ()  # deleted just now: matches nothing any more
        topic_ids = {topic.name: topic.topic_id for topic in found}
        return Topology(frozenset(there), topic_ids, missing)

    def beginnings(self, partitions: Collection[TopicPartition]) -> Offsets:
        """The first offset of each; those that do not exist (any more) are left out."""
        return self._list(dict.fromkeys(partitions, int(OffsetSpec.EARLIEST)))

    def ends(self, partitions: Collection[TopicPartition]) -> Offsets:
        """The offset behind the last record that may be read (with read_committed: behind the last
        stable one); those that do not exist (any more) are left out.
        """
        return self._list(dict.fromkeys(partitions, int(OffsetSpec.LATEST)))

    def first_by_time(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]:
        """The first offset at or after each time (ms since 1970 UTC); None where there is none."""
        found = self._list(times)
        return {
            partition: None if found.get(partition, -1) < 0 else found[partition]
            for partition in times
        }

    def close(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()

    def _connected(self) -> Admin:
        if self._admin is None:
            config = ConsumerConfig.from_properties(self._options.kafka)
            self._admin = Admin(config=config, retries=2**31 - 1)  # calls outlast a restart
        return self._admin

    def _matching(self, pattern: str) -> list[str]:
        """Names that match. All topics of the cluster are gone through once in `PATTERN_FRESH_S`
        only: an idle query asks many times a second.
        """
        now_s = time.monotonic()
        if self._matched is None or now_s - self._matched_at_s >= PATTERN_FRESH_S:
            matches = re.compile(pattern).fullmatch
            self._matched = [name for name in self._connected().list_topics() if matches(name)]
            self._matched_at_s = now_s
        return self._matched

    def _describe(self, names: Collection[str]) -> tuple[list[TopicDescription], tuple[str, ...]]:
        """The topics that exist, and the names of those that do not."""
        admin = self._connected()
        wanted = list(names)
        for _ in range(MAX_CHANGES):
            try:
                found = admin.describe_topics(wanted)
            except UnknownTopicOrPartition:
                there = set(admin.list_topics(include_internal=True))
                if there.issuperset(wanted):
                    time.sleep(CHANGE_PAUSE_S)  # one broker knows what another does not know yet
                wanted = [name for name in wanted if name in there]
                continue
            return list(found.values()), tuple(sorted(set(names) - set(wanted)))
        raise ClusterError(f"topics come and go faster than they can be described: {wanted}")

    def _list(self, specs: Mapping[TopicPartition, int]) -> Offsets:
        wanted = dict(specs)
        with cluster_errors("looking up offsets"):
            for _ in range(MAX_CHANGES):
                if not wanted:
                    return {}
                try:
                    answers = self._connected().list_offsets(
                        wanted, read_committed=self._options.read_committed
                    )
                except UnknownTopicOrPartition:
                    found, _ = self._describe(sorted({partition.topic for partition in wanted}))
                    there = {partition for topic in found for partition in _partitions_of(topic)}
                    if there.issuperset(wanted):
                        time.sleep(CHANGE_PAUSE_S)
                    wanted = {name: spec for name, spec in wanted.items() if name in there}
                    continue
                return {partition: answer.offset for partition, answer in answers.items()}
        raise ClusterError(f"partitions come and go faster than offsets can be read: {wanted}")


def _partitions_of(topic: TopicDescription) -> list[TopicPartition]:
    return [TopicPartition(topic.name, each.partition) for each in topic.partitions]


def plan_batch(
    options: SourceOptions, source: OffsetsReader, narrowing: Narrowing
) -> tuple[list[OffsetRange], TopicIds]:
    """What each task reads, of the topics as they are now. Raises: InvalidOption, TopicsNotFound,
    OffsetsNotFound, DataLoss, and what the cluster refuses
    """
    starting, ending = options.check_batch()
    topology = source.topology(patient=True)
    check_found(topology.missing)
    partitions = sorted(topology.partitions)
    ends = source.ends(partitions)
    beginnings = source.beginnings(partitions)
    partitions = [each for each in partitions if each in ends and each in beginnings]
    bounds = []
    for wanted in (starting, ending):
        found, losses = _resolved(wanted, source, partitions, beginnings, ends, topology.topic_ids)
        report(losses, fail_on_data_loss=options.fail_on_data_loss)
        bounds.append(found)
    start, end = bounds
    if isinstance(ending.selection, AtOffsets):
        # Nothing of this topic lies before an end that is in a former one.
        former = ending.selection.in_former_topics(topology.topic_ids)
        end |= {partition: start[partition] for partition in former}
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
        ranges, min_partitions=options.min_partitions, max_records=options.max_records_per_partition
    )
    return pieces, topology.topic_ids


def _resolved(
    wanted: Wanted,
    source: OffsetsReader,
    partitions: list[TopicPartition],
    beginnings: Offsets,
    ends: Offsets,
    topic_ids: TopicIds,
) -> tuple[Offsets, list[Loss]]:
    """The offset of each partition, inside its log; and those that did not lie there."""
    times = wanted.times(partitions)
    first_by_time = source.first_by_time(times) if times else {}
    found = wanted.resolve(partitions, beginnings, ends, first_by_time)
    if not isinstance(wanted.selection, AtOffsets):
        return found, []
    return clamped(found, beginnings, ends, wanted.selection.in_former_topics(topic_ids))


class StreamPlanner:
    """Plans the batches of one run of one query. `now_ms` is a clock that only goes forward."""

    def __init__(
        self,
        options: SourceOptions,
        source: OffsetsReader,
        now_ms: Callable[[], float],
        sleep_ms: Callable[[float], None],
    ) -> None:
        self._options = options
        self._starting = options.check_stream()
        self._source = source
        self._now_ms = now_ms
        self._sleep_ms = sleep_ms
        self._admission = Admission(options.limits)
        self._told_ends: set[tuple[TopicPartition, UUID]] = set()
        self._told_losses: frozenset[Loss] = frozenset()
        self._latest: OffsetsJson | None = None
        self._planned_end: OffsetsJson | None = None
        self._volatile_initial: Offsets | None = None
        self._fixes_initial = False
        self._has_warned = False
        self._planned_blindly = False

    def initial_offset(self) -> OffsetsJson:
        """Where a query begins that has no checkpoint yet. Raises: TopicsNotFound, OffsetsNotFound,
        DataLoss, and what the cluster refuses
        """
        topology = self._source.topology(patient=True)
        check_found(topology.missing)
        ends = self._source.ends(topology.partitions)
        beginnings = self._source.beginnings(topology.partitions)
        partitions = sorted(ends.keys() & beginnings.keys())
        found, losses = _resolved(
            self._starting, self._source, partitions, beginnings, ends, topology.topic_ids
        )
        self._report((losses, {}))
        if self._starting.is_volatile():
            self._volatile_initial = found
            self._fixes_initial = True
        return to_json(found, topology.topic_ids)

    def latest_offset(self, start_value: object, *, everything: bool) -> OffsetsJson:
        """Where the batch that begins at `start_value` ends; the same value when there is none.

        Args:
            everything: Spark wants all there is, whatever the limits.

        Raises:
            DataLoss, InvalidCheckpoint, and what the cluster refuses.
        """
        start, start_ids = from_json(start_value), topic_ids_of(start_value)
        if self._fixes_initial and start == self._volatile_initial:
            self._fixes_initial = False
            self._latest = to_json(start, start_ids)
            return self._planned(start, start_ids)
        topology, ends, lost = self._look(start, start_ids)
        topic_ids = {**start_ids, **_known(topology.topic_ids)}
        self._latest = to_json(ends, topic_ids)
        kept = {name: offset for name, offset in start.items() if name not in lost}
        ends = {name: end for name, end in ends.items() if name not in lost}
        new = [name for name in sorted(ends) if name not in kept]
        begins = {**dict.fromkeys(new, 0), **self._source.beginnings(new), **kept}
        end = self._admission.next_end(begins, ends, everything=everything, now_ms=self._now_ms())
        return self._planned(kept if end is None else end, topic_ids)

    def unlimited_latest(self) -> OffsetsJson:
        """Where all existing records end, for a Spark that does not say where the batch begins."""
        topology = self._source.topology()
        ends = self._source.ends(topology.partitions)
        self._latest = to_json(ends, topology.topic_ids)
        self._planned_blindly = True
        return self._planned(ends, topology.topic_ids)

    def report_latest(self) -> OffsetsJson | None:
        """The ends of the logs when they were last looked at, for the query's progress."""
        return self._latest or None

    def set_target(self) -> None:
        """The query ends at what exists now (AvailableNow)."""
        topology = self._source.topology()
        self._admission.set_target(self._source.ends(topology.partitions))

    def tasks(self, start_value: object, end_value: object) -> list[OffsetRange]:
        """What each task of the batch between two offsets reads. Raises: DataLoss,
        InvalidCheckpoint, and what the cluster refuses
        """
        start, end = from_json(start_value), from_json(end_value)
        start_ids, end_ids = topic_ids_of(start_value), topic_ids_of(end_value)
        # `end` is in the checkpoint: Spark asks for the first offset again only to run the batch.
        self._fixes_initial = False
        is_first = start == self._volatile_initial
        crossed: list[Loss] = []
        losses: list[Loss] = []
        is_mine = end_value == self._planned_end
        if not is_mine or any(is_replaced(name, start_ids, end_ids) for name in start_ids):
            start, end, crossed, losses = self._of_one_topic(
                start, end, start_ids, end_ids, is_first=is_first
            )
        moving = [name for name in end if name not in start or start[name] < end[name]]
        ranges, others = readable(start, end, self._source.beginnings(moving), is_first=is_first)
        losses += others
        if self._planned_blindly:
            self._planned_blindly = False
            crossed += gone(start, end)
        if not is_mine:
            # Planned by a driver before this one: the logs may have been cut since.
            ranges, shorter = self._within_ends(ranges)
            losses += shorter
        self._report((crossed, start_ids), (losses, end_ids))
        return split(
            ranges,
            min_partitions=self._options.min_partitions,
            max_records=self._options.max_records_per_partition,
        )

    def close(self) -> None:
        self._source.close()

    def _look(
        self, start: Offsets, start_ids: TopicIds
    ) -> tuple[Topology, Offsets, frozenset[TopicPartition]]:
        """The topics, the ends of all logs, and the partitions that are gone, or whose topic has
        been replaced since `start`.

        Brokers that do not know of a new leader yet may answer an older end for a moment, and those
        that do not know of a new topic the id of the former one: they are asked again before
        that counts as a loss.
        """
        attempts = self._options.retry_count
        while True:
            topology = self._source.topology()
            self._check_known(topology, start)
            ends = self._source.ends(topology.partitions)
            others = [
                loss
                for loss in replaced(start, start_ids, topology.topic_ids)
                if loss.topic_partition in ends
            ]
            losses = gone(start, ends) + others
            lost = frozenset(loss.topic_partition for loss in losses)
            topics = {loss.topic_partition.topic for loss in others}
            lost |= {name for name in ends if name.topic in topics}
            shorter = cut({name: at for name, at in start.items() if name not in lost}, ends)
            attempts -= 1
            if not (shorter or others) or attempts <= 0:
                break
            _log.info("asking again: %s", "; ".join(map(str, [*others, *shorter])))
            self._sleep_ms(self._options.retry_interval_ms)
        self._told_losses = frozenset()
        self._report(([*losses, *shorter], start_ids))
        self._told_losses = frozenset(losses + shorter)
        return topology, ends, lost

    def _of_one_topic(
        self,
        start: Offsets,
        end: Offsets,
        start_ids: TopicIds,
        end_ids: TopicIds,
        *,
        is_first: bool,
    ) -> tuple[Offsets, Offsets, list[Loss], list[Loss]]:
        """What is left of a batch where names have gone to other topics since it was planned, or
        between its ends; and what is lost of the topics that the start is in, and the end.

        Offsets in another topic than the one that there is now mean nothing any more: such an end
        is taken to where the batch begins, and such a start to the topic's first record.

        Args:
            is_first: the batch was planned empty.
        """
        topology = self._source.topology()
        attempts = self._options.retry_count
        while any(is_replaced(name, end_ids, topology.topic_ids) for name in end_ids):
            attempts -= 1
            if attempts <= 0:
                break
            self._sleep_ms(self._options.retry_interval_ms)  # a broker that lags, perhaps
            topology = self._source.topology()
        lost = replaced(end, end_ids, topology.topic_ids)
        ended = {loss.topic_partition for loss in lost}
        crossed = [
            loss
            for loss in replaced(start, start_ids, end_ids)
            if loss.topic_partition not in ended
        ]
        begun = {loss.topic_partition for loss in crossed}
        # A start in another topic than the end was looked up again: where it was is not known.
        planned = {
            name: 0 if is_replaced(name.topic, start_ids, end_ids) else start.get(name, 0)
            for name in ended
        }
        losses = [
            Loss(name, Missing.REPLACED, planned[name])
            for name in sorted(ended)
            if planned[name] < end[name] and not is_first
        ]
        return (
            {name: offset for name, offset in start.items() if name not in begun | ended},
            {name: offset for name, offset in end.items() if name not in ended},
            crossed,
            losses,
        )

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

    def _planned(self, end: Offsets, topic_ids: TopicIds) -> OffsetsJson:
        self._planned_end = to_json(end, topic_ids)
        return self._planned_end

    def _report(self, *lost: tuple[Sequence[Loss], TopicIds]) -> None:
        """Report losses, each once: not in a batch's tasks what was reported when it was planned,
        and the end of a topic once for each of its partitions, from the first offset that is lost.

        Args:
            lost: losses, and the ids of the topics that the lost offsets were in.
        """
        news = []
        for losses, topic_ids in lost:
            for loss in losses:
                topic_id = topic_ids.get(loss.topic_partition.topic, ZERO_UUID)
                has_ended = loss.missing in ENDED and topic_id != ZERO_UUID
                end = (loss.topic_partition, topic_id)
                if loss in self._told_losses or (has_ended and end in self._told_ends):
                    continue
                if has_ended:
                    self._told_ends.add(end)
                news.append(loss)
        report(news, fail_on_data_loss=self._options.fail_on_data_loss)


def _known(topic_ids: TopicIds) -> dict[str, UUID]:
    return {name: topic_id for name, topic_id in topic_ids.items() if topic_id != ZERO_UUID}
