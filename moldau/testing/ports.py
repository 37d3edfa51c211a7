"""Ports for nodes whose addresses must be known before they run, and stay free while they are down.

Owns which ports to choose and a socket that keeps each from everybody else. Must not listen.
Invariant: a port that is held is given to no other holder and to no outgoing connection; a node of
ours can listen on it all the same (both set SO_REUSEADDR, and this socket never listens).
"""

from __future__ import annotations

import random
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

#: Below live services that people know.
LOWEST_PORT: Final = 10_000
HIGHEST_PORT: Final = 65_535
#: Where the system takes ports of outgoing connections from, if it does not say (IANA's advice).
USUAL_EPHEMERAL: Final = (49_152, 65_535)
EPHEMERAL_RANGE_FILE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
#: A range with fewer ports than this is taken for full too soon.
FEW_PORTS: Final = 1_000
MOST_TRIES: Final = 2_000
#: A bound socket that does not listen shares its port on Linux only.
CAN_HOLD: Final = sys.platform == "linux"


class NoFreePort(OSError):
    """No port could be found, or a wanted one is taken."""


def ephemeral_range(path: Path = EPHEMERAL_RANGE_FILE) -> tuple[int, int]:
    """First and last port that the system gives to outgoing connections."""
    try:
        low, high = (int(word) for word in path.read_text().split())
    except (OSError, ValueError):
        return USUAL_EPHEMERAL
    return low, high


def candidates(ephemeral: tuple[int, int]) -> Sequence[int]:
    """The ports to choose from: outside of the ephemeral range wherever it leaves enough."""
    low, high = ephemeral
    below, above = range(LOWEST_PORT, low), range(max(high + 1, LOWEST_PORT), HIGHEST_PORT + 1)
    best = max(below, above, key=len)
    return best if len(best) >= FEW_PORTS else range(LOWEST_PORT, HIGHEST_PORT + 1)


class PortHolder:
    """Finds free ports of one address and holds them until `close`.

    Args:
        host: the address the nodes will listen on.
        source: the dice; fresh ones when None.
    """

    def __init__(self, host: str, *, source: random.Random | None = None) -> None:
        self._host = host
        self._random = source or random.Random()
        self._held: dict[int, socket.socket] = {}

    def take(self, count: int = 1) -> list[int]:
        """Hold `count` free ports. Raises: NoFreePort."""
        choice = candidates(ephemeral_range())
        taken: list[int] = []
        for _ in range(MOST_TRIES):
            if len(taken) == count:
                return taken
            port = self._random.choice(choice)
            if port not in self._held and self._bind(port, is_own=False):
                taken.append(port)
        raise NoFreePort(f"no {count} free ports on {self._host}")

    def hold(self, port: int) -> None:
        """Hold a port that a node had before; what is left of its connections does not matter.

        Raises:
            NoFreePort: somebody else uses it.
        """
        if port not in self._held and not self._bind(port, is_own=True):
            raise NoFreePort(f"{self._host}:{port} is in use")

    def close(self) -> None:
        """Let go of all ports."""
        for held in self._held.values():
            held.close()
        self._held.clear()

    def _bind(self, port: int, *, is_own: bool) -> bool:
        try:
            [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(
                self._host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            bound = socket.socket(family, kind, protocol)
        except OSError:
            return False
        try:
            if is_own:
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Strictly, unless it was ours: not even the remains of a connection may be there.
            bound.bind(address)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        except OSError:
            bound.close()
            return False
        if CAN_HOLD:
            self._held[port] = bound
        else:
            bound.close()
        return True
