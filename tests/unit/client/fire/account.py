"""What became of each record: what was reported to the senders, against what the cluster has.

Owns the rules. Must not send. Invariant: a record whose sender knows that it was handed over has
exactly one outcome; any other has one at most, or was never handed over.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from moldau.client.errors import KafkaError, TransactionAborted
from moldau.client.records import RecordMetadata

Name: TypeAlias = tuple[int, int]
"""Sender and number: the numbers of one sender ascend."""

MAX_PROBLEMS: Final = 20


class CallbackError(Exception):
    """What an application's callback raises."""


@dataclass(slots=True)
class Sent:
    """One record, as its sender sees it."""

    partition: int
    is_sure: bool = False
    """The call that sent it has returned: it was handed over."""
    is_refused: bool = False
    """The call that sent it raised: it was not."""
    has_callback: bool = True
    outcomes: list[RecordMetadata | Exception] = field(default_factory=list)

    def tell(self, metadata: RecordMetadata | None, error: Exception | None) -> None:
        """`on_delivery`."""
        outcome = metadata if error is None else error
        assert outcome is not None
        self.outcomes.append(outcome)

    def tell_and_raise(self, metadata: RecordMetadata | None, error: Exception | None) -> None:
        """An `on_delivery` of an application with a bug."""
        self.tell(metadata, error)
        raise CallbackError("the application's callback")


class Account:
    """The records of one round, and how long calls took. Any thread may write its own."""

    def __init__(self) -> None:
        self.sent: dict[Name, Sent] = {}
        self.problems: list[str] = []
        self.longest_s: dict[str, float] = defaultdict(float)
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def new(self, sender: int, number: int, partition: int) -> Sent:
        """A record that is about to be sent."""
        sent = self.sent[sender, number] = Sent(partition)
        return sent

    def count(self, what: str, number: int = 1) -> None:
        """Something happened."""
        with self._lock:
            self.counts[what] += number

    def timed(self, what: str, limit_s: float) -> _Timed:
        """A block that is one call, with its limit."""
        return _Timed(self, what, limit_s)

    def wrong(self, problem: str) -> None:
        """A promise was broken."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)

    def check(
        self, stored: Mapping[int, Iterable[tuple[int, bytes]]], *, is_transactional: bool = False
    ) -> None:
        """Compare with the cluster's own records: offset and value by partition."""
        places: dict[Name, tuple[int, int]] = {}
        for partition, records in stored.items():
            last: dict[int, int] = {}
            for offset, value in records:
                name = name_of(value)
                sender, number = name
                if name in places:
                    self.wrong(f"{name} is doubled: {places[name]} and {(partition, offset)}")
                places[name] = partition, offset
                if number <= last.get(sender, -1):
                    self.wrong(f"{name} lies behind {last[sender]} of the same sender")
                last[sender] = number
                if self.sent[name].partition != partition:
                    self.wrong(f"{name} is in partition {partition}")
        for name, sent in self.sent.items():
            self._check_one(name, sent, places.get(name), is_transactional)
        self.count("records", len(self.sent))
        self.count("stored", len(places))

    def _check_one(
        self, name: Name, sent: Sent, place: tuple[int, int] | None, is_transactional: bool
    ) -> None:
        outcomes = sent.outcomes
        if sent.is_refused and place is not None:
            self.wrong(f"{name} was refused and is stored")
        if len(outcomes) > 1 or (sent.is_sure and not outcomes):
            self.wrong(f"{name} has the outcomes {outcomes}")
            return
        if not outcomes:
            if sent.has_callback and place is not None:
                self.wrong(f"{name} is stored, and its callback was not called")
            return
        outcome = outcomes[0]
        if isinstance(outcome, RecordMetadata):
            if place != (outcome.partition, outcome.offset):
                self.wrong(f"{name} was reported at {outcome}, and is stored at {place}")
        elif not isinstance(outcome, KafkaError):
            self.wrong(f"{name} failed with {outcome!r}")
        elif place is not None and not (
            is_transactional and isinstance(outcome, TransactionAborted)
        ):
            self.wrong(f"{name} was reported as {outcome!r}, and is stored at {place}")


class _Timed:
    """Measures one call; an exception of the call ends it too."""

    def __init__(self, account: Account, what: str, limit_s: float) -> None:
        self._account = account
        self._what = what
        self._limit_s = limit_s

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, *error: object) -> None:
        spent = time.monotonic() - self._began
        longest = self._account.longest_s
        longest[self._what] = max(longest[self._what], spent)
        if spent > self._limit_s:
            self._account.wrong(f"{self._what} took {spent:.1f} s of {self._limit_s:g}")


def value_of(name: Name) -> bytes:
    """What a record says."""
    return b"%d %d" % name


def name_of(value: Any) -> Name:
    """The record with this value."""
    sender, number = value.split()
    return int(sender), int(number)


def stored_in(cluster: Any, topic: str, *, committed_only: bool = False) -> dict[int, Any]:
    """The cluster's own account. On its loop."""
    return {
        index: [
            (record.offset, record.value)
            for record in cluster.records(topic, index, committed_only=committed_only)
        ]
        for index in range(len(cluster.topics[topic].partitions))
    }


def check_block(
    account: Account, names: Iterable[Name], committed: set[Name], expected: bool | None
) -> None:
    """A transaction's records are visible all or none; which of both when `expected` says."""
    names = list(names)
    found = sum(name in committed for name in names)
    if found not in (0, len(names)):
        account.wrong(f"{found} of {len(names)} records of a transaction are visible: {names[:5]}")
    elif names and expected is not None and (found > 0) is not expected:
        account.wrong(f"a transaction is visible: {found > 0}, expected {expected}: {names[:5]}")
