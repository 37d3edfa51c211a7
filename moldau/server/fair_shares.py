"""Something limited, shared by parties that take turns: places in a lane, bytes of memory.

Owns how much each party holds and which of its requests wait. A party is a principal, or the
address of clients without one. Must not: know what is shared, or wait itself. Invariants: the
parties together hold the capacity at most; a party gets more only while it then holds no more than
what stays free, so that one alone gets half, two a third each, and the next one finds some; those
that wait are served in turns, one request of a party after the other; none that holds something
gets more before one that holds nothing.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple


class Lane(NamedTuple):
    """Requests of one kind, answered by coroutines, that share so many places.

    A principal, or the address of anonymous clients, gets as many places as stay free: half of
    them if it is alone. Its further requests wait, undecoded, and principals take turns.

    Attributes:
        name: for the log.
        max_running: requests that are worked on at once.
        ends_with_connection: whether a request under way is given up when its client has gone: what
            others do for it may take long.
    """

    name: str
    max_running: int
    ends_with_connection: bool = False


class _Party:
    __slots__ = ("held", "name", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.held = 0
        self.waiting: OrderedDict[Waiting, None] = OrderedDict()


class Waiting:
    """What waits for its party's turn; `granted` is called then, once."""

    __slots__ = ("amount", "granted", "party")

    def __init__(self, party: _Party, amount: int, granted: Callable[[], object]) -> None:
        self.party = party
        self.amount = amount
        self.granted = granted


class FairShares:
    """Shares of a capacity, in any unit; a larger amount than the capacity counts as all of it."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.held = 0
        self._parties: dict[str, _Party] = {}
        self._line: OrderedDict[_Party, None] = OrderedDict()  # those that wait, the next one first
        self._is_granting = False

    def held_by(self, party_name: str) -> int:
        party = self._parties.get(party_name)
        return 0 if party is None else party.held

    def waiting_count(self, party_name: str) -> int:
        """How many requests of a party wait."""
        party = self._parties.get(party_name)
        return 0 if party is None else len(party.waiting)

    def take(self, party_name: str, amount: int = 1) -> bool:
        """Hold that much at once, if none of the party's requests waits and its share allows it."""
        party = self._parties.get(party_name)
        if party is None:
            party = self._parties[party_name] = _Party(party_name)
        amount = min(amount, self.capacity)
        if not party.waiting and self._fits(party, amount) and not self._is_reserved:
            self._hold(party, amount)
            return True
        self._forget(party)
        return False

    def wait(self, party_name: str, amount: int, granted: Callable[[], object]) -> Waiting:
        """Wait for the party's turn, after its other requests; `granted` finds the amount held."""
        party = self._parties.get(party_name)
        if party is None:
            party = self._parties[party_name] = _Party(party_name)
        waiting = Waiting(party, min(amount, self.capacity), granted)
        party.waiting[waiting] = None
        self._line.setdefault(party)
        return waiting

    def give_up(self, waiting: Waiting) -> None:
        """Wait no more; nothing happens to what was granted already."""
        party = waiting.party
        if party.waiting.pop(waiting, self) is self:
            return
        if not party.waiting:
            self._line.pop(party)
            self._forget(party)
        self._grant()

    def give_back(self, party_name: str, amount: int = 1) -> None:
        """Hold so much less, and serve those that wait for it."""
        party = self._parties[party_name]
        amount = min(amount, self.capacity)
        assert party.held >= amount, f"{party_name} holds {party.held}, not {amount}"
        party.held -= amount
        self.held -= amount
        self._forget(party)
        self._grant()

    async def taken(self, party_name: str, amount: int = 1) -> None:
        """Return when the party holds that much more; a caller that is cancelled holds nothing."""
        if self.take(party_name, amount):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self.wait(party_name, amount, partial(_end, turn))
        try:
            await turn
        except BaseException:
            if waiting in waiting.party.waiting:
                self.give_up(waiting)
            else:
                self.give_back(party_name, amount)
            raise

    @asynccontextmanager
    async def share(self, party_name: str, amount: int = 1) -> AsyncIterator[None]:
        """Hold that much inside of the block."""
        await self.taken(party_name, amount)
        try:
            yield
        finally:
            self.give_back(party_name, amount)

    @property
    def _is_reserved(self) -> bool:
        """Whether what is free is for a party that holds nothing, and waits until it is enough."""
        return bool(self._line) and not next(iter(self._line)).held

    def _fits(self, party: _Party, amount: int) -> bool:
        return party.held + amount <= self.capacity - self.held

    def _hold(self, party: _Party, amount: int) -> None:
        party.held += amount
        self.held += amount

    def _forget(self, party: _Party) -> None:
        if not party.held and not party.waiting:
            del self._parties[party.name]

    def _grant(self) -> None:
        """Serve who may have more. A callback that gives something back is seen, too."""
        if self._is_granting:
            return
        self._is_granting = True
        line = self._line
        passed = 0
        try:
            while passed < len(line):
                party = next(iter(line))
                waiting = next(iter(party.waiting))
                if not self._fits(party, waiting.amount):
                    if not party.held:
                        break
                    line.move_to_end(party)
                    passed += 1
                    continue
                passed = 0
                del party.waiting[waiting]
                if party.waiting:
                    line.move_to_end(party)
                else:
                    del line[party]
                self._hold(party, waiting.amount)
                waiting.granted()
        finally:
            self._is_granting = False


def _end(turn: asyncio.Future[None]) -> None:
    if not turn.done():  # it may have been cancelled in this turn of the loop
        turn.set_result(None)
