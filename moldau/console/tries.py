"""How often passwords and tokens may be tried: in all, and from one address.

Must not know passwords. Invariant: what was right costs nothing; a client that guesses is slowed
down as on the listeners of a node, and the guesses of one address keep no other one out for long.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from moldau.addresses import canonical_address, network_of
from moldau.console.problems import RETRY, Problem

TRIES_PER_S: Final = 20.0
"""The limit for all clients together."""
HOSTS_TRIES_PER_S: Final = 2.0
BURST_S: Final = 5.0
"""For so many seconds' worth of tries at once there is room after a rest."""
MAX_HOSTS: Final = 1_000


class _Bucket:
    """Fills with time."""

    __slots__ = ("_at_s", "_left", "_per_s")

    def __init__(self, per_s: float, now_s: float) -> None:
        self._per_s = per_s
        self._left = per_s * BURST_S
        self._at_s = now_s

    def has_one(self, now_s: float) -> bool:
        filled = self._left + (now_s - self._at_s) * self._per_s
        self._left = min(filled, self._per_s * BURST_S)
        self._at_s = now_s
        return self._left >= 1

    def change(self, count: int) -> None:
        self._left += count


class Tries:
    """The tries of all clients.

    Args:
        now_s: a clock that never goes back.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._all = _Bucket(TRIES_PER_S, now_s())
        self._by_host: OrderedDict[str, _Bucket] = OrderedDict()

    def take(self, address: str) -> None:
        """One try. Raises: Problem: there were too many."""
        host, now_s = network_of(canonical_address(address)), self._now_s()
        own = self._by_host.pop(host, None) or _Bucket(HOSTS_TRIES_PER_S, now_s)
        self._by_host[host] = own
        if len(self._by_host) > MAX_HOSTS:
            self._by_host.popitem(last=False)
        if not (own.has_one(now_s) and self._all.has_one(now_s)):
            raise Problem(429, "too many passwords are tried; try again later", *RETRY)
        own.change(-1)
        self._all.change(-1)

    def give_back(self, address: str) -> None:
        """The last try of the address was right."""
        self._all.change(1)
        own = self._by_host.get(network_of(canonical_address(address)))
        if own is not None:
            own.change(1)
