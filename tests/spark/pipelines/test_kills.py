"""The jobs that ship, killed in the middle and started again: each record once, in its order."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from moldau.client.sync import Admin
from moldau.testing import Cluster
from tests.kit import judging
from tests.spark.conftest import SEVERAL_BATCHES, make_topic
from tests.spark.pipelines.steps import Record, fill, read, run

pytestmark = [pytest.mark.long, pytest.mark.system, pytest.mark.usefixtures("spark")]

KEYS = [b"key-%d" % number for number in range(12)]
PER_PARTITION = 450
BEGAN_MS = round(time.time() * 1_000) - 3_600_000
STREAMS = """
name: {name}
job: {job}
source: {{bootstrap.servers: '{server}', topic: {topic}, records.per.batch: 300}}
{step}
sink: {sink}
checkpoint: {name}
trigger: {{every: 0 s}}
---
"""


def kill_after(file: Path, batch_count: int, log: Path) -> None:
    """Run a file in its own process, and kill it when so many batches are done."""
    command = [sys.executable, "-m", "moldau.cli.main", "pipeline", "run", str(file)]
    with log.open("wb") as errors:
        running = subprocess.Popen(
            [*command, "--json", "--master", "local[2]", "--conf", "spark.driver.memory=512m"],
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    assert running.stdout is not None
    done = 0
    try:
        for line in running.stdout:
            done += bool(json.loads(line)["row_count"])
            if done == batch_count:
                break
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
        running.stdout.close()
    assert done == batch_count, log.read_text(errors="replace")


def keyed(partition: int) -> list[Record]:
    """Records whose keys are in this partition alone, numbered; every tenth has no key."""
    mine = KEYS[partition::4]
    return [
        Record(
            None if n % 10 == 0 else mine[n % len(mine)],
            b"%d-%05d" % (partition, n),
            (),
            BEGAN_MS + n,
        )
        for n in range(PER_PARTITION)
    ]


@judging()
def check_same(found: Mapping[int, Sequence[Record]], sent: Mapping[int, Sequence[Record]]) -> None:
    """Each record once, in its order; what is not so is reported in one line."""
    for partition, wanted in sent.items():
        came = found[partition]
        values = Counter(each.value for each in came)
        lost = [each.value for each in wanted if not values[each.value]]
        doubled = [value for value, count in values.items() if count > 1]
        assert (lost[:3], doubled[:3], len(came)) == ([], [], len(wanted)), f"in {partition}"
        assert came == wanted, f"in {partition} in another order, or changed"


def by_key(
    found: Mapping[int, Sequence[Record]],
) -> dict[tuple[bytes | None, bytes], list[bytes | None]]:
    """The values of each key, in their order; those without a key by their first letter."""
    order: dict[tuple[bytes | None, bytes], list[bytes | None]] = {}
    for partition in sorted(found):
        for record in found[partition]:
            place = (record.key, b"" if record.key else (record.value or b"?")[:1])
            order.setdefault(place, []).append(record.value)
    return order


@SEVERAL_BATCHES
@pytest.mark.promise("stream-batch-again", "sink-order", "pipeline-order", "pipeline-once")
def test_killed_jobs_go_on_and_every_record_is_written_once_in_its_order(
    cluster: Cluster, admin: Admin, tmp_path: Path
):
    server, topic = cluster.bootstrap_server, make_topic(admin, partitions=4)
    sent = {number: keyed(number) for number in range(4)}
    fill(server, topic, sent)
    narrow, shouted = f"{topic}-narrow", f"{topic}-shouted"
    loud = "transform: {sql: 'SELECT key, upper(value) AS value FROM source'}"
    jobs = (
        ("mirror", "", f"{{bootstrap.servers: '{server}', topic: 'copy.{{topic}}'}}"),
        ("repartition", "", f"{{topic: {narrow}, partitions: 2}}"),
        ("transform", loud, f"{{topic: {shouted}, partitions: 1}}"),
        ("archive", "", "{path: files}"),
    )
    text = "".join(
        STREAMS.format(name=job, job=job, server=server, topic=topic, step=step, sink=sink)
        for job, step, sink in jobs
    )
    file = tmp_path / "streams.yaml"
    file.write_text(text)
    kill_after(file, 6, tmp_path / "streams.log")
    run(text.replace("{every: 0 s}", "available-now"), tmp_path)

    check_same(read(server, f"copy.{topic}"), sent)
    found = read(server, narrow)
    assert len(found) == 2
    assert by_key(found) == by_key(sent)
    everything = sorted(each.value or b"" for one in sent.values() for each in one)
    [values] = read(server, shouted).values()
    assert sorted(each.value or b"" for each in values) == everything

    back = make_topic(admin, partitions=4)
    replay = f"""
name: replay
job: replay
source: {{path: files, records.per.batch: 400}}
sink: {{bootstrap.servers: '{server}', topic: {back}}}
checkpoint: back
"""
    file.write_text(replay)
    kill_after(file, 1, tmp_path / "replay.log")
    run(replay, tmp_path)
    check_same(read(server, back), sent)
