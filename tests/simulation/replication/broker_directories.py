"""The log directories of a simulated broker: disks that fail, are removed and come back.

Owns: what is configured, what answers, which log lies where, and what is out of reach. Must not:
decide when. Invariants: the first directory holds the metadata log, and stays; everything but
`fail` happens while no process runs.

A log is *away* from when its directory fails or is taken out of the configuration until it is read
again; one whose disk was exchanged is gone, which is the same until another log takes its place.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from moldau.protocol.records import iter_batches
from moldau.storage.checkpoints import RECOVERY_POINT_CHECKPOINT
from moldau.storage.meta_properties import META_PROPERTIES
from tests.kit.seeds import Violation
from tests.simulation.cluster.disk import NodeDisk, Refusal
from tests.simulation.replication.mirror import Mirror
from tests.storage.simulated_disk import DirectoryNode, FileNode
from tests.storage.simulated_filesystem import Fault, SimulatedFilesystem

if TYPE_CHECKING:
    from tests.simulation.replication.data_broker import DataBroker
    from tests.simulation.replication.ledger import Key

OFFSET_AND_EPOCH_AT = (*range(8), *range(12, 16))
"""The bytes of a batch's header that are data and that no CRC covers."""

GONE = ""
"""Where a log is whose disk was exchanged for another."""


@dataclass(frozen=True, slots=True)
class Flip:
    """A batch of which a bit was flipped."""

    position: int
    before: bytes
    after: bytes

    def is_in(self, data: bytes | bytearray) -> bool:
        """Whether the file has it still: the log may have been cut there."""
        return data[self.position : self.position + len(self.after)] == self.after

    def undone(self, data: bytes) -> bytes:
        return data[: self.position] + self.before + data[self.position + len(self.after) :]


