"""A whole simulated cluster of one seed: controllers, brokers, clients, and the phases of a run.

Owns: brokers, clients and operator, and what must be true after faults stop. Must not: inject
faults (the nemesis does).
Invariant: everything follows from the seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from moldau.controller.controller import SLICE_MS
from tests.kit.seeds import Violation
from tests.simulation.cluster.base_world import POLL_MS, BaseWorld
from tests.simulation.cluster.brokers import SimulatedBroker
from tests.simulation.cluster.clients import SimulatedClient
from tests.simulation.cluster.image_checks import leaderless
from tests.simulation.cluster.operator import Operator
from tests.simulation.cluster.security_administrator import SecurityAdministrator
from tests.simulation.cluster.security_checks import CLOSING_QUESTIONS

CALM_START_MS = 8_000.0
CONVERGENCE_LIMIT_MS = 90_000.0
"""Session timeout, some elections with full back-off, kernels that give up connections."""


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


class World(BaseWorld):
    """See the module."""

    def __init__(
        self, seed: str, *, controllers: int | None = None, print_trace: bool = False
    ) -> None:
        random = Random(seed)
        self.plan = Plan.of_seed(random, controllers)
        super().__init__(seed, random, print_trace=print_trace)
        self.chaos_ms = self.plan.chaos_ms
        self.clients_may_act = True
        self._choose_settings()
        self._make_controllers(self.plan.controllers, static_voters=0.25)
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
        self.slice_ms = Random(f"slices {self.seed}").choice((0.0, SLICE_MS))
        self._choose_security(Random(f"security {self.seed}"))

    def _choose_security(self, random: Random) -> None:
        """Choose by dice of its own, as who acts by it."""
        self.administrator_seeds = [
            random.getrandbits(64) for _ in range(random.choice((0, 1, 1, 2)))
        ]
        self.security_pause_ms = random.choice((60.0, 250.0))
        self.security_keys = {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "allow.everyone.if.no.acl.found": random.choice(("true", "false")),
        }
        self.controller_overrides.update(self.security_keys)

    # -- running ---------------------------------------------------------------------------------

    async def _phases(self, chaos: Callable[[], Any] | None) -> None:
        self._start_controllers()
        for broker in self.brokers:
            broker.start()
        self.clients = [
            SimulatedClient(self, number, self._new_random()) for number in range(self.plan.clients)
        ]
        for number, seed in enumerate(self.administrator_seeds):
            SecurityAdministrator(self, number, Random(seed))
        await self._until(self._has_active, "no active controller at the start", CALM_START_MS * 4)
        await self.loop.elapse(500)
        if chaos is not None:
            await chaos()
        self.clients_may_act = False
        self.note("faults stop")
        began = self.loop.time()
        await self._converge()
        self.counts["convergence_ms"] = int((self.loop.time() - began) * 1000)

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
            node.check_security(
                node.process.name, node.controller.committed_image, questions=CLOSING_QUESTIONS
            )
        for broker in self.brokers:
            broker.check_security()

    # -- conditions ------------------------------------------------------------------------------

    def _is_quiet(self) -> bool:
        if self.operator.is_busy or not self._are_controllers_quiet():
            return False
        brokers = self.ledger.image.cluster.brokers
        unfenced = {broker_id for broker_id, broker in brokers.items() if not broker.fenced}
        return unfenced == {broker.broker_id for broker in self.brokers if broker.is_alive}

    def describe(self) -> str:
        """Where every process stands, for the message of a failure."""
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
