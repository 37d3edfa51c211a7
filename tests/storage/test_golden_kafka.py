"""Log directories written by Apache Kafka 4.3.0 open, read, dump and verify here.

The files are in `golden/` (see its README). They are copied before anything opens them for writing.
"""

from __future__ import annotations

import random as random_module
import shutil
from collections import Counter
from pathlib import Path

import pytest

from moldau.protocol.records import Codec, Record, decode_records, iter_batches
from moldau.protocol.types import ZERO_UUID, uuid_from_base64
from moldau.runtime.filesystem import OsFilesystem
from moldau.storage.checkpoints import read_clean_shutdown_marker
from moldau.storage.dump import DumpOptions, Row, dump_path, format_row
from moldau.storage.log import Log
from moldau.storage.log_config import LogConfig, LogManagerSettings
from moldau.storage.log_directory import open_log_directories
from moldau.storage.log_manager import LogManager
from moldau.storage.meta_properties import read_meta_properties
from moldau.storage.verify import Severity, Verification
from tests.kit.manual_clock import ManualClock
from tests.storage.storage_fixtures import tp
from tests.storage.transaction_reader import aborted_transactions

GOLDEN = Path(__file__).parent / "golden"
CLUSTER_ID = "5pWyLVwRSu6VrHfzM8kWrA"
CONFIG = LogConfig(retention_ms=-1, segment_index_bytes=4096)


