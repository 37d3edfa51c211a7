"""What is shown of a partition's files: damage, room kept in advance, and what values are."""

from __future__ import annotations

import pytest
from crc32c import crc32c

from moldau.protocol.coordinator_records import CONSUMER_OFFSETS
from moldau.protocol.coordinator_records.classic_groups import OffsetCommitKey, OffsetCommitValue
from moldau.protocol.records import (
    Codec,
    ControlRecordType,
    EndTxnMarker,
    Record,
    encode_batch,
    encode_end_txn_batch,
)
from moldau.protocol.records.header import write_crc
from moldau.storage.checkpoints import (
    CLEAN_SHUTDOWN_MARKER,
    LEADER_EPOCH_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    write_offset_checkpoint,
    write_rows,
)
from moldau.storage.dump import DumpOptions, Row, dump_path, format_row
from moldau.storage.indexes import OffsetIndex, TimeIndex
from moldau.storage.producer_state import SnapshotEntry, encode_snapshot
from tests.storage.log_fixtures import batch_of
from tests.storage.simulated_filesystem import SimulatedFilesystem
from tests.storage.storage_fixtures import tp

LOG = f"{0:020d}.log"
PRODUCER = {"producer_id": 3, "producer_epoch": 1, "base_sequence": 0}


def rows(directory: str, data: bytes, *, name: str = LOG, **options: bool | str | int) -> list[Row]:
    filesystem = SimulatedFilesystem()
    path = f"/data/{directory}/{name}"
    filesystem.put(path, data)
    shown, *found = dump_path(filesystem, path, DumpOptions(**options))  # type: ignore[arg-type]
    assert shown == {"row": "file", "file": path, "size": len(data)}
    return found


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


# -- records -------------------------------------------------------------------------------------


def test_a_record_is_shown_with_what_its_batch_says_of_it() -> None:
    records = [
        Record(0, 7, b"k", b"value", [("a", b"1"), ("b", None)]),
        Record(1, 8, None, None),
        Record(2, 9, b"\xff", b""),
    ]
    options = {"producer_id": 3, "producer_epoch": 1, "base_sequence": 2**31 - 2}
    data = bytes(encode_batch(records, base_offset=20, **options))  # type: ignore[arg-type]
    batch, *plain = rows("t-0", data, deep=True)
    expected = [
        {"row": "record", "offset": 20, "CreateTime": 7, "keySize": 1, "valueSize": 5},
        {"row": "record", "offset": 21, "CreateTime": 8, "keySize": -1, "valueSize": -1},
        {"row": "record", "offset": 22, "CreateTime": 9, "keySize": 1, "valueSize": 0},
    ]
    ends = [(2**31 - 2, ["a", "b"]), (2**31 - 1, []), (0, [])]
    for row, (sequence, keys) in zip(expected, ends, strict=True):
        row |= {"sequence": sequence, "headerKeys": keys}
    assert plain == expected
    assert (batch["lastOffset"], batch["lastSequence"], batch["size"]) == (22, 0, len(data))
    _, *printed = rows("t-0", data, print_data=True)
    contents = [
        {"key": "k", "payload": "value", "headers": [["a", "1"], ["b", None]]},
        {"key": None, "payload": None},
        {"key": {"base64": "/w=="}, "payload": ""},
    ]
    assert printed == [row | more for row, more in zip(expected, contents, strict=True)]
    assert rows("t-0", data) == [batch]


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_is_shown_with_its_codec(codec: Codec) -> None:
    records = [Record(0, 7, b"k", b"value" * 20)]
    data = bytes(encode_batch(records, codec=codec, is_transactional=True, **PRODUCER))
    batch, record = rows("t-0", data, print_data=True)
    assert (batch["compresscodec"], batch["isTransactional"]) == (codec.name.lower(), True)
    assert record["payload"] == "value" * 20


