"""Which records of several partitions a page of messages has, and what is left for the next page.

Owns the choice of the oldest or the newest records by time, the parts of partitions that have not
been read, and the cursor that says them. Must not read records. Invariants: no more than the
limit is kept; for each partition, what is not kept lies behind all that is kept (`Oldest`) or
before it (`Newest`), so that pages that follow each other leave out nothing and repeat nothing.

Times within a partition may go back. A record counts as at least as late as those before it.
"""

from __future__ import annotations

import base64
import binascii
import heapq
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from moldau.console.problems import Problem

MAX_CURSOR: Final = 6_000
"""Characters; it comes back within an address."""
MAX_OPENED: Final = 1 << 20
MAX_OFFSET: Final = 2**63 - 1
OLDEST, NEWEST = "oldest", "newest"


@dataclass(slots=True)
class Part:
    """What has not been read of a partition.

    Attributes:
        start: where the log begins.
        low: everything from `start` to it; only where the newest are read.
        at, end: and everything from `at` to `end`.
    """

    start: int
    low: int
    at: int
    end: int

    @property
    def is_read(self) -> bool:
        """Whether nothing is left."""
        return self.at >= self.end and self.low <= self.start

    def step_back(self, width: int) -> None:
        """Go on with what is before the range that has been read."""
        if self.at >= self.end:
            self.end = self.low
            self.low = self.at = max(self.start, self.low - width)


@dataclass(eq=False)
class Oldest:
    """The oldest records by time, at most `limit`."""

    limit: int
    _kept: dict[tuple[int, int], tuple[int, Any]] = field(default_factory=dict)
    _latest: list[tuple[int, int, int]] = field(default_factory=list)
    _times: dict[int, int] = field(default_factory=dict)
    ceilings: dict[int, int] = field(default_factory=dict)
    """Partitions with records that are too late: the offset of the first one."""

    @property
    def is_full(self) -> bool:
        return len(self._kept) >= self.limit

    @property
    def over(self) -> Collection[int]:
        """Partitions of which no more is wanted."""
        return self.ceilings

    def see(
        self, partition: int, record_offset: int, time_ms: int, make: Callable[[], Any] | None
    ) -> bool:
        """Take note of a record, the next one of its partition.

        Args:
            make: gives what to keep of it; None for a record that is not wanted.

        Returns: whether the partition's next record may be wanted.
        """
        if partition in self.ceilings:
            return False
        time_ms = self._times[partition] = max(time_ms, self._times.get(partition, time_ms))
        place = (-time_ms, -partition, -record_offset)
        if self.is_full and place < self._latest[0]:
            self.ceilings[partition] = record_offset
            return False
        if make is None:
            return True
        if self.is_full:
            _, latest, at = heapq.heappop(self._latest)
            del self._kept[-latest, -at]
            self.ceilings[-latest] = -at
        self._kept[partition, record_offset] = (time_ms, make())
        heapq.heappush(self._latest, place)
        return partition not in self.ceilings

    def chosen(self) -> list[Any]:
        """What is kept, the oldest first."""
        places = sorted(self._kept, key=lambda place: (self._kept[place][0], *place))
        return [self._kept[place][1] for place in places]

    def close(self, partition: int, part: Part) -> None:
        """Add to what is left of a partition what was seen of it and is not kept."""
        part.at = min(part.at, self.ceilings.get(partition, part.at))


