"""Decides whether a log kept its promise: what was acknowledged is stored, once and in order.

Owns the verdict and nothing else: it knows no client, no cluster and no clock; it is given what was
sent and acknowledged, and what was read. Must not: guess. Invariants: the bytes of a record follow
from its key and sequence alone, so that any alteration shows; an acknowledged record counts as kept
only if the final reading has it exactly once, where the broker said it is.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

SHOWN_FINDINGS: Final = 10
LONGEST_PADDING_BYTES: Final = 400
UNKNOWN_OFFSET: Final = -1


class ReadRecord(NamedTuple):
    """One record as a consumer got it."""

    partition: int
    offset: int
    key: bytes
    value: bytes


@dataclass(slots=True)
class Acknowledged:
    """Where the broker said that it put a record; the offset is -1 when it did not say."""

    partition: int
    offset: int


def value_of(key: bytes, sequence: int) -> bytes:
    """The value of a key's record number `sequence`: nothing else may ever be read for it."""
    head = b"%s|%d|" % (key, sequence)
    check = zlib.crc32(head)
    return head + b"%08x|" % check + (b"%08x" % (check ^ 0x5A5A5A5A)) * (check % 50)


def sequence_in(key: bytes, value: bytes) -> int | None:
    """The number in a value that is exactly as `value_of` made it; None for any other bytes."""
    parts = value.split(b"|", 2)
    if len(parts) != 3 or parts[0] != key or not parts[1].isdigit():
        return None
    sequence = int(parts[1])
    return sequence if value_of(key, sequence) == value else None


class SentLedger:
    """What was handed to producers, and what became of it; sequences count from 0 per key.

    One thread may write per key; several threads may write different keys.
    """

    def __init__(self) -> None:
        self.partitions: dict[bytes, int] = {}
        self.handed_counts: dict[bytes, int] = {}
        self.acknowledged: dict[bytes, dict[int, Acknowledged]] = {}
        self.refused: dict[bytes, dict[int, str]] = {}

    def add_key(self, key: bytes, partition: int) -> None:
        """Announce a key and the partition that all its records go to."""
        assert key not in self.partitions, "one writer per key"
        self.partitions[key] = partition
        self.handed_counts[key] = 0
        self.acknowledged[key] = {}
        self.refused[key] = {}

    def hand(self, key: bytes) -> int:
        """The sequence of the next record of a key, which is now on its way."""
        sequence = self.handed_counts[key]
        self.handed_counts[key] = sequence + 1
        return sequence

    def acknowledge(self, key: bytes, sequence: int, partition: int, offset: int) -> None:
        """The broker took it."""
        self.acknowledged[key][sequence] = Acknowledged(partition, offset)

    def refuse(self, key: bytes, sequence: int, reason: str) -> None:
        """The producer gave up; the record may be in the log or not."""
        self.refused[key][sequence] = reason

    @property
    def handed_count(self) -> int:
        """Records handed over."""
        return sum(self.handed_counts.values())

    @property
    def acknowledged_count(self) -> int:
        """Records acknowledged."""
        return sum(len(each) for each in self.acknowledged.values())

    @property
    def refused_count(self) -> int:
        """Records that the producer gave up."""
        return sum(len(each) for each in self.refused.values())


