"""The client: producer, consumer and admin, for Moldau and Apache Kafka alike.

async with Admin("localhost:9092") as admin:
    await admin.create_topics([NewTopic("flights", partition_count=4)])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.first_use import at_first_use

if TYPE_CHECKING:
    from moldau.client.admin.admin import Admin
    from moldau.client.admin.cluster import (
        ClusterDescription,
        ConfigChange,
        ConfigEntry,
        ConfigResource,
        ConfigResourceType,
        Features,
        FeatureUpdate,
        LogDirectory,
        QuorumDescription,
        QuorumEndpoint,
        QuorumReplica,
        RegisteredBroker,
        UpgradeType,
    )
    from moldau.client.admin.groups import (
        CommittedOffset,
        GroupDescription,
        GroupListing,
        GroupMember,
    )
    from moldau.client.admin.partitions import (
        OffsetSpec,
        PartitionOffset,
        ProducerState,
        Reassignment,
        ReplicaLog,
        TopicPartitionReplica,
    )
    from moldau.client.admin.security import (
        AclBinding,
        AclFilter,
        AclOperation,
        AclPatternType,
        AclPermission,
        AclResourceType,
        DelegationToken,
        ScramCredentialInfo,
        ScramDeletion,
        ScramMechanism,
        ScramUpsertion,
    )
    from moldau.client.admin.topics import (
        NewPartitions,
        NewTopic,
        PartitionDescription,
        TopicDescription,
        TopicPage,
    )
    from moldau.client.admin.transactions import (
        AbortTransaction,
        ProducerIdAndEpoch,
        TransactionDescription,
        TransactionListing,
    )
    from moldau.client.cluster.coordinators import KeyType
    from moldau.client.cluster.metadata_cache import Broker
    from moldau.client.config.client import AdminConfig, ClientConfig
    from moldau.client.config.consumer import ConsumerConfig
    from moldau.client.config.producer import ProducerConfig
    from moldau.client.config.settings import UnusedSetting
    from moldau.client.consumer.consumer import Consumer
    from moldau.client.consumer.core.subscription_state import RebalanceListener
    from moldau.client.errors import (
        AuthenticationFailed,
        AuthorizationFailed,
        BrokerError,
        BufferFull,
        ClientClosed,
        ClusterAuthorizationFailed,
        CommitFailed,
        ConcurrentUse,
        ConfigurationError,
        DeliveryTimeout,
        FencedInstanceId,
        FencedMemberEpoch,
        GroupAuthorizationFailed,
        GroupFull,
        GroupNotEmpty,
        GroupNotFound,
        IllegalGeneration,
        InconsistentGroupProtocol,
        InvalidGroupId,
        InvalidRecord,
        InvalidRegularExpression,
        InvalidRequest,
        InvalidState,
        InvalidSubscription,
        InvalidTopic,
        InvalidTransactionState,
        KafkaError,
        LogTruncated,
        NoBrokerAvailable,
        NoOffsetForPartition,
        OffsetOutOfRange,
        OutOfOrderSequence,
        ProducerFenced,
        RebalanceInProgress,
        RecordTooLarge,
        RequestTimeout,
        SerializationError,
        StaleMemberEpoch,
        TlsFailed,
        TopicAlreadyExists,
        TopicAuthorizationFailed,
        TransactionAbortable,
        TransactionAborted,
        TransactionalIdAuthorizationFailed,
        UnknownMember,
        UnknownTopicOrPartition,
        UnreleasedInstanceId,
        UnsupportedAssignor,
        UnsupportedByBroker,
        WrongEventLoop,
    )
    from moldau.client.producer.delivery import Delivery
    from moldau.client.producer.producer import Producer
    from moldau.client.producer.transactions import PreparedTransaction
    from moldau.client.records import (
        ConsumerGroupMetadata,
        ConsumerRecord,
        OffsetAndMetadata,
        OffsetAndTimestamp,
        RecordMetadata,
        TimestampType,
    )
    from moldau.config.definition import ConfigSource
    from moldau.protocol.messages.p43_elect_leaders import ElectionType
    from moldau.protocol.messages.p44_incremental_alter_configs import ConfigOperation
    from moldau.protocol.types import TopicPartition
    from moldau.sasl.oauthbearer.tokens import OAuthBearerToken

__all__ = [
    "AbortTransaction",
    "AclBinding",
    "AclFilter",
    "AclOperation",
    "AclPatternType",
    "AclPermission",
    "AclResourceType",
    "Admin",
    "AdminConfig",
    "AuthenticationFailed",
    "AuthorizationFailed",
    "Broker",
    "BrokerError",
    "BufferFull",
    "ClientClosed",
    "ClientConfig",
    "ClusterAuthorizationFailed",
    "ClusterDescription",
    "CommitFailed",
    "CommittedOffset",
    "ConcurrentUse",
    "ConfigChange",
    "ConfigEntry",
    "ConfigOperation",
    "ConfigResource",
    "ConfigResourceType",
    "ConfigSource",
    "ConfigurationError",
    "Consumer",
    "ConsumerConfig",
    "ConsumerGroupMetadata",
    "ConsumerRecord",
    "DelegationToken",
    "Delivery",
    "DeliveryTimeout",
    "ElectionType",
    "FeatureUpdate",
    "Features",
    "FencedInstanceId",
    "FencedMemberEpoch",
    "GroupAuthorizationFailed",
    "GroupDescription",
    "GroupFull",
    "GroupListing",
    "GroupMember",
    "GroupNotEmpty",
    "GroupNotFound",
    "IllegalGeneration",
    "InconsistentGroupProtocol",
    "InvalidGroupId",
    "InvalidRecord",
    "InvalidRegularExpression",
    "InvalidRequest",
    "InvalidState",
    "InvalidSubscription",
    "InvalidTopic",
    "InvalidTransactionState",
    "KafkaError",
    "KeyType",
    "LogDirectory",
    "LogTruncated",
    "NewPartitions",
    "NewTopic",
    "NoBrokerAvailable",
    "NoOffsetForPartition",
    "OAuthBearerToken",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetOutOfRange",
    "OffsetSpec",
    "OutOfOrderSequence",
    "PartitionDescription",
    "PartitionOffset",
    "PreparedTransaction",
    "Producer",
    "ProducerConfig",
    "ProducerFenced",
    "ProducerIdAndEpoch",
    "ProducerState",
    "QuorumDescription",
    "QuorumEndpoint",
    "QuorumReplica",
    "Reassignment",
    "RebalanceInProgress",
    "RebalanceListener",
    "RecordMetadata",
    "RecordTooLarge",
    "RegisteredBroker",
    "ReplicaLog",
    "RequestTimeout",
    "ScramCredentialInfo",
    "ScramDeletion",
    "ScramMechanism",
    "ScramUpsertion",
    "SerializationError",
    "StaleMemberEpoch",
    "TimestampType",
    "TlsFailed",
    "TopicAlreadyExists",
    "TopicAuthorizationFailed",
    "TopicDescription",
    "TopicPage",
    "TopicPartition",
    "TopicPartitionReplica",
    "TransactionAbortable",
    "TransactionAborted",
    "TransactionDescription",
    "TransactionListing",
    "TransactionalIdAuthorizationFailed",
    "UnknownMember",
    "UnknownTopicOrPartition",
    "UnreleasedInstanceId",
    "UnsupportedAssignor",
    "UnsupportedByBroker",
    "UnusedSetting",
    "UpgradeType",
    "WrongEventLoop",
]

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