@pytest.mark.parametrize("number", [5, 7])
def test_a_codec_that_is_not_known_is_shown_as_its_number(number: int) -> None:
    data = bytearray(encode_batch([Record(0, 7, b"k", b"value")]))
    data[21:23] = (number | 0x10).to_bytes(2, "big")
    write_crc(data, 0, len(data))
    (batch,) = rows("t-0", bytes(data))
    assert (batch["compresscodec"], batch["isvalid"]) == (str(number), True)


@pytest.mark.parametrize(("horizon_ms", "shown"), [(None, None), (9_000, 9_000)])
def test_a_batch_is_shown_with_its_delete_horizon(
    horizon_ms: int | None, shown: int | None
) -> None:
    data = bytearray(encode_batch([Record(0, 7, b"k", None)]))
    if horizon_ms is not None:
        data[21:23] = (0x40).to_bytes(2, "big")
        data[27:35] = horizon_ms.to_bytes(8, "big")
        write_crc(data, 0, len(data))
    (batch,) = rows("t-0", bytes(data))
    assert (batch["deleteHorizonMs"], batch["isvalid"]) == (shown, True)


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        (ControlRecordType.COMMIT, {"controlType": "COMMIT", "coordinatorEpoch": 3}),
        (ControlRecordType.ABORT, {"controlType": "ABORT", "coordinatorEpoch": 3}),
    ],
)
def test_a_marker_is_shown_with_its_coordinator(kind: ControlRecordType, shown: Row) -> None:
    marker = encode_end_txn_batch(
        EndTxnMarker(kind, 3), producer_id=7, producer_epoch=0, timestamp_ms=1
    )
    batch, record = rows("t-0", bytes(marker), deep=True)
    assert batch["isControl"]
    assert shown.items() <= record.items()


def test_records_without_sequence_have_none_either() -> None:
    data = bytes(encode_batch([Record(0, 1, None, b"a"), Record(1, 1, None, b"b")]))
    assert [row["sequence"] for row in rows("t-0", data, deep=True)[1:]] == [-1, -1]


def test_intact_bytes_that_are_no_records_are_reported() -> None:
    data = bytes(encode_batch([Record(0, 1, None, b"a")]))
    broken = bytearray(data)
    broken[57:61] = (3).to_bytes(4, "big")
    broken[17:21] = crc32c(bytes(broken[21:])).to_bytes(4, "big")
    assert [row["row"] for row in rows("t-0", bytes(broken) + data, deep=True)] == [
        *("batch", "error"),
        *("batch", "record"),
    ]


@pytest.mark.parametrize("left", [12, 60, 61, 70])
def test_half_a_batch_ends_the_file(left: int) -> None:
    data = bytes(batch_of("a" * 50))
    shown = rows("t-0", data + data[:left])
    assert [row["row"] for row in shown] == ["batch", "error"]
    assert shown[1]["position"] == len(data)
    assert left < 61 or shown[1]["reason"].endswith(f"where {left} are left")
    assert [row["row"] for row in rows("t-0", data + data)] == ["batch", "batch"]


def test_a_bound_ends_the_dump_behind_the_batch_that_reaches_it() -> None:
    data = bytes(batch_of("a"))
    for max_bytes, count in [(0, 0), (1, 1), (len(data), 1), (len(data) + 1, 2), (10**6, 3)]:
        shown = rows("t-0", data * 3, max_bytes=max_bytes)
        assert [row["position"] for row in shown] == [n * len(data) for n in range(count)]


@pytest.mark.parametrize(
    ("directory", "decode", "is_decoded"),
    [
        ("__cluster_metadata-0", "auto", True),
        ("__cluster_metadata-0", "none", False),
        ("t-0", "metadata", True),
        ("t-0", "auto", False),
    ],
)
def test_what_values_are_taken_for(directory: str, decode: str, is_decoded: bool) -> None:
    data = bytes(batch_of(b"\x01\x7f\x00"))
    (_, record) = rows(directory, data, print_data=True, decode=decode)
    assert ("undecodable" in record) is is_decoded
    assert record["payload"] == "\x01\x7f\x00"


