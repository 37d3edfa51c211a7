"""Certificates of nodes that end: handshakes fail until an operator has changed the certificate.

Owns: whose certificate has ended, for which side of a connection, and until when. Must not: know
what a node makes of it. Invariants: connections that there are stay, unless they are broken when it
ends; clients use other certificates; after `end` all are good.

Which side refuses decides what the other one sees: who connects verifies the server's certificate,
and has no connection; a server refuses a client's only when that one has connected (TLS 1.3).
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Collection, Sequence

from tests.kit.seeds import Violation
from tests.simulation.cluster.base_world import BaseWorld
from tests.simulation.cluster.node import ControllerNode
from tests.simulation.cluster.troubles import Troubles

ENDED = "certificate has expired"
ALERT = "SSLV3_ALERT_CERTIFICATE_EXPIRED"
DURATIONS_MS = (500.0, 3_000.0, 9_000.0, None)
"""None: until the faults end."""
SERVER, CLIENT = "server", "client"
SIDES = ((SERVER,), (CLIENT,), (SERVER, CLIENT))
BROKEN = 0.5
"""How often the node's connections break, so that it needs new ones."""
CONTROLLERS = 0.5
SETTLED_MS = 4_000.0
"""After this time a node that was refused has heard from the others again."""
SEEDS_SHARE = 0.25


class Certificates(Troubles):
    """See the module."""

    pauses_ms = (2_000.0, 5_000.0)

    def __init__(self, world: BaseWorld, brokers: Sequence[str]) -> None:
        """`brokers` are hosts."""
        super().__init__(world, "certificates", SEEDS_SHARE)
        self._brokers = brokers
        self._is_alone = False
        """Whether nothing else disturbs the cluster, so that a controller whose certificate has
        ended is all that could make the others elect.
        """
        self._ended: dict[str, tuple[str, ...]] = {}
        self._is_watched = False
        world.fabric.distrust = self._distrust

    def acts(self) -> list[Callable[[], None]]:
        return [self.end_certificate]

    def keep_to(self, faults: Collection[str]) -> None:
        super().keep_to(faults)
        self._is_alone = set(faults) == {self.end_certificate.__name__}

    def strike(self) -> None:
        self.end_certificate()

    def end(self) -> None:
        super().end()
        self._ended.clear()

    def end_certificate(self) -> None:
        """That of one node."""
        random, world = self.random, self.world
        controllers = [node.host for node in world.controllers]
        brokers = self._brokers
        hosts = controllers if random.random() < CONTROLLERS else brokers
        host = random.choice(hosts)
        if host in self._ended or self._is_watched:
            return
        sides, duration_ms = random.choice(SIDES), random.choice(DURATIONS_MS)
        is_broken = random.random() < BROKEN
        world.fault_injected(
            "certificate ends", f"{host} {'+'.join(sides)} {duration_ms} {is_broken}"
        )
        is_undisturbed = (lambda: True) if duration_ms is None else self._watch(host)
        self._ended[host] = sides
        if is_broken:
            nodes = {*controllers, *brokers}
            for transport in world.fabric.open_transports():
                ends = {transport.host, transport.remote_host}
                if host in ends and ends <= nodes:
                    world.fabric.reset(transport)
        if duration_ms is not None:
            world.loop.call_outside(duration_ms, self._renew, host, is_undisturbed)

    def _renew(self, host: str, is_undisturbed: Callable[[], bool]) -> None:
        if self._ended.pop(host, None) is not None:
            self.world.note(f"{host} has a new certificate")
        self.world.loop.call_outside(SETTLED_MS, self._check, host, is_undisturbed)

    def _check(self, host: str, is_undisturbed: Callable[[], bool]) -> None:
        self._is_watched = False
        if not is_undisturbed():
            self.world.violation = self.world.violation or Violation(
                "certificate-disturbs", f"{host} was refused, and the others have elected"
            )

    def _distrust(self, source: str, host: str) -> ssl.SSLError | None:
        nodes = {node.host for node in self.world.controllers}.union(self._brokers)
        if not self._ended or not nodes.issuperset((source, host)):
            return None
        if SERVER in self._ended.get(host, ()):
            return expired()
        if CLIENT in self._ended.get(source, ()):
            return alert()
        return None

    def _watch(self, host: str) -> Callable[[], bool]:
        """What says later whether the leader of now leads in its epoch, where it has to. Until then
        no other certificate ends.
        """
        leaders = [node for node in self.world.active() if node.host != host]
        if not self._is_alone or self._ended or len(leaders) != 1:
            return lambda: True
        self._is_watched = True
        leader, epoch = leaders[0], _epoch(leaders[0])
        return lambda: _epoch(leader) == epoch


def expired() -> ssl.SSLCertVerificationError:
    """What who connects has of a server whose certificate has ended."""
    error = ssl.SSLCertVerificationError(1, f"[SSL] {ENDED}")
    error.verify_message = ENDED
    return error


def alert() -> ssl.SSLError:
    """What a client whose certificate has ended has of the server."""
    error = ssl.SSLError(1, f"[SSL: {ALERT}]")
    error.reason = ALERT
    return error


def _epoch(node: ControllerNode) -> int:
    return node.log.state.leader_epoch if node.log is not None else -1
