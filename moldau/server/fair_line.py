"""A line with a limited number of places, shared by principals so that none fills it for others."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class FairLine(Generic[T]):
    """What waits, by principal: in order for each, and principals take turns.

    The shares bind only when the line is full. Then a principal with less than an equal share of
    the places takes the last place of the principal that has most; any other one is refused.
    Invariants: at most `max_count` items wait; a principal that waits for nothing takes no memory.
    """

    __slots__ = ("_by_principal", "_count", "max_count")

    def __init__(self, max_count: int) -> None:
        self.max_count = max_count
        self._by_principal: OrderedDict[str, OrderedDict[T, None]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, item: T, principal: str) -> tuple[T, str] | None:
        """Let an item wait. Returns who has to go without a place, and its principal: another item,
        this one, or None while there is room.
        """
        left_out = None
        mine = self._by_principal.get(principal)
        if self._count >= self.max_count:
            count = 0 if mine is None else len(mine)
            principal_count = len(self._by_principal) + (mine is None)
            if count >= self.max_count // principal_count:
                return item, principal
            greediest = max(self._by_principal, key=lambda each: len(self._by_principal[each]))
            left_out = next(reversed(self._by_principal[greediest])), greediest
            self.remove(*left_out)
        if mine is None:
            mine = self._by_principal[principal] = OrderedDict()
        mine[item] = None
        self._count += 1
        return left_out

    def take(self) -> T | None:
        """The next item: the first one of the principal whose turn it is; None if none waits."""
        if not self._count:
            return None
        principal, items = self._by_principal.popitem(last=False)
        item, _ = items.popitem(last=False)
        self._count -= 1
        if items:
            self._by_principal[principal] = items
        return item

    def remove(self, item: T, principal: str) -> bool:
        """An item waits no more; whether it did."""
        items = self._by_principal.get(principal)
        if items is None or item not in items:
            return False
        del items[item]
        self._count -= 1
        if not items:
            del self._by_principal[principal]
        return True

    def items(self) -> list[T]:
        """All that wait now."""
        return [item for items in self._by_principal.values() for item in items]
