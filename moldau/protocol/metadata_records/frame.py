"""How a metadata record lies in the value of a log record.

Owns the frame of KIP-631: frame version, record type, record version, all unsigned varints, then
the record itself, which must fill the value to its end. The records' keys are null.
"""

from functools import cache
from importlib import import_module

from moldau.protocol.errors import LocalProtocolError, RemoteProtocolError
from moldau.protocol.schema import Message
from moldau.protocol.types import Buffer
from moldau.protocol.varint import read_unsigned_varint, unsigned_varint

FRAME_VERSION = 1
"""The only frame version there is."""

_RECORDS: dict[int, tuple[str, str]] = {
    0: ("register_broker_record", "RegisterBrokerRecord"),
    1: ("unregister_broker_record", "UnregisterBrokerRecord"),
    2: ("topic_record", "TopicRecord"),
    3: ("partition_record", "PartitionRecord"),
    4: ("config_record", "ConfigRecord"),
    5: ("partition_change_record", "PartitionChangeRecord"),
    7: ("fence_broker_record", "FenceBrokerRecord"),
    8: ("unfence_broker_record", "UnfenceBrokerRecord"),
    9: ("remove_topic_record", "RemoveTopicRecord"),
    10: ("delegation_token_record", "DelegationTokenRecord"),
    11: ("user_scram_credential_record", "UserScramCredentialRecord"),
    12: ("feature_level_record", "FeatureLevelRecord"),
    14: ("client_quota_record", "ClientQuotaRecord"),
    15: ("producer_ids_record", "ProducerIdsRecord"),
    17: ("broker_registration_change_record", "BrokerRegistrationChangeRecord"),
    18: ("access_control_entry_record", "AccessControlEntryRecord"),
    19: ("remove_access_control_entry_record", "RemoveAccessControlEntryRecord"),
    20: ("no_op_record", "NoOpRecord"),
    21: ("zk_migration_state_record", "ZkMigrationStateRecord"),
    22: ("remove_user_scram_credential_record", "RemoveUserScramCredentialRecord"),
    23: ("begin_transaction_record", "BeginTransactionRecord"),
    24: ("end_transaction_record", "EndTransactionRecord"),
    25: ("abort_transaction_record", "AbortTransactionRecord"),
    26: ("remove_delegation_token_record", "RemoveDelegationTokenRecord"),
    27: ("register_controller_record", "RegisterControllerRecord"),
    28: ("clear_elr_record", "ClearElrRecord"),
}


def record_types() -> list[int]:
    """Return the number of every metadata record, lowest first."""
    return list(_RECORDS)


@cache
def record_class(type_id: int) -> type[Message]:
    """Return the metadata record with this number.

    Raises:
        RemoteProtocolError: there is none.
    """
    entry = _RECORDS.get(type_id)
    if entry is None:
        raise RemoteProtocolError(f"there is no metadata record of type {type_id}")
    module = import_module(f"moldau.protocol.metadata_records.{entry[0]}")
    found: type[Message] = getattr(module, entry[1])
    return found


def encode_record(record: Message, version: int) -> bytes:
    """Return the log record value that holds `record` as `version`.

    Raises:
        LocalProtocolError: the version does not exist or cannot hold the record.
    """
    type_id = record.API_KEY
    if type_id not in _RECORDS or record_class(type_id) is not type(record):
        raise LocalProtocolError(f"{type(record).__name__} is no metadata record")
    head = bytes((FRAME_VERSION,)) + unsigned_varint(type_id) + unsigned_varint(version)
    return head + record.to_bytes(version)


def decode_record(buffer: Buffer) -> tuple[Message, int]:
    """Return the record that `buffer`, a log record's value, holds, and the record's version.

    Raises:
        RemoteProtocolError: the frame or the record is of an unknown kind or version, cut short,
            or followed by more bytes.
    """
    frame_version, position = read_unsigned_varint(buffer, 0)
    if frame_version != FRAME_VERSION:
        raise RemoteProtocolError(f"there is no metadata frame version {frame_version}")
    type_id, position = read_unsigned_varint(buffer, position)
    version, position = read_unsigned_varint(buffer, position)
    record, position = record_class(type_id).decode(buffer, version, position)
    if position != len(buffer):
        raise RemoteProtocolError(
            f"{len(buffer) - position} bytes follow a {type(record).__name__}"
        )
    return record, version