@pytest.fixture(params=["kafka-4.3.0-clean", "kafka-4.3.0-killed"])
def directories(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    shutil.copytree(GOLDEN / request.param, tmp_path / "golden")
    return tmp_path / "golden"


def manager_over(directories: Path) -> LogManager:
    filesystem = OsFilesystem()
    opened = open_log_directories(
        filesystem,
        [str(directories / "log-1"), str(directories / "log-2")],
        cluster_id=CLUSTER_ID,
        node_id=1,
        random=random_module.Random(1),
    )
    return LogManager(
        filesystem,
        ManualClock(1_795_250_000_000),
        opened,
        LogManagerSettings(producer_expiration_ms=2**60),
        topic_config=lambda _: CONFIG,
        random=random_module.Random(1),
    )


def records_of(log: Log) -> list[Record]:
    records: list[Record] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        result = log.read(offset, max_bytes=1 << 20)
        if result.verification is not None:
            result.verification.run()
            result = log.finish_verification(result)
        data = bytes(result.records)  # type: ignore[arg-type]
        for position, header in iter_batches(data):
            if not header.is_control:
                records += decode_records(data, position)
        assert result.next_offset > offset
        offset = result.next_offset
    return [each for each in records if each.offset >= log.log_start_offset]


async def test_our_loader_serves_what_kafka_wrote(directories: Path) -> None:
    """Offsets, records of every codec, producers, aborted transactions, log start offset."""
    is_clean = (directories / "log-1" / ".kafka_cleanshutdown").exists()
    manager = manager_over(directories)
    report = await manager.start()
    # Kafka had more partitions than are kept here; its checkpoints name them.
    assert set(manager.table.offline) == manager.found.missing
    assert report.offline_count == (0 if is_clean else 6)
    assert report.clean_directory_count == (2 if is_clean else 0)
    assert report.previous_broker_epoch == (255 if is_clean else -1)
    codecs = manager.get(tp("codecs-0"))
    assert codecs is not None
    assert codecs.log_end_offset == (107 if is_clean else 100)
    records = records_of(codecs)
    assert [each.offset for each in records] == list(range(codecs.log_end_offset))
    values = [f"{name} value {i} " * 5 for name in CODEC_NAMES for i in range(20)]
    for record, value in zip(records, values, strict=False):
        number = record.offset % 20
        assert record.value == (value.encode() if number % 4 else None)
        assert record.key == (f"key-{number}".encode() if number % 3 else None)
        assert record.timestamp_ms == 1_750_000_000_000 + number * 1000
        assert record.headers == ((("h", b"x"), ("n", None)) if number % 5 == 0 else ())
    # At its clean stop Kafka had forgotten the producers whose records were older than a day.
    assert set(codecs.producer_state.producers) == ({1000} if is_clean else {0, 1, 2, 3, 4})
    trimmed = manager.get(tp("trimmed-0"))
    assert trimmed is not None
    assert (trimmed.log_start_offset, trimmed.log_end_offset) == (12, 20)
    transactions = manager.get(tp("transactions-0"))
    assert transactions is not None
    aborted = aborted_transactions(transactions, 0, transactions.log_end_offset)
    first = [(5, 6, 11), (6, 18, 23), (6, 30, 35)]
    later = [(7, 36, 37), (7, 38, 39)] if is_clean else []
    assert [(e.producer_id, e.first_offset, e.last_offset) for e in aborted] == first + later
    transactions.update_high_watermark(transactions.log_end_offset)
    assert transactions.last_stable_offset == (42 if is_clean else 36)
    assert str(codecs.topic_id) == str(uuid_from_base64("yH-DKmOBQzumZ3qvhV5KXA"))
    await manager.shutdown(300)
    assert_verified(directories)


CODEC_NAMES = [codec.name.lower() for codec in Codec]


async def test_what_we_leave_behind_verifies_and_opens_again(directories: Path) -> None:
    """Kafka's directory, opened and shut down here, then opened once more: nothing is lost."""
    manager = manager_over(directories)
    await manager.start()
    await manager.found.settle(
        lambda each: (
            None if each in manager.found.missing else (manager.topic_id_of(each), ZERO_UUID)
        )
    )
    ends = {log.topic_partition: log.log_end_offset for log in manager.logs()}
    await manager.shutdown(300)
    marker = read_clean_shutdown_marker(OsFilesystem(), str(directories / "log-1"))
    assert marker is not None
    assert marker.broker_epoch == 300
    again = manager_over(directories)
    report = await again.start()
    assert (report.clean_directory_count, report.previous_broker_epoch) == (2, 300)
    assert {log.topic_partition: log.log_end_offset for log in again.logs()} == ends
    await again.shutdown(301)


def assert_verified(directories: Path) -> None:
    verification = Verification(OsFilesystem(), deep=True)
    for name in ("log-1", "log-2"):
        for finding in verification.findings(str(directories / name)):
            # The copy leaves partitions out that the checkpoint names.
            assert "and no directory" in finding.reason, str(finding)
    assert not verification.is_damaged
    assert verification.batch_count > 70


def test_verify_finds_nothing_wrong_in_kafkas_files(directories: Path) -> None:
    assert_verified(directories)


def test_verify_names_file_and_position_of_a_flipped_bit(directories: Path) -> None:
    path = directories / "log-2" / "dense-0" / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[174 * 7 + 100] ^= 4
    path.write_bytes(data)
    verification = Verification(OsFilesystem())
    findings = list(verification.findings(str(directories / "log-2")))
    named = [each for each in findings if each.file == str(path)]
    assert [each.position for each in named] == [174 * 7]
    assert "CRC" in named[0].reason
    assert named[0].severity in (Severity.DAMAGE, Severity.NOTE)


def test_dump_shows_every_file_without_errors() -> None:
    rows = []
    for directory in sorted(GOLDEN.glob("kafka-*/log-*")):
        rows += list(dump_path(OsFilesystem(), str(directory), DumpOptions(print_data=True)))
    errors = [row for row in rows if row["row"] == "error" or "undecodable" in row]
    assert errors == []
    kinds = Counter(row["row"] for row in rows)
    assert kinds.keys() == {
        "file",
        "batch",
        "record",
        "index",
        "timeindex",
        "txnindex",
        "producer",
        "leader_epoch",
        "checkpoint",
        "property",
        "note",
    }
    assert all(row["isvalid"] for row in rows if row["row"] == "batch")


def rows_of(path: str, **options: object) -> list[Row]:
    found = dump_path(OsFilesystem(), str(GOLDEN / path), DumpOptions(**options))  # type: ignore[arg-type]
    return [row for row in found if row["row"] != "file"]


def test_dump_agrees_with_kafkas_own_dump() -> None:
    """Lines taken from `kafka-dump-log` 4.3.0 on the same files (`--print-data-log`)."""
    path = "kafka-4.3.0-clean/log-2/transactions-0/00000000000000000005"
    rows = rows_of(path + ".log", print_data=True)
    assert format_row(rows[0]) == (
        "baseOffset: 5 lastOffset: 5 count: 1 baseSequence: -1 lastSequence: -1 producerId: 5 "
        "producerEpoch: 0 partitionLeaderEpoch: 0 isTransactional: true isControl: true "
        "deleteHorizonMs: null position: 0 CreateTime: 1795245480375 size: 78 magic: 2 "
        "compresscodec: none crc: 1326077454 isvalid: true"
    )
    assert rows[1]["controlType"] == "COMMIT"
    assert rows[1]["coordinatorEpoch"] == 0
    assert format_row(rows[3]) == (
        "| offset: 6 CreateTime: 1750000000000 keySize: 1 valueSize: 10 sequence: 5 "
        "headerKeys: [] key: 0 payload: tx-a 1 a 0"
    )
    assert format_row(rows_of(path + ".txnindex")[3]) == (
        "version: 0 producerId: 7 firstOffset: 36 lastOffset: 37 lastStableOffset: 38"
    )
    snapshot = rows_of("kafka-4.3.0-clean/log-2/transactions-0/00000000000000000037.snapshot")
    assert format_row(snapshot[2]) == (
        "producerId: 7 producerEpoch: 0 coordinatorEpoch: -1 currentTxnFirstOffset: 36 "
        "lastTimestamp: 1750000000000 firstSequence: 0 lastSequence: 0 lastOffset: 36 "
        "offsetDelta: 0"
    )
    index = rows_of("kafka-4.3.0-clean/log-2/dense-0/00000000000000000000.index")
    assert format_row(index[0]) == "offset: 2 position: 348"


def test_dump_decodes_the_metadata_log_and_its_snapshots() -> None:
    rows = rows_of(
        "kafka-4.3.0-clean/log-1/__cluster_metadata-0/00000000000000000240-0000000002.checkpoint",
        print_data=True,
    )
    note = rows[0]
    assert (note["endOffset"], note["leaderEpoch"]) == (240, 2)
    controls = [row["controlType"] for row in rows if "controlType" in row]
    assert controls == ["SNAPSHOT_HEADER", "KRAFT_VERSION", "KRAFT_VOTERS", "SNAPSHOT_FOOTER"]
    voters = next(row for row in rows if row.get("controlType") == "KRAFT_VOTERS")
    assert voters["data"]["voters"][0]["voterDirectoryId"] == "ByIcIGLQQvigW0emqFfdKA"
    records = [row for row in rows if "recordType" in row]
    assert records[0]["recordType"] == "FeatureLevelRecord"
    assert records[0]["data"] == {"name": "metadata.version", "featureLevel": 30}
    log = rows_of("kafka-4.3.0-clean/log-1/__cluster_metadata-0", print_data=True)
    names = {row["data"]["name"] for row in log if row.get("recordType") == "TopicRecord"}
    assert {"codecs", "transactions", "trimmed"} <= names


def test_identity_files_read_as_kafka_wrote_them() -> None:
    meta = read_meta_properties(OsFilesystem(), str(GOLDEN / "kafka-4.3.0-clean" / "log-1"))
    assert meta is not None
    assert (meta.cluster_id, meta.node_id, meta.version) == (CLUSTER_ID, 1, 1)
    assert meta.directory_id == uuid_from_base64("ByIcIGLQQvigW0emqFfdKA")
