"""A vote whose file was renamed, in a directory that was not synced when the process was killed."""

from __future__ import annotations

import random
from uuid import UUID

import pytest

from moldau.raft.core.values import ElectionState, ReplicaKey
from moldau.raft.core.voters import VoterDescription, VoterEndpoint, VoterSet
from moldau.raft.state_files import read_quorum_state, write_quorum_state
from tests.storage.simulated_filesystem import SimulatedCrash, SimulatedFilesystem

from .fixtures import DIRECTORY_ID, ENDPOINT, LOG_DIRECTORY, format_directory, open_log

CANDIDATE = ReplicaKey(2, UUID(int=2))
VOTE = ElectionState(leader_epoch=7, voted=CANDIDATE)
VOTERS = VoterSet(
    (
        VoterDescription(1, DIRECTORY_ID, (ENDPOINT,)),
        VoterDescription(2, CANDIDATE.directory_id, (VoterEndpoint("CONTROLLER", "host2", 9093),)),
        VoterDescription(3, UUID(int=3), (VoterEndpoint("CONTROLLER", "host3", 9093),)),
    ),
    1,
)
SEEDS = 30


async def killed_before_the_directory_was_synced() -> SimulatedFilesystem:
    filesystem = SimulatedFilesystem()
    format_directory(filesystem, VOTERS)
    await (await open_log(filesystem)).close()
    before = filesystem.operation_count
    write_quorum_state(filesystem, LOG_DIRECTORY, ElectionState(leader_epoch=6))
    steps = [str(step) for step in filesystem.operations[before:]]
    (sync_number,) = (number for number, step in enumerate(steps) if "directory" in step)
    filesystem.crash_at = filesystem.operation_count + sync_number
    with pytest.raises(SimulatedCrash):
        write_quorum_state(filesystem, LOG_DIRECTORY, VOTE)
    assert filesystem.crash_image is not None
    return SimulatedFilesystem(filesystem.crash_image.after_kill())


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_what_a_restarted_replica_acts_upon_outlives_the_power(seed: int) -> None:
    restarted = await killed_before_the_directory_was_synced()
    assert read_quorum_state(restarted, LOG_DIRECTORY) == VOTE
    log = await open_log(restarted)
    # It knows its vote, and gives it again to whom it had given it, without writing it once more.
    survivor = SimulatedFilesystem(restarted.image().after_power_loss(random.Random(seed)))
    assert read_quorum_state(survivor, LOG_DIRECTORY) == VOTE, f"seed {seed}"
    await log.close()
