"""What the members of one group were assigned and what they read, and whether that can be right.

Owns the history of a run and the checker. Must not know any client library. Invariant: events are
in an order in which they can have happened: a partition counts as owned from the moment its owner
counts until just before the owner lets it go, so that overlaps are the group's fault.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["assigned", "revoked", "lost", "read", "committed"]


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened to one member.

    Attributes:
        member: its name, used once.
        partition: which.
        offset: of a record that was read, or the next one after what was committed; else -1.
    """

    kind: Kind
    member: str
    partition: int
    offset: int = -1


class History:
    """Events of members that run in threads of their own."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._lock = threading.Lock()

    def add(self, kind: Kind, member: str, partitions: Iterable[int]) -> None:
        """Assigned, about to let go, or found to have lost."""
        with self._lock:
            self.events.extend(Event(kind, member, partition) for partition in partitions)

    def add_offsets(self, kind: Kind, member: str, offsets: Iterable[tuple[int, int]]) -> None:
        """Read, or committed."""
        with self._lock:
            self.events.extend(Event(kind, member, *where) for where in offsets)

    def count(self, kind: Kind) -> int:
        """How many events of a kind there are."""
        with self._lock:
            return sum(event.kind == kind for event in self.events)


@dataclass(slots=True)
class _Partition:
    owner: str | None = None
    next_offset: int | None = None
    committed_offset: int = 0
    read: set[int] = field(default_factory=set)


class Checker:
    """Goes through a history and collects what cannot be right.

    Args:
        ends: partition → how many records it has; None: not to be compared.
    """

    def __init__(self, ends: Mapping[int, int] | None = None) -> None:
        self.findings: list[str] = []
        self._ends = ends
        self._partitions: dict[int, _Partition] = {}
        self._losses = 0

    def check(self, events: Iterable[Event]) -> list[str]:
        """All findings, empty for a sound history."""
        for number, event in enumerate(events):
            state = self._partitions.setdefault(event.partition, _Partition())
            for finding in getattr(self, f"_{event.kind}")(state, event):
                self.findings.append(f"event {number}, partition {event.partition}: {finding}")
        for partition, end_offset in (self._ends or {}).items():
            found = self._partitions.get(partition, _Partition())
            missing = set(range(end_offset)) - found.read
            if missing:
                self.findings.append(
                    f"partition {partition}: {len(missing)} records were never read, "
                    f"the first at {min(missing)}"
                )
        return self.findings

    def _assigned(self, state: _Partition, event: Event) -> Iterable[str]:
        if state.owner is not None:
            yield f"{event.member} is given what {state.owner} owns"
        state.owner = event.member
        state.next_offset = state.committed_offset

    def _revoked(self, state: _Partition, event: Event) -> Iterable[str]:
        if state.owner != event.member:
            yield f"{event.member} lets go what {state.owner} owns"
        state.owner = None

    def _lost(self, state: _Partition, event: Event) -> Iterable[str]:
        """The member that lost it may hear of it late; another one may own it by now."""
        if state.owner == event.member:
            state.owner = None
        return ()

    def _read(self, state: _Partition, event: Event) -> Iterable[str]:
        if state.owner != event.member:
            yield f"{event.member} reads {event.offset} of what {state.owner} owns"
        elif event.offset != state.next_offset:
            yield f"{event.member} reads {event.offset} instead of {state.next_offset}"
        if event.offset in state.read and event.offset < state.committed_offset:
            yield f"{event.member} reads {event.offset} again, which was committed"
        state.read.add(event.offset)
        state.next_offset = event.offset + 1

    def _committed(self, state: _Partition, event: Event) -> Iterable[str]:
        if state.owner != event.member:
            yield f"{event.member} commits {event.offset} of what {state.owner} owns"
        if event.offset < state.committed_offset:
            yield f"{event.member} commits {event.offset} below {state.committed_offset}"
        state.committed_offset = event.offset
