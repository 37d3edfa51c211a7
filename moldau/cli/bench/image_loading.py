"""A separate process that opens a copy of a metadata log, builds the image and prints the cost:
`python -m moldau.cli.bench.image_loading {broker|controller} DIRECTORY CONFIG`.

Owns the measurement of a cold load, through the same steps as a node: `open_log_files`, the log's
delivery, then the broker's loader or the controller's core. With `snapshot SOURCE TARGET` it makes
a copy of a log into one that consists of a snapshot. Must not take part in a quorum, or touch a log
that a node has open. Invariant: memory and time are those of the load alone; the one line on stdout
is JSON.
"""

from __future__ import annotations

import asyncio
import gc
import random
import resource
import sys
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final

from moldau.broker.lifecycle.metadata_loader import MetadataLoader
from moldau.cli.bench.figures import memory_bytes, taken
from moldau.cli.metadata_files import read_metadata
from moldau.cli.output import print_json, warn
from moldau.config import NodeConfig
from moldau.controller.core.controller_core import ControllerCore
from moldau.controller.core.state import ControllerSettings
from moldau.metadata.image import MetadataImage
from moldau.metadata.log import CommittedBatch, LoadedSnapshot
from moldau.raft import (
    METADATA_DIRECTORY,
    MetadataLogError,
    MetadataLogSettings,
    SnapshotId,
    VoterSet,
)
from moldau.raft.core.values import ReplicaKey
from moldau.raft.delivery import Delivery
from moldau.raft.log_files import open_log_files
from moldau.raft.snapshot_files import snapshot_batches, snapshot_path, write_snapshot_file
from moldau.runtime.clock import SystemClock
from moldau.runtime.filesystem import OsFilesystem
from moldau.runtime.garbage_collector import freeze_garbage_collector, pause_garbage_collector

BROKER: Final = "broker"
CONTROLLER: Final = "controller"
SNAPSHOT: Final = "snapshot"
LOAD_DEADLINE_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """What loading an image took."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    partition_count: int
    topic_count: int


class _Target:
    """A listener of the log, for a broker's loader or a controller's core."""

    def __init__(self, role: str, config: NodeConfig) -> None:
        self.end_offset = 0
        self.has_all = asyncio.Event()
        """Everything below `end_offset` was delivered."""
        self.image: Callable[[], MetadataImage]
        self._load: Callable[..., object]
        self._apply: Callable[..., object]
        if role == BROKER:
            loader = MetadataLoader(config.node_id)
            self.image = lambda: loader.image
            self._load, self._apply = loader.handle_snapshot, loader.handle_commit
        else:
            core = ControllerCore(ControllerSettings(config, cluster_id=""), random.Random(0))
            self.image = lambda: core.committed_image
            self._load, self._apply = core.load_snapshot, core.on_committed

    def handle_snapshot(self, snapshot: LoadedSnapshot) -> None:
        self._load(snapshot.records, snapshot.provenance)
        self._look(snapshot.end_offset)

    def handle_commit(self, batch: CommittedBatch) -> None:
        self._apply(batch.records, batch.provenance)
        self._look(batch.last_offset + 1)

    def handle_leader_change(self, leader_id: int, leader_epoch: int) -> None:
        pass

    def _look(self, next_offset: int) -> None:
        if next_offset >= self.end_offset:
            self.has_all.set()


async def load(role: str, directory: str, config: NodeConfig) -> LoadFigures:
    """Open the log below `directory` and deliver all of it. Raises: MetadataLogError, OSError; a
    TimeoutError after LOAD_DEADLINE_S.
    """
    filesystem, clock, target = OsFilesystem(), SystemClock(), _Target(role, config)
    settings = MetadataLogSettings(
        metadata_directory=directory, local=ReplicaKey(config.node_id, uuid.uuid4()), endpoints=()
    )
    gc.collect()
    pause_garbage_collector()  # as a node that starts
    with taken() as cost:
        files = await filesystem.offload(
            open_log_files, filesystem, clock, directory, settings.log_config(), VoterSet()
        )
        failures: list[str] = []
        delivery = Delivery(files, clock, asyncio.Lock(), failures.append)
        # A copy does not say how far it is committed. The last batches may not be; they cost as
        # much.
        target.end_offset = files.log.log_end_offset
        delivery.advance(target.end_offset)
        delivery.add_listener(target)
        async with asyncio.timeout(LOAD_DEADLINE_S):
            await target.has_all.wait()
        freeze_garbage_collector()
    await delivery.close()
    files.log.abandon()
    filesystem.close()
    if failures:
        raise MetadataLogError(failures[0])
    topics = target.image().topics.topics_by_id.values()
    unit_bytes = 1 if sys.platform == "darwin" else 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit_bytes
    return LoadFigures(
        seconds=cost.seconds,
        cpu_seconds=cost.own_cpu_seconds,
        peak_bytes=memory_bytes("VmHWM") or most,
        partition_count=sum(len(topic.partitions) for topic in topics),
        topic_count=len(topics),
    )


def write_snapshot(source: str, target: str) -> None:
    """Write the image of the log below `source` as the only snapshot of a log below `target`.
    Raises: MetadataLogError, OSError
    """
    filesystem = OsFilesystem()
    try:
        files = read_metadata(filesystem, source)
        directory = f"{target}/{METADATA_DIRECTORY}"
        filesystem.mkdirs(directory)
        reaches = files.image.provenance
        snapshot_id = SnapshotId(reaches.last_contained_offset + 1, reaches.last_contained_epoch)
        batches = snapshot_batches(
            files.image.write(),
            leader_epoch=snapshot_id.leader_epoch,
            last_contained_log_time_ms=reaches.last_contained_log_time_ms,
            voters=files.voters,
            timestamp_ms=SystemClock().now_ms(),
        )
        write_snapshot_file(filesystem, snapshot_path(directory, snapshot_id), batches)
    finally:
        filesystem.close()


def main(arguments: list[str]) -> int:
    """Do one thing; the exit status is 1, with one line on stderr, when it cannot be done."""
    what, source, other = arguments
    try:
        if what == SNAPSHOT:
            write_snapshot(source, other)
            return 0
        figures = asyncio.run(load(what, source, NodeConfig.load(other)))
    except (MetadataLogError, OSError) as error:
        warn(f"{what} {source}: {error}")
        return 1
    print_json(asdict(figures), is_row=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
