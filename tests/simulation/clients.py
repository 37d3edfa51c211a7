"""The product's clients in a simulated cluster: a machine, and on it one process after the other.

Owns: the ports that a process's clients get, its life, and what it suffers: kills, pauses, a slow
event loop. Must not: know what a client does (`live` of a subclass), or what it was promised.
Invariants: everything a client does follows from the seed; a client of a process that was killed
does nothing more, and the collector never decides when it is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from random import Random
from typing import Any, Protocol, TypeVar

from moldau.client import Admin, Consumer, Producer
from moldau.client.errors import BrokerError, KafkaError, NoBrokerAvailable, RequestTimeout
from moldau.runtime.ports import Ports
from tests.virtual.loop import Process, VirtualClock, VirtualLoop
from tests.virtual.network import Fabric, SimulatedNetwork
from tests.virtual.wall_clocks import WallClocks

AnyClient = TypeVar("AnyClient", Producer[Any, Any], Consumer[Any, Any], Admin)

NO_PROCESS = 0
"""Owns the clients of processes that have ended: as in the child of a fork nothing is closed."""

STUTTER_MS = (5.0, 120.0)
"""How long a slow event loop stands still at a time, and how long it runs between."""


class ClientWorld(Protocol):
    """What a world has for its clients."""

    loop: VirtualLoop
    fabric: Fabric
    wall_clocks: WallClocks
    broker_addresses: list[tuple[int, str, int]]
    clients: list[ClientHost]

    def note(self, line: str) -> None: ...


class ClientHost:
    """One machine. Its processes are `live`, again after each death (`start`).

    Attributes:
        process: the one that runs, or ran last; `starts` counts them.
        random: the machine's dice, which all its processes throw.
    """

    def __init__(self, world: ClientWorld, host: str, random: Random) -> None:
        self.host = host
        self.random = random
        self.starts = 0
        self.process: Process
        self._loop, self._fabric, self._note = world.loop, world.fabric, world.note
        self._wall_clock = world.wall_clocks.of(host)
        self._addresses: Sequence[tuple[int, str, int]] = world.broker_addresses
        self._network: SimulatedNetwork
        self._made: list[Any] = []
        self._slow_until = 0.0
        world.clients.append(self)

    # -- life ------------------------------------------------------------------------------------

    async def live(self) -> None:
        """What a process does from its start on."""
        raise NotImplementedError

    def start(self) -> None:
        """A process begins; the one before has ended."""
        assert not self.starts or not self.process.is_alive, "one process at a time"
        self.starts += 1
        self.process = Process(self._loop, f"{self.host}#{self.starts}")
        self.process.on_kill.append(self.forget)
        self._network = self._fabric.port_of(self.process, self.host)
        self.process.spawn(self.live())

    def kill(self) -> None:
        """SIGKILL: what it had not sent is never sent."""
        self.process.kill()

    def forget(self) -> None:
        """The machine's clients will not be used any more; none of them is closed (idempotent)."""
        for client in self._made:
            client._client._connections._owner_process_id = NO_PROCESS

    # -- what its processes use ------------------------------------------------------------------

    def ports(self) -> Ports:
        """Clock, network and randomness for one client of the process that runs."""
        clock = VirtualClock(self._loop, self._wall_clock)
        return Ports(clock, self._network, Random(self.random.getrandbits(64)))

    @property
    def servers(self) -> str:
        """The brokers, for `bootstrap.servers`, in an order that differs from call to call."""
        addresses = list(self._addresses)
        self.random.shuffle(addresses)
        return ",".join(f"{host}:{port}" for _broker_id, host, port in addresses)

    def made(self, client: AnyClient) -> AnyClient:
        """Keep a client to the end of the run; returns it."""
        self._made.append(client)
        return client

    async def cut_short(self, call: Coroutine[Any, Any, Any], after_ms: float) -> bool:
        """Cancel a call if it takes so long; whether it ended before. Raises what it raises."""
        task = asyncio.create_task(call)
        timer = self._loop.call_later(after_ms / 1000, task.cancel)
        await asyncio.wait([task])
        timer.cancel()
        if not task.cancelled():
            task.result()
        return not task.cancelled()

    # -- what they suffer ------------------------------------------------------------------------

    def pause(self, duration_ms: float) -> None:
        """SIGSTOP, and SIGCONT after so long."""
        self.process.stop_for(duration_ms)

    def slow_down(self, duration_ms: float) -> None:
        """The event loop stands still now and then, as when the application computes in it."""
        is_slow = self._slow_until > self._loop.time()
        self._slow_until = self._loop.time() + duration_ms / 1000
        if not is_slow:
            self._stutter()

    def recover(self) -> None:
        """The end of all that: it runs, and runs freely."""
        self._slow_until = 0.0
        if self.process.is_alive:
            self.process.go_on()
        else:
            self.start()

    def _stutter(self) -> None:
        if self._loop.time() < self._slow_until and self.process.is_alive:
            still_ms, between_ms = (self.random.uniform(*STUTTER_MS) for _ in range(2))
            self.process.stop_for(still_ms)
            self._loop.call_outside(still_ms + between_ms, self._stutter)


def is_passing(error: KafkaError) -> bool:
    """Whether faults alone lead to such an error: the same call may succeed later."""
    is_late = isinstance(error, RequestTimeout | NoBrokerAvailable)
    return is_late or (isinstance(error, BrokerError) and error.code.retriable)
