"""What the admin client takes and returns: plain typed values.

Invariant: everything here is immutable and says units in its names.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from moldau.client.cluster.metadata_cache import Broker, PartitionMetadata
from moldau.protocol.types import TopicPartition

__all__ = [
    "Broker",
    "ClusterDescription",
    "ConfigChange",
    "ConfigEntry",
    "ConfigOperation",
    "ConfigResource",
    "ConfigResourceType",
    "ConfigSource",
    "ElectionType",
    "FeatureUpdate",
    "Features",
    "LogDirectory",
    "NewPartitions",
    "NewTopic",
    "OffsetSpec",
    "PartitionDescription",
    "PartitionMetadata",
    "PartitionOffset",
    "ProducerState",
    "QuorumDescription",
    "QuorumEndpoint",
    "QuorumReplica",
    "Reassignment",
    "RegisteredBroker",
    "ReplicaLog",
    "TopicDescription",
    "TopicPage",
    "TopicPartition",
    "TopicPartitionReplica",
    "UpgradeType",
]


class ConfigResourceType(IntEnum):
    """What a configuration belongs to."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(IntEnum):
    """Where an effective value comes from (KIP-226)."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


class ConfigOperation(IntEnum):
    """How a change applies to a key (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class OffsetSpec(IntEnum):
    """The special timestamps of ListOffsets; any other number is a time in ms since 1970."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; counts of -1 (and no assignment) mean the brokers' defaults."""

    name: str
    partition_count: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)
    replica_assignment: Mapping[int, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """The total number of partitions a topic shall have, and where the new ones go."""

    total_count: int
    new_assignments: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition as the brokers see it; `leader` is -1 while there is none."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    eligible_leader_replicas: tuple[int, ...]
    last_known_eligible_leader_replicas: tuple[int, ...]
    offline_replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """One topic."""

    name: str
    topic_id: uuid.UUID
    is_internal: bool
    partitions: tuple[PartitionDescription, ...]


@dataclass(frozen=True, slots=True)
class TopicPage:
    """Some topics' partitions, and where the next page begins; None after the last one."""

    topics: tuple[TopicDescription, ...]
    next_cursor: TopicPartition | None


class TopicPartitionReplica(NamedTuple):
    """One copy of one partition."""

    topic: str
    partition: int
    broker_id: int


@dataclass(frozen=True, slots=True)
class ReplicaLog:
    """One replica's log on its broker (KIP-113).

    `offset_lag` is how far the log ends below the high watermark that its own broker knows: for a
    follower that is 0, however far the leader is ahead. The future directory is the one that the
    log is being moved to on the same broker, None when it stays where it is.
    """

    directory: str
    size_bytes: int
    offset_lag: int
    future_directory: str | None = None
    future_offset_lag: int | None = None


@dataclass(frozen=True, slots=True)
class RegisteredBroker:
    """A broker as the controller knows it."""

    node_id: int
    host: str
    port: int
    rack: str | None
    fenced: bool


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The cluster's id, its brokers and which of them answers for the controller."""

    cluster_id: str
    controller_id: int
    brokers: tuple[RegisteredBroker, ...]


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """Something that has a configuration; broker "" is the default of all brokers."""

    resource_type: ConfigResourceType
    name: str


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One key's effective value; None for a sensitive or absent one."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    sensitive: bool
    synonyms: tuple[tuple[str, str | None, ConfigSource], ...] = ()
    documentation: str | None = None


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One change of one key; DELETE needs no value."""

    name: str
    value: str | None
    operation: ConfigOperation = ConfigOperation.SET


@dataclass(frozen=True, slots=True)
class PartitionOffset:
    """An offset with the timestamp (ms) and leader epoch of its record, -1 where not known."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class LogDirectory:
    """One directory of one broker; `error` is set when it is offline."""

    directory: str
    error: str | None
    total_bytes: int
    usable_bytes: int
    partition_bytes: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class ProducerState:
    """What a partition remembers of one idempotent or transactional producer."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    current_transaction_start_offset: int | None


@dataclass(frozen=True, slots=True)
class Features:
    """Feature levels: what brokers support and what the cluster has finalized (KIP-584)."""

    supported: Mapping[str, tuple[int, int]]
    finalized: Mapping[str, int]
    finalized_epoch: int


class UpgradeType(IntEnum):
    """Which way a feature level may go (KIP-778)."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


@dataclass(frozen=True, slots=True)
class FeatureUpdate:
    """A level to finalize; 0 switches the feature off."""

    level: int
    upgrade_type: UpgradeType = UpgradeType.UPGRADE


class ElectionType(IntEnum):
    """Who may be elected: the preferred replica, or any live one, losing records (KIP-460)."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A partition on its way to other brokers (KIP-455)."""

    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]

    @property
    def target_replicas(self) -> tuple[int, ...]:
        """The replicas there will be at its end."""
        return tuple(each for each in self.replicas if each not in self.removing_replicas)

    @property
    def original_replicas(self) -> tuple[int, ...]:
        """The replicas there were before it, which a cancellation leaves."""
        return tuple(each for each in self.replicas if each not in self.adding_replicas)


@dataclass(frozen=True, slots=True)
class QuorumEndpoint:
    """Where a controller listens."""

    listener_name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.listener_name}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class QuorumReplica:
    """A voter or an observer as the leader sees it; a time is None where it does not know it."""

    replica_id: int
    directory_id: uuid.UUID
    log_end_offset: int
    last_fetch_timestamp_ms: int | None
    last_caught_up_timestamp_ms: int | None


@dataclass(frozen=True, slots=True)
class QuorumDescription:
    """The controller quorum (KIP-595, KIP-836, KIP-853); `endpoints` by node id."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]
    endpoints: Mapping[int, tuple[QuorumEndpoint, ...]]

    def voter(self, replica_id: int) -> QuorumReplica | None:
        """The voter with this id, None when there is none."""
        return next((voter for voter in self.voters if voter.replica_id == replica_id), None)
