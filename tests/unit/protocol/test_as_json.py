"""Messages and coordinators' records as JSON."""

from __future__ import annotations

from moldau.protocol.as_json import bytes_to_json, coordinator_record_to_json
from moldau.protocol.coordinator_records import CONSUMER_OFFSETS
from moldau.protocol.coordinator_records.classic_groups import OffsetCommitKey, OffsetCommitValue


def test_bytes_are_text_or_base64() -> None:
    assert bytes_to_json(None) is None
    assert bytes_to_json(memoryview("ä".encode())) == "ä"
    assert bytes_to_json(b"\xff\x00") == {"base64": "/wA="}


def test_coordinator_records_have_the_names_of_their_fields() -> None:
    key = CONSUMER_OFFSETS.encode_key(OffsetCommitKey(group="g", topic="t", partition=3))
    value = CONSUMER_OFFSETS.encode_value(
        OffsetCommitValue(offset=7, metadata="m", commit_timestamp=9), 3
    )
    found = coordinator_record_to_json("__consumer_offsets", key, value)
    assert found["keyType"] == "OffsetCommitKey"
    assert found["keyData"] == {"group": "g", "topic": "t", "partition": 3}
    assert found["recordVersion"] == 3
    data = found["data"]
    assert isinstance(data, dict)
    assert (data["offset"], data["metadata"], data["commitTimestamp"]) == (7, "m", 9)


def test_tombstone_of_a_coordinator_has_no_data() -> None:
    key = CONSUMER_OFFSETS.encode_key(OffsetCommitKey(group="g", topic="t", partition=3))
    found = coordinator_record_to_json("__consumer_offsets", key, None)
    assert found["data"] is None
    assert "recordVersion" not in found


def test_unknown_coordinator_record_shows_its_bytes() -> None:
    found = coordinator_record_to_json("__transaction_state", b"\x00\xff", b"value")
    assert "no records of type 255" in str(found["undecodable"])
    assert (found["key"], found["payload"]) == ({"base64": "AP8="}, "value")
