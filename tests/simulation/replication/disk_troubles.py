"""Brokers' log directories that are full, broken or read-only, for a while or until the end.

Owns: which directory, how and for how long. Must not: know what a broker makes of it. Invariants:
no process appends again to a log to which its disk has refused an append for good; after `end`
every directory has room.

A full directory has room again by itself; its broker goes on, or has ended and starts again. A
broken or read-only one answers again after a while, and stays out until its broker has been
started again, as an operator does (`directory_nemesis`).
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from tests.kit.seeds import Violation
from tests.simulation.cluster.disk import Refusal
from tests.simulation.cluster.troubles import Troubles
from tests.simulation.replication.world import ReplicationWorld

DURATIONS_MS = (300.0, 2_000.0, 8_000.0, None)
"""None: until the faults end."""
SEEDS_SHARE = 0.3
LOOKS_EVERY_MS = 250.0
FAILURES = (errno.EIO, errno.EROFS)


class DirectoryTroubles(Troubles):
    """See the module."""

    pauses_ms = (800.0, 2_500.0)

    world: ReplicationWorld

    def __init__(
        self, world: ReplicationWorld, break_spare: Callable[[str, int], Refusal | None]
    ) -> None:
        """`break_spare` breaks a directory that its broker can do without, and that an operator
        puts back later; None while one is out.
        """
        super().__init__(world, "brokers' disks", SEEDS_SHARE)
        self.may_break = self.random.random() < 0.5
        self._break_spare = break_spare

    def acts(self) -> list[Callable[[], None]]:
        return [self.fill_directory, self.break_directory, self.break_first_directory]

    def end(self) -> None:
        super().end()
        for broker in self.world.brokers:
            for path, refusal in broker.directories.refusals.items():
                if path not in broker.directories.dead:
                    refusal.end()

    def strike(self) -> None:
        if not self.may_break or self.random.random() < 0.6:
            self.fill_directory()
        elif self.random.random() < 0.7:
            self.break_directory()
        else:
            self.break_first_directory()

    def fill_directory(self) -> None:
        """One log directory of a broker has no room."""
        brokers = [each for each in self.world.brokers if each.is_alive]
        if not brokers:
            return
        broker = self.random.choice(brokers)
        path = self.random.choice(broker.directories.configured)
        refusal = broker.directories.refusals[path]
        if not refusal.error_number and path not in broker.directories.dead:
            duration_ms = self.random.choice(DURATIONS_MS)
            self.world.fault_injected("directory full", f"{broker.host} {path} {duration_ms}")
            refusal.begin(errno.ENOSPC)
            self._end_later(refusal, duration_ms)

    def break_directory(self) -> None:
        """One that its broker can do without is broken or read-only."""
        error_number = self.random.choice(FAILURES)
        refusal = self._break_spare(f"directory {errno.errorcode[error_number]}", error_number)
        if refusal is not None:
            self._end_later(refusal, self.random.choice(DURATIONS_MS))
            self._look(refusal)

    def break_first_directory(self) -> None:
        """The one with the metadata log is broken or read-only, and its broker ends."""
        brokers = [each for each in self.world.brokers if each.is_ready]
        if not brokers:
            return
        broker = self.random.choice(brokers)
        path = broker.directories.configured[0]
        refusal = broker.directories.refusals[path]
        if not refusal.error_number:
            error_number = self.random.choice(FAILURES)
            duration_ms = self.random.choice(DURATIONS_MS)
            self.world.expected_disk_faults = True
            self.world.fault_injected(
                f"first directory {errno.errorcode[error_number]}", f"{broker.host} {duration_ms}"
            )
            broker.has_failed_disk = True
            refusal.begin(error_number)
            self._end_later(refusal, duration_ms)
            self._look(refusal)

    def _end_later(self, refusal: Refusal, duration_ms: float | None) -> None:
        if duration_ms is not None:
            self.world.loop.call_outside(duration_ms, refusal.end)

    def _look(self, refusal: Refusal) -> None:
        if refusal.repeated_log:
            self.world.violation = self.world.violation or Violation(
                "failed-log-repeats", refusal.repeated_log
            )
        if refusal.error_number:
            self.world.loop.call_outside(LOOKS_EVERY_MS, self._look, refusal)
