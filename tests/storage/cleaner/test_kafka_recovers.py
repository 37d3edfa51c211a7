"""Apache Kafka recovers what our cleaner leaves, and takes the same transactions and producers from
it as we do.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from moldau.runtime.filesystem import OsFilesystem
from moldau.storage.log import Log
from tests.kit.manual_clock import ManualClock
from tests.storage.cleaner.cleaner_bench import COMPACTED, PARTITION, batches_of, committed
from tests.storage.cleaner.test_cleaning_model import Run
from tests.storage.log_fixtures import START_MS
from tests.storage.test_log_kafka_tools import KAFKA_LIBS

pytestmark = [pytest.mark.real, pytest.mark.java]


def test_kafka_recovers_a_cleaned_log(tmp_path: Path) -> None:
    if shutil.which("java") is None:
        pytest.skip("java is not installed")
    if not list(Path(KAFKA_LIBS).glob("kafka-tools-*.jar")):
        pytest.skip("Apache Kafka's jars are not there: `make setup-all` fetches them with Maven")
    run = Run(4711)
    # Apache Kafka forgets producers whose records are a day old.
    run.bench.clock.advance(int(time.time() * 1000) - START_MS)
    asyncio.run(run.go())
    logs = {
        Path(name).name: data
        for name, data in run.bench.filesystem.files().items()
        if name.endswith(".log") and str(PARTITION) in name
    }
    assert any(not header.record_count for header, _ in batches_of(run.bench.log))
    for side in ("ours", "theirs"):
        (tmp_path / side / "topic-0").mkdir(parents=True)
        for name, data in logs.items():
            (tmp_path / side / "topic-0" / name).write_bytes(data)
    rows = recovered_by_kafka(tmp_path / "theirs" / "topic-0")
    filesystem = OsFilesystem(1)
    log = Log.open(
        filesystem,
        ManualClock(START_MS),
        str(tmp_path / "ours" / "topic-0"),
        PARTITION,
        COMPACTED,
    )
    log.update_high_watermark(log.log_end_offset)
    assert rows[-1][0] == "producer"
    assert max(int(row[1]) for row in rows if row[0] == "stable") == log.log_end_offset
    assert max(int(row[2]) for row in rows if row[0] == "stable") == log.last_stable_offset, (
        "no transaction is left open"
    )
    theirs = {tuple(map(int, row[1:])) for row in rows if row[0] == "producer"}
    ours = {
        (
            each.producer_id,
            each.producer_epoch,
            each.last_sequence,
            each.coordinator_epoch,
            each.current_txn_first_offset,
        )
        for each in log.producer_state.producers.values()
    }
    # Kafka has an entry without an epoch where only an emptied marker is left.
    assert {row for row in theirs if row[1] >= 0} == ours
    assert committed(log) == committed(run.bench.log)
    log.close()
    filesystem.close()


def recovered_by_kafka(directory: Path) -> list[list[str]]:
    """What tests/storage/RecoverLog.java prints, split at spaces."""
    done = subprocess.run(
        [
            "java",
            "-cp",
            f"{KAFKA_LIBS}/*",
            str(Path(__file__).parents[1] / "RecoverLog.java"),
            str(directory),
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [line.split() for line in done.stdout.splitlines()]
