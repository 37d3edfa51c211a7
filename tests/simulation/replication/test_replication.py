"""Whole clusters with data under faults: seeds, determinism, injected bugs."""

from __future__ import annotations

import pytest

from moldau.storage.meta_properties import META_PROPERTIES
from tests.kit.gates import (
    bugs_of_the_gate,
    check_bug,
    check_determinism,
    check_replay,
    check_seeds,
    check_undone,
)
from tests.kit.injected_bugs import InjectedBug
from tests.kit.seeds import Choice
from tests.simulation.replication.run import REPLICATION
from tests.simulation.replication.world import ReplicationWorld
from tests.storage.simulated_filesystem import SimulatedFilesystem

SEEDS = (2, 4, 11, 13, 18, 20)
"""The same ones every time; `make long` has new ones."""

TIMEOUT_S = 240

EXPECTED = (
    "acknowledged",
    "consumed",
    "leader_starts",
    "isr_joins",
    "truncations",
    "topics_recreated",
    "late_requests",
)
"""Each comes about in some of the seeds."""

SEED_OF_LOST_DISKS = "23"
"""Brokers get empty disks so soon one after the other that no replica of `main` is left."""

SEED_OF_A_RESCUE_WITHOUT_A_DIRECTORY = "2097"
"""A leader gets an empty disk while no other replica is in sync, and a directory of a broker
without a replica of the partition is out to the end.
"""


@pytest.mark.timeout(TIMEOUT_S)
def test_no_seed_breaks_a_promise():
    total = check_seeds(REPLICATION, SEEDS)
    assert total.faults.total() > len(SEEDS)
    assert [what for what in EXPECTED if not total.counts[what]] == []


@pytest.mark.real
@pytest.mark.timeout(TIMEOUT_S)
def test_a_seed_gives_the_same_run_whatever_the_hash_seed():
    check_determinism(REPLICATION, "7", "8")


@pytest.mark.real
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("bug", bugs_of_the_gate(REPLICATION))
def test_an_injected_bug_is_found(bug: InjectedBug):
    check_bug(REPLICATION, bug, by_a_check=True)


@pytest.mark.timeout(TIMEOUT_S)
def test_an_injected_bug_leaves_the_nodes_as_they_were():
    check_undone(REPLICATION, "1")


@pytest.mark.timeout(TIMEOUT_S)
def test_a_partition_that_lost_all_its_disks_begins_again():
    """No election helps it, for no replica lies in a directory that exists."""
    outcome = REPLICATION.run_seed(SEED_OF_LOST_DISKS, Choice(1, ("wipe_disk", "kill_controller")))
    assert outcome.failure is None
    assert outcome.counts["directories_made"] > 0
    assert outcome.counts["lawful_losses"] > 0


@pytest.mark.timeout(TIMEOUT_S)
def test_a_partition_is_rescued_while_another_log_directory_is_out():
    """The directory that is out has nothing of it: no broker can make it go on."""
    outcome = REPLICATION.run_seed(
        SEED_OF_A_RESCUE_WITHOUT_A_DIRECTORY, Choice(1, ("fail_directory", "wipe_disk"))
    )
    assert outcome.failure is None
    assert outcome.counts["rescues_without_a_directory"] > 0


def test_brokers_and_controllers_have_the_same_session():
    """Otherwise a leader that was replaced for its silence takes itself for confirmed, and sends a
    consumer that an offset of its successor's is out of range, as seed 803831569 did (ADR 15).
    """
    world = ReplicationWorld("803831569")
    session_ms = int(world.controller_overrides["broker.session.timeout.ms"])
    for broker in world.brokers:
        assert broker.config.get_int("broker.session.timeout.ms") == session_ms
    world.loop.dispose()


def test_a_wiped_broker_has_all_log_directories_again():
    world = ReplicationWorld("6")
    broker = world.brokers[0]
    assert len(broker.directories.spare) > 1
    broker.directories.unplug(broker.directories.spare[0])
    broker.format_again()
    broker.wipe()
    filesystem = SimulatedFilesystem(broker.root)
    for path in world.log_directories:
        assert filesystem.exists(f"{path}/{META_PROPERTIES}")
    world.loop.dispose()


@pytest.mark.timeout(TIMEOUT_S)
def test_a_failing_seed_replays_by_the_command_it_names():
    check_replay(REPLICATION, Choice(1, ("kill_broker",), "own-end-is-high-watermark"))


def test_there_are_enough_bugs_to_inject():
    assert len(bugs_of_the_gate(REPLICATION)) >= 10
