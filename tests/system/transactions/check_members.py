"""No partition belongs to two members of a group at once, whichever protocol each of them speaks.

Owns the check. What a member believes to have is no proof: it may have been expelled without
knowing, or hear late of what it has lost since. That a coordinator took its offsets is proof:
they carry its generation or epoch. Invariant: a finding is certain. A member had been given a
partition before another one's offsets of it were taken, had its own taken after that, and heard
of no other assignment in between.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass

from tests.system.transactions.findings import Findings
from tests.system.transactions.history import NEVER, ConsumerHistory, History, Log, Transaction


@dataclass(slots=True)
class _Taken:
    """Offsets of one partition that a coordinator took from one member.

    `since`: when the member was last given the partition.
    """

    member: str
    since: int
    next_offset: int
    transaction: Transaction


def check_members(history: History, findings: Findings) -> None:
    """Look for partitions that two members had at the same time."""
    terms = {consumer.name: _terms(consumer) for consumer in history.consumers}
    taken: dict[tuple[str, Log], list[_Taken]] = defaultdict(list)
    for transaction in history.transactions:
        if transaction.offsets_ended == NEVER:
            continue
        for commit in transaction.commits:
            own = terms.get(transaction.process, {}).get(commit.log, [])
            at = bisect_right(own, (transaction.offsets_began, True)) - 1
            if at >= 0 and own[at][1]:
                taken[commit.group, commit.log].append(
                    _Taken(transaction.process, own[at][0], commit.next_offset, transaction)
                )
    for (group, log), found in taken.items():
        _check_partition(group, log, found, findings)


def _terms(consumer: ConsumerHistory) -> dict[Log, list[tuple[int, bool]]]:
    """When the group gave it each partition (True) and took it back (False), in order."""
    terms: dict[Log, list[tuple[int, bool]]] = defaultdict(list)
    for placed in consumer.placements():
        if placed.owns is not None:
            for log in placed.positions:
                terms[log].append((placed.at, placed.owns))
    return terms


def _check_partition(group: str, log: Log, taken: list[_Taken], findings: Findings) -> None:
    taken.sort(key=lambda each: each.transaction.offsets_began)
    began = [each.transaction.offsets_began for each in taken]
    for number, later in enumerate(taken):
        for earlier in taken[bisect_left(began, later.since) : number]:
            is_before = earlier.transaction.offsets_ended < later.transaction.offsets_began
            if earlier.member != later.member and is_before:
                findings.add(
                    "shared-partition",
                    f"{group}: {later.member} has {log} since {later.since}; offsets of it were "
                    f"taken from {earlier.member} by {earlier.transaction.offsets_ended} and from "
                    f"{later.member} after {later.transaction.offsets_began}",
                    about=(earlier.transaction, later.transaction),
                    place=(log, later.next_offset),
                    case=(group, log, later.member, later.since, earlier.member),
                )
