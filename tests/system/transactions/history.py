"""What transactional clients did and saw, in the order in which it happened to them.

Owns the values of a history and the counter that orders them. Must not: know a client, a broker or
a clock, or judge. Invariants: a position is taken before a call is made (`began`) and after it has
returned (`ended`), so that one call came after another for certain only if its `began` is above the
other's `ended`; a value is sent once, by one transaction, to one log.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

#: The position of what has not happened.
NEVER: Final = 2**62


class Log(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Seen(NamedTuple):
    """One record as a consumer got it."""

    offset: int
    value: str


class Outcome(Enum):
    """How a transaction ended, as far as its client can know.

    ABORTED is certain: the abort was confirmed, or no commit was ever asked for. UNKNOWN: it was
    asked to commit, and the outcome never came.
    """

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Send:
    """One record handed to a producer.

    `offset`: where the broker said it is; None when it did not say. `ended` is NEVER when the
    record was not acknowledged. `source`: the record that it was made of, for who transforms.
    """

    log: Log
    value: str
    began: int
    ended: int = NEVER
    offset: int | None = None
    source: tuple[Log, int] | None = None


@dataclass(slots=True)
class OffsetCommit:
    """One group's offset in a transaction: it has consumed [first, next_offset) of a log.

    `first` is None when its client cannot tell where it began.
    """

    group: str
    log: Log
    first: int | None
    next_offset: int


@dataclass(slots=True)
class Transaction:
    """One transaction of one producer; `process` is the producer's life, not its id's.

    `commit_began` is NEVER when no commit was asked for. `offsets_began` and `offsets_ended` are
    around the call that made the group's offsets part of it; `offsets_ended` is NEVER when the
    coordinator did not take them.
    """

    number: int
    process: str
    transactional_id: str
    began: int
    sends: list[Send] = field(default_factory=list)
    commits: list[OffsetCommit] = field(default_factory=list)
    offsets_began: int = NEVER
    offsets_ended: int = NEVER
    commit_began: int = NEVER
    ended: int = NEVER
    outcome: Outcome = Outcome.ABORTED
    note: str = ""

    def __str__(self) -> str:
        return f"transaction {self.number} of {self.process} ({self.outcome.value})"


@dataclass(slots=True)
class Poll:
    """One answer of a consumer. `transaction`: the number of that in which it was asked."""

    began: int
    ended: int
    records: dict[Log, list[Seen]]
    transaction: int | None = None


@dataclass(slots=True)
class Placed:
    """The consumer goes on somewhere else: assigned, sought, revoked.

    `positions` are known next offsets; None: nothing is known of where it goes on. Logs that are
    not in it go on as they were. `owns`: the group gave them to this member (True), or took them
    from it (False); None when no group did.
    """

    at: int
    positions: dict[Log, int | None]
    owns: bool | None = None


@dataclass(slots=True)
class ConsumerHistory:
    """All that one consumer did, in its order."""

    name: str
    is_committed_only: bool
    steps: list[Poll | Placed] = field(default_factory=list)

    def polls(self) -> Iterator[Poll]:
        """The answers it got."""
        return (step for step in self.steps if isinstance(step, Poll))

    def placements(self) -> Iterator[Placed]:
        """Where it was placed."""
        return (step for step in self.steps if isinstance(step, Placed))


@dataclass(slots=True)
class OffsetRead:
    """A group's committed offset, as a coordinator answered it; None: there is none."""

    group: str
    log: Log
    offset: int | None
    began: int
    ended: int


@dataclass(slots=True)
class Opened:
    """A producer became the owner of a transactional id (InitProducerId was answered)."""

    transactional_id: str
    process: str
    began: int
    ended: int


@dataclass(slots=True)
class Ending:
    """Everything that is visible to read_committed once all is settled, from offset 0.

    `ends`: up to which offset each log was read; a log that could not be read is not in it.
    `pipelines`: groups that make exactly one visible record of every one that they consume, in each
    of so many output topics.
    """

    records: dict[Log, list[Seen]] = field(default_factory=dict)
    ends: dict[Log, int] = field(default_factory=dict)
    pipelines: dict[str, tuple[str, ...]] = field(default_factory=dict)


class History:
    """All of one run. Safe to add to from several threads."""

    def __init__(self) -> None:
        self.transactions: list[Transaction] = []
        self.consumers: list[ConsumerHistory] = []
        self.offset_reads: list[OffsetRead] = []
        self.opened: list[Opened] = []
        self.final = Ending()
        self._positions = itertools.count(1)
        self._numbers = itertools.count(1)

    def now(self) -> int:
        """The next position."""
        return next(self._positions)

    def transaction(self, process: str, transactional_id: str) -> Transaction:
        """A transaction that begins now; it counts as aborted until its commit is asked for."""
        made = Transaction(next(self._numbers), process, transactional_id, self.now())
        self.transactions.append(made)
        return made

    def consumer(self, name: str, *, is_committed_only: bool) -> ConsumerHistory:
        """A consumer that has done nothing yet."""
        made = ConsumerHistory(name, is_committed_only)
        self.consumers.append(made)
        return made

    def value_of(self, transaction: Transaction) -> str:
        """A value that no other producer sends."""
        return f"{transaction.process}/{transaction.number}/{len(transaction.sends)}"

    @contextmanager
    def opening(self, transactional_id: str, process: str) -> Iterator[None]:
        """Around a producer's InitProducerId; recorded when it does not fail."""
        began = self.now()
        yield
        self.opened.append(Opened(transactional_id, process, began, self.now()))
