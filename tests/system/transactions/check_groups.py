"""Committed offsets go forward only, and move together with what their transactions wrote.

Owns the checks of groups. Invariant: a transaction of which even the visible records do not tell
whether it was committed neither consumes nor leaves out anything for certain.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import NamedTuple

from tests.system.transactions.findings import Findings
from tests.system.transactions.history import (
    NEVER,
    History,
    Log,
    OffsetCommit,
    OffsetRead,
    Outcome,
    Transaction,
)
from tests.system.transactions.known import Known

GroupLog = tuple[str, Log]


def check_groups(history: History, known: Known, findings: Findings) -> None:
    """Look for offsets that go back, and for records consumed twice or not at all."""
    commits: dict[GroupLog, list[tuple[OffsetCommit, Transaction]]] = defaultdict(list)
    for transaction in history.transactions:
        for commit in transaction.commits:
            commits[commit.group, commit.log].append((commit, transaction))
    _check_bounds(history, commits, known, findings)
    last_offsets = _last_offsets(history)
    for key in {**commits, **last_offsets}:
        _check_ranges(*key, commits.get(key, []), last_offsets.get(key, 0), known, findings)
    _check_outputs(history, last_offsets, known, findings)


def _last_offsets(history: History) -> dict[GroupLog, int]:
    """Where each group stands, as the last one that asked was answered."""
    last: dict[GroupLog, OffsetRead] = {}
    for read in history.offset_reads:
        before = last.setdefault((read.group, read.log), read)
        if read.ended > before.ended:
            last[read.group, read.log] = read
    return {key: read.offset or 0 for key, read in last.items()}


class _Event(NamedTuple):
    position: int
    is_bound: bool
    offset: int
    text: str
    transaction: Transaction | None


def _check_bounds(
    history: History,
    commits: dict[GroupLog, list[tuple[OffsetCommit, Transaction]]],
    known: Known,
    findings: Findings,
) -> None:
    """No answer says, and no member commits, less than what was certain before they asked."""
    events: dict[GroupLog, list[_Event]] = defaultdict(list)
    for read in history.offset_reads:
        offset = -1 if read.offset is None else read.offset
        text = f"read as {read.offset} (position {read.began} to {read.ended})"
        found = events[read.group, read.log]
        found += [_Event(read.began, False, offset, text, None)]
        found += [_Event(read.ended, True, offset, text, None)]
    for key, made in commits.items():
        for commit, transaction in made:
            if not known.is_committed(transaction):
                continue
            text = f"committed as {commit.next_offset} by {transaction}"
            offset = commit.next_offset
            events[key].append(_Event(transaction.commit_began, False, offset, text, transaction))
            if transaction.outcome is Outcome.COMMITTED and transaction.ended < NEVER:
                events[key].append(_Event(transaction.ended, True, offset, text, transaction))
    for (group, log), happened in events.items():
        highest: _Event | None = None
        for event in sorted(happened, key=lambda each: (each.position, each.is_bound)):
            if event.is_bound:
                if highest is None or event.offset > highest.offset:
                    highest = event
            elif highest is not None and event.offset < highest.offset:
                findings.add(
                    "offset-went-back",
                    f"{group}, {log}: {event.text}, after it was {highest.text}",
                    about=[each.transaction for each in (highest, event) if each.transaction],
                )


def _check_ranges(
    group: str,
    log: Log,
    commits: list[tuple[OffsetCommit, Transaction]],
    last_offset: int,
    known: Known,
    findings: Findings,
) -> None:
    """What committed transactions consumed meets without a gap and without an overlap, and reaches
    as far as the group's offset.
    """
    if any(commit.first is None for commit, _ in commits):
        return  # only the outputs tell
    visible = known.visible_offsets.get(log, [])
    certain = [each for each in commits if known.is_committed(each[1])]
    possible = [each for each in commits if known.outcome(each[1]) is Outcome.UNKNOWN]
    reached = 0
    last: Transaction | None = None
    for commit, transaction in sorted(certain, key=lambda each: each[0].next_offset):
        first = commit.first or 0
        twice = _within(visible, first, min(reached, commit.next_offset))
        if twice:
            findings.add(
                "reprocessed",
                f"{group}: {transaction} consumed {log} from {first} on, others up to {reached}; "
                f"{len(twice)} records twice, the first at {twice[0]}",
                about=[each for each in (last, transaction) if each],
                place=(log, twice[0]),
            )
        left_out = _without(_within(visible, reached, first), possible)
        if left_out:
            findings.add(
                "unprocessed",
                f"{group}: {transaction} consumed {log} from {first} on, others only up to "
                f"{reached}; {len(left_out)} records left out, the first at {left_out[0]}",
                about=[each for each in (last, transaction) if each],
                place=(log, left_out[0]),
            )
        if commit.next_offset > reached:
            reached, last = commit.next_offset, transaction
    left_out = _without(_within(visible, reached, last_offset), possible)
    if left_out:
        findings.add(
            "unprocessed",
            f"{group} is at {last_offset} of {log}, its transactions consumed it up to {reached}; "
            f"{len(left_out)} records left out, the first at {left_out[0]}",
            about=[last] if last else [],
            place=(log, left_out[0]),
        )


def _without(offsets: list[int], possible: list[tuple[OffsetCommit, Transaction]]) -> list[int]:
    """Those that none of these transactions, whose outcome is unknown, may have consumed."""
    return [
        offset
        for offset in offsets
        if not any((each.first or 0) <= offset < each.next_offset for each, _ in possible)
    ]


def _within(offsets: list[int], first: int, end: int) -> list[int]:
    return offsets[bisect_left(offsets, first) : bisect_left(offsets, end)] if end > first else []


def _check_outputs(
    history: History, last_offsets: dict[GroupLog, int], known: Known, findings: Findings
) -> None:
    """Each record below a pipeline's last committed offset made one record in each output."""
    made: dict[tuple[str, Log, int], str] = {}
    for value in known.visible:
        transaction, send = known.sent[value]
        if send.source is None or transaction.outcome is Outcome.ABORTED:
            continue
        key = (send.log.topic, *send.source)
        other = made.setdefault(key, value)
        if other != value:
            log, offset = send.source
            findings.add(
                "reprocessed",
                f"{log} offset {offset} is in {send.log.topic} as {other} and as {value}",
                about=(known.sent[other][0], transaction),
                place=send.source,
            )
    for group, outputs in history.final.pipelines.items():
        for (owner, log), end in last_offsets.items():
            if owner != group:
                continue
            for output in outputs:
                _check_output(group, log, end, output, made, known, findings)


def _check_output(
    group: str,
    log: Log,
    end: int,
    output: str,
    made: dict[tuple[str, Log, int], str],
    known: Known,
    findings: Findings,
) -> None:
    for offset in known.visible_offsets.get(log, []):
        value = made.get((output, log, offset))
        if offset < end and value is None:
            findings.add(
                "unprocessed",
                f"{group} is at {end} of {log}; nothing in {output} was made of offset {offset}",
                place=(log, offset),
            )
        elif offset >= end and value is not None:
            findings.add(
                "torn-transaction",
                f"{value} in {output} was made of {log} offset {offset}, but {group} is at {end}",
                about=(known.sent[value][0],),
                place=(log, offset),
            )
