"""The active controller's disk is full: another controller leads, and fences silent brokers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.testing import Cluster
from tests.kit.waiting import until
from tests.system.conftest import SmallDisk
from tests.system.processes import run_cli
from tests.system.replication.three_brokers import QUICK, Trio

pytestmark = pytest.mark.timeout(300)

FULL = 101
MAX_FILLERS = 100
"""The records of a topic take more than a hundredth of the page."""
DEADLINE_S = 60.0


@pytest.fixture
def on_small_disk(small_disk: SmallDisk, tmp_path: Path) -> Iterator[Trio]:
    """Three brokers and three controllers; controller 101 has the small disk, and is active."""
    with Cluster(brokers=3, controllers=3, config=QUICK, directory=tmp_path / "cluster") as cluster:
        assert cluster.stop(FULL) == 0
        data = cluster.data_directory(FULL)
        shutil.move(data, small_disk.path / "data")
        data.symlink_to(small_disk.path / "data")
        cluster.restart(FULL)
        make_active(cluster, FULL)
        yield Trio(cluster)


def make_active(cluster: Cluster, controller_id: int) -> None:
    def is_active() -> bool:
        controllers = ("--bootstrap-controller", cluster.bootstrap_controllers)
        run_cli("quorum", "transfer-leader", controller_id, *controllers)
        return cluster.active_controller_id() == controller_id

    until(is_active, what=f"controller {controller_id} is active", deadline_s=DEADLINE_S)


def hand_over(trio: Trio) -> None:
    """Create topics until one of them finds no room: in the last page of a file some fit."""
    for number in range(MAX_FILLERS):
        trio.create(f"filler-{number}")
        if trio.cluster.active_controller_id() != FULL:
            return
    raise AssertionError(f"{MAX_FILLERS} topics found room on a full disk")


def lines_of(trio: Trio, words: str) -> int:
    log = trio.cluster.node(FULL).log_path.read_text().splitlines()
    return sum(words in line for line in log)


def test_a_full_disk_at_the_active_controller_leaves_the_cluster_led(
    on_small_disk: Trio, small_disk: SmallDisk
) -> None:
    trio, cluster = on_small_disk, on_small_disk.cluster
    topic = trio.create("before")
    small_disk.fill()
    hand_over(trio)
    cluster.kill(1)
    leader = trio.wait_leader(topic, other_than=1)
    trio.wait_isr(topic, {2, 3})
    trio.create("during", replicas=(leader, 5 - leader))
    assert cluster.active_controller_id() != FULL
    assert cluster.node(FULL).running, "it votes, and stands again when there is room"
    assert lines_of(trio, "no room for the metadata log") == 1
    assert lines_of(trio, "fencing broker") == 0
    small_disk.free()
    said = "there is room again for the metadata log"
    until(lambda: lines_of(trio, said) == 1, what=said, deadline_s=DEADLINE_S)
    make_active(cluster, FULL)
    cluster.restart(1)
    trio.wait_isr(topic, {1, 2, 3})
    trio.create("after")
