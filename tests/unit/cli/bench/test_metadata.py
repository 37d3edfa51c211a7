"""`moldau bench metadata` without a cluster: its requests, its figures, its child process."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from moldau.cli.bench import image_loading
from moldau.cli.bench.figures import memory_bytes
from moldau.cli.bench.image_loading import LoadFigures
from moldau.cli.bench.metadata import (
    COLUMNS,
    PHANTOM_ID,
    RECORDS_PER_REQUEST,
    ChangeSample,
    CreationFigures,
    MetadataFigures,
    Row,
    creation_requests,
    phantom_topics,
    spread,
)
from moldau.raft import METADATA_DIRECTORY
from tests.kit.commands import Ended

GOLDEN = Path(__file__).parents[2] / "metadata" / "golden"
LOG = "00000000000000000000.log"
SNAPSHOT = "00000000000000000047-0000000001.checkpoint"


@pytest.mark.parametrize(
    ("partition_count", "per_topic"),
    [(1, 10), (10, 10), (25, 10), (12_345, 7), (20_000, RECORDS_PER_REQUEST - 1)],
)
def test_all_partitions_are_asked_for_in_requests_that_are_not_too_big(
    partition_count: int, per_topic: int
) -> None:
    requests = list(creation_requests(phantom_topics(partition_count, per_topic)))
    topics = [topic for request in requests for topic in request.topics]
    assert len({topic.name for topic in topics}) == len(topics)
    assignments = [each for topic in topics for each in topic.assignments]
    assert len(assignments) == partition_count
    assert all(each.broker_ids == [PHANTOM_ID] for each in assignments)
    for topic in topics:
        indexes = [each.partition_index for each in topic.assignments]
        assert indexes == list(range(len(indexes)))
        assert 1 <= len(indexes) <= per_topic
    sizes = [sum(1 + len(topic.assignments) for topic in each.topics) for each in requests]
    assert max(sizes) <= RECORDS_PER_REQUEST
    assert len(requests) <= 1 + 2 * sum(sizes) // RECORDS_PER_REQUEST, "nor too small"


def figures() -> MetadataFigures:
    made = MetadataFigures()
    made.creation = CreationFigures(topic_count=2, partition_count=20, seconds=0.5)
    made.changes = [ChangeSample(10.0, 12.0 + each, 2.0 + each) for each in (0.0, 1.0, 100.0)]
    made.failovers_s = [2.5, 2.2, 0.4]
    made.loads = {("broker", "log"): [LoadFigures(11.0, 4.0, 50_000_000, 20, 2)]}
    return made


def test_figures_as_json() -> None:
    document = figures().document()
    assert "phantom" in document["note"]
    assert (document["partitions"], document["topics"]) == (20, 2)
    told = document["figures"]
    assert told["partitions_per_second"]["median"] == 40.0
    assert told["change_seen_after_answer_ms"] == {
        "count": 3,
        "minimum": 2.0,
        "median": 3.0,
        "p95": 102.0,
        "maximum": 102.0,
        "at_most": 50.0,
        "met": True,
    }
    assert (told["failover_s"]["median"], told["failover_s"]["met"]) == (2.2, False)
    assert told["broker_load_from_log_s"]["met"] is False
    assert told["broker_load_from_log_peak_mb"]["median"] == 50.0
    assert "broker_ready_s" not in told, "nothing was measured"
    assert "controller_load_from_log_s" not in told
    json.dumps(document)


def test_figures_as_a_table() -> None:
    rows = {row[0]: row for row in figures().table()}
    assert {len(row) for row in rows.values()} == {len(COLUMNS)}
    failover = rows["active controller killed: next topic created, s"]
    assert failover[1:] == ("3", "0.4", "2.2", "2.5", "2.5", "<= 2", "no")
    assert rows["created topics/s"][-2:] == ("", "")


def test_the_median_is_compared_with_what_is_asked() -> None:
    assert Row("a", "a", [1.0, 2.0, 9.0], 2.0).is_met
    assert not Row("a", "a", [1.0, 2.1, 2.2], 2.0).is_met
    assert "met" not in Row("a", "a", [1.0]).document()
    assert spread([5.0])["p95"] == 5.0


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "server.properties"
    path.write_text(
        "process.roles=controller\nnode.id=1\nlisteners=CONTROLLER://127.0.0.1:1\n"
        "controller.listener.names=CONTROLLER\n"
        f"controller.quorum.bootstrap.servers=127.0.0.1:1\nlog.dirs={tmp_path}\n"
    )
    return path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A metadata log that Apache Kafka wrote."""
    directory = tmp_path / "log"
    (directory / METADATA_DIRECTORY).mkdir(parents=True)
    shutil.copy(GOLDEN / f"kafka-4.3.0-{LOG}", directory / METADATA_DIRECTORY / LOG)
    return directory


@pytest.fixture
def child(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """What a process of the benchmark does, here."""

    def run(*arguments: object) -> Ended:
        status = image_loading.main([*map(str, arguments)])
        return Ended(status, *capsys.readouterr())

    return run


@pytest.mark.parametrize("role", ["broker", "controller"])
def test_a_child_loads_a_log_and_a_snapshot_of_it(
    child: Callable[..., Ended], role: str, log: Path, config: Path, tmp_path: Path
) -> None:
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    assert child("snapshot", log, snapshot).status == 0
    [checkpoint] = (snapshot / METADATA_DIRECTORY).iterdir()
    assert checkpoint.suffix == ".checkpoint"
    for source in (log, snapshot):
        done = child(role, source, config)
        assert done.status == 0, done.errors
        loaded = LoadFigures(**json.loads(done.output))
        assert (loaded.topic_count, loaded.partition_count) == (2, 7)
        assert loaded.seconds > 0
        if memory_bytes("VmRSS"):
            assert loaded.peak_bytes > 0


def test_a_child_reports_damage_in_one_line(
    child: Callable[..., Ended], log: Path, config: Path
) -> None:
    path = log / METADATA_DIRECTORY / SNAPSHOT
    shutil.copy(GOLDEN / f"kafka-4.3.0-{SNAPSHOT}", path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    done = child("broker", log, config)
    assert done.status == 1
    [line] = done.errors.splitlines()
    assert line.startswith("moldau: broker ")
    assert SNAPSHOT in line
