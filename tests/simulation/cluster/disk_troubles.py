"""Controllers' disks that are full, broken or read-only, for a while or until the faults end.

Owns: which machine's, how and for how long, by dice of its own, so that seeds without such troubles
are the runs they were; what must be true of a full one. Must not: know what a node makes of it.
Invariant: after `end` every disk takes every write.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from tests.kit.seeds import Violation
from tests.simulation.cluster.base_world import BaseWorld
from tests.simulation.cluster.node import ControllerNode
from tests.simulation.cluster.troubles import Troubles

DURATIONS_MS = (500.0, 3_000.0, 9_000.0, None)
"""None: until the faults end."""
ACTIVE_ONES_DISK = 0.7
STAYS_MS = 2_000.0
"""A leader that found no room leads no more after this time, unless it is the only voter."""
LOOKS_EVERY_MS = 250.0


class DiskTroubles(Troubles):
    """Strikes beside the nemesis."""

    pauses_ms = (1_500.0, 5_000.0)

    def __init__(self, world: BaseWorld, seeds_share: float) -> None:
        super().__init__(world, "disk troubles", seeds_share)
        self.may_break = self.random.random() < 0.5

    def acts(self) -> list[Callable[[], None]]:
        return [self.full_disk, self.break_disk]

    def end(self) -> None:
        """Every disk takes every write from now on."""
        super().end()
        for node in self.world.controllers:
            node.refusal.end()

    def strike(self) -> None:
        if self.may_break and self.random.random() < 0.4:
            self.break_disk()
        else:
            self.full_disk()

    def full_disk(self) -> None:
        """One machine's disk has no room."""
        self._begin(errno.ENOSPC)

    def break_disk(self) -> None:
        """One machine's disk is broken or read-only."""
        self._begin(self.random.choice((errno.EIO, errno.EROFS)))

    def _begin(self, error_number: int) -> None:
        nodes = [node for node in self.world.controllers if not node.refusal.error_number]
        active = [node for node in nodes if node.is_active]
        if not nodes:
            return
        chosen = active if active and self.random.random() < ACTIVE_ONES_DISK else nodes
        node = self.random.choice(chosen)
        duration_ms = self.random.choice(DURATIONS_MS)
        self.world.fault_injected(
            f"disk {errno.errorcode[error_number]}", f"{node.host} {duration_ms}"
        )
        if error_number == errno.ENOSPC:
            self.world.expects_full_starts = True
        else:
            self.world.expected_disk_faults = True
        node.refusal.begin(error_number)
        if duration_ms is not None:
            self.world.loop.call_outside(duration_ms, node.refusal.end)
        if error_number == errno.ENOSPC and len(self.world.controllers) > 1:
            self.world.loop.call_outside(LOOKS_EVERY_MS, self._look, node, 0)

    def _look(self, node: ControllerNode, stayed_epoch: int) -> None:
        """A leader whose disk has refused records hands over; `stayed_epoch` is what it led when it
        was looked at, and had refused some.
        """
        if node.refusal.error_number != errno.ENOSPC:
            return
        leads = node.is_alive and node.log is not None and node.log.is_leader
        if not leads or not node.refusal.refused_count:
            self.world.loop.call_outside(LOOKS_EVERY_MS, self._look, node, 0)
            return
        assert node.log is not None
        if stayed_epoch == node.log.state.leader_epoch and len(node.log.voter_ids) > 1:
            self.world.violation = self.world.violation or Violation(
                "full-leader-stays", f"{node.host} leads {stayed_epoch}"
            )
        self.world.loop.call_outside(STAYS_MS, self._look, node, node.log.state.leader_epoch)
