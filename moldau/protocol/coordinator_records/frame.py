"""How coordinator records lie in the keys and values of their logs.

Owns the framing: a key is its type as int16 and then the key, a value is its version as int16 and
then the value; no value at all (a tombstone) removes the key. Which value a key goes with is told
by the key's type, and the same numbers mean different things in different logs. The oldest key
types, 0 and 1, double as version of one key: both are an offset commit.
"""

from functools import cache
from importlib import import_module
from struct import Struct as PackedStruct
from typing import Final

from moldau.protocol.errors import LocalProtocolError, RemoteProtocolError
from moldau.protocol.schema import Message
from moldau.protocol.types import Buffer

_INT16 = PackedStruct(">h")
_KEY_VERSION = 0


def _split(buffer: Buffer, what: str) -> int:
    if len(buffer) < _INT16.size:
        raise RemoteProtocolError(f"a {what} of {len(buffer)} bytes is too short for its prefix")
    prefix: int = _INT16.unpack_from(buffer)[0]
    return prefix


class CoordinatorLog:
    """The record types of one coordinator's log."""

    def __init__(self, topic: str, records: dict[int, tuple[str, str]]) -> None:
        self.topic = topic
        self._records = records
        self._classes = cache(self._load)

    def _load(self, type_id: int) -> tuple[type[Message], type[Message]]:
        entry = self._records.get(type_id)
        if entry is None:
            raise RemoteProtocolError(f"{self.topic} has no records of type {type_id}")
        module = import_module(f"moldau.protocol.coordinator_records.{entry[0]}")
        return getattr(module, f"{entry[1]}Key"), getattr(module, f"{entry[1]}Value")

    def record_types(self) -> list[int]:
        """Return the number of every record type, lowest first."""
        return list(self._records)

    def key_class(self, type_id: int) -> type[Message]:
        """Return the key of a record type.

        Raises:
            RemoteProtocolError: there is no such type in this log.
        """
        return self._classes(type_id)[0]

    def value_class(self, type_id: int) -> type[Message]:
        """Return the value of a record type.

        Raises:
            RemoteProtocolError: there is no such type in this log.
        """
        return self._classes(type_id)[1]

    def encode_key(self, key: Message) -> bytes:
        """Return the log record key that holds `key`.

        Raises:
            LocalProtocolError: it is no key of this log, or a value does not fit.
        """
        if key.API_KEY not in self._records or self.key_class(key.API_KEY) is not type(key):
            raise LocalProtocolError(f"{type(key).__name__} is no key of {self.topic}")
        return _INT16.pack(key.API_KEY) + key.to_bytes(_KEY_VERSION)

    def encode_value(self, value: Message, version: int) -> bytes:
        """Return the log record value that holds `value` as `version`.

        Raises:
            LocalProtocolError: it is no value of this log, or does not fit the version.
        """
        type_id = value.API_KEY
        if type_id not in self._records or self.value_class(type_id) is not type(value):
            raise LocalProtocolError(f"{type(value).__name__} is no value of {self.topic}")
        return _INT16.pack(version) + value.to_bytes(version)

    def decode_key(self, buffer: Buffer) -> Message:
        """Return the key that a log record's key holds; its `API_KEY` is the record type.

        Raises:
            RemoteProtocolError: the type is unknown (a newer coordinator wrote it: skip the
                record), or the key is cut short or followed by more bytes.
        """
        key_class = self.key_class(_split(buffer, "key"))
        key, position = key_class.decode(buffer, _KEY_VERSION, _INT16.size)
        if position != len(buffer):
            raise RemoteProtocolError(f"{len(buffer) - position} bytes follow {key}")
        return key

    def decode_value(self, key: Message, buffer: Buffer) -> tuple[Message, int]:
        """Return the value that belongs to `key`, and the value's version.

        Raises:
            RemoteProtocolError: the version is unknown, or the value is cut short or followed by
                more bytes.
        """
        version = _split(buffer, "value")
        value, position = self.value_class(key.API_KEY).decode(buffer, version, _INT16.size)
        if position != len(buffer):
            raise RemoteProtocolError(
                f"{len(buffer) - position} bytes follow a {type(value).__name__}"
            )
        return value, version


CONSUMER_OFFSETS = CoordinatorLog(
    "__consumer_offsets",
    {
        0: ("legacy_offset_commit", "LegacyOffsetCommit"),
        1: ("offset_commit", "OffsetCommit"),
        2: ("group_metadata", "GroupMetadata"),
        3: ("consumer_group_metadata", "ConsumerGroupMetadata"),
        4: ("consumer_group_partition_metadata", "ConsumerGroupPartitionMetadata"),
        5: ("consumer_group_member_metadata", "ConsumerGroupMemberMetadata"),
        6: ("consumer_group_target_assignment_metadata", "ConsumerGroupTargetAssignmentMetadata"),
        7: ("consumer_group_target_assignment_member", "ConsumerGroupTargetAssignmentMember"),
        8: ("consumer_group_current_member_assignment", "ConsumerGroupCurrentMemberAssignment"),
        10: ("share_group_member_metadata", "ShareGroupMemberMetadata"),
        11: ("share_group_metadata", "ShareGroupMetadata"),
        12: ("share_group_target_assignment_metadata", "ShareGroupTargetAssignmentMetadata"),
        13: ("share_group_target_assignment_member", "ShareGroupTargetAssignmentMember"),
        14: ("share_group_current_member_assignment", "ShareGroupCurrentMemberAssignment"),
        15: ("share_group_state_partition_metadata", "ShareGroupStatePartitionMetadata"),
        16: ("consumer_group_regular_expression", "ConsumerGroupRegularExpression"),
        17: ("streams_group_metadata", "StreamsGroupMetadata"),
        19: ("streams_group_member_metadata", "StreamsGroupMemberMetadata"),
        20: ("streams_group_target_assignment_metadata", "StreamsGroupTargetAssignmentMetadata"),
        21: ("streams_group_target_assignment_member", "StreamsGroupTargetAssignmentMember"),
        22: ("streams_group_current_member_assignment", "StreamsGroupCurrentMemberAssignment"),
        23: ("streams_group_topology", "StreamsGroupTopology"),
    },
)
"""What group coordinators write."""

TRANSACTION_STATE = CoordinatorLog(
    "__transaction_state",
    {
        0: ("transaction_log", "TransactionLog"),
    },
)
"""What transaction coordinators write."""

INTERNAL_TOPICS: Final = frozenset(
    {CONSUMER_OFFSETS.topic, TRANSACTION_STATE.topic, "__share_group_state"}
)
"""The topics that coordinators keep their state in, each key in the partition of its hash."""
