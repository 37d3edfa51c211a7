"""A replica of three at every crash point: votes, follower appends, a cut, a snapshot installed.

After each kill and each power loss the replica's next start succeeds; it still has every committed
record that its leader had counted on it, nothing that contradicts what was committed below, its
epoch is not below any it spoke in, and no vote that it gave is forgotten.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from moldau.protocol.metadata_records import TopicRecord
from moldau.raft.core.values import ElectionState, ReplicaKey
from moldau.raft.core.voters import VoterSet
from moldau.raft.log_files import open_log_files
from moldau.raft.quorum_log import QuorumLog
from moldau.storage.log_config import LogConfig
from tests.kit.manual_clock import ManualClock
from tests.storage.simulated_disk import DirectoryNode, DiskImage
from tests.storage.simulated_filesystem import Operation, SimulatedFilesystem

from .fixtures import DIRECTORY, open_log, snapshot_of
from .quorums import Node, Quorum

SEED = 20_261_122


@dataclass
class CrashPoint:
    """The replica's disk at one instant, and what it had promised by then."""

    operation: str
    image: DiskImage
    counted: tuple[str, ...]
    """Committed topics that the leader had counted on this replica, or that it had delivered."""
    leader_epoch: int
    votes: dict[int, ReplicaKey]


class Watch:
    """Takes an image of the victim's disk before every operation."""

    def __init__(self, quorum: Quorum, victim: Node) -> None:
        self.quorum = quorum
        self.victim = victim
        self.points: list[CrashPoint] = []
        self.phases: list[int] = []
        victim.filesystem.observer = self._observe

    def _observe(self, operation: Operation, image: DiskImage) -> None:
        victim = self.victim
        counted = list(victim.listener.names)
        for node in self.quorum.leaders():
            if node is victim:
                continue
            log = node.running
            status = log.status()
            for progress in status.voters:
                if progress.replica.node_id == victim.node_id:
                    held = names_below(node, min(progress.log_end_offset, log.high_watermark))
                    counted = max(counted, held, key=len)
        epochs = [
            request.leader_epoch
            for asking, _target, request in self.quorum.network.requests
            if asking == victim.node_id and hasattr(request, "leader_epoch")
        ]
        votes = {
            epoch: candidate
            for voter_id, epoch, candidate in self.quorum.network.votes
            if voter_id == victim.node_id
        }
        self.points.append(
            CrashPoint(str(operation), image, tuple(counted), max(epochs, default=0), votes)
        )

    def phase(self) -> None:
        self.phases.append(len(self.points))


def names_below(node: Node, end_offset: int) -> list[str]:
    """The topics that the node has heard of and that lie below `end_offset`."""
    snapshots = node.listener.snapshots
    names = [
        record.name
        for record in (snapshots[-1].records if snapshots else ())
        if isinstance(record, TopicRecord)
    ]
    for batch in node.listener.batches:
        is_after = not snapshots or batch.base_offset >= snapshots[-1].end_offset
        if is_after and batch.last_offset < end_offset:
            names += [each.name for each in batch.records if isinstance(each, TopicRecord)]
    return names


async def workload() -> tuple[list[CrashPoint], list[str]]:
    """The crash points of one replica's life, and everything that was committed."""
    quorum = Quorum(1, 2, 3, seed=3, retention_bytes=1, fetch_snapshot_max_bytes=700)
    for node in quorum.nodes.values():
        node.format(quorum.voters)
    victim = quorum.nodes[2]
    watch = Watch(quorum, victim)
    names: list[str] = []

    async def append(count: int) -> None:
        leader = await quorum.leader()
        for _ in range(count):
            names.append(f"t{len(names)}")
            leader.append(names[-1])
        await quorum.converged(*names)

    for node in quorum.nodes.values():
        await node.start()
    await append(8)  # as a follower or as a leader
    watch.phase()
    while not victim.running.is_leader:
        leader = await quorum.leader()
        await leader.running.resign(ReplicaKey(victim.node_id, victim.directory_id))
        await quorum.pass_ms(3_000)
    await append(3)
    await snapshot_of(victim.running, victim.listener)
    watch.phase()
    quorum.network.isolate(victim.node_id)
    for index in range(4):
        victim.append(f"lost{index}")
    successor = await quorum.leader(other_than=victim)
    for _ in range(3):
        names.append(f"t{len(names)}")
        successor.append(names[-1])
    quorum.network.heal()
    await quorum.converged(*names)  # the victim's log was cut
    watch.phase()
    await victim.stop()
    await append(30)
    for node in quorum.nodes.values():
        if node is not victim:
            await snapshot_of(node.running, node.listener)
    await append(5)
    await victim.start()
    await quorum.converged(*names)  # by a snapshot
    assert victim.listener.snapshots
    watch.phase()
    await append(4)
    await victim.stop()
    await victim.start()
    await append(2)
    watch.phase()
    victim.filesystem.observer = None
    await quorum.__aexit__()
    print(f"operations up to each phase: {watch.phases}")
    assert len(watch.phases) == len(set(watch.phases)), "every phase changed the disk"
    return watch.points, names


