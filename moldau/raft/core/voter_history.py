"""Which voters the log names at which offset.

Owns: the voter sets of the log, committed or not, over the set at its start. Must not: read the
log. Invariant: offsets rise; the latest set rules from the moment its record is appended, whether
or not it is committed, and truncation brings back the one before (KIP-853).
"""

from __future__ import annotations

from moldau.raft.core.voters import VoterSet

BASE_OFFSET = -1
"""Stands for the base where a record's offset is expected."""


class VoterHistory:
    """A base (the set of the snapshot at the log's start, of the bootstrap checkpoint, or of the
    configuration) and the sets in the log above it.
    """

    def __init__(self, base: VoterSet) -> None:
        self._base = base
        self._appended: list[tuple[int, VoterSet]] = []

    @property
    def latest(self) -> VoterSet:
        """The set that rules."""
        return self._appended[-1][1] if self._appended else self._base

    @property
    def latest_offset(self) -> int:
        """The offset of the latest set's record; -1 for the base."""
        return self._appended[-1][0] if self._appended else BASE_OFFSET

    def append(self, record_offset: int, voters: VoterSet) -> None:
        """A record at `record_offset` names these voters."""
        assert record_offset > self.latest_offset, (
            f"voters at {record_offset}, after {self.latest_offset}"
        )
        self._appended.append((record_offset, voters))

    def truncate_to(self, end_offset: int) -> None:
        """The log now ends at `end_offset`: the sets from there on have never been."""
        while self._appended and self._appended[-1][0] >= end_offset:
            self._appended.pop()

    def trim_to(self, start_offset: int) -> None:
        """The log now starts at `start_offset`: the set as of there becomes the base."""
        self._base = self.at(start_offset)
        self._appended = [each for each in self._appended if each[0] >= start_offset]

    def reset(self, base: VoterSet) -> None:
        """A snapshot has replaced the log."""
        self._base = base
        self._appended = []

    def at(self, end_offset: int) -> VoterSet:
        """The set as of `end_offset`: what the records below it say."""
        voters = self._base
        for offset, appended in self._appended:
            if offset >= end_offset:
                break
            voters = appended
        return voters

    def since(self, end_offset: int) -> list[VoterSet]:
        """The set as of `end_offset` and every later one, in order."""
        later = [voters for offset, voters in self._appended if offset >= end_offset]
        return [self.at(end_offset), *later]
