"""What the admin client's calls about groups and transactions take and return.

Invariant: everything here is immutable and says units in its names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from moldau.client.admin.types import ProducerState
from moldau.client.cluster.metadata_cache import Broker
from moldau.protocol.types import TopicPartition

CLASSIC = "classic"
CONSUMER = "consumer"
EMPTY_STATES = ("Empty", "Dead")
"""States in which nobody is in a group, so that its offsets can be changed from outside."""


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

    `assignment` is what it owns, `target` what it shall own (None in classic groups, which have
    no such thing). `member_epoch` is None in classic groups. `member_type` is None where the
    broker does not tell.
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

    `assignor` is the assignment strategy that is in use, "" while there is none. Partitions of
    classic members are known only where `protocol_type` is "consumer".
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
        """Whether nobody is in it."""
        return self.state in EMPTY_STATES


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """What a group has committed for a partition; the leader epoch is -1 where not known."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


Offsets = Mapping[TopicPartition, CommittedOffset]


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

    `partitions` are those of the transaction that is open, or those still without a marker while
    it ends. `start_time_ms` is None when no transaction is open.
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
    """An open transaction on one partition, to be aborted there whatever its coordinator thinks."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int

    @classmethod
    def of(cls, partition: TopicPartition, producer: ProducerState) -> AbortTransaction:
        """From what the partition tells of the producer.

        A partition that has never had a marker of the producer knows no coordinator epoch (-1),
        and takes any from 0 on.
        """
        return cls(
            partition,
            producer.producer_id,
            producer.producer_epoch,
            max(0, producer.coordinator_epoch),
        )


@dataclass(frozen=True, slots=True)
class ProducerIdAndEpoch:
    """What fencing has left as the newest producer of a transactional id."""

    producer_id: int
    producer_epoch: int
