"""What coordinators keep in memory, and which principal may have them keep more.

Owns the bytes, estimated, of each name (a group, a transactional id), whose they are, and the limit
of all partitions of a coordinator together. Must not know what is kept. Invariants: a name belongs
to the principal that made it, or that first had it grow after its partition was loaded; what is
stored is never taken away, and what does not grow is always allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

UNKNOWN_OWNER = ""
"""The owner of what was read from the log, until a principal has it grow."""

UNLIMITED_BYTES: Final = 2**63


class MemoryLimit:
    """The limit of one coordinator; shared by its partitions.

    Args:
        max_bytes: of all; a principal may have as much as is left for others.
        on_refusal: called with the principal that may not have more.
    """

    def __init__(
        self, max_bytes: int, on_refusal: Callable[[str], None] = lambda _principal: None
    ) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self.on_refusal = on_refusal
        self._by_owner: dict[str, int] = {}

    @property
    def is_tight(self) -> bool:
        """Whether a principal may be refused at all: before, nothing needs to be measured."""
        return 4 * self.used_bytes > self.max_bytes

    def of(self, owner: str) -> int:
        return self._by_owner.get(owner, 0)

    def add(self, owner: str, change_bytes: int) -> None:
        self.used_bytes += change_bytes
        left_bytes = self.of(owner) + change_bytes
        if left_bytes:
            self._by_owner[owner] = left_bytes
        else:
            self._by_owner.pop(owner, None)


class KeptMemory:
    """What one partition keeps, by name."""

    def __init__(self, limit: MemoryLimit | None = None) -> None:
        self.limit = limit or MemoryLimit(UNLIMITED_BYTES)
        self._kept: dict[str, tuple[int, str]] = {}
        self._asking = ("", UNKNOWN_OWNER)

    def may_grow(self, name: str, principal: str, growth_bytes: int) -> bool:
        """Whether a principal may have `name` keep so much more. What follows in the same turn of
        the loop belongs to it, if it is new.
        """
        size_bytes, owner = self._kept.get(name, (0, UNKNOWN_OWNER))
        limit = self.limit
        if owner == UNKNOWN_OWNER:
            self._asking = (name, principal)
            own_bytes = size_bytes + (limit.of(principal) if principal != UNKNOWN_OWNER else 0)
        else:
            principal, own_bytes = owner, limit.of(owner)
        if growth_bytes <= 0 or own_bytes + growth_bytes <= limit.max_bytes - limit.used_bytes:
            return True
        limit.on_refusal(principal)
        return False

    def keep(self, name: str, size_bytes: int) -> None:
        """`name` keeps so much now; 0: it is gone."""
        before_bytes, owner = self._kept.get(name, (0, UNKNOWN_OWNER))
        if owner == UNKNOWN_OWNER and self._asking[0] == name and size_bytes > before_bytes:
            self.limit.add(owner, -before_bytes)
            before_bytes, owner = 0, self._asking[1]
        self.limit.add(owner, size_bytes - before_bytes)
        if size_bytes:
            self._kept[name] = (size_bytes, owner)
        else:
            self._kept.pop(name, None)

    def forget_all(self) -> None:
        """The partition is another coordinator's."""
        kept, self._kept = self._kept, {}
        for size_bytes, owner in kept.values():
            self.limit.add(owner, -size_bytes)
