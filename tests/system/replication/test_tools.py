"""What breaks things breaks them, and mends them: the tools of this package by themselves."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from moldau.local.layout import ClusterLayout, PortHolder
from tests.interop.topics import TopicMaker
from tests.kit.waiting import until
from tests.system.processes import Writer, read_all
from tests.system.replication import nemesis as nemesis_module
from tests.system.replication.chaos_cluster import BROKER_IDS, CONTROLLER_IDS
from tests.system.replication.directory_faults import partitions_in
from tests.system.replication.disk_damage import lose_everything, lose_unflushed
from tests.system.replication.disk_mood import MOOD_VARIABLE, DiskMood
from tests.system.replication.nemesis import (
    BROKER_FAULTS,
    CONTROLLER_FAULTS,
    Nemesis,
    broker_plan,
    controller_plan,
)
from tests.system.replication.replica_logs import differences

ENOUGH = 400


def test_a_seed_is_a_schedule_and_another_seed_another():
    def first(seed: int) -> list[object]:
        return [
            *itertools.islice(broker_plan(seed, list(BROKER_IDS)), ENOUGH),
            *itertools.islice(controller_plan(seed, list(CONTROLLER_IDS)), ENOUGH),
        ]

    assert first(1) == first(1)
    assert first(1) != first(2)


def test_every_fault_comes_and_never_two_brokers_at_a_time():
    brokers = list(itertools.islice(broker_plan(7, list(BROKER_IDS)), ENOUGH))
    controllers = list(itertools.islice(controller_plan(7, list(CONTROLLER_IDS)), ENOUGH))
    assert {step.fault for step in brokers} == set(BROKER_FAULTS)
    assert {step.fault for step in controllers} == set(CONTROLLER_FAULTS)
    for before, step in itertools.pairwise(brokers):
        assert step.victim != step.peer
        # A broker that has not caught up yet is still the one that is bad.
        assert before.settles or step.victim == before.victim


class Unbreakable:
    """A cluster whose nodes cannot be killed."""

    broker_ids = BROKER_IDS
    controller_ids = CONTROLLER_IDS

    def kill(self, node_id: int) -> None:
        raise RuntimeError(f"{node_id} cannot be killed")


def test_a_lane_that_ends_before_its_time_is_a_complaint():
    cluster: Any = Unbreakable()
    nemesis = Nemesis(
        cluster, 1, "topic", missing=lambda _: [], say=print, only=frozenset({"kill"})
    )
    nemesis.start()
    until(lambda: nemesis.complaints, what="a complaint")
    nemesis.finish()
    assert "cannot be killed" in nemesis.complaints[0]


class Disks:
    """A cluster of which only the disks matter, and how many of them are full at a time."""

    broker_ids = BROKER_IDS
    controller_ids = CONTROLLER_IDS

    def __init__(self) -> None:
        self.disks = dict.fromkeys((*BROKER_IDS, *CONTROLLER_IDS), self)
        self.full_count = self.most = 0

    def fill(self) -> None:
        self.full_count += 1
        self.most = max(self.most, self.full_count)

    def free(self) -> None:
        self.full_count -= 1

    def active_controller(self, asked: int) -> tuple[int, int]:
        return CONTROLLER_IDS[0], 1

    def is_running(self, node_id: int) -> bool:
        return True

    def exit_status(self, node_id: int) -> None:
        return None


def test_one_disk_of_all_is_full_at_a_time(monkeypatch: pytest.MonkeyPatch):
    names = ("disk-full", "controller-disk-full")
    for name, faults in zip(names, (BROKER_FAULTS, CONTROLLER_FAULTS), strict=True):
        monkeypatch.setitem(faults, name, (1000, 0.0, 0.01))
    monkeypatch.setattr(nemesis_module, "BROKER_PAUSE_S", (0.0, 0.01))
    monkeypatch.setattr(nemesis_module, "CONTROLLER_PAUSE_S", (0.0, 0.01))
    cluster: Any = Disks()
    nemesis = Nemesis(
        cluster, 1, "topic", missing=lambda _: [], say=lambda _: None, only=frozenset(names)
    )
    nemesis.start()
    until(lambda: all(nemesis.faults[each] > 20 for each in names), what="faults of both lanes")
    nemesis.finish()
    assert (cluster.most, cluster.full_count) == (1, 0)
    assert nemesis.complaints == []


@pytest.mark.parametrize("mood", [DiskMood(stalls_writes=True), DiskMood(stalls_flushes=True)])
def test_a_node_on_a_disk_that_stalls_goes_on_when_it_does(tmp_path: Path, mood: DiskMood):
    ports = PortHolder("127.0.0.1")
    layout = ClusterLayout.plan(
        tmp_path,
        controllers=1,
        brokers=1,
        host="127.0.0.1",
        broker_port=lambda: ports.take()[0],
        controller_port=lambda: ports.take()[0],
        combined=True,
        config={"log.flush.interval.messages": "1"},
    )
    layout.write_configs()
    layout.format()
    [node] = layout.nodes
    moods = tmp_path / "disk.json"
    command = [sys.executable, "-m", "tests.system.replication.slow_node", str(node.config_path)]
    with (
        (tmp_path / "node.log").open("ab") as log,
        subprocess.Popen(
            [*command, "--announce"],
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, MOOD_VARIABLE: str(moods)},
        ) as process,
    ):
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(b"ready: ")
            topic = TopicMaker(layout.bootstrap_server).create()
            writer = Writer(layout.bootstrap_server, topic)
            writer.send(10)
            writer.flush()
            mood.write(moods)
            # The node looks now and then: sooner or later nothing is acknowledged any more.
            until(lambda: _is_stuck(writer), what="the disk stalls")
            DiskMood().write(moods)
            writer.flush()
            assert writer.refused == []
            assert len(read_all(layout.bootstrap_server, topic)) == writer.sent_count
        finally:
            process.terminate()
    assert process.returncode == 0
    ports.close()


def _is_stuck(writer: Writer) -> bool:
    writer.send(1)
    unanswered = writer.sent_count - len(writer.acknowledged)
    writer.poll()
    return unanswered > 30


def test_replicas_that_differ_are_reported(tmp_path: Path):
    def batch(base_offset: int, body: bytes) -> bytes:
        return base_offset.to_bytes(8, "big") + len(body).to_bytes(4, "big") + body

    one, other, shorter = (tmp_path / name for name in ("one", "other", "shorter"))
    for directory in (one, other, shorter):
        directory.mkdir()
    first, second, third = batch(0, b"a"), batch(3, b"bb"), batch(5, b"c")
    (one / "00.log").write_bytes(first + second + third)
    (other / "00.log").write_bytes(first)
    (other / "03.log").write_bytes(second + third)
    (shorter / "00.log").write_bytes(first + second)
    assert differences([one, other]) == []
    assert len(differences([one, shorter])) == 1
    (other / "03.log").write_bytes(batch(3, b"bx") + third)
    assert differences([one, other]) == [f"{other} has another batch at 3"]


def test_the_partitions_of_a_log_directory(tmp_path: Path):
    for name in ("a-b-0", "a.b-11", "__cluster_metadata-0", f"a-0.{'0' * 32}-stray", "lost+found"):
        (tmp_path / name).mkdir()
    (tmp_path / "c-0").write_text("no directory")
    assert partitions_in(tmp_path) == {"a-b-0", "a.b-11"}


def test_what_was_flushed_survives_a_power_failure(tmp_path: Path):
    def batch(base_offset: int) -> bytes:
        return base_offset.to_bytes(8, "big") + (20).to_bytes(4, "big") + bytes(20)

    directory = tmp_path / "t-0"
    directory.mkdir()
    flushed, unflushed = batch(0) + batch(4), batch(7) + batch(9)
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n1\nt 0 7\n")
    sizes = set()
    for seed in range(ENOUGH):
        (directory / "0.log").write_bytes(flushed + unflushed)
        (directory / "9.log").write_bytes(batch(12))
        lost_bytes = lose_unflushed(tmp_path, "t", random.Random(seed))
        left = (directory / "0.log").read_bytes()
        assert left.startswith(flushed)
        both = len(left) + (directory / "9.log").stat().st_size
        assert lost_bytes == len(flushed + unflushed) + len(batch(12)) - both
        sizes.add(both)
    assert len(sizes) > 50, "anything behind it can be gone"
    lose_everything(tmp_path, "t")
    assert not directory.exists()
