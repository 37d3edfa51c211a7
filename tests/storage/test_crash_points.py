"""Every crash point between two file operations (issue 2, "What it must show", 4).

Each workload runs once; before each of its operations the disk is copied. From every copy the node
boots as after `kill -9` between the operations, after `kill -9` inside the next write, and after a
power loss (seeded choices of what survived), and the recovered log is checked against the model.
"""

from __future__ import annotations

import random as random_module

import pytest

from moldau.protocol.records import ControlRecordType
from tests.kit.dice import drawn_seed
from tests.storage.crash_workloads import Rebooter, Workload, run_workload

POWER_LOSSES_PER_POINT = 5
ABORT, COMMIT = ControlRecordType.ABORT, ControlRecordType.COMMIT


async def appends_and_flushes(workload: Workload) -> None:
    """Append by several producers, roll, flush, checkpoint, change the leader epoch."""
    await workload.start()
    for number in range(24):
        workload.append(1 + number % 3, producer_id=number % 3 - 1)
        if number % 5 == 4:
            await workload.flush()
        if number % 7 == 6:
            await workload.checkpoint()
        if number == 12:
            workload.leader_epoch = 2
        if number == 18:
            workload.log.roll()
        await workload.settle()


async def transactions(workload: Workload) -> None:
    """Transactions that commit, abort, stay open, across rolls and producer snapshots."""
    await workload.start()
    for number in range(7):
        workload.append(2, producer_id=5, transactional=True)
        workload.append(1)
        workload.append(2, producer_id=6, transactional=True)
        workload.end_transaction(5, ABORT if number % 2 else COMMIT)
        if number % 3 == 2:
            workload.end_transaction(6, ABORT)
            await workload.flush()
            await workload.checkpoint()
        if number == 3:
            workload.producer_epochs[5] = 1
            workload.sequences[5] = 0


async def retention_and_delete_records(workload: Workload) -> None:
    """Whole segments go by size, records by delete_records, files after the delay."""
    await workload.start()
    for number in range(30):
        workload.append(2, producer_id=number % 2)
        if number in (10, 21):
            workload.delete_records(workload.log.log_end_offset - 5)
            await workload.checkpoint()
        if number in (15, 27):
            workload.retain(2500)
        if number % 6 == 5:
            await workload.flush()
            await workload.checkpoint()
        if number % 9 == 8:
            await workload.pass_time(600)
    workload.delete_records(workload.log.log_end_offset)
    await workload.checkpoint()
    workload.append(1, producer_id=0)
    await workload.pass_time(600)


async def truncations(workload: Workload) -> None:
    """A follower that was leader: cuts below and above the recovery point, then new records."""
    await workload.start()
    for number in range(26):
        workload.append(2, producer_id=number % 2)
        if number in (8, 17):
            await workload.flush()
            await workload.checkpoint()
        if number in (6, 11, 20):
            end = workload.log.log_end_offset
            workload.truncate(end - (3, 7, 15)[(6, 11, 20).index(number)])
            await workload.settle()
        if number == 23:
            await workload.flush()


async def stops_and_starts(workload: Workload) -> None:
    """Clean shutdowns and starts between appends, the last start after retention."""
    for number in range(3):
        await workload.start()
        for _ in range(6):
            workload.append(2, producer_id=number)
        if number == 1:
            workload.retain(1500)
        await workload.stop()


WORKLOADS = [
    appends_and_flushes,
    transactions,
    retention_and_delete_records,
    truncations,
    stops_and_starts,
]


@pytest.mark.parametrize("steps", WORKLOADS, ids=lambda steps: steps.__name__)
def test_every_crash_point_recovers(steps: object) -> None:
    seed = drawn_seed(20240229)
    workload = run_workload(steps, seed)  # type: ignore[arg-type]
    assert len(workload.points) > 100
    with Rebooter() as rebooter:
        for point in workload.points:
            random = random_module.Random(seed * 7919 + point.number)
            rebooter.check_point(point, random, seed, POWER_LOSSES_PER_POINT)


@pytest.mark.parametrize("steps", WORKLOADS, ids=lambda steps: steps.__name__)
def test_crash_during_recovery(steps: object) -> None:
    """Power fails, and again at each operation of the recovery that follows."""
    seed = drawn_seed(31)
    random = random_module.Random(seed)
    workload = run_workload(steps, seed)  # type: ignore[arg-type]
    with Rebooter() as rebooter:
        for point in random.sample(workload.points, 8):
            root = point.image.after_power_loss(random)
            rebooter.check_starts(point, root, random, seed, power_loss=True)