@dataclass(eq=False)
class Newest:
    """The newest records by time, at most `limit`. A partition is read in ranges, the last one
    first; each range forwards.
    """

    limit: int
    _kept: dict[tuple[int, int], tuple[int, Any]] = field(default_factory=dict)
    _earliest: list[tuple[int, int, int]] = field(default_factory=list)
    _times: dict[int, int] = field(default_factory=dict)
    _first_times: dict[int, int] = field(default_factory=dict)
    _bounds: dict[int, int] = field(default_factory=dict)
    floors: dict[int, int] = field(default_factory=dict)
    """Partitions with records that are too early: the offset behind the last one."""

    @property
    def is_full(self) -> bool:
        return len(self._kept) >= self.limit

    @property
    def over(self) -> Collection[int]:
        """Partitions of whose range no more is wanted: none."""
        return ()

    def begin_ranges(self) -> None:
        """The next record of each partition is the first of a range."""
        for (partition, _), (time_ms, _) in self._kept.items():
            self._bounds[partition] = min(time_ms, self._bounds.get(partition, time_ms))
        self._times.clear()
        self._first_times.clear()

    def see(
        self, partition: int, record_offset: int, time_ms: int, make: Callable[[], Any] | None
    ) -> None:
        """Take note of a record, the next one of its range; `make` as for `Oldest`."""
        first = self._first_times.get(partition, time_ms)
        self._first_times[partition] = min(first, time_ms)
        time_ms = self._times[partition] = max(time_ms, self._times.get(partition, time_ms))
        if make is None or record_offset < self.floors.get(partition, 0):
            return
        time_ms = min(time_ms, self._bounds.get(partition, time_ms))
        place = (time_ms, partition, record_offset)
        if self.is_full:
            if place < self._earliest[0]:
                self.floors[partition] = record_offset + 1
                return
            _, early, at = heapq.heappop(self._earliest)
            del self._kept[early, at]
            self.floors[early] = at + 1
        self._kept[partition, record_offset] = (time_ms, make())
        heapq.heappush(self._earliest, place)

    def needs(self, partition: int, part: Part) -> bool:
        """Whether records before the range that was read last may be wanted."""
        if part.is_read or partition in self.floors:
            return False
        if not self.is_full or partition not in self._first_times:
            return True
        return self._first_times[partition] > self._earliest[0][0]

    def chosen(self) -> list[Any]:
        """What is kept, the newest first."""
        places = sorted(self._kept, key=lambda place: (-self._kept[place][0], place[0], -place[1]))
        return [self._kept[place][1] for place in places]

    def close(self, partition: int, part: Part) -> None:
        """Add to what is left of a partition what was seen of it and is not kept."""
        floor = self.floors.get(partition)
        if floor is not None:
            part.low = floor
            if floor >= part.end:
                part.at = part.end = floor


def cursor_of(kind: str, parts: Mapping[int, Part]) -> str | None:
    """What is left of the partitions as text; None where that is nothing, or too long."""
    rows = [
        [partition, part.low, part.at, part.end] if part.at < part.end else [partition, part.low]
        for partition, part in parts.items()
        if not part.is_read
    ]
    if not rows:
        return None
    text = base64.urlsafe_b64encode(zlib.compress(orjson.dumps([kind, rows]))).decode()
    return text if len(text) <= MAX_CURSOR else None


def opened(
    cursor: str, kind: str, partitions: Collection[int], starts: Mapping[int, int]
) -> dict[int, Part]:
    """What was left, within what the partitions have now. Raises: Problem: it is no such cursor."""
    try:
        unpacking = zlib.decompressobj()
        data = unpacking.decompress(base64.urlsafe_b64decode(cursor), MAX_OPENED)
        given = orjson.loads(data)
    except (binascii.Error, zlib.error, ValueError):
        given = None
    found: dict[int, Part] = {}
    if isinstance(given, list) and len(given) == 2 and given[0] == kind:
        rows: list[object] = given[1] if isinstance(given[1], list) else [None]
        for given_row in rows:
            row = _row(given_row)
            if row is None or row[0] not in partitions:
                break
            start = starts[row[0]]
            low, at, end = (max(start, each) for each in (row[1], *(row[2:] or row[1:] * 2)))
            found[row[0]] = Part(start, low, at, end)
        else:
            return found
    raise Problem(422, "the parameter after is not the `next` of a page of these messages")


def _row(given: object) -> list[int] | None:
    """The numbers of a partition in a cursor; None where they are none."""
    if not isinstance(given, list) or len(given) not in (2, 4):
        return None
    are_numbers = all(type(each) is int and 0 <= each <= MAX_OFFSET for each in given)
    return given if are_numbers else None
