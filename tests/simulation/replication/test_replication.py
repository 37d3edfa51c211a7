"""Whole clusters with data under faults: a time box of seeds, determinism, planted bugs."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from moldau.storage.meta_properties import META_PROPERTIES
from tests.simulation.cluster.runner import Choice
from tests.simulation.replication.run import MIN_MEDIAN_EVENTS, REPLICATION
from tests.simulation.replication.world import ReplicationWorld
from tests.storage.simulated_filesystem import SimulatedFilesystem

TIME_BOX_S = float(os.environ.get("MOLDAU_REPLICATION_SIM_SECONDS", "60"))
FIRST_SEED = int(os.environ.get("MOLDAU_REPLICATION_SIM_FIRST_SEED", "0"))
"""The same seeds every time, as the quorum's gate: `make sim` looks for what nobody has seen."""

TIMEOUT_S = TIME_BOX_S + 240
SEEDS_PER_MUTATION = 30
ENOUGH_SEEDS = 20
MUTATIONS_OF_THE_GATE: dict[str, tuple[str, ...]] = {
    "own-end-is-high-watermark": ("kill_broker",),
    "pending-shrink-counts": ("isolate_broker", "cut_replication"),
    "min-isr-ignored": ("kill_broker",),
    "acknowledged-before-committed": ("kill_broker", "cut_replication"),
    "new-leader-commits-all": ("kill_broker", "cut_replication"),
    "high-watermark-back": ("kill_broker", "cut_replication"),
    "joins-before-caught-up": ("kill_broker", "cut_replication"),
    "lagging-stays-in-sync": ("isolate_broker", "cut_replication"),
    "truncates-to-high-watermark": ("kill_broker", "broker_leaves"),
    "never-truncates": ("isolate_broker", "stop_broker", "cut_replication"),
    "retries-are-appended": ("reset", "cut_replication"),
    "unclean-start-keeps-isr": ("lose_power", "kill_broker"),
    "unclean-start-stays-eligible": ("lose_power", "kill_broker"),
    "every-start-is-clean": ("lose_power",),
    "start-without-a-directory-is-clean": ("remove_directory", "broker_leaves"),
    "missing-log-is-begun-empty": ("remove_directory",),
    "controller-believes-brokers": ("remove_directory_in_the_dark",),
    "unclean-election-takes-the-first-only": ("wipe_disk", "kill_controller"),
    "offline-log-keeps-its-name": ("fail_directory",),
    "answer-overtakes-metadata": ("raise_minimum",),
    "late-copy-is-forgotten": ("unsettle",),
}
"""Each with the faults that bring it to light."""

FIRST_SEEDS = {
    "never-truncates": 2,
    "missing-log-is-begun-empty": 40,
    "unclean-election-takes-the-first-only": 14,
    "offline-log-keeps-its-name": 15,
    "late-copy-is-forgotten": 13,
}
"""From seed 1 on these are found, too, after more events than are worth their time here."""

SEED_OF_LOST_DISKS = "23"
"""Brokers get empty disks so soon one after the other that no replica of `main` is left."""

SEED_OF_A_RESCUE_WITHOUT_A_DIRECTORY = "7"
"""A leader gets an empty disk while no other replica is in sync, and a directory of a broker
without a replica of the partition is out to the end.
"""

WITH_BROKERS_OF_KAFKA = "controller-believes-brokers"


@pytest.fixture(autouse=True)
def quiet_logs():
    """What the simulated nodes log is of no interest; a failure brings its own history."""
    logger = logging.getLogger("moldau")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    yield
    logger.setLevel(level)


@pytest.mark.timeout(TIMEOUT_S)
def test_no_seed_of_the_time_box_breaks_a_promise():
    print(f"seeds from {FIRST_SEED} on")
    total, failed = REPLICATION.run_seeds(FIRST_SEED, seconds=TIME_BOX_S)
    print(total)
    assert failed is None, REPLICATION.describe_failure(failed)
    events = sorted(total.events)
    assert events[len(events) // 2] >= MIN_MEDIAN_EVENTS
    assert total.counts["acknowledged"] > 0
    assert total.counts["consumed"] > 0
    if len(events) < ENOUGH_SEEDS:
        return  # a busy machine: too few to expect everything of
    assert sum(total.faults.values()) > len(events)
    for what in ("leader_starts", "isr_joins", "truncations", "topics_recreated", "late_requests"):
        assert total.counts[what] > 0, f"no {what} from seed {FIRST_SEED} on: {total}"


@pytest.mark.timeout(TIMEOUT_S)
def test_a_seed_gives_the_same_run_whatever_the_hash_seed():
    here = REPLICATION.run_seed("7").digest
    for hash_seed in ("0", "1234"):
        printed = subprocess.run(
            [sys.executable, "-m", "tests.simulation.replication.run", "--seed", "7"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        assert here in printed
    assert REPLICATION.run_seed("8").digest != here


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("mutation", MUTATIONS_OF_THE_GATE)
def test_a_bug_put_in_is_found(mutation):
    choice = Choice(1, MUTATIONS_OF_THE_GATE[mutation], mutation)
    first = FIRST_SEEDS.get(mutation, 1)
    _total, failed = REPLICATION.run_seeds(first, choice, seeds=SEEDS_PER_MUTATION)
    assert failed is not None, f"{SEEDS_PER_MUTATION} seeds from {first} on find no {mutation}"
    print(f"{mutation}: seed {failed.seed}, {failed.failure}")
    assert failed.failure is not None
    assert failed.failure.startswith("Violation"), "a check finds it, not an exception in the bug"
    # Without the bug the same seed is a good one.
    without = "brokers-of-kafka" if mutation == WITH_BROKERS_OF_KAFKA else ""
    assert REPLICATION.run_seed(failed.seed, replace(choice, mutation=without)).failure is None


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
    choice = Choice(1, ("kill_broker",), "own-end-is-high-watermark")
    _total, failed = REPLICATION.run_seeds(1, choice, seeds=SEEDS_PER_MUTATION)
    assert failed is not None
    command = REPLICATION.replay_command(failed.seed, choice)
    assert command in REPLICATION.describe_failure(failed, choice)
    replayed = subprocess.run(
        [sys.executable, *command.split()[1:], "--quiet"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert replayed.returncode == 1
    assert f"seed {failed.seed}: {failed.failure}" in replayed.stdout


def test_there_are_enough_bugs_to_put_in():
    assert len(MUTATIONS_OF_THE_GATE) >= 10
