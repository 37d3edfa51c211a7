"""Disks that have no room, or refuse every write, for a while or until the faults end.

Owns: which disk, how and for how long; dice of its own, so that seeds without such troubles are
the runs they were. Must not: know what a replica makes of it. Invariant: nothing after `heal`.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from tests.simulation.disk import Disk

if TYPE_CHECKING:
    from tests.simulation.quorum import QuorumSimulation

TROUBLED_SEEDS = 0.5
MEAN_PAUSES_MS = (1_000.0, 4_000.0)
DURATIONS_MS = (300.0, 2_000.0, 8_000.0, None)
"""None: until the faults end."""
LEADERS_DISK = 0.6


class DiskTroubles:
    """Strikes like the nemesis, beside it."""

    def __init__(self, world: QuorumSimulation) -> None:
        self._world = world
        self._random = Random(f"disk troubles {world.seed}")
        self._is_over = self._random.random() >= TROUBLED_SEEDS
        self._mean_pause_ms = self._random.choice(MEAN_PAUSES_MS)
        self._kinds = self._random.choice((("full",), ("full", "full", "EIO", "EROFS")))

    def start(self, delay_ms: float) -> None:
        """The first one comes after `delay_ms` at the earliest."""
        if not self._is_over:
            self._world.scheduler.after(delay_ms, self._strike)

    def _strike(self) -> None:
        if self._is_over:
            return
        random, scheduler = self._random, self._world.scheduler
        node = random.choice(list(self._world.nodes.values()))
        leader_id = self._world.leader_id()
        if leader_id is not None and random.random() < LEADERS_DISK:
            node = self._world.nodes[leader_id]
        kind, duration_ms = random.choice(self._kinds), random.choice(DURATIONS_MS)
        lasts = "for good" if duration_ms is None else f"{duration_ms:.0f} ms"
        scheduler.fault(f"disk-{kind}", f"{node.node_id} {lasts}")
        if kind == "full":
            node.disk.is_full = True
        else:
            node.disk.is_broken = True
            node.disk.keeps_cache = kind == "EROFS"
        if duration_ms is not None:
            scheduler.after(duration_ms, _mend, node.disk)
        scheduler.after(random.expovariate(1 / self._mean_pause_ms), self._strike)

    def heal(self) -> None:
        """Every disk takes every write."""
        self._is_over = True
        for node in self._world.nodes.values():
            _mend(node.disk)


def _mend(disk: Disk) -> None:
    disk.is_full = disk.is_broken = False
