"""What happens to the files beside the logs of a node whose process does not run.

Owns: which of them are lost, cut at an entry, or exchanged for one of another segment or partition.
Must not: touch `.log` files, snapshots of the metadata, or what belongs to a whole directory.
Invariant: its dice are its own, so that the rest of a seed stays what it was. Nothing that a node
has promised depends on these files, so no promise is excused for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from random import Random
from typing import TYPE_CHECKING

from moldau.storage.checkpoints import LEADER_EPOCH_CHECKPOINT, SEGMENT_SEALS
from moldau.storage.indexes import TXN_ENTRY, OffsetIndex, TimeIndex
from moldau.storage.log_directory import METADATA_PARTITION, parse_partition_directory
from tests.storage.simulated_filesystem import SimulatedFilesystem

if TYPE_CHECKING:
    from tests.simulation.cluster.base_world import BaseWorld
    from tests.storage.simulated_disk import DirectoryNode

ENTRY_BYTES = {
    ".txnindex": TXN_ENTRY.size,
    ".index": OffsetIndex.ENTRY.size,
    ".timeindex": TimeIndex.ENTRY.size,
    ".snapshot": 1,
    LEADER_EPOCH_CHECKPOINT: 1,
    SEGMENT_SEALS: 1,
}
COMPACTED = ("__consumer_offsets-", "__transaction_state-")
SHARES = (0.0, 0.0, 0.1, 0.5)
"""How many of these files suffer at a death, by seed."""


class FilesBesideLogs:
    """See the module."""

    def __init__(self, world: BaseWorld, *, of_metadata: bool) -> None:
        """`of_metadata`: beside the metadata log, and not beside the logs of partitions."""
        self._world = world
        self._of_metadata = of_metadata
        what = "metadata files beside" if of_metadata else "files beside"
        self._random = Random(f"{what} {world.seed}")
        self._share = self._random.choice(SHARES)

    def disturb(self, host: str, root: DirectoryNode, directories: Iterable[str]) -> None:
        """The node `host`, whose disk is `root`, has died, and has been buried."""
        disk, random = SimulatedFilesystem(root), self._random
        paths = list(self._paths(disk, directories)) if self._share else []
        for path in paths:
            if random.random() >= self._share:
                continue
            kind = _kind(path)
            how = random.choice(("lost", "cut", "exchanged"))
            data: bytes | None = None
            if how == "cut":
                whole = disk.read_bytes(path)
                count = random.randrange(len(whole) // ENTRY_BYTES[kind] + 1)
                data = whole[: count * ENTRY_BYTES[kind]]
            elif how == "exchanged":
                alike = [each for each in paths if _kind(each) == kind and disk.exists(each)]
                data = disk.read_bytes(random.choice(alike))
            if kind == LEADER_EPOCH_CHECKPOINT and path.split("/")[-2].startswith(COMPACTED):
                continue  # Nothing else shows where epochs began whose first records are gone.
            if data is None:
                disk.unlink(path)
                disk.fsync_directory(path.rpartition("/")[0])
            else:
                disk.put(path, data)
            self._world.counts["files_beside_" + how] += 1
            self._world.note(f"{host}: {path} is {how}")

    def _paths(self, disk: SimulatedFilesystem, directories: Iterable[str]) -> Iterator[str]:
        for directory in directories:
            for name in disk.listdir(directory) if disk.exists(directory) else ():
                found = parse_partition_directory(name)
                if found is not None and (found == METADATA_PARTITION) is self._of_metadata:
                    for file in disk.listdir(f"{directory}/{name}"):
                        if _kind(file) in ENTRY_BYTES:
                            yield f"{directory}/{name}/{file}"


def _kind(path: str) -> str:
    name = path.rpartition("/")[2]
    return name if name in ENTRY_BYTES else name[name.rfind(".") :]
