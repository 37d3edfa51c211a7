"""Apache Kafka's own dump tool on the files this log writes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from moldau.protocol.records import Codec, ControlRecordType, EndTxnMarker, encode_end_txn_batch
from moldau.runtime.clock import ManualClock
from moldau.runtime.filesystem import OsFilesystem
from moldau.storage.append import AppendOrigin
from moldau.storage.log import Log
from moldau.storage.log_config import LogConfig
from tests.storage.log_fixtures import START_MS, TOPIC_PARTITION, append

pytestmark = pytest.mark.java

#: Where `make setup` puts Apache Kafka's jars when Java and Maven are there.
KAFKA_LIBS = os.environ.get("KAFKA_LIBS") or str(
    Path(__file__).parents[2] / ".cache" / "kafka-4.3.0"
)
DUMP_TOOL = "org.apache.kafka.tools.DumpLogSegments"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("java") is None:
        pytest.skip("java is not installed")
    if not list(Path(KAFKA_LIBS).glob("kafka-tools-*.jar")):
        pytest.skip("Apache Kafka's jars are not there: `make setup` fetches them with Maven")
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
                marker, leader_epoch=3 + number // 50, origin=AppendOrigin.COORDINATOR
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
