"""A whole simulated cluster of one seed: controllers, brokers, clients, and the phases of a run.

Owns: the loop, the fabric, the ledger, the trace and its digest, and what must be true after faults
stop. Must not: inject faults (the nemesis does).
Invariant: everything follows from the seed; every violation reaches `run` as an exception.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from moldau.raft import VoterSet
from tests.simulation.cluster.brokers import SimulatedBroker
from tests.simulation.cluster.clients import SimulatedClient
from tests.simulation.cluster.image_checks import leaderless
from tests.simulation.cluster.ledger import Ledger
from tests.simulation.cluster.logs import PORT, dynamic_quorum, host_of, static_quorum
from tests.simulation.cluster.network import Fabric
from tests.simulation.cluster.node import ControllerNode
from tests.simulation.cluster.operator import Operator
from tests.simulation.cluster.virtual_loop import (
    Deadlock,
    EndlessLoop,
    Process,
    UnhandledFailure,
    VirtualClock,
    VirtualLoop,
)
from tests.simulation.scheduler import Violation

CALM_START_MS = 8_000.0
CONVERGENCE_LIMIT_MS = 90_000.0
"""Session timeout, some elections with full back-off, kernels that give up connections."""

POLL_MS = 50.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What a seed is run with."""

    controllers: int
    brokers: int
    clients: int
    chaos_ms: float

    @classmethod
    def of_seed(cls, random: Random, controllers: int | None = None) -> Plan:
        """Three controllers mostly; chaos long enough for thousands of events."""
        return cls(
            controllers=random.choice((1, 3, 3, 3, 3, 5)) if controllers is None else controllers,
            brokers=random.randint(2, 4),
            clients=random.randint(1, 3),
            chaos_ms=random.uniform(4_000, 16_000),
        )


