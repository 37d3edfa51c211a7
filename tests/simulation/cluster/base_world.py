"""What every simulated cluster of one seed has: loop, fabric, controllers, trace, conditions.

Owns: the loop, the fabric, the ledger of the metadata, the trace and its digest, the controllers.
Must not: know brokers or clients (its subclasses do), or inject faults (the nemesis does).
Invariant: everything follows from the seed; every violation reaches `run` as an exception.
"""

from __future__ import annotations

import gc
import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from random import Random
from types import MappingProxyType
from typing import Any

from moldau.controller.controller import SLICE_MS
from moldau.raft import VoterSet
from tests.kit.seeds import Violation
from tests.simulation.cluster.ledger import Ledger
from tests.simulation.cluster.logs import PORT, dynamic_quorum, host_of, static_quorum
from tests.simulation.cluster.node import FAILED_START, ControllerNode
from tests.virtual.loop import (
    Deadlock,
    EndlessLoop,
    Process,
    UnhandledFailure,
    VirtualClock,
    VirtualLoop,
    current_process,
)
from tests.virtual.network import Fabric
from tests.virtual.wall_clocks import WallClocks

POLL_MS = 50.0

COLLECT_EVERY = 5_000
"""So many steps lie between two collections of what is young."""

COLLECT_ALL_EVERY = 8 * COLLECT_EVERY
"""So many events lie between two collections of everything: the garbage of disks is large."""