@pytest.mark.parametrize(
    ("record", "shown"),
    [
        (Record(0, 1, None, b"x"), {"undecodable": "a coordinator record without a key"}),
        (Record(0, 1, b"\x00\x63", b"x"), {"key": "\x00c", "payload": "x"}),
    ],
)
def test_coordinator_records_that_say_nothing(record: Record, shown: Row) -> None:
    (_, row) = rows("__consumer_offsets-0", bytes(encode_batch([record])), print_data=True)
    assert shown.items() <= row.items()
    assert "undecodable" in row


def test_a_tombstone_of_a_coordinator_is_its_key() -> None:
    key = OffsetCommitKey(group="team", topic="t", partition=1)
    data = bytes(encode_batch([Record(0, 1, CONSUMER_OFFSETS.encode_key(key), None)]))
    (_, row) = rows("__consumer_offsets-0", data, print_data=True)
    assert row["data"] is None
    assert row["keyData"] == {"group": "team", "topic": "t", "partition": 1}


# -- other files ---------------------------------------------------------------------------------

BASE = 100
STEM = f"{BASE:020d}"


@pytest.mark.parametrize(
    ("suffix", "data", "expected"),
    [
        (
            ".index",
            OffsetIndex.ENTRY.pack(2, 70) + OffsetIndex.ENTRY.pack(5, 140),
            [
                {"row": "index", "offset": 102, "position": 70},
                {"row": "index", "offset": 105, "position": 140},
            ],
        ),
        (
            ".index",
            OffsetIndex.ENTRY.pack(2, 70) + bytes(16),
            [
                {"row": "index", "offset": 102, "position": 70},
                {"row": "note", "position": 8, "reason": "16 preallocated bytes follow"},
            ],
        ),
        (
            ".index",
            OffsetIndex.ENTRY.pack(2, 256) + b"xyz",
            [
                {"row": "index", "offset": 102, "position": 256},
                {"row": "error", "position": 8, "reason": "3 bytes are no whole entry"},
            ],
        ),
        (
            ".timeindex",
            TimeIndex.ENTRY.pack(1000, 4),
            [{"row": "timeindex", "timestamp": 1000, "offset": 104}],
        ),
        (
            ".snapshot",
            encode_snapshot(
                [
                    SnapshotEntry(5, 1, 3, 109, 4, 1000, 2, 105),
                    SnapshotEntry(6, 0, 0, 0, 0, 1000, -1, 0),
                    SnapshotEntry(7, 2, -1, -1, 0, 1001, 3, -1),
                ]
            ),
            [
                {"row": "producer", "producerId": 5, "producerEpoch": 1, "coordinatorEpoch": 2}
                | {"currentTxnFirstOffset": 105, "lastTimestamp": 1000, "firstSequence": 2**31 - 1}
                | {"lastSequence": 3, "lastOffset": 109, "offsetDelta": 4},
                {"row": "producer", "producerId": 6, "producerEpoch": 0, "coordinatorEpoch": -1}
                | {"currentTxnFirstOffset": 0, "lastTimestamp": 1000, "firstSequence": 0}
                | {"lastSequence": 0, "lastOffset": 0, "offsetDelta": 0},
                {"row": "producer", "producerId": 7, "producerEpoch": 2, "coordinatorEpoch": 3}
                | {"currentTxnFirstOffset": None, "lastTimestamp": 1001, "firstSequence": None}
                | {"lastSequence": None, "lastOffset": None, "offsetDelta": None},
            ],
        ),
        (".snapshot", b"x", [{"row": "error", "reason": "1 bytes are no producer snapshot"}]),
        (".unknown", b"x", [{"row": "error", "reason": "this kind of file is not known"}]),
    ],
)
def test_files_beside_the_log(suffix: str, data: bytes, expected: list[Row]) -> None:
    assert rows("t-0", data, name=STEM + suffix) == expected
    if suffix != ".unknown":
        assert rows("t-0", data, name=f"{STEM}{suffix}.deleted") == expected


