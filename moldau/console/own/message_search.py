"""The search of a topic's messages: what is read of its partitions, in which order, until when.

Must not know what is done with records. Invariants: a search takes no more than its budget and a
fetch; what it has not read is in `parts`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from moldau.client import ConsumerRecord
from moldau.console.calls import Call
from moldau.console.own.message_query import Asked
from moldau.console.own.message_ranges import Newest, Part
from moldau.console.reading import Budget, end_offsets, start_offsets

if TYPE_CHECKING:
    from moldau.client import Consumer

AT_ONCE: Final = 500
"""Records that are taken from the consumer at a time."""
WAIT_S: Final = 0.25
FETCH_BYTES: Final = str(256 << 10)
"""What a broker is asked for at a time; a larger batch comes whole."""
BUFFER_BYTES: Final = str(2 << 20)
LEAST_WIDTH, MOST_WIDTH = 16, 100_000
"""Offsets of a partition that are read at a time, from the end on."""
WIDENED: Final = 4
EARLIEST: Final = "earliest"


class Chooser(Protocol):
    """What decides about records, those of a partition in their order."""

    @property
    def over(self) -> Collection[int]:
        """Partitions of which no more is wanted."""

    def see(
        self, partition: int, record_offset: int, time_ms: int, make: Callable[[], Any] | None, /
    ) -> bool | None:
        """Take note of a record; `make` gives what to keep of one that is wanted. False: the
        partition's next record is not wanted.
        """


def search_settings(asked: Asked) -> dict[str, str]:
    """Settings of the consumer of a search."""
    return {
        "isolation_level": asked.isolation,
        "fetch_buffer_bytes": BUFFER_BYTES,
        "fetch_max_bytes": FETCH_BYTES,
        "max_partition_fetch_bytes": FETCH_BYTES,
        "auto_offset_reset": EARLIEST,  # what was deleted while it was read is left out
    }


async def first_parts(asked: Asked, begin: str, starts: Mapping[int, int]) -> dict[int, Part]:
    """What lies between a place to begin and the end, of each partition."""
    admin, names = asked.clients.admin, asked.partitions
    ends = await end_offsets(admin, names.values(), read_committed=asked.is_committed)
    found = await start_offsets(admin, names.values(), begin, read_committed=asked.is_committed)
    firsts = {each: max(starts[each], found[name]) for each, name in names.items()}
    return {
        each: Part(firsts[each], firsts[each], firsts[each], max(firsts[each], ends[name]))
        for each, name in names.items()
    }


@dataclass(eq=False)
class Search:
    """One search of a topic's records.

    Attributes:
        parts: what is left of each partition.
        after_poll: is waited for when the chooser has seen some records.
    """

    call: Call
    asked: Asked
    consumer: Consumer[bytes, bytes]
    budget: Budget
    parts: dict[int, Part]
    after_poll: Callable[[], Awaitable[None]] | None = None

    async def forwards(self, chooser: Chooser) -> bool:
        """Read all partitions from where they begin. Returns: whether the budget sufficed."""
        return await self._read([*self.parts], chooser)

    async def backwards(self, chooser: Newest) -> bool:
        """Find the last records by time: of each partition the end, then what is before it, as long
        as that may be wanted. Returns: whether the budget sufficed.
        """
        open_parts = [each for each, part in self.parts.items() if not part.is_read]
        width = max(LEAST_WIDTH, 2 * chooser.limit // max(1, len(open_parts)))
        while open_parts:
            for each in open_parts:
                self.parts[each].step_back(width)
            chooser.begin_ranges()
            if not await self._read(open_parts, chooser):
                return False
            open_parts = [each for each in open_parts if chooser.needs(each, self.parts[each])]
            width = min(width * WIDENED, MOST_WIDTH)
        return True

    async def _read(self, partitions: Collection[int], chooser: Chooser) -> bool:
        """Read the ranges of these partitions. Returns: whether the budget sufficed."""
        now_s = self.call.site.settings.now_s
        left = {each for each in partitions if self.parts[each].at < self.parts[each].end}
        self._open(left)
        while left:
            if self.budget.is_spent(now_s()):
                return False
            most = self.budget.left_records(AT_ONCE)
            wait_ms = self.budget.left_s(now_s(), WAIT_S) * 1_000
            found = await self.consumer.getmany(most, wait_ms)
            self.call.line.goes_on()
            for records in found.values():
                self._look_at(records, left, chooser)
            if self.after_poll is not None:
                await self.after_poll()
            self._leave_read(left, chooser)
        return True

    def _look_at(
        self,
        records: list[ConsumerRecord[bytes, bytes]],
        left: Collection[int],
        chooser: Chooser,
    ) -> None:
        """Offer records of one partition to the chooser."""
        part, is_wanted = self.parts[records[0].partition], self.asked.is_wanted
        if records[0].partition not in left:
            return
        for each in records:
            if each.offset < part.at:
                continue
            if each.offset >= part.end:
                part.at = part.end
                break
            self.budget.take(each)
            part.at = each.offset + 1
            form = None
            if is_wanted is None or is_wanted(each):
                form = _Later(self.asked, each)
            if chooser.see(each.partition, each.offset, each.timestamp_ms, form) is False:
                break

    def _leave_read(self, left: set[int], chooser: Chooser) -> None:
        """Read no more of partitions whose range has been read, or has nothing that is wanted."""
        positions = self.consumer.positions()
        for each in [*left]:
            part, position = self.parts[each], positions.get(self.asked.partitions[each])
            if position is not None and position.offset >= part.end:
                part.at = part.end
            if part.at >= part.end or each in chooser.over:
                left.remove(each)
                self.consumer.pause(self.asked.partitions[each])

    def _open(self, partitions: Collection[int]) -> None:
        for each, name in self.asked.partitions.items():
            if each in partitions:
                self.consumer.seek(name, self.parts[each].at)
                self.consumer.resume(name)
            else:
                self.consumer.pause(name)


@dataclass(frozen=True, slots=True)
class _Later:
    """The form of a record, made where it is kept."""

    asked: Asked
    record: ConsumerRecord[bytes, bytes]

    def __call__(self) -> Any:
        return self.asked.form(self.record)