def content(root: DirectoryNode) -> tuple[list[str], ElectionState]:
    """What the next start finds; the start itself succeeds."""
    files = open_log_files(
        SimulatedFilesystem(root),
        ManualClock(),
        DIRECTORY,
        LogConfig(segment_bytes=8 * 1024 * 1024, segment_index_bytes=4096, retention_ms=-1),
        VoterSet(),
    )
    records = list(files.cached_snapshot.records) if files.cached_snapshot is not None else []
    start = files.snapshots[-1].end_offset if files.snapshots else 0
    for batch in files.read(max(start, files.log.log_start_offset), files.log.log_end_offset):
        records += batch.records
    files.log.abandon()
    return [each.name for each in records if isinstance(each, TopicRecord)], files.quorum_state


def check(root: DirectoryNode, point: CrashPoint, committed: list[str], where: str) -> None:
    names, state = content(root)
    counted = len(point.counted)
    assert list(point.counted) == committed[:counted], where
    assert names[:counted] == committed[:counted], where
    kept = [name for name in names if not name.startswith("lost")]
    assert kept == committed[: len(kept)], where
    assert state.leader_epoch >= point.leader_epoch, where
    for epoch, candidate in point.votes.items():
        assert state.leader_epoch >= epoch, where
        if state.leader_epoch == epoch:
            voted = state.voted
            assert state.leader_id >= 0 or (voted is not None and voted == candidate), where


def test_every_crash_point_of_a_replica() -> None:
    print(f"seed {SEED}")  # pytest shows it with a failure
    dice = random.Random(SEED)
    points, committed = asyncio.run(workload())
    assert len(points) > 250
    assert any("snapshot-install" in point.operation for point in points)
    assert any(point.operation.startswith("truncate") for point in points)
    assert max(len(point.votes) for point in points) > 0
    for number, point in enumerate(points):
        where = f"seed {SEED}: before operation {number}: {point.operation}"
        check(point.image.after_kill(), point, committed, f"kill {where}")
        torn = point.image.after_kill_mid_write(dice)
        if torn is not None:
            check(torn, point, committed, f"kill in the middle {where}")
        for _ in range(3):
            root = point.image.after_power_loss(dice)
            check(root, point, committed, f"power loss {where}")
            # What a start repairs is as good after the next crash.
            again = SimulatedFilesystem(root).image().after_power_loss(dice)
            check(again, point, committed, f"power loss twice {where}")


async def test_an_install_cut_short_is_finished_by_a_real_start() -> None:
    points, committed = await workload()
    renames = [n for n, each in enumerate(points) if each.operation.startswith("rename")]
    begin = max(n for n in renames if ".checkpoint.part" in points[n].operation)
    end = max(
        n
        for n, each in enumerate(points)
        if each.operation.startswith("unlink") and "snapshot-install" in each.operation
    )
    during = points[begin + 1 : end + 2]
    assert len(during) > 10
    for point in during:
        filesystem = SimulatedFilesystem(point.image.after_kill())
        log: QuorumLog = await open_log(filesystem, local=ReplicaKey(2), retention_bytes=1)
        assert log.log_end_offset >= 30
        assert not filesystem.exists(f"{DIRECTORY}/__cluster_metadata-0/snapshot-install")
        assert len(committed) > 40
        await log.close()