@dataclass(slots=True)
class Findings:
    """What is wrong, one line per case."""

    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    reordered: list[str] = field(default_factory=list)
    altered: list[str] = field(default_factory=list)
    misplaced: list[str] = field(default_factory=list)
    vanished: list[str] = field(default_factory=list)
    invented: list[str] = field(default_factory=list)

    def by_kind(self) -> dict[str, list[str]]:
        """The lists by their names."""
        return {name: getattr(self, name) for name in self.__slots__}

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found."""
        return not any(self.by_kind().values())

    def summary(self) -> str:
        """`lost 0, duplicated 0, …`"""
        return ", ".join(f"{name} {len(found)}" for name, found in self.by_kind().items())

    def details(self) -> str:
        """The first cases of each kind."""
        lines = []
        for name, found in self.by_kind().items():
            lines += [f"{name}: {text}" for text in found[:SHOWN_FINDINGS]]
            if len(found) > SHOWN_FINDINGS:
                lines.append(f"{name}: and {len(found) - SHOWN_FINDINGS} more")
        return "\n".join(lines)


def check(
    sent: SentLedger, final: Sequence[ReadRecord], earlier: Iterable[Sequence[ReadRecord]] = ()
) -> Findings:
    """Compare what was sent with what was read.

    Args:
        final: everything in the topic at the end, each partition from its first offset on.
        earlier: what consumers read while it was written, each in the order in which it came; they
            may have read less than all, but nothing that is not there at the end.

    Returns:
        lost: acknowledged, and not in `final`. duplicated: the same record at two offsets, or read
        twice. reordered: a key's record behind a later one of that key, or offsets that go back.
        altered: bytes that no producer sent under that key. misplaced: acknowledged at one offset,
        read at another. vanished: a consumer saw it, and at the end it is not there. invented: a
        sequence that was not handed over yet.
    """
    findings = Findings()
    at_the_end = {(record.partition, record.offset): record for record in final}
    found = _check_reading(sent, final, findings, "at the end")
    for number, reading in enumerate(earlier, start=1):
        who = f"consumer {number}"
        _check_reading(sent, reading, findings, who)
        for record in reading:
            if at_the_end.get((record.partition, record.offset)) != record:
                findings.vanished.append(f"{_words(record)}, which {who} saw")
    _check_acknowledged(sent, found, findings)
    return findings


def _check_reading(
    sent: SentLedger, reading: Sequence[ReadRecord], findings: Findings, who: str
) -> dict[tuple[bytes, int], ReadRecord]:
    """What one consumer got must make sense by itself; the first record of each sequence."""
    first: dict[tuple[bytes, int], ReadRecord] = {}
    last_offsets: dict[int, int] = {}
    last_sequences: dict[bytes, int] = {}
    for record in reading:
        last_offset = last_offsets.get(record.partition, UNKNOWN_OFFSET)
        last_offsets[record.partition] = max(last_offset, record.offset)
        if record.offset == last_offset:
            findings.duplicated.append(f"{_words(record)}: the same offset twice, {who}")
            continue
        if record.offset < last_offset:
            findings.reordered.append(f"{_words(record)} came after offset {last_offset}, {who}")
        sequence = sequence_in(record.key, record.value)
        if sequence is None or sent.partitions.get(record.key) != record.partition:
            findings.altered.append(f"{_words(record)}: {record.value[:60]!r}, {who}")
            continue
        if sequence >= sent.handed_counts[record.key]:
            findings.invented.append(f"{_words(record)} is number {sequence}, {who}")
            continue
        other = first.setdefault((record.key, sequence), record)
        if other is not record:
            findings.duplicated.append(
                f"{_words(record)} is number {sequence}, as is offset {other.offset}, {who}"
            )
            continue
        last = last_sequences.get(record.key, -1)
        if sequence < last:
            findings.reordered.append(f"{_words(record)}: number {sequence} after {last}, {who}")
        last_sequences[record.key] = max(last, sequence)
    return first


def _check_acknowledged(
    sent: SentLedger, found: dict[tuple[bytes, int], ReadRecord], findings: Findings
) -> None:
    for key, acknowledged in sent.acknowledged.items():
        for sequence, where in acknowledged.items():
            record = found.get((key, sequence))
            if record is None:
                findings.lost.append(
                    f"{key.decode()} number {sequence}, acknowledged at partition "
                    f"{where.partition} offset {where.offset}"
                )
            elif where.offset not in (UNKNOWN_OFFSET, record.offset):
                findings.misplaced.append(
                    f"{_words(record)} is number {sequence}, acknowledged at {where.offset}"
                )


def _words(record: ReadRecord) -> str:
    return f"partition {record.partition} offset {record.offset} key {record.key.decode()}"
