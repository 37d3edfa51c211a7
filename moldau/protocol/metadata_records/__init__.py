"""The records of `__cluster_metadata`, one module each, imported when first asked for.

`frame` puts them into a log record's value and gets them out again.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moldau.protocol.metadata_records.abort_transaction_record import AbortTransactionRecord
    from moldau.protocol.metadata_records.access_control_entry_record import (
        AccessControlEntryRecord,
    )
    from moldau.protocol.metadata_records.begin_transaction_record import BeginTransactionRecord
    from moldau.protocol.metadata_records.broker_registration_change_record import (
        BrokerRegistrationChangeRecord,
    )
    from moldau.protocol.metadata_records.clear_elr_record import ClearElrRecord
    from moldau.protocol.metadata_records.client_quota_record import ClientQuotaRecord
    from moldau.protocol.metadata_records.config_record import ConfigRecord
    from moldau.protocol.metadata_records.delegation_token_record import DelegationTokenRecord
    from moldau.protocol.metadata_records.end_transaction_record import EndTransactionRecord
    from moldau.protocol.metadata_records.feature_level_record import FeatureLevelRecord
    from moldau.protocol.metadata_records.fence_broker_record import FenceBrokerRecord
    from moldau.protocol.metadata_records.frame import decode_record, encode_record, record_class
    from moldau.protocol.metadata_records.no_op_record import NoOpRecord
    from moldau.protocol.metadata_records.partition_change_record import PartitionChangeRecord
    from moldau.protocol.metadata_records.partition_record import PartitionRecord
    from moldau.protocol.metadata_records.producer_ids_record import ProducerIdsRecord
    from moldau.protocol.metadata_records.register_broker_record import RegisterBrokerRecord
    from moldau.protocol.metadata_records.register_controller_record import RegisterControllerRecord
    from moldau.protocol.metadata_records.remove_access_control_entry_record import (
        RemoveAccessControlEntryRecord,
    )
    from moldau.protocol.metadata_records.remove_delegation_token_record import (
        RemoveDelegationTokenRecord,
    )
    from moldau.protocol.metadata_records.remove_topic_record import RemoveTopicRecord
    from moldau.protocol.metadata_records.remove_user_scram_credential_record import (
        RemoveUserScramCredentialRecord,
    )
    from moldau.protocol.metadata_records.topic_record import TopicRecord
    from moldau.protocol.metadata_records.unfence_broker_record import UnfenceBrokerRecord
    from moldau.protocol.metadata_records.unregister_broker_record import UnregisterBrokerRecord
    from moldau.protocol.metadata_records.user_scram_credential_record import (
        UserScramCredentialRecord,
    )
    from moldau.protocol.metadata_records.zk_migration_state_record import ZkMigrationStateRecord

_MODULES = {
    "RegisterBrokerRecord": "register_broker_record",
    "UnregisterBrokerRecord": "unregister_broker_record",
    "TopicRecord": "topic_record",
    "PartitionRecord": "partition_record",
    "ConfigRecord": "config_record",
    "PartitionChangeRecord": "partition_change_record",
    "FenceBrokerRecord": "fence_broker_record",
    "UnfenceBrokerRecord": "unfence_broker_record",
    "RemoveTopicRecord": "remove_topic_record",
    "DelegationTokenRecord": "delegation_token_record",
    "UserScramCredentialRecord": "user_scram_credential_record",
    "FeatureLevelRecord": "feature_level_record",
    "ClientQuotaRecord": "client_quota_record",
    "ProducerIdsRecord": "producer_ids_record",
    "BrokerRegistrationChangeRecord": "broker_registration_change_record",
    "AccessControlEntryRecord": "access_control_entry_record",
    "RemoveAccessControlEntryRecord": "remove_access_control_entry_record",
    "NoOpRecord": "no_op_record",
    "ZkMigrationStateRecord": "zk_migration_state_record",
    "RemoveUserScramCredentialRecord": "remove_user_scram_credential_record",
    "BeginTransactionRecord": "begin_transaction_record",
    "EndTransactionRecord": "end_transaction_record",
    "AbortTransactionRecord": "abort_transaction_record",
    "RemoveDelegationTokenRecord": "remove_delegation_token_record",
    "RegisterControllerRecord": "register_controller_record",
    "ClearElrRecord": "clear_elr_record",
    "decode_record": "frame",
    "encode_record": "frame",
    "record_class": "frame",
}

__all__ = [
    "AbortTransactionRecord",
    "AccessControlEntryRecord",
    "BeginTransactionRecord",
    "BrokerRegistrationChangeRecord",
    "ClearElrRecord",
    "ClientQuotaRecord",
    "ConfigRecord",
    "DelegationTokenRecord",
    "EndTransactionRecord",
    "FeatureLevelRecord",
    "FenceBrokerRecord",
    "NoOpRecord",
    "PartitionChangeRecord",
    "PartitionRecord",
    "ProducerIdsRecord",
    "RegisterBrokerRecord",
    "RegisterControllerRecord",
    "RemoveAccessControlEntryRecord",
    "RemoveDelegationTokenRecord",
    "RemoveTopicRecord",
    "RemoveUserScramCredentialRecord",
    "TopicRecord",
    "UnfenceBrokerRecord",
    "UnregisterBrokerRecord",
    "UserScramCredentialRecord",
    "ZkMigrationStateRecord",
    "decode_record",
    "encode_record",
    "record_class",
]


def __getattr__(name: str) -> Any:
    module_name = _MODULES.get(name)
    if module_name is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{module_name}"), name)
    globals()[name] = found
    return found
