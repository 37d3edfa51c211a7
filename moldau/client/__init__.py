"""The client: producer, consumer and admin, for Moldau and Apache Kafka alike.

async with Admin("localhost:9092") as admin:
    await admin.create_topics([NewTopic("flights", partition_count=4)])
"""

from __future__ import annotations

from moldau.first_use import at_first_use

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
