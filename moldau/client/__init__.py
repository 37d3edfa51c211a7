"""The client: producer, consumer and admin, for Moldau and Apache Kafka alike.

async with Admin("localhost:9092") as admin:
    await admin.create_topics([NewTopic("flights", partition_count=4)])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.first_use import at_first_use

if TYPE_CHECKING:
    from moldau.client.admin.admin import Admin as Admin
    from moldau.client.admin.cluster import ClusterDescription as ClusterDescription
    from moldau.client.admin.cluster import ConfigChange as ConfigChange
    from moldau.client.admin.cluster import ConfigEntry as ConfigEntry
    from moldau.client.admin.cluster import ConfigResource as ConfigResource
    from moldau.client.admin.cluster import ConfigResourceType as ConfigResourceType
    from moldau.client.admin.cluster import Features as Features
    from moldau.client.admin.cluster import FeatureUpdate as FeatureUpdate
    from moldau.client.admin.cluster import LogDirectory as LogDirectory
    from moldau.client.admin.cluster import QuorumDescription as QuorumDescription
    from moldau.client.admin.cluster import QuorumEndpoint as QuorumEndpoint
    from moldau.client.admin.cluster import QuorumReplica as QuorumReplica
    from moldau.client.admin.cluster import RegisteredBroker as RegisteredBroker
    from moldau.client.admin.cluster import UpgradeType as UpgradeType
    from moldau.client.admin.groups import CommittedOffset as CommittedOffset
    from moldau.client.admin.groups import GroupDescription as GroupDescription
    from moldau.client.admin.groups import GroupListing as GroupListing
    from moldau.client.admin.groups import GroupMember as GroupMember
    from moldau.client.admin.partitions import OffsetSpec as OffsetSpec
    from moldau.client.admin.partitions import PartitionOffset as PartitionOffset
    from moldau.client.admin.partitions import ProducerState as ProducerState
    from moldau.client.admin.partitions import Reassignment as Reassignment
    from moldau.client.admin.partitions import ReplicaLog as ReplicaLog
    from moldau.client.admin.partitions import TopicPartitionReplica as TopicPartitionReplica
    from moldau.client.admin.security import AclBinding as AclBinding
    from moldau.client.admin.security import AclFilter as AclFilter
    from moldau.client.admin.security import AclOperation as AclOperation
    from moldau.client.admin.security import AclPatternType as AclPatternType
    from moldau.client.admin.security import AclPermission as AclPermission
    from moldau.client.admin.security import AclResourceType as AclResourceType
    from moldau.client.admin.security import DelegationToken as DelegationToken
    from moldau.client.admin.security import ScramCredentialInfo as ScramCredentialInfo
    from moldau.client.admin.security import ScramDeletion as ScramDeletion
    from moldau.client.admin.security import ScramMechanism as ScramMechanism
    from moldau.client.admin.security import ScramUpsertion as ScramUpsertion
    from moldau.client.admin.topics import NewPartitions as NewPartitions
    from moldau.client.admin.topics import NewTopic as NewTopic
    from moldau.client.admin.topics import PartitionDescription as PartitionDescription
    from moldau.client.admin.topics import TopicDescription as TopicDescription
    from moldau.client.admin.topics import TopicPage as TopicPage
    from moldau.client.admin.transactions import AbortTransaction as AbortTransaction
    from moldau.client.admin.transactions import ProducerIdAndEpoch as ProducerIdAndEpoch
    from moldau.client.admin.transactions import TransactionDescription as TransactionDescription
    from moldau.client.admin.transactions import TransactionListing as TransactionListing
    from moldau.client.cluster.coordinators import KeyType as KeyType
    from moldau.client.cluster.metadata_cache import Broker as Broker
    from moldau.client.config.client import AdminConfig as AdminConfig
    from moldau.client.config.client import ClientConfig as ClientConfig
    from moldau.client.config.consumer import ConsumerConfig as ConsumerConfig
    from moldau.client.config.producer import ProducerConfig as ProducerConfig
    from moldau.client.config.settings import UnusedSetting as UnusedSetting
    from moldau.client.consumer.consumer import Consumer as Consumer
    from moldau.client.consumer.core.subscription_state import (
        RebalanceListener as RebalanceListener,
    )
    from moldau.client.errors import AuthenticationFailed as AuthenticationFailed
    from moldau.client.errors import AuthorizationFailed as AuthorizationFailed
    from moldau.client.errors import BrokerError as BrokerError
    from moldau.client.errors import BufferFull as BufferFull
    from moldau.client.errors import ClientClosed as ClientClosed
    from moldau.client.errors import ClusterAuthorizationFailed as ClusterAuthorizationFailed
    from moldau.client.errors import CommitFailed as CommitFailed
    from moldau.client.errors import ConcurrentUse as ConcurrentUse
    from moldau.client.errors import ConfigurationError as ConfigurationError
    from moldau.client.errors import DeliveryTimeout as DeliveryTimeout
    from moldau.client.errors import FencedInstanceId as FencedInstanceId
    from moldau.client.errors import FencedMemberEpoch as FencedMemberEpoch
    from moldau.client.errors import GroupAuthorizationFailed as GroupAuthorizationFailed
    from moldau.client.errors import GroupFull as GroupFull
    from moldau.client.errors import GroupNotEmpty as GroupNotEmpty
    from moldau.client.errors import GroupNotFound as GroupNotFound
    from moldau.client.errors import IllegalGeneration as IllegalGeneration
    from moldau.client.errors import InconsistentGroupProtocol as InconsistentGroupProtocol
    from moldau.client.errors import InvalidGroupId as InvalidGroupId
    from moldau.client.errors import InvalidRecord as InvalidRecord
    from moldau.client.errors import InvalidRegularExpression as InvalidRegularExpression
    from moldau.client.errors import InvalidRequest as InvalidRequest
    from moldau.client.errors import InvalidState as InvalidState
    from moldau.client.errors import InvalidSubscription as InvalidSubscription
    from moldau.client.errors import InvalidTopic as InvalidTopic
    from moldau.client.errors import InvalidTransactionState as InvalidTransactionState
    from moldau.client.errors import KafkaError as KafkaError
    from moldau.client.errors import LogTruncated as LogTruncated
    from moldau.client.errors import NoBrokerAvailable as NoBrokerAvailable
    from moldau.client.errors import NoOffsetForPartition as NoOffsetForPartition
    from moldau.client.errors import OffsetOutOfRange as OffsetOutOfRange
    from moldau.client.errors import OutOfOrderSequence as OutOfOrderSequence
    from moldau.client.errors import ProducerFenced as ProducerFenced
    from moldau.client.errors import RebalanceInProgress as RebalanceInProgress
    from moldau.client.errors import RecordTooLarge as RecordTooLarge
    from moldau.client.errors import RequestTimeout as RequestTimeout
    from moldau.client.errors import SerializationError as SerializationError
    from moldau.client.errors import StaleMemberEpoch as StaleMemberEpoch
    from moldau.client.errors import TlsFailed as TlsFailed
    from moldau.client.errors import TopicAlreadyExists as TopicAlreadyExists
    from moldau.client.errors import TopicAuthorizationFailed as TopicAuthorizationFailed
    from moldau.client.errors import TransactionAbortable as TransactionAbortable
    from moldau.client.errors import TransactionAborted as TransactionAborted
    from moldau.client.errors import (
        TransactionalIdAuthorizationFailed as TransactionalIdAuthorizationFailed,
    )
    from moldau.client.errors import UnknownMember as UnknownMember
    from moldau.client.errors import UnknownTopicOrPartition as UnknownTopicOrPartition
    from moldau.client.errors import UnreleasedInstanceId as UnreleasedInstanceId
    from moldau.client.errors import UnsupportedAssignor as UnsupportedAssignor
    from moldau.client.errors import UnsupportedByBroker as UnsupportedByBroker
    from moldau.client.errors import WrongEventLoop as WrongEventLoop
    from moldau.client.producer.delivery import Delivery as Delivery
    from moldau.client.producer.producer import Producer as Producer
    from moldau.client.producer.transactions import PreparedTransaction as PreparedTransaction
    from moldau.client.records import ConsumerGroupMetadata as ConsumerGroupMetadata
    from moldau.client.records import ConsumerRecord as ConsumerRecord
    from moldau.client.records import OffsetAndMetadata as OffsetAndMetadata
    from moldau.client.records import OffsetAndTimestamp as OffsetAndTimestamp
    from moldau.client.records import RecordMetadata as RecordMetadata
    from moldau.client.records import TimestampType as TimestampType
    from moldau.config.definition import ConfigSource as ConfigSource
    from moldau.protocol.messages.p43_elect_leaders import ElectionType as ElectionType
    from moldau.protocol.messages.p44_incremental_alter_configs import (
        ConfigOperation as ConfigOperation,
    )
    from moldau.protocol.types import TopicPartition as TopicPartition
    from moldau.sasl.oauthbearer.tokens import OAuthBearerToken as OAuthBearerToken

at_first_use(
    globals(),
    """
    client.admin.admin: Admin
    client.admin.cluster: ClusterDescription ConfigChange ConfigEntry ConfigResource
        ConfigResourceType Features FeatureUpdate LogDirectory QuorumDescription QuorumEndpoint
        QuorumReplica RegisteredBroker UpgradeType
    client.admin.groups: CommittedOffset GroupDescription GroupListing GroupMember
    client.admin.partitions: OffsetSpec PartitionOffset ProducerState Reassignment ReplicaLog
        TopicPartitionReplica
    client.admin.security: AclBinding AclFilter AclOperation AclPatternType AclPermission
        AclResourceType DelegationToken ScramCredentialInfo ScramDeletion ScramMechanism
        ScramUpsertion
    client.admin.topics: NewPartitions NewTopic PartitionDescription TopicDescription TopicPage
    client.admin.transactions: AbortTransaction ProducerIdAndEpoch TransactionDescription
        TransactionListing
    client.cluster.coordinators: KeyType
    client.cluster.metadata_cache: Broker
    client.config.client: AdminConfig ClientConfig
    client.config.consumer: ConsumerConfig
    client.config.producer: ProducerConfig
    client.config.settings: UnusedSetting
    client.consumer.consumer: Consumer
    client.consumer.core.subscription_state: RebalanceListener
    client.errors: AuthenticationFailed AuthorizationFailed BrokerError BufferFull ClientClosed
        ClusterAuthorizationFailed CommitFailed ConcurrentUse ConfigurationError DeliveryTimeout
        FencedInstanceId FencedMemberEpoch GroupAuthorizationFailed GroupFull GroupNotEmpty
        GroupNotFound IllegalGeneration InconsistentGroupProtocol InvalidGroupId InvalidRecord
        InvalidRegularExpression InvalidRequest InvalidState InvalidSubscription InvalidTopic
        InvalidTransactionState KafkaError LogTruncated NoBrokerAvailable NoOffsetForPartition
        OffsetOutOfRange OutOfOrderSequence ProducerFenced RebalanceInProgress RecordTooLarge
        RequestTimeout SerializationError StaleMemberEpoch TlsFailed TopicAlreadyExists
        TopicAuthorizationFailed TransactionAbortable TransactionAborted
        TransactionalIdAuthorizationFailed UnknownMember UnknownTopicOrPartition
        UnreleasedInstanceId UnsupportedAssignor UnsupportedByBroker WrongEventLoop
    client.producer.delivery: Delivery
    client.producer.producer: Producer
    client.producer.transactions: PreparedTransaction
    client.records: ConsumerGroupMetadata ConsumerRecord OffsetAndMetadata OffsetAndTimestamp
        RecordMetadata TimestampType
    config.definition: ConfigSource
    protocol.messages.p43_elect_leaders: ElectionType
    protocol.messages.p44_incremental_alter_configs: ConfigOperation
    protocol.types: TopicPartition
    sasl.oauthbearer.tokens: OAuthBearerToken
    """,
)