def test_a_snapshot_of_the_quorum_says_where_it_ends() -> None:
    shown = rows("t-0", bytes(batch_of("a")), name=f"{5:020d}-{3:010d}.checkpoint")
    assert shown[0] == {"row": "note", "reason": "snapshot", "endOffset": 5, "leaderEpoch": 3}
    assert [row["row"] for row in shown] == ["note", "batch"]


def test_small_files_are_read_up_to_a_size_and_logs_of_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moldau.storage.dump.MAX_SMALL_FILE_BYTES", 100)
    (row,) = rows("t-0", b"x" * 101, name="quorum-state")
    assert row == {"row": "error", "reason": "101 bytes are no such file"}
    (row,) = rows("t-0", b"x" * 100, name="quorum-state")
    assert row == {"row": "property", "key": "quorum-state", "value": "x" * 100}
    assert [row["row"] for row in rows("t-0", bytes(batch_of("a" * 100)))] == ["batch"]


def test_a_directory_is_all_the_files_in_it_that_are_known() -> None:
    disk = SimulatedFilesystem()
    disk.put("/data/lost+found/x.log", b"")
    disk.put("/data/notes.txt", b"")
    disk.put("/data/meta.properties", b"version=1\ncluster.id=a\n")
    disk.put(f"/data/{CLEAN_SHUTDOWN_MARKER}", b"{}")
    disk.put(f"/data/t-0/{LOG}", bytes(batch_of("a")))
    disk.put("/data/t-0/other.log", b"")
    write_offset_checkpoint(
        disk, f"/data/{RECOVERY_POINT_CHECKPOINT}", {tp("t-1"): 5, tp("t-0"): 4}
    )
    write_rows(disk, f"/data/t-0/{LEADER_EPOCH_CHECKPOINT}", [(3, 0), (4, 9)])
    shown = list(dump_path(disk, "/data/"))
    files = [row["file"].removeprefix("/data/") for row in shown if row["row"] == "file"]
    assert sorted(files) == sorted(
        [
            *(CLEAN_SHUTDOWN_MARKER, "meta.properties", RECOVERY_POINT_CHECKPOINT),
            *(f"t-0/{LOG}", f"t-0/{LEADER_EPOCH_CHECKPOINT}"),
        ]
    )
    assert [row for row in shown if row["row"] in ("checkpoint", "leader_epoch", "property")] == [
        {"row": "property", "key": CLEAN_SHUTDOWN_MARKER, "value": "{}"},
        {"row": "property", "key": "cluster.id", "value": "a"},
        {"row": "property", "key": "version", "value": "1"},
        {"row": "checkpoint", "topic": "t", "partition": 0, "offset": 4},
        {"row": "checkpoint", "topic": "t", "partition": 1, "offset": 5},
        {"row": "leader_epoch", "leaderEpoch": 3, "startOffset": 0},
        {"row": "leader_epoch", "leaderEpoch": 4, "startOffset": 9},
    ]
    with pytest.raises(FileNotFoundError):
        next(dump_path(disk, "/data/u-0"))


@pytest.mark.parametrize(
    ("row", "line"),
    [
        ({"row": "file", "file": "/a", "size": 5}, "Dumping /a (5 bytes)"),
        ({"row": "record", "a": None, "b": True, "c": ["x", "y"]}, "| a: null b: true c: [x,y]"),
        ({"row": "batch", "a": {"b": 1}, "c": [1], "d": False}, 'a: {"b":1} c: [1] d: false'),
        ({"row": "note", "reason": "a\nb\rc"}, "NOTE reason: a\\nb\\rc"),
        ({"row": "error", "reason": "a"}, "ERROR reason: a"),
        ({"row": "index", "offset": 1}, "offset: 1"),
    ],
)
def test_rows_for_people(row: Row, line: str) -> None:
    assert format_row(row) == line
