"""What all replicas together have promised, and the checks that need no knowledge of the algorithm.

Owns: leaders by epoch, committed records by offset, acknowledged payloads, what was ever appended
under an (offset, epoch). Must not: know whose replicas these are (ours, pysyncobj's). Invariant:
entries are only ever added; a contradiction raises Violation.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Protocol

from tests.kit.seeds import Violation

Entry = tuple[int, Any]
"""The epoch of a record and what is in it."""


class LogReader(Protocol):
    """What the checks ask of a replica's log; offsets below `start` are in its snapshot."""

    def entry_at(self, offset: int) -> Entry | None:
        """The record at an offset; None where the log has none."""

    def start(self) -> int:
        """The first offset of the log."""

    def end(self) -> int:
        """The offset behind the last record."""


class Ledger:
    """Everything that is decided for ever."""

    def __init__(self, first_offset: int = 0) -> None:
        self.leaders: dict[int, Hashable] = {}
        self.first_offset = first_offset
        self.entries: list[Entry] = []
        self.acknowledged: dict[Any, int] = {}
        self._appended: dict[tuple[int, int], Any] = {}

    @property
    def end(self) -> int:
        """The offset behind the last committed record."""
        return self.first_offset + len(self.entries)

    def at(self, offset: int) -> Entry:
        """The committed record at an offset."""
        return self.entries[offset - self.first_offset]

    def leads(self, who: Hashable, leader_epoch: int, log: LogReader) -> None:
        """`who` (a process, not a node: one that was restarted is another) leads an epoch."""
        known = self.leaders.get(leader_epoch)
        if known is None:
            self.leaders[leader_epoch] = who
            self._check_complete(who, leader_epoch, log)
        elif known != who:
            raise Violation("two-leaders", f"epoch {leader_epoch}: {known} and {who}")

    def _check_complete(self, who: Hashable, leader_epoch: int, log: LogReader) -> None:
        """A new leader holds everything that is committed (Raft's leader completeness)."""
        last = self.end - 1
        if last < self.first_offset or last < log.start() or self.at(last)[0] >= leader_epoch:
            return
        if log.end() <= last or log.entry_at(last) != self.at(last):
            raise Violation(
                "leader-lacks-committed",
                f"{who} leads epoch {leader_epoch} with {log.entry_at(last)} at {last},"
                f" committed is {self.at(last)}",
            )

    def append(self, who: Hashable, offset: int, entry: Entry, previous_epoch: int) -> None:
        """A record gets into a log: under one offset and epoch there is only one, ever, and one
        epoch before it (Raft's log matching).
        """
        epoch, payload = entry
        known = self._appended.setdefault((offset, epoch), (payload, previous_epoch))
        if known != (payload, previous_epoch):
            raise Violation(
                "log-mismatch",
                f"{who} has {(payload, previous_epoch)} at {offset}, epoch {epoch}; it was {known}",
            )

    def commit(self, who: Hashable, offset: int, entry: Entry) -> bool:
        """`who` takes the record for committed; true when it is the first to do so."""
        if offset < self.end:
            if self.at(offset) != entry:
                raise Violation(
                    "committed-twice", f"{who} has {entry} at {offset}, not {self.at(offset)}"
                )
            return False
        if offset > self.end:
            raise Violation("commit-gap", f"{who} commits {offset}, known end is {self.end}")
        self.entries.append(entry)
        return True

    def erase(self, who: Hashable, offset: int, entry: Entry) -> None:
        """A replica gives up a record: never one that is committed."""
        if offset < self.end and self.at(offset) == entry:
            raise Violation("committed-erased", f"{who} removes {entry} at {offset}")

    def acknowledge(self, payload: Any, offset: int) -> None:
        """A client has read that its record is safe."""
        if offset >= self.end or self.at(offset)[1] != payload:
            found = self.at(offset) if offset < self.end else None
            raise Violation("acknowledged-lost", f"{payload} at {offset}; committed there: {found}")
        if payload in self.acknowledged:
            raise Violation("acknowledged-twice", f"{payload} at {offset}")
        self.acknowledged[payload] = offset