class BrokerDirectories:
    """See the module. Directories are named by their paths."""

    are_honest = True
    """Whether brokers say what is out of their reach. Else only what is lost by it counts."""

    def __init__(self, broker: DataBroker) -> None:
        self._broker = broker
        self.configured: list[str] = list(broker.world.log_directories)
        self.dead: set[str] = set()
        """Those that are to be put back, whether they answer again by now or not."""
        self.refusals = {path: Refusal(path) for path in self.configured}
        self._scan_faults: list[Fault] = []
        self._places: dict[Key, str] = {}
        self._away: dict[Key, str] = {}
        self._flips: dict[str, Flip] = {}
        """The flips by path."""

    @property
    def spare(self) -> list[str]:
        """Those that the broker can do without."""
        return [each for each in self.configured[1:] if each not in self.dead]

    def log_count(self, path: str) -> int:
        """How many logs lie there."""
        return sum(place == path for place in self._places.values())

    @property
    def lacks_one(self) -> bool:
        """Whether a directory is out."""
        return bool(self.dead) or len(self.configured) < len(self._broker.world.log_directories)

    def is_away(self, key: Key) -> bool:
        """Whether this broker's log of a partition is out of reach."""
        return key in self._away

    # -- what becomes of them --------------------------------------------------------------------

    def fail(self, path: str, error_number: int = errno.EIO) -> None:
        """From now on every operation there is an error, or every change."""
        self.dead.add(path)
        self.refusals[path].begin(error_number)
        self._put_away(path)

    def fail_while_scanned(self, path: str, operation: str) -> None:
        """At the next start it can be locked, and then `listdir` or `read` is an error once."""
        part = path if operation == "listdir" else f"{path}/{RECOVERY_POINT_CHECKPOINT}"
        self._scan_faults.append(Fault(operation, part, errno.EIO))
        self._put_away(path)

    def unplug(self, path: str) -> None:
        """It is not configured any more; the others stay as they are."""
        self.configured.remove(path)
        self._put_away(path)

    def bring_back(self, path: str) -> None:
        """It is configured, and answers, with what was in it."""
        self._scan_faults = []
        self.dead.discard(path)
        self.refusals[path].end()
        if path not in self.configured:
            self.configured.append(path)
        for key in [key for key, place in self._away.items() if place == path]:
            if self._places.get(key) == path:
                continue  # until it is read
            del self._away[key]
        self._broker.directory_changed()

    def bring_empty(self, path: str, *, same_id: bool) -> None:
        """Another disk is mounted in its place, formatted, or with the old one's identity."""
        here = self._node(path)
        assert here is not None
        identity = here.entries.get(META_PROPERTIES)
        parent = self._broker.root
        assert path.count("/") == 1, "mounted below the root"
        parent.entries.pop(path[1:])
        parent.durable.pop(path[1:], None)
        if same_id and identity is not None:
            made = DirectoryNode()
            made.change(None, META_PROPERTIES, identity)
            made.sync()
            parent.change(None, path[1:], made)
        self.bring_back(path)
        for key in [key for key, place in self._away.items() if place == path]:
            self._away[key] = GONE
        self._broker.format_again()

    def flip_header_bit(self, random: Random) -> str | None:
        """A bit of a closed segment, all of which was flushed, changes. Returns where, None where
        nothing is closed.
        """
        disk = SimulatedFilesystem(self._broker.root)
        closed: list[str] = []
        for directory in self._places.values():
            if directory in self.dead or directory not in self.configured:
                continue
            for name in disk.listdir(directory) if disk.exists(directory) else ():
                path = f"{directory}/{name}"
                if disk.is_directory(path) and "." not in name and not name.startswith("__"):
                    logs = [each for each in disk.listdir(path) if each.endswith(".log")]
                    closed += [f"{path}/{each}" for each in logs[:-1]]
        nodes = {path: disk.file_node(path) for path in sorted(set(closed) - self._flips.keys())}
        flushed = [path for path, node in nodes.items() if node.data and node.data == node.durable]
        if not flushed:
            return None
        path = random.choice(flushed)
        position, header = random.choice(list(iter_batches(bytes(nodes[path].data))))
        before = bytes(nodes[path].data[position : position + header.size_bytes])
        at, bit = random.choice(OFFSET_AND_EPOCH_AT), random.randrange(8)
        after = before[:at] + bytes([before[at] ^ 1 << bit]) + before[at + 1 :]
        flip = self._flips[path] = Flip(position, before, after)
        _put(nodes[path], flip.position, after)
        return f"{path}: bit {bit} of byte {at} of the batch at {position}"

    def undo_flips(self) -> None:
        """What was not noticed is as it was."""
        disk = self._broker.disk if self._broker.is_alive else None
        filesystem = disk or SimulatedFilesystem(self._broker.root)
        for path, flip in self._flips.items():
            if filesystem.exists(path) and flip.is_in(filesystem.file_node(path).data):
                _put(filesystem.file_node(path), flip.position, flip.before)
        self._flips.clear()

    def as_written(self, path: str, data: bytes) -> bytes:
        """A segment file's contents without the bit that flipped: it must never be served."""
        flip = self._flips.get(path)
        return data if flip is None or not flip.is_in(data) else flip.undone(data)

    def replaced(self) -> None:
        """All disks of the machine were exchanged for empty ones."""
        self.configured = list(self._broker.world.log_directories)
        self.dead.clear()
        for refusal in self.refusals.values():
            refusal.end()
        self._away.clear()
        self._places.clear()

    def mount(self, disk: NodeDisk) -> None:
        """A process starts."""
        if self._scan_faults:
            disk.faults += self._scan_faults
            self._scan_faults = []
            self._broker.has_failed_disk = True

    def _node(self, path: str) -> DirectoryNode | None:
        node = SimulatedFilesystem(self._broker.root)._find(path)
        return node if isinstance(node, DirectoryNode) else None

    def _put_away(self, path: str) -> None:
        self._broker.directory_changed()
        for key, place in self._places.items():
            if place == path and key not in self._away:
                self._away[key] = path
                self._broker.world.data.on_away(self._broker.broker_id, key)

    # -- logs in them ----------------------------------------------------------------------------

    def opened(self, key: Key, log_path: str, found: Mirror) -> None:
        """A log was found, or made. Raises Violation."""
        place = os.path.dirname(log_path)
        away = self._away.get(key)
        if away == place:
            del self._away[key]  # it failed while it was scanned once, and was read now
        elif away is not None:
            if self.are_honest:
                self._broker.world.data.on_begun_again(self._broker.broker_id, key, found)
            self._broker.world.counts["begun_again"] += 1
            self._away.pop(key)
        self._places[key] = place

    def removed(self, key: Key) -> None:
        """A log was put aside."""
        self._places.pop(key, None)

    def check_clean(self, who: str) -> None:
        """A start is reported as clean: no replica that the controllers believe in is out of reach.

        Raises Violation.
        """
        broker_id, data = self._broker.broker_id, self._broker.world.data
        for key, path in self._away.items() if self.are_honest else ():
            registration = data.metadata.image.topics.partition(*key)
            if registration is None or broker_id not in (*registration.isr, *registration.elr):
                continue
            if data.truth(key).replicas.get(broker_id, Mirror()).batches:
                raise Violation(
                    "unclean-told-clean",
                    f"{who} says so without {path}, where {data.truth(key).name} lies",
                )


def _put(node: FileNode, position: int, data: bytes) -> None:
    """Change what is flushed."""
    node.data[position : position + len(data)] = data
    node.durable = bytes(node.data)
