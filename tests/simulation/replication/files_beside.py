"""What happens to the files beside the logs of a broker whose process does not run.

Owns: which of them are lost, cut at an entry, or exchanged for one of another segment or partition.
Must not: touch `.log` files, what belongs to a whole directory, or the metadata log.
Invariant: its dice are its own, so that the rest of a seed stays what it was. Nothing that a broker
has promised depends on these files, so no promise is excused for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING

from moldau.storage.checkpoints import LEADER_EPOCH_CHECKPOINT, SEGMENT_SEALS
from moldau.storage.indexes import TXN_ENTRY, OffsetIndex, TimeIndex
from moldau.storage.log_directory import METADATA_PARTITION, parse_partition_directory
from tests.storage.simulated_filesystem import SimulatedFilesystem

if TYPE_CHECKING:
    from tests.simulation.replication.data_broker import DataBroker

ENTRY_BYTES = {
    ".txnindex": TXN_ENTRY.size,
    ".index": OffsetIndex.ENTRY.size,
    ".timeindex": TimeIndex.ENTRY.size,
    ".snapshot": 1,
    LEADER_EPOCH_CHECKPOINT: 1,
    SEGMENT_SEALS: 1,
}
SHARES = (0.0, 0.0, 0.1, 0.5)
"""How many of these files suffer at a death, by seed."""


class FilesBesideLogs:
    """See the module."""

    def __init__(self, seed: str) -> None:
        self._random = Random(f"files beside {seed}")
        self._share = self._random.choice(SHARES)

    def disturb(self, broker: DataBroker) -> None:
        """The broker has died, and has been buried."""
        disk, random = SimulatedFilesystem(broker.root), self._random
        paths = list(self._paths(disk, broker.directories.configured)) if self._share else []
        for path in paths:
            if random.random() >= self._share:
                continue
            kind = _kind(path)
            how = random.choice(("lost", "cut", "exchanged"))
            if how == "lost":
                disk.unlink(path)
                disk.fsync_directory(path.rpartition("/")[0])
            elif how == "cut":
                data = disk.read_bytes(path)
                count = random.randrange(len(data) // ENTRY_BYTES[kind] + 1)
                disk.put(path, data[: count * ENTRY_BYTES[kind]])
            else:
                alike = [each for each in paths if _kind(each) == kind and disk.exists(each)]
                disk.put(path, disk.read_bytes(random.choice(alike)))
            broker.world.counts["files_beside_" + how] += 1
            broker.world.note(f"{broker.host}: {path} is {how}")

    def _paths(self, disk: SimulatedFilesystem, directories: list[str]) -> Iterator[str]:
        for directory in directories:
            for name in disk.listdir(directory) if disk.exists(directory) else ():
                topic_partition = parse_partition_directory(name)
                if topic_partition not in (None, METADATA_PARTITION):
                    for file in disk.listdir(f"{directory}/{name}"):
                        if _kind(file) in ENTRY_BYTES:
                            yield f"{directory}/{name}/{file}"


def _kind(path: str) -> str:
    name = path.rpartition("/")[2]
    return name if name in ENTRY_BYTES else name[name.rfind(".") :]
