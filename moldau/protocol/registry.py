"""Finds an API's message classes by its number, importing their module on first use.

Owns the list of modules under `messages/`. Knows nothing about which versions anyone serves.
"""

from functools import cache
from importlib import import_module

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import RemoteProtocolError
from moldau.protocol.schema import Message

# The module's name after the number, and the name both classes begin with.
_APIS: dict[int, tuple[str, str]] = {
    0: ("produce", "Produce"),
    1: ("fetch", "Fetch"),
    2: ("list_offsets", "ListOffsets"),
    3: ("metadata", "Metadata"),
    8: ("offset_commit", "OffsetCommit"),
    9: ("offset_fetch", "OffsetFetch"),
    10: ("find_coordinator", "FindCoordinator"),
    11: ("join_group", "JoinGroup"),
    12: ("heartbeat", "Heartbeat"),
    13: ("leave_group", "LeaveGroup"),
    14: ("sync_group", "SyncGroup"),
    15: ("describe_groups", "DescribeGroups"),
    16: ("list_groups", "ListGroups"),
    17: ("sasl_handshake", "SaslHandshake"),
    18: ("api_versions", "ApiVersions"),
    19: ("create_topics", "CreateTopics"),
    20: ("delete_topics", "DeleteTopics"),
    21: ("delete_records", "DeleteRecords"),
    22: ("init_producer_id", "InitProducerId"),
    23: ("offset_for_leader_epoch", "OffsetForLeaderEpoch"),
    24: ("add_partitions_to_txn", "AddPartitionsToTxn"),
    25: ("add_offsets_to_txn", "AddOffsetsToTxn"),
    26: ("end_txn", "EndTxn"),
    27: ("write_txn_markers", "WriteTxnMarkers"),
    28: ("txn_offset_commit", "TxnOffsetCommit"),
    29: ("describe_acls", "DescribeAcls"),
    30: ("create_acls", "CreateAcls"),
    31: ("delete_acls", "DeleteAcls"),
    32: ("describe_configs", "DescribeConfigs"),
    33: ("alter_configs", "AlterConfigs"),
    34: ("alter_replica_log_dirs", "AlterReplicaLogDirs"),
    35: ("describe_log_dirs", "DescribeLogDirs"),
    36: ("sasl_authenticate", "SaslAuthenticate"),
    37: ("create_partitions", "CreatePartitions"),
    38: ("create_delegation_token", "CreateDelegationToken"),
    39: ("renew_delegation_token", "RenewDelegationToken"),
    40: ("expire_delegation_token", "ExpireDelegationToken"),
    41: ("describe_delegation_token", "DescribeDelegationToken"),
    42: ("delete_groups", "DeleteGroups"),
    43: ("elect_leaders", "ElectLeaders"),
    44: ("incremental_alter_configs", "IncrementalAlterConfigs"),
    45: ("alter_partition_reassignments", "AlterPartitionReassignments"),
    46: ("list_partition_reassignments", "ListPartitionReassignments"),
    47: ("offset_delete", "OffsetDelete"),
    48: ("describe_client_quotas", "DescribeClientQuotas"),
    49: ("alter_client_quotas", "AlterClientQuotas"),
    50: ("describe_user_scram_credentials", "DescribeUserScramCredentials"),
    51: ("alter_user_scram_credentials", "AlterUserScramCredentials"),
    52: ("vote", "Vote"),
    53: ("begin_quorum_epoch", "BeginQuorumEpoch"),
    54: ("end_quorum_epoch", "EndQuorumEpoch"),
    55: ("describe_quorum", "DescribeQuorum"),
    56: ("alter_partition", "AlterPartition"),
    57: ("update_features", "UpdateFeatures"),
    58: ("envelope", "Envelope"),
    59: ("fetch_snapshot", "FetchSnapshot"),
    60: ("describe_cluster", "DescribeCluster"),
    61: ("describe_producers", "DescribeProducers"),
    62: ("broker_registration", "BrokerRegistration"),
    63: ("broker_heartbeat", "BrokerHeartbeat"),
    64: ("unregister_broker", "UnregisterBroker"),
    65: ("describe_transactions", "DescribeTransactions"),
    66: ("list_transactions", "ListTransactions"),
    67: ("allocate_producer_ids", "AllocateProducerIds"),
    68: ("consumer_group_heartbeat", "ConsumerGroupHeartbeat"),
    69: ("consumer_group_describe", "ConsumerGroupDescribe"),
    70: ("controller_registration", "ControllerRegistration"),
    71: ("get_telemetry_subscriptions", "GetTelemetrySubscriptions"),
    72: ("push_telemetry", "PushTelemetry"),
    73: ("assign_replicas_to_dirs", "AssignReplicasToDirs"),
    74: ("list_config_resources", "ListConfigResources"),
    75: ("describe_topic_partitions", "DescribeTopicPartitions"),
    76: ("share_group_heartbeat", "ShareGroupHeartbeat"),
    77: ("share_group_describe", "ShareGroupDescribe"),
    78: ("share_fetch", "ShareFetch"),
    79: ("share_acknowledge", "ShareAcknowledge"),
    80: ("add_raft_voter", "AddRaftVoter"),
    81: ("remove_raft_voter", "RemoveRaftVoter"),
    82: ("update_raft_voter", "UpdateRaftVoter"),
    83: ("initialize_share_group_state", "InitializeShareGroupState"),
    84: ("read_share_group_state", "ReadShareGroupState"),
    85: ("write_share_group_state", "WriteShareGroupState"),
    86: ("delete_share_group_state", "DeleteShareGroupState"),
    87: ("read_share_group_state_summary", "ReadShareGroupStateSummary"),
    88: ("streams_group_heartbeat", "StreamsGroupHeartbeat"),
    89: ("streams_group_describe", "StreamsGroupDescribe"),
    90: ("describe_share_group_offsets", "DescribeShareGroupOffsets"),
    91: ("alter_share_group_offsets", "AlterShareGroupOffsets"),
    92: ("delete_share_group_offsets", "DeleteShareGroupOffsets"),
}


def api_keys() -> list[ApiKey]:
    """Return every API that has messages, lowest number first."""
    return [ApiKey(api_key) for api_key in _APIS]


def is_known(api_key: int) -> bool:
    """Return whether the API has messages."""
    return api_key in _APIS


def _message_class(api_key: int, kind: str) -> type[Message]:
    entry = _APIS.get(api_key)
    if entry is None:
        raise RemoteProtocolError(f"there is no API {api_key}")
    module = import_module(f"moldau.protocol.messages.p{api_key:02d}_{entry[0]}")
    found: type[Message] = getattr(module, entry[1] + kind)
    return found


@cache
def request_class(api_key: int) -> type[Message]:
    """Return the API's request.

    Raises:
        RemoteProtocolError: there is no such API.
    """
    return _message_class(api_key, "Request")


@cache
def response_class(api_key: int) -> type[Message]:
    """Return the API's response.

    Raises:
        RemoteProtocolError: there is no such API.
    """
    return _message_class(api_key, "Response")
