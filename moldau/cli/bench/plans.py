"""What each load of `moldau bench` does: one plan for each, whose fields are the command's options.

Must not import a load: the options exist before the load does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

import typer

from moldau.cli.parameters import Within

Topic = Annotated[str, "An existing topic."]
RecordBytes = Annotated[int, Within(1, 100_000_000), "Bytes of each value."]
ReplicationFactor = Annotated[
    int, "Replicas of the topic that is created; -1: the brokers' default."
]
PARTITION_COUNTS: Final = (1, 10, 100)


class CodecName(StrEnum):
    """The codecs of record batches."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Acks(StrEnum):
    """Which acknowledgement to wait for; 0 sends no response and cannot be measured here."""

    LEADER = "1"
    ALL = "all"

    @property
    def number(self) -> int:
        return -1 if self is Acks.ALL else 1


class GroupProtocol(StrEnum):
    """As `group.protocol` of Kafka's consumers."""

    CLASSIC = "classic"
    CONSUMER = "consumer"


AcksOption = Annotated[Acks, "Acknowledgements to wait for: 1 or all."]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionsPlan:
    """For each number of partitions, so many seconds of transactions of that many partitions by
    several producers at once. Without a topic one is made for the time; without a transaction
    version it is what is finalized.
    """

    partitions: Annotated[
        list[int] | None,
        Within(1, 10_000),
        "Per transaction; may be repeated.  [default: 1, 10, 100]",
    ] = None
    producers: Annotated[int, Within(1, 1_000), "How many commit at the same time."] = 8
    seconds: Annotated[float, Within(0.1), "Per number of partitions."] = 10.0
    warm_up_seconds: Annotated[float, Within(0), "Before each measurement."] = 3.0
    record_bytes: Annotated[int, Within(1, 1_000_000), "Bytes of each record's value."] = 100
    topic: Annotated[str | None, "An existing topic; by default a new one."] = None
    replication_factor: ReplicationFactor = -1
    transaction_version: Annotated[
        int | None, Within(1, 2), "2: an epoch per transaction.  [default: as finalized]"
    ] = None

    @property
    def partition_counts(self) -> Sequence[int]:
        return self.partitions or PARTITION_COUNTS


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsPlan:
    """A group of so many members on its own topic."""

    protocol: Annotated[GroupProtocol, "classic, or consumer (KIP-848)."] = GroupProtocol.CONSUMER
    members: Annotated[int, Within(1, 50_000), "How many members."] = 1_000
    partitions: Annotated[int, Within(1, 50_000), "Partitions of their topic."] = 1_000
    idle_seconds: Annotated[float, Within(0), "How long they only send heartbeats."] = 10.0
    heartbeat_ms: Annotated[int, Within(1), "Between heartbeats of a classic member."] = 3_000
    pid: Annotated[
        int | None, Within(1), "The coordinator's process id, to read its CPU time (Linux)."
    ] = None
    replication_factor: ReplicationFactor = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducePlan:
    """Batches of so many bytes, about, sent until all records are acknowledged."""

    topic: Topic
    records: Annotated[int, Within(1), "How many records."] = 1_000_000
    record_bytes: RecordBytes = 1_000
    batch_bytes: Annotated[int, Within(1), "Bytes of a batch, about."] = 262_144
    in_flight: Annotated[int, Within(1, 64), "How many requests are in flight per partition."] = 5
    acks: AcksOption = Acks.ALL
    codec: Annotated[CodecName, "How batches are compressed."] = CodecName.NONE
    idempotent: Annotated[bool, typer.Option(help="Number the batches.")] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumePlan:
    """Every partition from its start to the end it has now."""

    topic: Topic
    fetch_bytes: Annotated[int, Within(1), "Most bytes per fetch."] = 1_048_576
    records: Annotated[int | None, Within(1), "Stop after about so many."] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyPlan:
    """Single records at a fixed rate."""

    topic: Topic
    rate: Annotated[int, Within(1, 100_000), "Records per second."] = 1_000
    seconds: Annotated[float, Within(0.1), "How long to measure."] = 10.0
    record_bytes: RecordBytes = 1_000
    acks: AcksOption = Acks.ALL

    @property
    def records(self) -> int:
        return int(self.rate * self.seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataPlan:
    """What is created, changed and restarted, and how often."""

    partitions: Annotated[int, Within(1, 2_000_000), "How many partitions."] = 100_000
    partitions_per_topic: Annotated[int, Within(1, 4_999), "How many of them a topic has."] = 10
    samples: Annotated[int, Within(1, 10_000), "Single topics to create."] = 50
    kills: Annotated[int, Within(1, 1_000), "How often to kill the active controller."] = 5
    repeats: Annotated[int, Within(1, 1_000), "How often to start a broker, to load an image."] = 3
