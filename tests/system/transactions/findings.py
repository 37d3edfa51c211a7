"""What a checker has found, by kind, each case with the transactions it is about.

Owns the names of the anomalies and how they are reported. Must not: find any. Invariant: the same
case is reported once, however many readings show it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tests.system.transactions.history import History, Log, Poll, Transaction

#: Each anomaly, and what it means. Kinds that Jepsen's kafka workload has carry its names.
KINDS: Final[dict[str, str]] = {
    "lost-write": "committed (or seen by read_committed), and not there in the end",
    "duplicate": "one sent value at two offsets",
    "inconsistent-offset": "two values at one offset",
    "invented": "a value that nobody sent there",
    "aborted-read": "read_committed got a record of an aborted transaction (G1a)",
    "precommitted-read": "read_committed got a record before anybody asked to commit it",
    "torn-transaction": "a committed transaction is visible in part",
    "nonmonotonic-send": "a later transaction's record lies before an earlier one's",
    "internal-nonmonotonic-send": "the same within one transaction",
    "nonmonotonic-poll": "a consumer got an offset again, or a lower one",
    "internal-nonmonotonic-poll": "the same within one transaction",
    "skipped": "a consumer went over a visible record",
    "offset-went-back": "a committed offset is lower than one that was committed before",
    "reprocessed": "a group has consumed a record in two committed transactions",
    "unprocessed": "a group's offsets went over a record that none of its transactions consumed",
    "shared-partition": "offsets were taken from a member while another one had the partition",
    "zombie": "a producer wrote or committed although its id had a new owner",
}
SHOWN_FINDINGS: Final = 5
EXCERPT_LINES: Final = 60
NEAR_OFFSETS: Final = 4


@dataclass(frozen=True, slots=True)
class Finding:
    """One case, with the numbers of the transactions it is about, and where, when one place."""

    kind: str
    text: str
    transactions: tuple[int, ...] = ()
    place: tuple[Log, int] | None = None


class Findings:
    """All cases of one history, and how much was looked at."""

    def __init__(self) -> None:
        self.cases: list[Finding] = []
        self.counts: dict[str, int] = {}
        self._told: set[tuple[str, object]] = set()

    def add(
        self,
        kind: str,
        text: str,
        *,
        about: Iterable[Transaction] = (),
        place: tuple[Log, int] | None = None,
        case: object = None,
    ) -> None:
        """Tell of one case; not again when the same `case` (the text unless given) is known."""
        assert kind in KINDS, kind
        key = (kind, text if case is None else case)
        if key not in self._told:
            self._told.add(key)
            numbers = tuple(dict.fromkeys(each.number for each in about))
            self.cases.append(Finding(kind, text, numbers, place))

    @property
    def is_clean(self) -> bool:
        """Whether there is no anomaly."""
        return not self.cases

    def kinds(self) -> set[str]:
        """The kinds that were found."""
        return {case.kind for case in self.cases}

    def of(self, kind: str) -> list[Finding]:
        """The cases of one kind."""
        assert kind in KINDS, kind
        return [case for case in self.cases if case.kind == kind]

    def summary(self) -> str:
        """`lost-write 2, …`, or that there is nothing."""
        found = [f"{kind} {len(self.of(kind))}" for kind in KINDS if self.of(kind)]
        return "anomalies: " + (", ".join(found) or "none")

    def details(self, history: History | None = None) -> str:
        """The first cases of each kind; with what the history has about them."""
        lines = []
        for kind, meaning in KINDS.items():
            cases = self.of(kind)
            if cases:
                lines.append(f"{kind} ({len(cases)}): {meaning}")
            for case in cases[:SHOWN_FINDINGS]:
                lines.append(f"  {case.text}")
                if history is not None:
                    lines += [f"    {line}" for line in excerpt(history, case)]
        return "\n".join(lines)


def excerpt(history: History, case: Finding) -> list[str]:
    """The part of a history that a case is about, in order of position."""
    lines: list[tuple[int, str]] = []
    places: set[tuple[Log, int]] = {case.place} if case.place is not None else set()
    members: set[str] = set()
    for transaction in history.transactions:
        if transaction.number not in case.transactions:
            continue
        lines.append((transaction.began, f"{transaction} begins ({transaction.transactional_id})"))
        for send in transaction.sends:
            told = "never acknowledged" if send.offset is None else f"at {send.offset}"
            lines.append(
                (send.began, f"{transaction.number} sends {send.value} to {send.log}: {told}")
            )
            if send.offset is not None:
                places.add((send.log, send.offset))
        if transaction.commits:
            members.add(transaction.process)
        for commit in transaction.commits:
            text = f"offsets of {commit.group}: {commit.log} [{commit.first}, {commit.next_offset})"
            lines.append((transaction.commit_began, f"{transaction.number} {text}"))
        lines.append((transaction.commit_began, f"{transaction.number} asks to commit"))
        lines.append((transaction.ended, f"{transaction} has ended {transaction.note}"))
    for consumer in history.consumers:
        for step in consumer.steps:
            if isinstance(step, Poll):
                lines += [
                    (step.ended, f"{consumer.name} (asked at {step.began}) got {log} {near}")
                    for log, records in step.records.items()
                    if (near := _near(log, records, places))
                ]
            elif step.owns is not None and consumer.name in members:
                verb = "is given" if step.owns else "gives back"
                about = sorted({log for log, _ in places} & step.positions.keys())
                lines += [(step.at, f"{consumer.name} {verb} {log}") for log in about]
    for opened in history.opened:
        if any(each[1].endswith(f"({opened.transactional_id})") for each in lines):
            lines.append((opened.ended, f"{opened.process} owns {opened.transactional_id}"))
    lines.sort(key=lambda line: line[0])
    return [f"{position}: {text}" for position, text in lines[:EXCERPT_LINES]]


def _near(log: Log, records: Sequence[tuple[int, str]], places: set[tuple[Log, int]]) -> str:
    wanted = [offset for place, offset in places if place == log]
    return ", ".join(
        f"{offset}={value}"
        for offset, value in records
        if any(abs(offset - each) <= NEAR_OFFSETS for each in wanted)
    )
