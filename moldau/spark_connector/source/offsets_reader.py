"""What the driver asks the cluster: which partitions there are, where they begin and end.

Owns one admin client, from the first question to `close`. Must not decide what is read. Invariant:
an answer is of one moment; what does not exist is said, not left out.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from moldau.client import ConsumerConfig, OffsetSpec, TopicDescription, UnknownTopicOrPartition
from moldau.client.sync import Admin
from moldau.protocol.types import TopicPartition
from moldau.spark_connector.core.offsets import Offsets
from moldau.spark_connector.errors import ClusterError
from moldau.spark_connector.failures import cluster_errors
from moldau.spark_connector.source.options import (
    AssignedPartitions,
    MatchingTopics,
    NamedTopics,
    SourceOptions,
)

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
        """What the subscription finds now.

        Args:
            patient: look again for a second before something is said to be missing.
        """
        for _ in range(PATIENT_TRIES if patient else 0):
            found = self._topology()
            if not found.missing:
                return found
            time.sleep(PATIENT_PAUSE_S)
        return self._topology()

    def _topology(self) -> Topology:
        subscription = self._options.subscription
        with cluster_errors("looking up the topics to read"):
            if isinstance(subscription, AssignedPartitions):
                names = sorted({partition.topic for partition in subscription.partitions})
                found, _ = self._describe(names)
                there = {partition for topic in found for partition in _partitions_of(topic)}
                wanted = frozenset(subscription.partitions)
                missing = tuple(map(str, sorted(wanted - there)))
                return Topology(wanted & there, _ids(found), missing)
            if isinstance(subscription, NamedTopics):
                found, missing = self._describe(subscription.names)
            else:
                found, missing = self._describe(self._matching(subscription))
                missing = ()  # deleted just now: matches nothing any more
        there = {partition for topic in found for partition in _partitions_of(topic)}
        return Topology(frozenset(there), _ids(found), missing)

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
            self._admin = Admin(config=ConsumerConfig.from_properties(self._options.kafka))
        return self._admin

    def _matching(self, subscription: MatchingTopics) -> list[str]:
        """Names that match. All topics of the cluster are gone through once in `PATTERN_FRESH_S`
        only: an idle query asks many times a second.
        """
        now_s = time.monotonic()
        if self._matched is None or now_s - self._matched_at_s >= PATTERN_FRESH_S:
            pattern = re.compile(subscription.pattern)
            topics = self._connected().list_topics()
            self._matched = [name for name in topics if pattern.fullmatch(name)]
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


def _ids(found: Collection[TopicDescription]) -> dict[str, UUID]:
    return {topic.name: topic.topic_id for topic in found}
