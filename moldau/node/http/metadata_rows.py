"""Records of the metadata log as rows of JSON, each with a sentence that says what it does.

Must not read files. Invariants: no row has a key or a salt of a user, nor a value of a
configuration that is sensitive, or that is not known here; a record of a kind that is not known
here is named, and its content left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from moldau.config.table import find_broker_key
from moldau.metadata.image import ConfigResourceType
from moldau.metadata.scram_secret import SECRET_KEY
from moldau.protocol import metadata_records as kinds
from moldau.protocol.access_control import Operation, PatternType, PermissionType, ResourceType
from moldau.protocol.as_json import camel_case, struct_to_json
from moldau.protocol.errors import RemoteProtocolError
from moldau.protocol.metadata_records import decode_record
from moldau.protocol.records import (
    BatchHeader,
    ControlRecordType,
    InvalidBatch,
    Record,
    decode_records,
    iter_batches,
    verify_crc,
)
from moldau.protocol.schema import Message
from moldau.protocol.scram import MECHANISMS_BY_NUMBER
from moldau.protocol.types import Buffer, uuid_to_base64
from moldau.raft import MetadataLogError
from moldau.raft.batch_codec import MAX_DECOMPRESSED_BYTES
from moldau.storage.dump import control_record_to_json

HIDDEN: Final = "[hidden]"
UNKNOWN: Final = "Unknown"
CONTROL_TYPES: Final[Mapping[str, str]] = {
    "LEADER_CHANGE": "LeaderChange",
    "SNAPSHOT_HEADER": "SnapshotHeader",
    "SNAPSHOT_FOOTER": "SnapshotFooter",
    "KRAFT_VERSION": "KRaftVersion",
    "KRAFT_VOTERS": "KRaftVoters",
}

Row = dict[str, Any]
NameOf = Callable[[UUID], str | None]
"""The name of a topic, if the cluster still has it."""


def rows_of(data: Buffer, first_offset: int, limit: int, name_of: NameOf) -> list[Row]:
    """The rows of some batches from an offset on.

    Raises:
        MetadataLogError: damage.
    """
    rows: list[Row] = []
    try:
        for position, header in iter_batches(data):
            if header.last_offset < first_offset:
                continue
            if not verify_crc(data, position, header):
                raise MetadataLogError(f"at offset {header.base_offset}: the CRC does not match")
            for record in decode_records(data, position, max_bytes=MAX_DECOMPRESSED_BYTES):
                if len(rows) == limit:
                    return rows
                if record.offset >= first_offset:
                    rows.append(_row(header, record, name_of))
    except (InvalidBatch, RemoteProtocolError) as error:
        raise MetadataLogError(str(error)) from None
    return rows


def _row(header: BatchHeader, record: Record, name_of: NameOf) -> Row:
    make = _control if header.is_control else _data
    kind, version, fields, summary = make(record, name_of)
    return {
        "offset": record.offset,
        "epoch": header.partition_leader_epoch,
        "timestamp_ms": None if record.timestamp_ms < 0 else record.timestamp_ms,
        "type": kind,
        "version": version,
        "fields": fields,
        "summary": summary,
    }


def _control(record: Record, _name_of: NameOf) -> tuple[str, int, Row, str]:
    shown = control_record_to_json(record)
    kind = CONTROL_TYPES.get(str(shown["controlType"]))
    fields = shown.get("data")
    if kind is None or not isinstance(fields, dict):
        return UNKNOWN, 0, {}, "A control record that this release does not know"
    version = int(fields.pop("version", 0))
    if kind == CONTROL_TYPES[ControlRecordType.LEADER_CHANGE.name]:
        return kind, version, fields, f"Node {fields['leaderId']} leads the quorum"
    return kind, version, fields, _CONTROL_SUMMARIES[kind]


_CONTROL_SUMMARIES: Final = {
    "SnapshotHeader": "A snapshot begins",
    "SnapshotFooter": "A snapshot ends",
    "KRaftVersion": "The version of the quorum's protocol",
    "KRaftVoters": "The voters of the quorum",
}


def _data(record: Record, name_of: NameOf) -> tuple[str, int, Row, str]:
    try:
        if record.value is None:
            raise RemoteProtocolError("a record without a value")
        message, version = decode_record(record.value)
    except RemoteProtocolError:
        return UNKNOWN, 0, {}, "A record that this release does not know"
    return type(message).__name__, version, shown_fields(message), summary_of(message, name_of)


def shown_fields(message: Message) -> Row:
    """The fields of a record, without what is secret."""
    fields = struct_to_json(message)
    for each in type(message).spec().fields:
        if isinstance(getattr(message, each.name), bytes | bytearray | memoryview):
            fields[camel_case(each.name)] = HIDDEN
    if isinstance(message, kinds.ConfigRecord) and is_secret(message):
        fields["value"] = HIDDEN
    return fields


def is_secret(config: kinds.ConfigRecord) -> bool:
    """Whether a configuration's value is not for people's eyes."""
    if config.value is None:
        return False
    if config.name == SECRET_KEY:
        return True
    if config.resource_type != ConfigResourceType.BROKER:
        return False
    key = find_broker_key(config.name)
    return key is None or key.sensitive


def summary_of(message: Message, name_of: NameOf) -> str:
    """What a record does, in one sentence."""
    make = SUMMARIES.get(type(message))
    return type(message).__name__ if make is None else make(message, name_of)


def _topic(topic_id: UUID, name_of: NameOf) -> str:
    return name_of(topic_id) or f"with id {uuid_to_base64(topic_id)}"


def _nodes(nodes: Sequence[int] | None) -> str:
    return ", ".join(map(str, nodes or ())) or "none"


def _partition(made: Any, name_of: NameOf) -> str:
    place = f"Partition {made.partition_id} of topic {_topic(made.topic_id, name_of)}"
    return f"{place}: leader {made.leader}, ISR {_nodes(made.isr)} of {_nodes(made.replicas)}"


def _partition_change(change: Any, name_of: NameOf) -> str:
    parts = [*_changes(change)] or ["a new epoch"]
    place = f"Partition {change.partition_id} of topic {_topic(change.topic_id, name_of)}"
    return f"{place}: {', '.join(parts)}"


def _changes(change: Any) -> Iterator[str]:
    if change.leader >= 0:
        yield f"leader {change.leader}"
    elif change.leader == -1:
        yield "no leader"
    for what, nodes in (
        ("ISR", change.isr),
        ("replicas", change.replicas),
        ("adding", change.adding_replicas),
        ("removing", change.removing_replicas),
        ("ELR", change.eligible_leader_replicas),
        ("last known ELR", change.last_known_elr),
    ):
        if nodes is not None:
            yield f"{what} {_nodes(nodes)}"
    if change.directories is not None:
        yield "other directories"


def _broker_change(change: Any, _name_of: NameOf) -> str:
    parts = []
    if change.fenced:
        parts.append("fenced" if change.fenced > 0 else "unfenced")
    if change.in_controlled_shutdown:
        parts.append("in a controlled shutdown")
    if change.log_dirs:
        parts.append("other log directories")
    return f"Broker {change.broker_id} is {', '.join(parts) or 'changed'}"


def _config(config: Any, _name_of: NameOf) -> str:
    try:
        kind = ConfigResourceType(config.resource_type).name.replace("_", " ").lower()
    except ValueError:
        kind = f"resource {config.resource_type}"
    place = f"{kind} {config.resource_name or '(default)'}"
    if config.value is None:
        return f"{config.name} of {place} is removed"
    return f"{config.name} of {place} is {HIDDEN if is_secret(config) else config.value}"


def _quota(quota: Any, _name_of: NameOf) -> str:
    entity = ", ".join(
        f"{each.entity_type} {'(default)' if each.entity_name is None else each.entity_name}"
        for each in quota.entity
    )
    change = "is removed" if quota.remove else f"is {quota.value:g}"
    return f"{quota.key} of {entity} {change}"


def _acl(rule: Any, _name_of: NameOf) -> str:
    try:
        permission = PermissionType(rule.permission_type).name.lower()
        operation = Operation(rule.operation).name
        kind = ResourceType(rule.resource_type).name.lower()
        pattern = PatternType(rule.pattern_type).name.lower()
    except ValueError:
        return "An ACL of a kind that this release does not know"
    place = f"{kind} {rule.resource_name} ({pattern})"
    return f"{rule.principal} from {rule.host}: {permission} {operation} on {place}"


def _mechanism(number: int) -> str:
    return MECHANISMS_BY_NUMBER.get(number, str(number))


SUMMARIES: Final[Mapping[type[Message], Callable[[Any, NameOf], str]]] = {
    kinds.AbortTransactionRecord: lambda each, _: (
        f"A metadata transaction is given up: {each.reason or 'no reason is given'}"
    ),
    kinds.AccessControlEntryRecord: _acl,
    kinds.BeginTransactionRecord: lambda each, _: (
        f"A metadata transaction begins: {each.name or 'without a name'}"
    ),
    kinds.BrokerRegistrationChangeRecord: _broker_change,
    kinds.ClearElrRecord: lambda each, _: f"The ELR of {each.topic_name or 'all topics'} is empty",
    kinds.ClientQuotaRecord: _quota,
    kinds.ConfigRecord: _config,
    kinds.DelegationTokenRecord: lambda each, _: f"A delegation token of {each.owner}",
    kinds.EndTransactionRecord: lambda _each, _: "A metadata transaction is complete",
    kinds.FeatureLevelRecord: lambda each, _: f"{each.name} is at level {each.feature_level}",
    kinds.FenceBrokerRecord: lambda each, _: f"Broker {each.id} is fenced",
    kinds.NoOpRecord: lambda _each, _: "Nothing: the controller shows that it is there",
    kinds.PartitionChangeRecord: _partition_change,
    kinds.PartitionRecord: _partition,
    kinds.ProducerIdsRecord: lambda each, _: (
        f"Producer ids below {each.next_producer_id} are given to broker {each.broker_id}"
    ),
    kinds.RegisterBrokerRecord: lambda each, _: (
        f"Broker {each.broker_id} registers, {'fenced' if each.fenced else 'unfenced'}"
    ),
    kinds.RegisterControllerRecord: lambda each, _: f"Controller {each.controller_id} registers",
    kinds.RemoveAccessControlEntryRecord: lambda each, _: (
        f"ACL {uuid_to_base64(each.id)} is removed"
    ),
    kinds.RemoveDelegationTokenRecord: lambda _each, _: "A delegation token is removed",
    kinds.RemoveTopicRecord: lambda each, name_of: (
        f"Topic {_topic(each.topic_id, name_of)} is deleted"
    ),
    kinds.RemoveUserScramCredentialRecord: lambda each, _: (
        f"User {each.name} loses its credentials of {_mechanism(each.mechanism)}"
    ),
    kinds.TopicRecord: lambda each, _: f"Topic {each.name} is created",
    kinds.UnfenceBrokerRecord: lambda each, _: f"Broker {each.id} is unfenced",
    kinds.UnregisterBrokerRecord: lambda each, _: f"Broker {each.broker_id} is unregistered",
    kinds.UserScramCredentialRecord: lambda each, _: (
        f"User {each.name} has credentials of "
        f"{_mechanism(each.mechanism)}, {each.iterations} iterations"
    ),
}
