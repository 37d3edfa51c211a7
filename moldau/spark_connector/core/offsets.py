"""Offsets of many partitions: as Spark writes them, and as the places that a user names.

Owns the JSON of Spark's Kafka source, `{"topic":{"0":23}}`, with one addition: for each topic whose
id is known, a name that no topic can have, without partitions, as in
`{"topic":{"0":23},"topic:Zc2Gvi7kQ5GS1Dyo3jTAnw":{}}`. To Spark's own source, and to older releases
of this one, a topic without partitions says nothing. Owns also the kinds of places where reading
starts and ends (`startingOffsets`), and their resolution with the cluster's answers. Must not ask
the cluster.

Invariants: the same offsets and ids always make the same text, in the order of topics and
partitions: Spark compares texts to see whether there is anything new. A resolved place has one
offset for every partition that is read, or one error names the partition without one, and why.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeAlias
from uuid import UUID

from moldau.protocol.types import ZERO_UUID, TopicPartition, uuid_from_base64, uuid_to_base64
from moldau.spark_connector.errors import InvalidCheckpoint, OffsetsNotFound

Offsets: TypeAlias = dict[TopicPartition, int]
"""The next offset to read, by partition."""

TopicIds: TypeAlias = Mapping[str, UUID]
"""The ids by topic (KIP-516). Topics whose id is not known, and those of brokers without ids
(before 2.8), are left out, or have ZERO_UUID."""

OffsetsJson: TypeAlias = dict[str, dict[str, int]]

LATEST_OFFSET: Final = -1
EARLIEST_OFFSET: Final = -2
"""What may stand in place of an offset in `startingOffsets` and `endingOffsets`."""

MAX_PARTITION: Final = 2**31 - 1
MAX_OFFSET: Final = 2**63 - 1

ID_SEPARATOR: Final = ":"
"""What stands between a topic's name and its id: no topic's name has a colon."""

_OFFSETS_EXAMPLE: Final = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
_TIMES_EXAMPLE: Final = '{"topicA":{"0":1000,"1":1000}}'
_PARTITIONS_EXAMPLE: Final = '{"topicA":[0,1],"topicB":[2,4]}'
MAX_NAMES = 10


def to_json(
    offsets: Mapping[TopicPartition, int], topic_ids: TopicIds | None = None
) -> OffsetsJson:
    """The offsets as a value for JSON, in order, with the ids of their topics as far as known."""
    found: OffsetsJson = {}
    for partition in sorted(offsets):
        found.setdefault(partition.topic, {})[str(partition.partition)] = offsets[partition]
    for topic in list(found):
        topic_id = (topic_ids or {}).get(topic, ZERO_UUID)
        if topic_id != ZERO_UUID:
            found[f"{topic}{ID_SEPARATOR}{uuid_to_base64(topic_id)}"] = {}
    return found


def from_json(value: object) -> Offsets:
    """The offsets of a checkpoint. Raises: InvalidCheckpoint: it is not what `to_json`, or Spark's
    own Kafka source, has written
    """
    if value == {}:  # a pattern that no topic has matched yet
        return {}
    try:
        return _partition_numbers(value, lowest=0, example=_OFFSETS_EXAMPLE)
    except ValueError as error:
        raise InvalidCheckpoint(
            f"the checkpoint's offsets are not those of a Kafka source: {error}; a checkpoint goes "
            "on with the source it was begun with"
        ) from None


def topic_ids_of(value: object) -> dict[str, UUID]:
    """The ids of the topics in offsets that `from_json` has accepted."""
    found: dict[str, UUID] = {}
    for name in value if isinstance(value, dict) else ():
        topic, separator, text = name.partition(ID_SEPARATOR)
        if separator:
            found[topic] = uuid_from_base64(text)
    return found


def is_replaced(topic: str, seen_ids: TopicIds, topic_ids: TopicIds) -> bool:
    """Whether a name has gone to another topic since it was seen; False where an id is unknown."""
    seen_id, topic_id = seen_ids.get(topic, ZERO_UUID), topic_ids.get(topic, ZERO_UUID)
    return ZERO_UUID not in (seen_id, topic_id) and seen_id != topic_id


def parse_partitions(text: str) -> tuple[TopicPartition, ...]:
    """The partitions of the option `assign`, in order. Raises: ValueError"""
    value = _load(text, _PARTITIONS_EXAMPLE)
    if not isinstance(value, dict) or not value:
        raise ValueError(f"partitions by topic are expected, such as {_PARTITIONS_EXAMPLE}")
    found: set[TopicPartition] = set()
    for topic, partitions in value.items():
        if not topic or not isinstance(partitions, list) or not partitions:
            raise ValueError(f"{topic!r}: a list of partitions, such as {_PARTITIONS_EXAMPLE}")
        for partition in partitions:
            if not _is_number(partition, 0, MAX_PARTITION):
                raise ValueError(f"{topic!r}: {partition!r} is not a partition's number")
            found.add(TopicPartition(topic, partition))
    return tuple(sorted(found))


def parse_offsets(text: str) -> Offsets:
    """`startingOffsets` and `endingOffsets`; -2 is earliest, -1 latest. Raises: ValueError"""
    value = _load(text, f"earliest, latest or {_OFFSETS_EXAMPLE}")
    return _partition_numbers(value, lowest=EARLIEST_OFFSET, example=_OFFSETS_EXAMPLE)


def parse_topic_ids(text: str) -> dict[str, UUID]:
    """The ids in the same JSON, from a checkpoint, progress or results store. Raises: ValueError"""
    parse_offsets(text)
    return topic_ids_of(json.loads(text))


def parse_timestamps(text: str) -> Offsets:
    """`…OffsetsByTimestamp`: milliseconds since 1970 UTC by partition. Raises: ValueError"""
    return _partition_numbers(_load(text, _TIMES_EXAMPLE), lowest=0, example=_TIMES_EXAMPLE)


def _load(text: str, expected: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        raise ValueError(f"{expected} is expected") from None


def _partition_numbers(value: object, *, lowest: int, example: str) -> Offsets:
    if not isinstance(value, dict) or not value:
        raise ValueError(f"numbers by topic and partition are expected, such as {example}")
    found: Offsets = {}
    for topic, numbers in value.items():
        if not isinstance(topic, str) or not topic or not isinstance(numbers, dict):
            raise ValueError(f"{topic!r}: numbers by partition are expected, such as {example}")
        if ID_SEPARATOR in topic:
            uuid_from_base64(topic.partition(ID_SEPARATOR)[2])
            if numbers:
                raise ValueError(f"{topic!r}: no topic has a colon in its name")
        for partition, number in numbers.items():
            if not (partition.isascii() and partition.isdigit()) or int(partition) > MAX_PARTITION:
                raise ValueError(f"{topic!r}: {partition!r} is not a partition's number")
            if not _is_number(number, lowest, MAX_OFFSET):
                raise ValueError(
                    f"{topic!r}, partition {partition}: {number!r}; a whole number from {lowest} on"
                )
            found[TopicPartition(topic, int(partition))] = number
    return found


def _is_number(value: object, lowest: int, highest: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and lowest <= value <= highest


class Place(Enum):
    """The same place in every partition."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """An offset for each partition (-2 is earliest, -1 latest), and topics' ids, if given."""

    offsets: Mapping[TopicPartition, int]
    topic_ids: TopicIds = field(default_factory=dict)

    def in_former_topics(self, topic_ids: TopicIds) -> frozenset[TopicPartition]:
        """The partitions whose offset is in a topic that the name does not belong to any more."""
        return frozenset(
            partition
            for partition, offset in self.offsets.items()
            if offset >= 0 and is_replaced(partition.topic, self.topic_ids, topic_ids)
        )


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record at or after a time, in milliseconds since 1970 UTC, in every partition."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class AtTimes:
    """The same with a time for each partition."""

    timestamps_ms: Mapping[TopicPartition, int]


