"""Places for connections and handshakes, shared by the addresses of clients (of IPv6 by networks).

Owns who holds a place. Must not know what for. Invariants: there are never more than the limits
say; what asks for a place gets one, and an address that has fewer than others loses none to them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from moldau.addresses import network_of


class Holder(Protocol):
    """What takes a place: a connection, or a handshake.

    Attributes:
        host: the client's address.
        is_busy: whether a request is under way; others lose their places first.
        since_s: when that began, by the loop's time.
    """

    host: str
    is_busy: bool
    since_s: float

    def give_up(self) -> None:
        """Its place is needed: end it."""


HolderT = TypeVar("HolderT", bound=Holder)


class Places(Generic[HolderT]):
    """A number of places, shared fairly by addresses when all are taken.

    Args:
        limit: of all addresses.
        limit_per_host: of one.
    """

    def __init__(self, limit: int, limit_per_host: int) -> None:
        self._limit = limit
        self._limit_per_host = limit_per_host
        self._by_host: dict[str, list[HolderT]] = {}
        self._count = 0

    def __iter__(self) -> Iterator[HolderT]:
        return itertools.chain.from_iterable(self._by_host.values())

    def take(self, holder: HolderT) -> None:
        """Give it a place, which another may have to give up: one of its address when this has all
        that it may have, else one of the address that has most, its own where others have as many.
        """
        own = self._by_host.get(network_of(holder.host), [])
        if len(own) >= self._limit_per_host:
            self._free_one(own)
        elif self._count >= self._limit:
            most = max(self._by_host.values(), key=lambda holders: (len(holders), holders is own))
            self._free_one(most)
        self._by_host.setdefault(network_of(holder.host), []).append(holder)
        self._count += 1

    def leave(self, holder: HolderT) -> None:
        """Its place is free again (idempotent)."""
        own = self._by_host.get(network_of(holder.host), [])
        if holder not in own:
            return
        own.remove(holder)
        self._count -= 1
        if not own:
            del self._by_host[network_of(holder.host)]

    def _free_one(self, holders: list[HolderT]) -> None:
        loser = min(holders, key=lambda holder: (holder.is_busy, holder.since_s))
        self.leave(loser)
        loser.give_up()
