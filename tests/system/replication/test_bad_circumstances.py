"""Full disks, elections that lose records, moves to nowhere, throttles of zero: clear words, and
nothing lost silently.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.testing import Cluster
from tests.kit.waiting import until
from tests.system.conftest import SmallDisk
from tests.system.processes import Ended, Writer, check_read, read_all, run_cli
from tests.system.replication.three_brokers import QUICK, Trio

pytestmark = pytest.mark.timeout(300)

BROKER = 2
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def trio() -> Iterator[Trio]:
    """A cluster for this module; every test leaves its brokers running, and its rates unset."""
    with Cluster(brokers=3, controllers=3, config=QUICK) as cluster:
        yield Trio(cluster)


def fresh_name() -> str:
    return f"t-{uuid.uuid4().hex}"


def written(trio: Trio, topic: str, count: int = 300, **config: object) -> Writer:
    writer = Writer(trio.bootstrap, topic, acks="all", **config)
    writer.send(count)
    writer.flush()
    assert writer.refused == []
    return writer


def cli(trio: Trio, *arguments: object) -> Ended:
    return run_cli(*arguments, "-b", trio.bootstrap)


def done(trio: Trio, *arguments: object) -> str:
    ended = cli(trio, *arguments)
    assert ended.status == 0, ended.errors
    return ended.output


# -- a replica on a full disk ------------------------------------------------------------------


@pytest.fixture
def on_small_disk(small_disk: SmallDisk, tmp_path: Path) -> Iterator[Trio]:
    """Broker 2 keeps its partitions on the small disk, and its metadata beside it."""
    with Cluster(brokers=3, controllers=3, config=QUICK, directory=tmp_path / "cluster") as cluster:
        trio = Trio(cluster)
        assert cluster.stop(BROKER) == 0
        home = cluster.data_directory(BROKER).parent
        config = home / "server.properties"
        directories = f"{home / 'data'},{small_disk.path / 'data'}"
        lines = config.read_text().splitlines()
        lines = [each for each in lines if not each.startswith("log.dirs=")]
        lines += [
            f"log.dirs={directories}",
            f"metadata.log.dir={home / 'data'}",
            "log.index.size.max.bytes=65536",
        ]
        config.write_text("\n".join(lines) + "\n")
        cluster_id = next(
            line.partition("=")[2]
            for line in (home / "data" / "meta.properties").read_text().splitlines()
            if line.startswith("cluster.id=")
        )
        formatted = run_cli(
            *("storage", "format", "--config", config),
            *("--cluster-id", cluster_id, "--ignore-formatted"),
        )
        assert formatted.status == 0, formatted.errors
        cluster.restart(BROKER)
        yield trio


def topic_on(small_disk: SmallDisk, trio: Trio, replicas: tuple[int, ...]) -> str:
    """A topic whose replica on broker 2 lies on the small disk: partitions are spread."""
    topics = [trio.create(fresh_name(), replicas=replicas) for _ in range(2)]

    def on_the_disk() -> str:
        found = [each for each in topics if (small_disk.path / "data" / f"{each}-0").exists()]
        return "".join(found[:1])

    return until(on_the_disk, what="a replica on the small disk", deadline_s=DEADLINE_S)


def test_a_follower_on_a_full_disk_falls_behind_and_catches_up(
    on_small_disk: Trio, small_disk: SmallDisk
) -> None:
    trio = on_small_disk
    topic = topic_on(small_disk, trio, (1, 2, 3))
    writer = written(trio, topic)
    small_disk.fill()
    writer.send(3_000, size_bytes=1_000)
    trio.wait_isr(topic, {1, 3})
    writer.send(300, size_bytes=1_000)
    writer.flush()
    assert writer.refused == [], "two in sync are enough"
    assert trio.cluster.node(BROKER).running
    assert trio.said(BROKER, topic, "trying again")
    small_disk.free()
    trio.wait_isr(topic, {1, 2, 3})
    replicas = [trio.log_directory(topic, each) for each in (1, 3)]
    trio.wait_equal(topic, [*replicas, small_disk.path / "data" / f"{topic}-0"])
    check_read(trio.bootstrap, topic, writer.acknowledged)
    log = trio.cluster.node(BROKER).log_path.read_text().splitlines()
    complaints = [line for line in log if f"{topic}-0" in line and "trying again" in line]
    assert len(complaints) < 5, "said once, not at every attempt"


def test_a_leader_on_a_full_disk_refuses_and_no_broker_is_lost(
    on_small_disk: Trio, small_disk: SmallDisk
) -> None:
    trio = on_small_disk
    topic = topic_on(small_disk, trio, (2, 1, 3))
    writer = written(trio, topic, **{"retry.backoff.ms": 100, "retry.backoff.max.ms": 500})
    small_disk.fill()
    writer.send(2_000, size_bytes=1_000)

    def is_refused() -> bool:
        writer.poll()
        return bool(trio.put(topic, acks=-1).error_code == ErrorCode.KAFKA_STORAGE_ERROR)

    until(is_refused, what="the leader has no room", deadline_s=DEADLINE_S)
    small_disk.free()
    writer.flush()
    assert writer.refused == []
    trio.wait_isr(topic, {1, 2, 3})
    values = [value for value in read_all(trio.bootstrap, topic) if value in writer.acknowledged]
    assert values == sorted(values, key=lambda value: int(value.partition(b":")[0]))
    assert len(values) == writer.sent_count


# -- a follower that is ahead ------------------------------------------------------------------


def test_a_follower_ahead_of_an_unclean_leader_gives_up_what_it_has_more(trio: Trio) -> None:
    topic = trio.create(fresh_name(), replicas=(1, 2, 3), config={"min.insync.replicas": "1"})
    kept = written(trio, topic, 100)
    for broker_id in (2, 3):
        trio.cluster.kill(broker_id)
    trio.wait_isr(topic, {1})
    alone = Writer(trio.bootstrap, topic, acks="all")
    alone.send(50)
    alone.flush()
    assert len(alone.acknowledged) == 50, "one in sync was enough: that is what was asked for"
    trio.cluster.kill(1)
    for broker_id in (2, 3):
        trio.cluster.restart(broker_id)
    until(lambda: trio.leader(topic) == -1, what="no leader", deadline_s=DEADLINE_S)
    done(trio, "topics", "elect-leaders", topic, "--election", "unclean", "--yes")
    leader = trio.wait_leader(topic, other_than=1)
    assert trio.said(leader, "UNCLEAN LEADER ELECTION", f"{topic}-0", "ends at 100", "LOST")
    # The new leader's log gets longer than what the old one has more, with other records in it.
    later = Writer(trio.bootstrap, topic, acks="all")
    later.send(80)
    later.flush()
    trio.cluster.restart(1)
    trio.wait_isr(topic, {1, 2, 3})
    trio.wait_equal(topic)
    assert trio.said(1, f"{topic}-0", "cut from 150 back to 100")
    check_read(trio.bootstrap, topic, [*kept.acknowledged, *later.acknowledged])


# -- moves -------------------------------------------------------------------------------------


def test_a_move_to_a_broker_that_does_not_exist_is_refused_and_changes_nothing(
    trio: Trio, tmp_path: Path
) -> None:
    topic = trio.create(fresh_name(), replicas=(1, 2))
    writer = written(trio, topic)
    refused = cli(trio, "topics", "reassign", "execute", f"{topic}:0", "--replicas", "1,9")
    assert refused.status == 1
    assert "9" in refused.complaint
    moves = tmp_path / "moves.json"
    move = {"topic": topic, "partition": 0, "replicas": [1, 9]}
    moves.write_text(json.dumps({"version": 1, "partitions": [move]}))
    refused = cli(trio, "topics", "reassign", "execute", "--from-json", moves)
    assert refused.status == 1
    assert "9" in refused.complaint
    assert done(trio, "topics", "reassign", "list", topic) == "no partition is being moved\n"
    trio.wait_isr(topic, {1, 2})
    writer.send(100)
    writer.flush()
    check_read(trio.bootstrap, topic, writer.acknowledged)


def set_rates(trio: Trio, rate: int | None) -> None:
    for key in ("leader.replication.throttled.rate", "follower.replication.throttled.rate"):
        change = ("--delete", key) if rate is None else ("--set", f"{key}={rate}")
        for broker_id in trio.cluster.broker_ids:
            done(trio, "configs", "alter", "brokers", broker_id, *change)


def test_a_throttle_of_zero_stops_a_move_and_nothing_else(trio: Trio) -> None:
    throttled = {
        "leader.replication.throttled.replicas": "*",
        "follower.replication.throttled.replicas": "*",
    }
    topic = trio.create(fresh_name(), replicas=(1, 2), config=throttled)
    writer = written(trio, topic, 1_000)
    set_rates(trio, 0)
    try:
        done(trio, "topics", "reassign", "execute", f"{topic}:0", "--replicas", "1,3")
        copied = trio.log_directory(topic, 3) / "00000000000000000000.log"
        until(copied.exists, what="the new replica begins", deadline_s=DEADLINE_S)
        # Those in sync are not held up.
        for _ in range(5):
            writer.send(200)
            writer.flush()
        assert writer.refused == []
        assert copied.stat().st_size == 0
        trio.wait_isr(topic, {1, 2})
        assert topic in done(trio, "topics", "reassign", "list", topic)
        assert any(trio.said(each, "=0: ", topic) for each in (1, 2, 3)), "somebody says why"
    finally:
        set_rates(trio, None)
    trio.wait_isr(topic, {1, 3})
    trio.wait_equal(topic, [trio.log_directory(topic, each) for each in (1, 3)])
    check_read(trio.bootstrap, topic, writer.acknowledged)


@pytest.mark.parametrize("rate", ["-1", "fast"])
def test_a_rate_that_is_none_is_refused(trio: Trio, rate: str) -> None:
    change = ("--set", f"leader.replication.throttled.rate={rate}")
    refused = cli(trio, "configs", "alter", "brokers", 1, *change)
    assert refused.status == 1
    assert "leader.replication.throttled.rate" in refused.complaint
