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
from typing import TYPE_CHECKING

from moldau.storage.checkpoints import RECOVERY_POINT_CHECKPOINT
from moldau.storage.meta_properties import META_PROPERTIES
from tests.kit.seeds import Violation
from tests.simulation.cluster.disk import NodeDisk, Refusal
from tests.simulation.replication.mirror import Mirror
from tests.storage.simulated_disk import DirectoryNode
from tests.storage.simulated_filesystem import Fault, SimulatedFilesystem

if TYPE_CHECKING:
    from tests.simulation.replication.data_broker import DataBroker
    from tests.simulation.replication.ledger import Key

GONE = ""
"""Where a log is whose disk was exchanged for another."""


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

    @property
    def spare(self) -> list[str]:
        """Those that the broker can do without."""
        return [each for each in self.configured[1:] if each not in self.dead]

    def log_count(self, path: str) -> int:
        """How many logs lie there."""
        return sum(place == path for place in self._places.values())

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
        """Another disk is there in its place, formatted, or with the old one's identity."""
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
        """A start is told as clean: no replica that the controllers believe in is out of reach.

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
