"""Our codecs against bytes that Apache Kafka 4.3.0 wrote: records, payloads and their frames."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from moldau.protocol.coordinator_records import CONSUMER_OFFSETS, TRANSACTION_STATE
from moldau.protocol.errors import LocalProtocolError, RemoteProtocolError
from moldau.protocol.messages.quorum_records import KRaftVersionRecord
from moldau.protocol.metadata_records import NoOpRecord, TopicRecord, decode_record
from moldau.protocol.metadata_records.frame import encode_record
from moldau.protocol.schema import Message
from moldau.protocol.structs import ArrayType, Struct, StructType
from tests.protocol import interpreter
from tests.protocol.golden_files import build, load
from tests.protocol.instances import PAYLOADS, all_classes, is_spoken, record_classes

CLASSES: dict[str, type[Message]] = {
    message_class.__name__: message_class for message_class in [*record_classes(), *PAYLOADS]
}
FILES = ("metadata_records", "coordinator_records", "payloads")
CASES: dict[str, list[Any]] = {
    name: [case for case in load(name)["cases"] if is_spoken(case["class"])] for name in FILES
}


def test_every_class_and_version_has_golden_bytes() -> None:
    covered = {(case["class"], case["version"]) for cases in CASES.values() for case in cases}
    wanted = {
        (name, version)
        for name, message_class in CLASSES.items()
        for version in range(message_class.MIN_VERSION, message_class.MAX_VERSION + 1)
    }
    assert covered == wanted


@pytest.mark.parametrize("file_name", FILES)
def test_messages_are_kafkas(file_name: str) -> None:
    for case in CASES[file_name]:
        message_class, version = CLASSES[case["class"]], case["version"]
        message = build(message_class, case["values"])
        expected = bytes.fromhex(case["hex"])
        assert message.to_bytes(version) == expected, case
        assert interpreter.encode(message, version) == expected, case
        assert message_class.decode(expected, version) == (message, len(expected)), case


def partly_absent_fields(
    struct_class: type[Struct], path: str, versions: range
) -> Iterator[tuple[str, bool]]:
    """Each field that some of `versions` lack, by its path, and whether it is ignorable."""
    for field in struct_class.spec().fields:
        present = [version for version in versions if version in field.versions]
        name = f"{path}.{field.name}"
        if len(present) < len(versions):
            yield name, field.ignorable
        kind = field.type.element if isinstance(field.type, ArrayType) else field.type
        if isinstance(kind, StructType):
            yield from partly_absent_fields(kind.struct, name, range(present[0], present[-1] + 1))


def test_what_is_dropped_and_what_is_refused_is_as_with_kafka() -> None:
    ours = {}
    for message_class in all_classes():
        if not message_class.__name__.endswith("Header"):
            versions = range(message_class.MIN_VERSION, message_class.MAX_VERSION + 1)
            ours.update(partly_absent_fields(message_class, message_class.__name__, versions))
    kafkas = dict(load("ignorable")["fields"])
    assert ours == {path: dropped for path, dropped in kafkas.items() if is_spoken(path)}


def test_metadata_frames_are_kafkas() -> None:
    for case in CASES["metadata_records"]:
        record = build(CLASSES[case["class"]], case["values"])
        framed = bytes.fromhex(case["framed"])
        assert encode_record(record, case["version"]) == framed, case
        assert decode_record(memoryview(framed)) == (record, case["version"]), case


def test_coordinator_frames_are_kafkas() -> None:
    for case in CASES["coordinator_records"]:
        name, version = case["class"], case["version"]
        log = TRANSACTION_STATE if name.startswith("TransactionLog") else CONSUMER_OFFSETS
        message = build(CLASSES[name], case["values"])
        framed = bytes.fromhex(case["framed"])
        if name.endswith("Key"):
            assert log.encode_key(message) == framed, case
            assert log.decode_key(framed) == message, case
        else:
            key = log.key_class(message.API_KEY)()
            assert log.encode_value(message, version) == framed, case
            assert log.decode_value(key, framed) == (message, version), case


@pytest.mark.parametrize(
    ("framed", "complaint"),
    [
        (b"", "ends inside"),
        (b"\x00\x14\x00\x00", "frame version 0"),
        (b"\x02\x14\x00\x00", "frame version 2"),
        (b"\x01\x63\x00\x00", "no metadata record of type 99"),
        (b"\x01\x14\x09\x00", "no version 9"),
        (b"\x01\x14\x00", "cannot be decoded"),
        (b"\x01\x14\x00\x00\x00", "1 bytes follow"),
    ],
)
def test_bad_metadata_frames_are_refused(framed: bytes, complaint: str) -> None:
    with pytest.raises(RemoteProtocolError, match=complaint):
        decode_record(framed)


@pytest.mark.parametrize(
    ("framed", "complaint"),
    [
        (b"\x00", "too short"),
        (b"\x00\x63", "no records of type 99"),
        (b"\xff\xff", "no records of type -1"),
        (b"\x00\x02\x00\x05a", "frame ends"),
        (b"\x00\x02\x00\x01a!", "1 bytes follow"),
    ],
)
def test_bad_coordinator_keys_are_refused(framed: bytes, complaint: str) -> None:
    with pytest.raises(RemoteProtocolError, match=complaint):
        CONSUMER_OFFSETS.decode_key(framed)


def test_bad_coordinator_values_are_refused() -> None:
    key = CONSUMER_OFFSETS.key_class(3)()
    for framed, complaint in (
        (b"", "too short"),
        (b"\x00\x07", "no version 7"),
        (b"\x00\x00\x00", "cannot be decoded"),
        (CONSUMER_OFFSETS.encode_value(CONSUMER_OFFSETS.value_class(3)(), 0) + b"!", "1 bytes"),
    ):
        with pytest.raises(RemoteProtocolError, match=complaint):
            CONSUMER_OFFSETS.decode_value(key, framed)


def test_messages_of_another_kind_are_not_framed() -> None:
    with pytest.raises(LocalProtocolError, match="KRaftVersionRecord is no metadata record"):
        encode_record(KRaftVersionRecord(), 0)
    with pytest.raises(LocalProtocolError, match="TopicRecord is no key"):
        CONSUMER_OFFSETS.encode_key(TopicRecord())
    with pytest.raises(LocalProtocolError, match="TopicRecord is no value"):
        TRANSACTION_STATE.encode_value(TopicRecord(), 0)
    with pytest.raises(LocalProtocolError, match="no version 1"):
        encode_record(NoOpRecord(), 1)
