"""A cluster for planners, without one: topics and logs that tests change as they like.

Owns what `OffsetsReader` would answer. Must not know what planners do with it.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from moldau.protocol.types import TopicPartition
from moldau.spark_connector.source.options import SourceOptions
from moldau.spark_connector.source.planners import Topology


@dataclass
class Log:
    """One partition: its first offset, its end, and the offset of the first record by time."""

    beginning: int = 0
    end: int = 0
    first_by_time: dict[int, int] = field(default_factory=dict)


class ScriptedSource:
    """Topics by name, each with an id and its logs.

    Attributes:
        on_topology: called before each look at the topics, to change something just then.
    """

    def __init__(self, **topics: list[Log]) -> None:
        self.topics: dict[str, list[Log]] = {}
        self.ids: dict[str, uuid.UUID] = {}
        self.named: tuple[str, ...] = tuple(topics)
        self.is_closed = False
        self.topology_count = 0
        self.on_topology = lambda: None
        for name, logs in topics.items():
            self.create(name, *logs)

    def create(self, name: str, *logs: Log) -> None:
        """Make a topic, with its own id."""
        self.topics[name] = list(logs)
        self.ids[name] = uuid.uuid4()

    def delete(self, name: str) -> None:
        """Delete a topic."""
        del self.topics[name], self.ids[name]

    def log(self, partition: TopicPartition) -> Log | None:
        """The partition's log, None where there is none."""
        logs = self.topics.get(partition.topic, [])
        return logs[partition.partition] if partition.partition < len(logs) else None

    def topology(self, *, patient: bool = False) -> Topology:
        """All named topics."""
        self.on_topology()
        self.topology_count += 1
        found = [name for name in self.named if name in self.topics]
        partitions = frozenset(
            TopicPartition(name, number)
            for name in found
            for number in range(len(self.topics[name]))
        )
        missing = tuple(name for name in self.named if name not in self.topics)
        return Topology(partitions, {name: self.ids[name] for name in found}, missing)

    def beginnings(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """First offsets."""
        return {each: log.beginning for each in partitions if (log := self.log(each))}

    def ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Offsets behind the last records."""
        return {each: log.end for each in partitions if (log := self.log(each))}

    def first_by_time(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]:
        """As the logs say; None for times they do not know."""
        return {
            each: log.first_by_time.get(time_ms) if (log := self.log(each)) else None
            for each, time_ms in times.items()
        }

    def close(self) -> None:
        """No more questions."""
        self.is_closed = True


def source_options(**given: str) -> SourceOptions:
    """Options for the topic t, unless others are given."""
    options = {"kafka.bootstrap.servers": "h:9092", "subscribe": "t"} | {
        name.replace("__", "."): value for name, value in given.items()
    }
    return SourceOptions.parse(options)
