"""What the admin client takes and returns: immutable typed values, with units in their names."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from moldau.client.cluster.metadata_cache import Broker
from moldau.config.definition import ConfigSource
from moldau.protocol.messages.p44_incremental_alter_configs import ConfigOperation
from moldau.protocol.types import TopicPartition

CLASSIC = "classic"
CONSUMER = "consumer"
EMPTY_STATES = ("Empty", "Dead")
"""States of a group without members, whose offsets can be changed from outside."""

QuotaEntity: TypeAlias = tuple[tuple[str, str | None], ...]
"""What a quota is for: pairs of "user", "client-id" or "ip" and a name, None for the default."""


# -- topics, partitions, configurations ----------------------------------------------------------


class ConfigResourceType(IntEnum):
    """What a configuration belongs to."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


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
    """The total number of partitions that a topic is to have, and the replicas of the new ones."""

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

    `offset_lag` is how far the log ends below the high watermark that its own broker knows: 0 for a
    follower, however far the leader is ahead. The future directory is where the log is being moved
    to on the same broker, None when it is not moved.
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
    """A topic, broker, … that has a configuration; broker "" is the default of all brokers."""

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


# -- cluster and quorum --------------------------------------------------------------------------


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


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A partition on its way to other brokers (KIP-455)."""

    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]

    @property
    def target_replicas(self) -> tuple[int, ...]:
        """The replicas after the reassignment."""
        return tuple(each for each in self.replicas if each not in self.removing_replicas)

    @property
    def original_replicas(self) -> tuple[int, ...]:
        """The replicas before the reassignment, which a cancellation restores."""
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
    """A voter or an observer as the leader sees it; a time is None where the leader has none."""

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
        """The voter with this id, or None."""
        return next((voter for voter in self.voters if voter.replica_id == replica_id), None)


# -- groups and transactions ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupListing:
    """One group of a list. `group_type` is "classic", "consumer", "share" or "streams"; `state` is
    Kafka's word ("Stable", "Empty", …).
    """

    group_id: str
    group_type: str
    protocol_type: str
    state: str
    coordinator_id: int


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One member.

    `assignment` is what it owns, `target` what it is to own. `target` and `member_epoch` are None
    in classic groups, `member_type` is None where the broker does not tell.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    host: str
    assignment: frozenset[TopicPartition]
    target: frozenset[TopicPartition] | None = None
    member_epoch: int | None = None
    member_type: str | None = None
    rack_id: str | None = None
    subscribed_topics: tuple[str, ...] = ()
    subscribed_regex: str | None = None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """One group and its members; the epochs are None in classic groups.

    `assignor` is the assignment strategy in use, "" while there is none. Partitions of classic
    members are known only where `protocol_type` is "consumer".
    """

    group_id: str
    group_type: str
    protocol_type: str
    state: str
    assignor: str
    coordinator: Broker
    members: tuple[GroupMember, ...]
    group_epoch: int | None = None
    assignment_epoch: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members."""
        return self.state in EMPTY_STATES


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A group's committed position in a partition; the leader epoch is -1 where not known."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """One transactional id of a list."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator_id: int


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """One transactional id as its coordinator knows it.

    `partitions` are those of the open transaction, or those still without a marker while it ends.
    `start_time_ms` is None when no transaction is open.
    """

    transactional_id: str
    coordinator: Broker
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_time_ms: int | None
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class AbortTransaction:
    """An open transaction on one partition, to be aborted there without its coordinator."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int

    @classmethod
    def of(cls, partition: TopicPartition, producer: ProducerState) -> AbortTransaction:
        """Describe the transaction by the partition's state of the producer.

        A partition without any marker of the producer knows no coordinator epoch (-1), and accepts
        any from 0 on.
        """
        return cls(
            partition,
            producer.producer_id,
            producer.producer_epoch,
            max(0, producer.coordinator_epoch),
        )


@dataclass(frozen=True, slots=True)
class ProducerIdAndEpoch:
    """The newest producer of a transactional id, after fencing."""

    producer_id: int
    producer_epoch: int


# -- security ------------------------------------------------------------------------------------


class AclResourceType(IntEnum):
    """The kind of resource that an ACL protects."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class AclPatternType(IntEnum):
    """How an ACL's resource name matches (KIP-290). ANY and MATCH are for filters only."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """What is allowed or denied. ANY is for filters only."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclPermission(IntEnum):
    """Allowed or denied. ANY is for filters only."""

    ANY = 1
    DENY = 2
    ALLOW = 3


@dataclass(frozen=True, slots=True)
class AclBinding:
    """One ACL.

    Attributes:
        resource_name: the topic, group, …; "kafka-cluster" for the cluster, "*" for all.
        principal: "User:alice"; "User:*" for every user.
        host: an address of the client, "*" for all.
    """

    resource_type: AclResourceType | int
    resource_name: str
    principal: str
    operation: AclOperation | int
    permission: AclPermission | int = AclPermission.ALLOW
    host: str = "*"
    pattern_type: AclPatternType | int = AclPatternType.LITERAL


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Which ACLs to find; None and ANY match everything.

    Attributes:
        pattern_type: MATCH finds all that apply to `resource_name`, also by prefix or "*".
    """

    resource_type: AclResourceType | int = AclResourceType.ANY
    resource_name: str | None = None
    principal: str | None = None
    operation: AclOperation | int = AclOperation.ANY
    permission: AclPermission | int = AclPermission.ANY
    host: str | None = None
    pattern_type: AclPatternType | int = AclPatternType.ANY


class ScramMechanism(IntEnum):
    """A kind of SCRAM credential."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2


@dataclass(frozen=True, slots=True)
class ScramCredentialInfo:
    """A credential as brokers describe it."""

    mechanism: ScramMechanism | int
    iterations: int


@dataclass(frozen=True, slots=True)
class ScramUpsertion:
    """A user's credential to be set; the salt is random unless given."""

    user: str
    password: str = field(repr=False)
    mechanism: ScramMechanism = ScramMechanism.SCRAM_SHA_512
    iterations: int = 4_096
    salt: bytes | None = None


@dataclass(frozen=True, slots=True)
class ScramDeletion:
    """A user's credential to be deleted."""

    user: str
    mechanism: ScramMechanism = ScramMechanism.SCRAM_SHA_512


@dataclass(frozen=True, slots=True)
class DelegationToken:
    """A token (KIP-48); log in by SCRAM with `token_id` and the base64 of `hmac`, tokenauth=true.

    Attributes:
        owner, requester, renewers: principals, "User:alice".
        issued_at_ms, expires_at_ms, max_lifetime_end_ms: in ms since 1970.
    """

    token_id: str
    hmac: bytes = field(repr=False)
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_at_ms: int
    expires_at_ms: int
    max_lifetime_end_ms: int