@contextmanager
def collected_by_the_run() -> Iterator[None]:
    """The garbage collector runs at fixed steps and at the end, never in between: what a run's
    garbage has to report, such as a failure that no caller has looked at, follows from its seed.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.collect()
    finally:
        if was_enabled:
            gc.enable()


class BaseWorld:
    """See the module. A subclass sets what nodes are configured with before `_make_controllers`."""

    snapshot_bytes: int
    snapshot_interval_ms: int
    controller_overrides: dict[str, str]
    max_changes_per_step: int | None
    slow_calls: float
    has_static_voters: bool
    quorum_keys: dict[str, str]
    chaos_ms: float
    feature_levels: Mapping[str, int] = MappingProxyType({})
    """The features that do not have their newest level."""
    observer_lag_ms: float = 0.0
    """How late a broker applies metadata that it has fetched, at most, and besides other faults."""
    slice_ms: float = SLICE_MS
    """The slices of a controller's decisions; with 0 they give way after each of their parts."""
    controllers: list[ControllerNode]
    controller_addresses: list[tuple[str, int]]

    def __init__(self, seed: str, random: Random, *, print_trace: bool = False) -> None:
        self.seed = seed
        self.random = random
        self.print_trace = print_trace
        self.loop = VirtualLoop()
        self.loop.after_step = self._after_step
        self.clock = VirtualClock(self.loop)
        """True time; every machine has its own wall clock."""
        self.wall_clocks = WallClocks(Random(f"wall clocks {seed}"))
        self.fabric = Fabric(self.loop, Random(self.random.getrandbits(64)))
        self.ledger = Ledger()
        self.history = self.loop.history
        self.faults: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.violation: Violation | None = None
        self.on_controller_death: Callable[[ControllerNode], None] = ControllerNode.bury
        self.expected_disk_faults = False
        self.expects_full_starts = False
        """Whether a node may refuse to start: its disk was full."""
        self._digest = hashlib.blake2b(digest_size=16)

    def _make_controllers(self, count: int, static_voters: float) -> None:
        controller_ids = range(100, 100 + count)
        self.controller_addresses = [(host_of(each), PORT) for each in controller_ids]
        quorum = [(each, host_of(each), PORT) for each in controller_ids]
        self.has_static_voters = self.random.random() < static_voters
        self.quorum_keys = (static_quorum if self.has_static_voters else dynamic_quorum)(quorum)
        self.controllers = [
            ControllerNode(self, each, self._new_random()) for each in controller_ids
        ]

    def _new_random(self) -> Random:
        return Random(self.random.getrandbits(64))

    # -- the trace -------------------------------------------------------------------------------

    def note(self, line: str) -> None:
        """A line of the trace."""
        self.loop.note(line)
        line = f"{self.loop.time() * 1000:12.3f} {line}"
        self._digest.update(line.encode())
        if self.print_trace:
            print(line)

    def fault_injected(self, kind: str, line: str = "") -> None:
        """A fault: counted and noted."""
        self.faults[kind] += 1
        self.note(f"FAULT {kind} {line}")

    def disk_operation(self, line: str) -> None:
        """A change of some disk: an event."""
        self.counts["disk"] += 1
        self._digest.update(line.encode())

    def digest(self) -> str:
        """Stands for everything that happened."""
        self._digest.update(repr((self.loop.step_count, self.fabric.counts)).encode())
        return self._digest.hexdigest()

    @property
    def event_count(self) -> int:
        """Timers, deliveries of the network, and changes of disks."""
        return self.loop.event_count + self.counts["disk"]

    @property
    def virtual_s(self) -> float:
        return self.loop.time()

    # -- what processes report -------------------------------------------------------------------

    def guard(self, check: Callable[..., object], *arguments: Any) -> None:
        """Run a check; a violation ends the run even if production code should catch it."""
        try:
            check(*arguments)
        except Violation as violation:
            self.violation = self.violation or violation
            raise

    def violated(self, kind: str, detail: str) -> None:
        """A promise is broken: as a check that `guard` runs."""
        self.violation = self.violation or Violation(kind, detail)
        raise self.violation

    def process_failed(self, process: Process, reason: str) -> None:
        """A node says that it must not go on: production's process would end."""
        if not process.is_alive:
            return  # it has just crashed inside a disk operation
        self.note(f"{process.name} gives up: {reason}")
        is_start = self.expects_full_starts and reason.startswith(FAILED_START)
        if not self.expected_disk_faults and not is_start:
            self.violation = self.violation or Violation(
                "node-stopped", f"{process.name}: {reason}"
            )
        self.counts["given_up"] += 1
        process.kill()

    def fault(self, process: Process, error: BaseException) -> None:
        """An exception that no handler expected."""
        if process.is_alive and not isinstance(error, Violation):
            self.loop.fail(f"{process.name}: unexpected", error)

    def _after_step(self) -> None:
        if self.violation is not None:
            raise self.violation
        if self.loop.step_count % COLLECT_EVERY == 0:
            gc.collect(1 if self.loop.step_count % COLLECT_ALL_EVERY else 2)

    # -- running ---------------------------------------------------------------------------------

    def run(self, chaos: Callable[[], Any] | None) -> None:
        """All phases of the run. Raises Violation and the loop's failures."""
        try:
            with collected_by_the_run():
                self.loop.run_until_complete(self._phases(chaos))
            self._after_step()
            unheard = [*self.loop.failures, *self.loop.unheard_failures()]
            if unheard:
                raise UnhandledFailure(unheard[0])
        except (Deadlock, EndlessLoop) as error:
            raise Violation("stuck", str(error)) from None
        finally:
            self.loop.dispose()

    async def _phases(self, chaos: Callable[[], Any] | None) -> None:
        raise NotImplementedError

    def _start_controllers(self) -> None:
        voters = VoterSet(tuple(node.voter for node in self.controllers), 1)
        if self.has_static_voters:
            voters = VoterSet()
        for node in self.controllers:
            node.format(voters)
            node.start()

    async def _until(self, condition: Callable[[], bool], what: str, limit_ms: float) -> None:
        deadline = self.loop.time() + limit_ms / 1000
        while not condition():
            if self.loop.time() >= deadline:
                raise Violation(
                    "no-progress", f"{what} within {limit_ms:.0f} ms: {self.describe()}"
                )
            await self.loop.elapse(POLL_MS)

    # -- conditions ------------------------------------------------------------------------------

    def active(self) -> list[ControllerNode]:
        """The controllers that take themselves for the active one."""
        return [node for node in self.controllers if node.is_active]

    def _has_active(self) -> bool:
        return bool(self.active())

    def _are_controllers_quiet(self) -> bool:
        """One is active, all are voters, and all have everything that was committed."""
        if len(self.active()) != 1:
            return False
        voters = [node.log.voters for node in self.active() if node.log is not None]
        wanted = {node.controller_id for node in self.controllers}
        if any({each.voter_id for each in known.voters} != wanted for known in voters):
            return False
        for node in self.controllers:
            if not node.is_alive or node.controller is None or not node.is_ready:
                return False
            provenance = node.controller.committed_image.provenance
            if provenance.last_contained_offset != self.ledger.end_offset - 1:
                return False
        return True

    def describe(self) -> str:
        """Where every process stands, for the message of a failure."""
        raise NotImplementedError


class _TraceHandler(logging.Handler):
    """Prints what a simulated node logs, with the virtual time and the process."""

    def emit(self, record: logging.LogRecord) -> None:
        process = current_process()
        if process is not None:
            now_ms = process.loop.time() * 1000
            print(f"{now_ms:12.3f}   [{process.name}] {record.name}: {record.getMessage()}")


def print_logs() -> None:
    """From now on the trace has what the nodes log."""
    logger = logging.getLogger("moldau")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(_TraceHandler())
