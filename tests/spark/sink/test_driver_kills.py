"""Drivers and executors killed with -9: every row is stored once afterwards.

Each run is a JVM. So one query with one checkpoint goes through all kills of drivers.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from moldau.client.sync import Admin
from moldau.testing import Cluster
from tests.kit import judging
from tests.spark.conftest import make_topic
from tests.spark.sink.jobs import REPOSITORY, Pipeline, ended, kill, wait_for_file

PLACES = (
    "in write",
    "before decision",
    "after decision",
    "between ends",
    "after ends",
    "after commit",
)

# Spark logs the sockets of the JVM that was killed under it.
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.mark.timeout(600)
@pytest.mark.promise("sink-exactly-once")
def test_drivers_killed_and_resumed(cluster: Cluster, admin: Admin, tmp_path: Path) -> None:
    """Each run finishes the batch in which the one before was killed, and dies in its second. The
    last one is only paused before its decision, and goes on when its successor has finished; one of
    the successor's tasks fails when it has written, and is tried again.
    """
    topic = make_topic(admin, partitions=2)
    pipeline = Pipeline(cluster, topic, tmp_path, master="local[2,2]")
    for batch_id, place in enumerate(PLACES):
        pipeline.add_batches(1)
        fault = pipeline.fault(place, "kill driver", batch_id)
        status, errors = pipeline.run(fault)
        assert Path(fault.mark).exists(), f"{place}: {errors}"
        assert status != 0, place
        seen = pipeline.visible()
        with judging():
            assert max(seen.values(), default=0) <= 1, place
            if place in ("after ends", "after commit"):
                assert seen.keys() == set(pipeline.lines), place
    pipeline.add_batches(1)
    fault = pipeline.fault("before decision", "pause", len(PLACES))
    zombie = pipeline.start(fault)
    try:
        wait_for_file(Path(fault.mark), zombie)
        retried = pipeline.fault("written", "raise", len(PLACES))
        status, errors = pipeline.run(retried)
        assert (status, Path(retried.mark).exists()) == (0, True), errors
        pipeline.check_exactly_once()
        Path(f"{fault.mark}.go").touch()
        status, errors = ended(zombie)
    finally:
        kill(zombie)
    assert status == 1
    assert "SinkFenced" in errors
    assert "another driver has taken over sink" in errors
    pipeline.check_exactly_once()


@pytest.mark.promise("sink-exactly-once")
def test_executor_killed_in_write(cluster: Cluster, admin: Admin, tmp_path: Path) -> None:
    """Its transaction is aborted in the same batch, and does not hold back readers for longer."""
    paths = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    pipeline = Pipeline(
        cluster,
        make_topic(admin, partitions=2),
        tmp_path,
        master="local-cluster[1,2,512]",
        settings={
            "spark.executor.memory": "512m",
            "spark.executorEnv.PYTHONPATH": os.pathsep.join(paths),
        },
    )
    pipeline.add_batches(1)  # so that no planning of a next one can have done it
    fault = pipeline.fault("written", "kill executor", 0)
    status, errors = pipeline.run(fault)
    assert (status, Path(fault.mark).exists()) == (0, True), errors
    pipeline.check_exactly_once()
