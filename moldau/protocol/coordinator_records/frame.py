"""How coordinator records lie in the keys and values of their logs.

Owns the framing: a key is its type as int16 and then the key, a value is its version as int16 and
then the value; no value at all (a tombstone) removes the key. The key's type says which value
belongs to it, and the same numbers mean different things in different logs. The oldest key types,
0 and 1, were once two versions of one key: both are an offset commit.
"""

from struct import Struct as PackedStruct
from types import ModuleType
from typing import Final

from moldau.protocol.coordinator_records import (
    classic_groups,
    consumer_groups,
    share_groups,
    streams_groups,
    transactions,
)
from moldau.protocol.errors import LocalProtocolError, RemoteProtocolError
from moldau.protocol.schema import Message, messages_of
from moldau.protocol.types import Buffer

_INT16 = PackedStruct(">h")
_KEY_VERSION = 0


def _split(buffer: Buffer, what: str) -> int:
    if len(buffer) < _INT16.size:
        raise RemoteProtocolError(f"a {what} of {len(buffer)} bytes is too short for its prefix")
    prefix: int = _INT16.unpack_from(buffer)[0]
    return prefix


class CoordinatorLog:
    """The record types of one coordinator's log, out of the modules that declare them."""

    def __init__(self, topic: str, unused_key: Message, *families: ModuleType) -> None:
        self.topic = topic
        self.unused_key = unused_key
        """Nothing is kept under it: a record of this key and no value says nothing."""
        messages = [message for family in families for message in messages_of(family)]
        self._keys = {each.API_KEY: each for each in messages if each.__name__.endswith("Key")}
        self._values = {each.API_KEY: each for each in messages if each.__name__.endswith("Value")}

    def record_types(self) -> list[int]:
        """Return the number of every record type, lowest first."""
        return sorted(self._keys)

    def key_class(self, type_id: int) -> type[Message]:
        """Return the key of a record type.

        Raises RemoteProtocolError: there is no such type in this log.
        """
        return self._found(self._keys, type_id)

    def value_class(self, type_id: int) -> type[Message]:
        """Return the value of a record type.

        Raises RemoteProtocolError: there is no such type in this log.
        """
        return self._found(self._values, type_id)

    def _found(self, classes: dict[int, type[Message]], type_id: int) -> type[Message]:
        found = classes.get(type_id)
        if found is None:
            raise RemoteProtocolError(f"{self.topic} has no records of type {type_id}")
        return found

    def encode_key(self, key: Message) -> bytes:
        """Return the log record key that holds `key`.

        Raises LocalProtocolError: it is no key of this log, or a value does not fit.
        """
        if self._keys.get(key.API_KEY) is not type(key):
            raise LocalProtocolError(f"{type(key).__name__} is no key of {self.topic}")
        return _INT16.pack(key.API_KEY) + key.to_bytes(_KEY_VERSION)

    def encode_value(self, value: Message, version: int) -> bytes:
        """Return the log record value that holds `value` as `version`.

        Raises LocalProtocolError: it is no value of this log, or does not fit the version.
        """
        if self._values.get(value.API_KEY) is not type(value):
            raise LocalProtocolError(f"{type(value).__name__} is no value of {self.topic}")
        return _INT16.pack(version) + value.to_bytes(version)

    def decode_key(self, buffer: Buffer) -> Message:
        """Return the key that a log record's key holds; its `API_KEY` is the record type.

        Raises RemoteProtocolError: the type is unknown (a newer coordinator wrote it: skip the
        record), or the key is cut short or followed by more bytes.
        """
        key_class = self.key_class(_split(buffer, "key"))
        key, position = key_class.decode(buffer, _KEY_VERSION, _INT16.size)
        if position != len(buffer):
            raise RemoteProtocolError(f"{len(buffer) - position} bytes follow {key}")
        return key

    def decode_value(self, key: Message, buffer: Buffer) -> tuple[Message, int]:
        """Return the value that belongs to `key`, and the value's version.

        Raises RemoteProtocolError: the version is unknown, or the value is cut short or followed by
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
    classic_groups.OffsetCommitKey(group="", topic="", partition=-1),
    classic_groups,
    consumer_groups,
    share_groups,
    streams_groups,
)
"""What group coordinators write."""

TRANSACTION_STATE = CoordinatorLog(
    "__transaction_state", transactions.TransactionLogKey(transactional_id=""), transactions
)
"""What transaction coordinators write."""

INTERNAL_TOPICS: Final = frozenset(
    {CONSUMER_OFFSETS.topic, TRANSACTION_STATE.topic, "__share_group_state"}
)
"""The topics that coordinators keep their state in, each key in the partition of its hash."""