class World:
    """See the module."""

    def __init__(
        self, seed: str, *, controllers: int | None = None, print_trace: bool = False
    ) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.plan = Plan.of_seed(self.random, controllers)
        self.print_trace = print_trace
        self.loop = VirtualLoop()
        self.loop.after_step = self._after_step
        self.clock = VirtualClock(self.loop)
        self.fabric = Fabric(self.loop, Random(self.random.getrandbits(64)))
        self.ledger = Ledger()
        self.faults: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.violation: Violation | None = None
        self.clients_may_act = True
        self.on_controller_death: Callable[[ControllerNode], None] = ControllerNode.bury
        self.expected_disk_faults = False
        self._digest = hashlib.blake2b(digest_size=16)
        self._choose_settings()
        controller_ids = range(100, 100 + self.plan.controllers)
        self.controller_addresses = [(host_of(each), PORT) for each in controller_ids]
        quorum = [(each, host_of(each), PORT) for each in controller_ids]
        self.has_static_voters = self.random.random() < 0.25
        self.quorum_keys = (static_quorum if self.has_static_voters else dynamic_quorum)(quorum)
        self.controllers = [
            ControllerNode(self, each, self._new_random()) for each in controller_ids
        ]
        self.brokers = [
            SimulatedBroker(self, number, self._new_random())
            for number in range(1, 1 + self.plan.brokers)
        ]
        self.clients: list[SimulatedClient] = []
        self.operator = Operator(self, self._new_random())

    def _choose_settings(self) -> None:
        random = self.random
        self.snapshot_bytes = random.choice((2_000, 8_000, 1_000_000))
        self.snapshot_interval_ms = random.choice((0, 10_000))
        session_ms = random.choice((2_000, 4_000, 9_000))
        self.heartbeat_interval_ms = session_ms // random.choice((4, 8))
        self.controller_overrides = {
            "broker.session.timeout.ms": str(session_ms),
            "leader.imbalance.check.interval.seconds": str(random.choice((2, 300))),
        }
        self.max_changes_per_step = random.choice((1, 3, None))
        self.isr_pause_ms = random.choice((300.0, 1_000.0))
        self.ids_pause_ms = random.choice((1_000.0, 5_000.0))
        self.client_pause_ms = random.choice((100.0, 400.0))
        self.metadata_lag_ms = random.choice((20.0, 300.0))
        self.slow_calls = random.choice((0.0, 0.01, 0.1))
        self.observing_brokers = random.choice((0.0, 0.0, 0.5, 1.0))

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

    # -- what processes report -------------------------------------------------------------------

    def guard(self, check: Callable[..., object], *arguments: Any) -> None:
        """Run a check; a violation ends the run even if production code should catch it."""
        try:
            check(*arguments)
        except Violation as violation:
            self.violation = self.violation or violation
            raise

    def process_failed(self, process: Process, reason: str) -> None:
        """A node says that it must not go on: production's process would end."""
        if not process.is_alive:
            return  # it has just crashed inside a disk operation
        self.note(f"{process.name} gives up: {reason}")
        if not self.expected_disk_faults:
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

    # -- running ---------------------------------------------------------------------------------

    def run(self, chaos: Callable[[], Any] | None) -> None:
        """All phases of the run. Raises Violation and the loop's failures."""
        try:
            self.loop.run_until_complete(self._phases(chaos))
            self._after_step()
            unheard = self.loop.unheard_failures()
            if unheard:
                raise UnhandledFailure(unheard[0])
        except (Deadlock, EndlessLoop) as error:
            raise Violation("stuck", str(error)) from None
        finally:
            self.loop.dispose()

    async def _phases(self, chaos: Callable[[], Any] | None) -> None:
        voters = VoterSet(tuple(node.voter for node in self.controllers), 1)
        if self.has_static_voters:
            voters = VoterSet()
        for node in self.controllers:
            node.format(voters)
            node.start()
        for broker in self.brokers:
            broker.start()
        self.clients = [
            SimulatedClient(self, number, self._new_random()) for number in range(self.plan.clients)
        ]
        await self._until(self._has_active, "no active controller at the start", CALM_START_MS * 4)
        await self.loop.elapse(500)
        if chaos is not None:
            await chaos()
        self.clients_may_act = False
        self.note("faults stop")
        began = self.loop.time()
        await self._converge()
        self.counts["convergence_ms"] = int((self.loop.time() - began) * 1000)

    async def _until(self, condition: Callable[[], bool], what: str, limit_ms: float) -> None:
        deadline = self.loop.time() + limit_ms / 1000
        while not condition():
            if self.loop.time() >= deadline:
                raise Violation(
                    "no-progress", f"{what} within {limit_ms:.0f} ms: {self.describe()}"
                )
            await self.loop.elapse(POLL_MS)

    async def _converge(self) -> None:
        """After faults stop: one active controller, fenced are the dead, equal images."""
        await self._until(self._is_quiet, "not converged", CONVERGENCE_LIMIT_MS)
        for _attempt in range(200):
            if await self.clients[0].process.spawn(self.clients[0].create_one()):
                break
            await self.loop.elapse(POLL_MS)
        else:
            raise Violation("no-progress", f"no topic could be created: {self.describe()}")
        await self._until(self._is_quiet, "not converged at last", CONVERGENCE_LIMIT_MS)
        await self._until(
            lambda: not leaderless(self.ledger.image), "not all led", CONVERGENCE_LIMIT_MS
        )
        await self._until(self._is_quiet, "not quiet at last", CONVERGENCE_LIMIT_MS)
        for node in self.controllers:
            assert node.process is not None
            assert node.controller is not None
            self.ledger.compare(
                node.process.name, node.controller.committed_image, self.ledger.end_offset - 1
            )

    # -- conditions ------------------------------------------------------------------------------

    def active(self) -> list[ControllerNode]:
        """The controllers that take themselves for the active one."""
        return [node for node in self.controllers if node.is_active]

    def _has_active(self) -> bool:
        return bool(self.active())

    def _is_quiet(self) -> bool:
        if len(self.active()) != 1 or self.operator.is_busy:
            return False
        voters = [node.log.voters for node in self.active() if node.log is not None]
        wanted = {node.controller_id for node in self.controllers}
        if any({each.voter_id for each in known.voters} != wanted for known in voters):
            return False
        brokers = self.ledger.image.cluster.brokers
        unfenced = {broker_id for broker_id, broker in brokers.items() if not broker.fenced}
        if unfenced != {broker.broker_id for broker in self.brokers if broker.is_alive}:
            return False
        for node in self.controllers:
            if not node.is_alive or node.controller is None or not node.is_ready:
                return False
            provenance = node.controller.committed_image.provenance
            if provenance.last_contained_offset != self.ledger.end_offset - 1:
                return False
        return True

    def describe(self) -> str:
        """Where everybody stands, for the message of a failure."""
        controllers = [node.describe() for node in self.controllers]
        brokers = [
            f"{broker.host} {'alive' if broker.is_alive else 'dead'} epoch {broker.broker_epoch}"
            for broker in self.brokers
        ]
        registered = [
            f"{broker_id}: epoch {each.broker_epoch} {'fenced' if each.fenced else 'unfenced'}"
            for broker_id, each in sorted(self.ledger.image.cluster.brokers.items())
        ]
        unled = leaderless(self.ledger.image)
        return (
            f"ledger ends at {self.ledger.end_offset}; {controllers}; {brokers}; {registered}; "
            f"{unled}"
        )
