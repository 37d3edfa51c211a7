"""The committed records of one partition in order, and which of them a transaction decides.

Owns: what is open, committed and aborted in one partition, by the markers that are committed there.
Must not: know clients or coordinators. Invariant: an outcome, once given, stays; the records ascend
by offset.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

from moldau.protocol.records import Record
from tests.kit.seeds import Violation
from tests.simulation.transactions.contents import Content

LAST_EPOCH = 2**15 - 1


@dataclass(slots=True)
class Placed:
    """One record. `outcome`: None while its transaction is open."""

    offset: int
    record: Record
    producer_id: int
    outcome: bool | None


@dataclass(slots=True)
class Open:
    """One producer's open transaction here."""

    producer_epoch: int
    first_offset: int
    placed: list[Placed] = field(default_factory=list)


class Stream:
    """One partition."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.placed: list[Placed] = []
        self.offsets: list[int] = []
        self.open: dict[int, Open] = {}
        self.coordinator_epochs: dict[int, int] = {}
        self.appended_markers: dict[int, list[tuple[int, bool]]] = {}

    def first_open_offset(self, loaded_end: int) -> int | None:
        """Where the oldest open transaction begins; the last stable offset is never above.

        Who has loaded a marker from its disk takes it for committed (as Apache Kafka, whose
        snapshots say no more): its outcome is settled, and a marker that is lost is sent again.
        Those below `loaded_end` do not count as open.
        """
        offsets = []
        for producer_id, known in self.open.items():
            marker = self.marker_after(producer_id, known.first_offset)
            if marker is None or marker[0] >= loaded_end:
                offsets.append(known.first_offset)
        return min(offsets, default=None)

    def marker_after(self, producer_id: int, offset: int) -> tuple[int, bool] | None:
        """A producer's next marker that a leader wrote, committed or not: where, and which."""
        for marker in self.appended_markers.get(producer_id, ()):
            if marker[0] > offset:
                return marker
        return None

    def between(self, start_offset: int, end_offset: int) -> Iterator[Placed]:
        """The records in [start_offset, end_offset)."""
        for index in range(bisect_left(self.offsets, start_offset), len(self.placed)):
            if self.offsets[index] >= end_offset:
                return
            yield self.placed[index]

    def add(self, content: Content) -> list[Placed]:
        """Records are committed (to the log, not to readers)."""
        known = self.open.get(content.producer_id)
        if content.is_transactional:
            if known is None:
                known = Open(content.producer_epoch, content.base_offset)
                self.open[content.producer_id] = known
            elif known.producer_epoch != content.producer_epoch:
                raise Violation(
                    "two-epochs-in-one",
                    f"{self.name}: {content} in a transaction of epoch {known.producer_epoch}",
                )
        outcome = None if content.is_transactional else True
        new = []
        for number, record in enumerate(content.records):
            offset = content.base_offset + number
            placed = Placed(offset, record, content.producer_id, outcome)
            self.placed.append(placed)
            self.offsets.append(offset)
            new.append(placed)
        if content.is_transactional and known is not None:
            known.placed.extend(new)
        return new

    def end(self, content: Content, *, has_epoch_of_its_own: bool) -> list[Placed]:
        """A marker is committed: the records that it decides."""
        assert content.marker is not None
        is_commit, coordinator_epoch = content.marker
        if coordinator_epoch < self.coordinator_epochs.get(content.producer_id, -1):
            raise Violation(
                "coordinator-epoch-back",
                f"{self.name}: {content} after {self.coordinator_epochs[content.producer_id]}",
            )
        self.coordinator_epochs[content.producer_id] = coordinator_epoch
        known = self.open.pop(content.producer_id, None)
        if known is None:
            return []
        is_late = content.producer_epoch < known.producer_epoch or (
            has_epoch_of_its_own
            and content.producer_epoch == known.producer_epoch
            and content.producer_epoch != LAST_EPOCH
        )
        if is_late:
            raise Violation(
                "marker-ends-later-one",
                f"{self.name}: {content} ends a transaction of epoch {known.producer_epoch}",
            )
        for placed in known.placed:
            placed.outcome = is_commit
        return known.placed
