"""Apache Kafka's own dump tool on the files this log writes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from random import Random

import pytest

from moldau.protocol.records import Codec, ControlRecordType, EndTxnMarker, encode_end_txn_batch
from moldau.runtime.filesystem import OsFilesystem
from moldau.storage.append import AppendOrigin, RecordBatches
from moldau.storage.log import Log
from moldau.storage.log_config import LogConfig
from tests.kit.manual_clock import ManualClock
from tests.storage.log_fixtures import START_MS, TOPIC_PARTITION, append
from tests.storage.transaction_reader import aborted_transactions

pytestmark = [pytest.mark.real, pytest.mark.java]

#: Where `make setup-all` puts Apache Kafka's jars when Java and Maven are installed.
KAFKA_LIBS = os.environ.get("KAFKA_LIBS") or str(
    Path(__file__).parents[2] / ".cache" / "kafka-4.3.0"
)
DUMP_TOOL = "org.apache.kafka.tools.DumpLogSegments"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("java") is None:
        pytest.skip("java is not installed")
    if not list(Path(KAFKA_LIBS).glob("kafka-tools-*.jar")):
        pytest.skip("Apache Kafka's jars are not there: `make setup-all` fetches them with Maven")
    path = tmp_path_factory.mktemp("kafka") / "topic-0"
    filesystem = OsFilesystem()
    config = LogConfig(segment_bytes=40_000, index_interval_bytes=1000)
    log = Log.open(filesystem, ManualClock(START_MS), str(path), TOPIC_PARTITION, config)
    for number in range(120):
        append(
            log,
            *["v" * 200] * 10,
            codec=Codec(number % 5),
            timestamp_ms=START_MS - 10**6 + number * 7,
            producer_id=7,
            producer_epoch=0,
            base_sequence=number * 10,
            leader_epoch=3 + number // 50,
        )
        append(
            log,
            "t" * 200,
            producer_id=9,
            producer_epoch=1,
            base_sequence=number,
            is_transactional=True,
            leader_epoch=3 + number // 50,
        )
        if number % 3 == 2:
            kind = ControlRecordType.ABORT if number % 2 else ControlRecordType.COMMIT
            marker = encode_end_txn_batch(
                EndTxnMarker(kind, 5), producer_id=9, producer_epoch=1, timestamp_ms=START_MS
            )
            log.append_as_leader(
                RecordBatches.read(marker),
                leader_epoch=3 + number // 50,
                origin=AppendOrigin.COORDINATOR,
            )
    assert len(log.segments) > 1
    log.close()
    filesystem.close()
    return path


def dump(directory: Path, suffixes: tuple[str, ...], *options: str) -> str:
    files = sorted(str(p) for p in directory.iterdir() if p.name.endswith(suffixes))
    assert files
    done = subprocess.run(
        ["java", "-cp", f"{KAFKA_LIBS}/*", DUMP_TOOL, *options, "--files", ",".join(files)],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return done.stdout


def test_segments(directory: Path) -> None:
    out = dump(directory, (".log",), "--deep-iteration")
    offsets = [int(found) for found in re.findall(r"^\| offset: (\d+)", out, re.MULTILINE)]
    assert offsets == list(range(1360))
    assert "isvalid: false" not in out.lower()
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        assert f"compresscodec: {codec}" in out


def test_indexes(directory: Path) -> None:
    out = dump(directory, (".index", ".timeindex"), "--index-sanity-check")
    count = len(list(directory.glob("*index"))) - len(list(directory.glob("*.txnindex")))
    assert out.count("passed sanity check") == count
    verified = dump(directory, (".index", ".timeindex"), "--verify-index-only", "--deep-iteration")
    assert not re.search("mismatch|non-monotonic|Out of order|not found", verified, re.IGNORECASE)


def test_snapshots_and_transactions(directory: Path) -> None:
    out = dump(directory, (".snapshot",))
    assert "producerId: 7 producerEpoch: 0 coordinatorEpoch: -1" in out
    assert "lastSequence: 1199 lastOffset: 1357 offsetDelta: 9" in out
    assert "producerId: 9 producerEpoch: 1 coordinatorEpoch: 5" in out
    out = dump(directory, (".txnindex",))
    assert "version: 0 producerId: 9 firstOffset: 1336 lastOffset: 1359" in out


def test_markers(directory: Path) -> None:
    out = dump(directory, (".log",), "--print-data-log")
    assert out.count("endTxnMarker: COMMIT coordinatorEpoch: 5") == 20
    assert out.count("endTxnMarker: ABORT coordinatorEpoch: 5") == 20


def overlapping_transactions(path: Path) -> Log:
    """Random transactions over several segments; the same ones each time."""
    random = Random(5)
    now_ms = int(time.time() * 1000)  # Apache Kafka forgets producers by records' timestamps
    log = Log.open(
        OsFilesystem(), ManualClock(now_ms), str(path), TOPIC_PARTITION, TRANSACTIONS_CONFIG
    )
    epochs = dict.fromkeys(range(1, 6), 0)
    sequences = dict.fromkeys(range(1, 6), 0)
    for _ in range(150):
        producer_id = random.randint(1, 5)
        if random.random() < 0.6:
            append(
                log,
                "value",
                timestamp_ms=now_ms,
                producer_id=producer_id,
                producer_epoch=epochs[producer_id],
                base_sequence=sequences[producer_id],
                is_transactional=random.random() < 0.9
                or log.producer_state.has_open_transaction(producer_id, epochs[producer_id]),
            )
            sequences[producer_id] += 1
            continue
        if random.random() < 0.5:
            epochs[producer_id] += 1
            sequences[producer_id] = 0
        marker = EndTxnMarker(random.choice([ControlRecordType.ABORT, ControlRecordType.COMMIT]), 5)
        batch = encode_end_txn_batch(
            marker,
            producer_id=producer_id,
            producer_epoch=epochs[producer_id],
            timestamp_ms=now_ms,
        )
        log.append_as_leader(
            RecordBatches.read(batch), leader_epoch=0, origin=AppendOrigin.COORDINATOR
        )
    assert len(log.segments) > 5
    return log


TRANSACTIONS_CONFIG = LogConfig(segment_bytes=1400)


@pytest.mark.usefixtures("directory")
def test_apache_kafka_takes_the_same_transactions_from_our_batches(tmp_path: Path) -> None:
    """Last stable offsets, aborted transactions, producers: from the batches alone, as in a crash
    without a snapshot. Ours are those kept while appending.
    """
    log = overlapping_transactions(tmp_path / "topic-0")
    indexes = {p.name: p.read_bytes() for p in sorted((tmp_path / "topic-0").glob("*.txnindex"))}
    theirs = tmp_path / "theirs" / "topic-0"
    theirs.mkdir(parents=True)
    log.flush()
    for path in (tmp_path / "topic-0").glob("*.log"):
        shutil.copy(path, theirs)
    source = Path(__file__).parent / "RecoverLog.java"
    done = subprocess.run(
        ["java", "-cp", f"{KAFKA_LIBS}/*", str(source), str(theirs)],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    rows = [line.split() for line in done.stdout.splitlines()]
    end = log.log_end_offset
    aborted = [
        (offset, *each) for offset in range(end) for each in aborted_transactions(log, offset, end)
    ]
    told = [tuple(map(int, row[1:])) for row in rows if row[0] == "aborted"]
    # Apache Kafka looks from the log's start within a segment, and lists more than is needed.
    told = [row for row in told if row[3] >= row[0]]
    assert aborted
    assert sorted(told) == sorted(aborted)
    producers = {
        (
            each.producer_id,
            each.producer_epoch,
            each.last_sequence,
            each.coordinator_epoch,
            each.current_txn_first_offset,
        )
        for each in log.producer_state.producers.values()
    }
    assert {tuple(map(int, row[1:])) for row in rows if row[0] == "producer"} == producers
    # After a recovery Apache Kafka takes every transaction for ended whose marker is in the log; we
    # know, as it would have before, which markers are not committed yet.
    for row in rows:
        if row[0] == "stable":
            high_watermark, last_stable_offset = map(int, row[1:])
            log.update_high_watermark(high_watermark)
            assert log.last_stable_offset <= last_stable_offset, high_watermark
    assert (high_watermark, log.last_stable_offset) == (end, last_stable_offset)
    assert indexes
    rebuilt = {p.name: p.read_bytes() for p in theirs.glob("*.txnindex")}
    assert {name: data for name, data in rebuilt.items() if data} == indexes
    log.close()
