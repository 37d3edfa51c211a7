"""What a consumer gets goes forward and leaves nothing out.

Owns the checks of one consumer's stream. Invariant: nothing is expected of a place whose position
is not known, as after an assignment.
"""

from __future__ import annotations

from bisect import bisect_left

from tests.system.transactions.findings import Findings
from tests.system.transactions.history import ConsumerHistory, Log, Placed, Poll, Transaction
from tests.system.transactions.known import Known


def check_polls(consumer: ConsumerHistory, known: Known, findings: Findings) -> None:
    """Look for nonmonotonic polls and skipped records."""
    expected = known.visible_offsets if consumer.is_committed_only else known.all_offsets
    #: The next offset, and the poll that led there.
    positions: dict[Log, tuple[int, Poll | None]] = {}
    for step in consumer.steps:
        if isinstance(step, Placed):
            for log, position in step.positions.items():
                positions.pop(log, None)
                if position is not None:
                    positions[log] = (position, None)
            continue
        for log, records in step.records.items():
            for offset, value in records:
                if log in positions:
                    next_offset, before = positions[log]
                    found = f"{consumer.name} got {log} offset {offset}, {value}"
                    about = _about(known, value)
                    if offset < next_offset:
                        findings.add(
                            _kind(step, before),
                            f"{found}, when it was at {next_offset} (position {step.ended})",
                            about=about,
                            place=(log, offset),
                        )
                    skipped = _between(expected.get(log, []), next_offset, offset)
                    if skipped:
                        first = known.values[log][skipped[0]]
                        findings.add(
                            "skipped",
                            f"{found}, after {next_offset - 1}: {len(skipped)} left out, the first "
                            f"{first} at {skipped[0]} (position {step.ended})",
                            about=(*_about(known, first), *about),
                            place=(log, skipped[0]),
                        )
                positions[log] = (offset + 1, step)


def _kind(step: Poll, before: Poll | None) -> str:
    is_internal = (
        before is not None
        and step.transaction is not None
        and step.transaction == before.transaction
    )
    return "internal-nonmonotonic-poll" if is_internal else "nonmonotonic-poll"


def _between(offsets: list[int], first: int, end: int) -> list[int]:
    return offsets[bisect_left(offsets, first) : bisect_left(offsets, end)]


def _about(known: Known, value: str) -> tuple[Transaction, ...]:
    owner = known.sent.get(value)
    return () if owner is None else (owner[0],)