Selection: TypeAlias = Place | AtOffsets | AtTime | AtTimes


@dataclass(frozen=True, slots=True)
class Wanted:
    """A place, with the option that it came from, for the errors. With `latest_when_not_found` it
    is the end, instead of an error, where no record is young enough.
    """

    selection: Selection
    option: str
    latest_when_not_found: bool = False

    def is_volatile(self) -> bool:
        """Whether looking it up again later gives other offsets, though nothing was lost."""
        if isinstance(self.selection, AtOffsets):
            return LATEST_OFFSET in self.selection.offsets.values()
        if isinstance(self.selection, Place):
            return self.selection is Place.LATEST
        return self.latest_when_not_found

    def times(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The times that have to be looked up, in ms, by partition. Raises: OffsetsNotFound: they
        are not given for exactly these partitions
        """
        if isinstance(self.selection, AtTime):
            return dict.fromkeys(partitions, self.selection.timestamp_ms)
        if isinstance(self.selection, AtTimes):
            self._check_same(self.selection.timestamps_ms, partitions)
            return dict(self.selection.timestamps_ms)
        return {}

    def resolve(
        self,
        partitions: Collection[TopicPartition],
        beginnings: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        first_by_time: Mapping[TopicPartition, int | None],
    ) -> Offsets:
        """The offset for every partition. `first_by_time` answers `times`; None where no record is
        young enough. Raises: OffsetsNotFound: some partition has none
        """
        if isinstance(self.selection, Place):
            bounds = beginnings if self.selection is Place.EARLIEST else ends
            return {partition: bounds[partition] for partition in partitions}
        if isinstance(self.selection, AtOffsets):
            self._check_same(self.selection.offsets, partitions)
            special = {EARLIEST_OFFSET: beginnings, LATEST_OFFSET: ends}
            return {
                partition: special[wanted][partition] if wanted in special else wanted
                for partition, wanted in self.selection.offsets.items()
            }
        times = self.times(partitions)
        found: Offsets = {}
        for partition in partitions:
            first = first_by_time[partition]
            if first is None and not self.latest_when_not_found:
                raise OffsetsNotFound(
                    f"{self.option}: {partition} has no record at or after {times[partition]} (ms "
                    "since 1970 UTC); choose an earlier time, or set "
                    "startingOffsetsByTimestampStrategy=latest to begin at the end there"
                )
            found[partition] = ends[partition] if first is None else first
        return found

    def _check_same(
        self, given: Collection[TopicPartition], partitions: Collection[TopicPartition]
    ) -> None:
        missing = sorted(set(partitions) - set(given))
        unknown = sorted(set(given) - set(partitions))
        if not missing and not unknown:
            return
        problems = []
        if missing:
            problems.append(f"there is nothing for {_names(missing)}")
        if unknown:
            problems.append(f"{_names(unknown)} is not read, or does not exist")
        raise OffsetsNotFound(
            f"{self.option} must name every partition that is read, and no other: "
            f"{'; '.join(problems)}. In offsets, -2 stands for earliest and -1 for latest"
        )


def _names(partitions: Collection[TopicPartition]) -> str:
    shown = [str(partition) for partition in partitions]
    more = len(shown) - MAX_NAMES
    return ", ".join(shown[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
