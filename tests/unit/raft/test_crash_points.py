"""The metadata log at every crash point: format, start, appends, snapshots with trimming, stop,
start again.

After each kill and each power loss the next start succeeds, delivers every record that was
delivered before, in order, nothing out of order after it, and leads in a higher epoch than any
before.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from moldau.raft import QuorumLog
from tests.storage.simulated_disk import DirectoryNode, DiskImage
from tests.storage.simulated_filesystem import Operation, SimulatedFilesystem

from .fixtures import Listener, append, format_directory, open_log, snapshot_of

SEED = 20_261_121


@dataclass
class History:
    """What the outside has seen, and what it may see later."""

    appended: list[str] = field(default_factory=list)
    delivered_count: int = 0
    epoch: int = 0


@dataclass
class CrashPoint:
    """A disk at one instant, with what was true then."""

    operation: str
    image: DiskImage
    appended: tuple[str, ...]
    delivered_count: int
    epoch: int


async def settled(log: QuorumLog, listener: Listener) -> None:
    while listener.next_offset < log.log_end_offset:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def workload(filesystem: SimulatedFilesystem, history: History) -> None:
    """Two runs with snapshots that trim; the first may be a recovery."""
    for _run in range(2):
        log = await open_log(filesystem, retention_bytes=2_000)
        history.epoch = log.state.leader_epoch
        listener = Listener()
        log.add_listener(listener)
        await settled(log, listener)
        for _round in range(3):
            for _ in range(6):
                names = [f"t{len(history.appended) + index}" for index in range(2)]
                history.appended += names
                append(log, *names)
            await settled(log, listener)
            history.delivered_count = len(listener.names)
            await snapshot_of(log, listener)
        history.appended.append(f"t{len(history.appended)}")
        append(log, history.appended[-1])
        await log.close()
        history.delivered_count = len(listener.names)


def crash_points() -> list[CrashPoint]:
    """Every instant just before an operation on the disk."""
    filesystem = SimulatedFilesystem()
    format_directory(filesystem)
    history = History()
    points: list[CrashPoint] = []

    def observe(operation: Operation, image: DiskImage) -> None:
        points.append(
            CrashPoint(
                str(operation),
                image,
                tuple(history.appended),
                history.delivered_count,
                history.epoch,
            )
        )

    filesystem.observer = observe
    asyncio.run(workload(filesystem, history))
    assert len(points) > 150
    return points


async def check(root: DirectoryNode, point: CrashPoint, where: str) -> None:
    """Start on what is left."""
    filesystem = SimulatedFilesystem(root)
    log = await open_log(filesystem)
    assert log.state.leader_epoch > point.epoch, where
    listener = Listener()
    log.add_listener(listener)
    await settled(log, listener)
    found = list(listener.names)
    assert found == list(point.appended[: len(found)]), where
    assert len(found) >= point.delivered_count, where
    append(log, "after")
    await settled(log, listener)
    await log.close()
    again = await open_log(filesystem)
    second = Listener()
    again.add_listener(second)
    await settled(again, second)
    assert second.names == [*found, "after"], where
    await again.close()


def test_every_crash_point() -> None:
    print(f"seed {SEED}")  # pytest shows it with a failure
    dice = random.Random(SEED)
    points = crash_points()
    survivors: set[int] = set()
    for number, point in enumerate(points):
        where = f"seed {SEED}: before operation {number}: {point.operation}"
        asyncio.run(check(point.image.after_kill(), point, f"kill {where}"))
        torn = point.image.after_kill_mid_write(dice)
        if torn is not None:
            asyncio.run(check(torn, point, f"kill in the middle {where}"))
        for _ in range(6):
            asyncio.run(check(point.image.after_power_loss(dice), point, f"power loss {where}"))
        survivors.add(point.delivered_count)
    assert len(survivors) > 5, "crashes happened at many stages"


def test_every_crash_point_of_formatting() -> None:
    images: list[tuple[str, DiskImage]] = []
    filesystem = SimulatedFilesystem()
    filesystem.observer = lambda operation, image: images.append((str(operation), image))
    format_directory(filesystem)
    assert len(images) > 10
    dice = random.Random(SEED)
    for operation, image in images:
        for root in (image.after_kill(), image.after_power_loss(dice)):
            again = SimulatedFilesystem(root)
            format_directory(again)
            point = CrashPoint(operation, image, (), 0, 0)
            asyncio.run(check(again.root, point, f"seed {SEED}: formatting: {operation}"))
