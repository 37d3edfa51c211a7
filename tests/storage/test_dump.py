"""What is shown of a partition's files: damage, room kept in advance, and what values are."""

from __future__ import annotations

import pytest

from moldau.protocol.coordinator_records import CONSUMER_OFFSETS
from moldau.protocol.coordinator_records.offset_commit import OffsetCommitKey, OffsetCommitValue
from moldau.protocol.records import Record, encode_batch
from moldau.storage.dump import DumpOptions, Row, dump_path
from tests.storage.log_fixtures import batch_of
from tests.storage.simulated_filesystem import SimulatedFilesystem

LOG = f"{0:020d}.log"


def rows(directory: str, data: bytes, **options: bool) -> list[Row]:
    filesystem = SimulatedFilesystem()
    filesystem.put(f"/data/{directory}/{LOG}", data)
    found = dump_path(filesystem, f"/data/{directory}/{LOG}", DumpOptions(**options))
    return [row for row in found if row["row"] != "file"]


@pytest.mark.parametrize("zeros", [1, 60, 61, 5 * 1024 * 1024])
def test_zeros_up_to_the_end_are_room_and_no_damage(zeros: int) -> None:
    batch = bytes(batch_of("a"))
    shown = rows("t-0", batch + bytes(zeros))
    assert [row["row"] for row in shown] == ["batch", "note"]
    assert (shown[1]["position"], shown[1]["reason"]) == (
        len(batch),
        f"{zeros} preallocated zero bytes follow",
    )


@pytest.mark.parametrize("zeros", [61, 5 * 1024 * 1024])
def test_zeros_with_anything_behind_them_are_damage(zeros: int) -> None:
    batch = bytes(batch_of("a"))
    shown = rows("t-0", batch + bytes(zeros) + b"x")
    assert [row["row"] for row in shown] == ["batch", "error"]
    assert shown[1]["position"] == len(batch)


def test_a_wrong_crc_is_shown_and_its_records_are_not() -> None:
    batch = batch_of("a")
    batch[-1] ^= 1
    shown = rows("t-0", bytes(batch) + bytes(batch_of("b", base_offset=1)), deep=True)
    assert [row["row"] for row in shown] == ["batch", "error", "batch", "record"]
    assert [row["isvalid"] for row in shown if row["row"] == "batch"] == [False, True]


@pytest.mark.parametrize(
    "directory",
    [
        "__consumer_offsets-3",
        "__consumer_offsets-3.0123456789abcdef0123456789abcdef-delete",
    ],
)
def test_a_coordinators_records_are_decoded_in_its_topics_directory_deleted_or_not(
    directory: str,
) -> None:
    key = OffsetCommitKey(group="team", topic="t", partition=1)
    value = OffsetCommitValue(offset=5, metadata="", commit_timestamp=6)
    data = CONSUMER_OFFSETS.encode_key(key), CONSUMER_OFFSETS.encode_value(value, 3)
    batch = encode_batch([Record(0, 1, *data)])
    (_, record) = rows(directory, bytes(batch), print_data=True)
    assert "team" in str(record)
    assert "commitTimestamp" in str(record) or "commit_timestamp" in str(record)
    (_, plain) = rows("t-3", bytes(batch), print_data=True)
    assert "commit" not in str(plain)
