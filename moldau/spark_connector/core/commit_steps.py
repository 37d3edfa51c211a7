"""What the commit protocol asks of the outside, and what it is told.

Owns the vocabulary between `commit_protocol` and whoever carries it out (`sink.recovery`, or a
test's simulated cluster). Must not decide anything. Invariant: every step can be carried out again
after a crash in the middle of it, with the same or no further effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from moldau.spark_connector.core.ledger import Batch, SinkRecord, Slot

Producer: TypeAlias = tuple[str, int, int]
"""Transactional id, producer id, producer epoch: one opening of one id."""


# -- steps --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TakeLedger:
    """Shut out every other writer of this sink's ledger id, then read what the ledger says.

    Answer: `LedgerView`. What another writer had under way has by then happened or never will.

    Attributes:
        is_fencing: False: only read, disturbing nobody.
    """

    is_fencing: bool = True


@dataclass(frozen=True, slots=True)
class WriteLedger:
    """Write under the fence of the last `TakeLedger`, in one transaction of the ledger id.

    Answer: True when it is committed; False when another writer came between, or nobody knows.

    Attributes:
        record: the sink's new record.
        finished: the batch that leaves the record, to be remembered under its query.
        is_tombstone: forget the sink instead; nothing will ever ask for it again.
    """

    record: SinkRecord
    finished: Batch | None = None
    is_tombstone: bool = False


@dataclass(frozen=True, slots=True)
class FindElsewhere:
    """Look for a streaming query under other sinks, in what the ledger had at the last taking.

    Answer: tuple of sink id and `Batch`, the last one of the query there.
    """

    query_id: str


@dataclass(frozen=True, slots=True)
class CheckOpen:
    """Ask which of the slots' transactions are no longer open under their producers.

    Answer: frozenset of `Producer`; empty too where the brokers cannot be asked.
    """

    slots: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class CommitSlots:
    """Commit the slots' transactions. Done before is done.

    Answer: frozenset of the `Producer`s that the coordinator refused: not open under this epoch.
    """

    slots: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class LookAtRows:
    """Read where the slots' rows are said to lie. Answer: dict of `Sight` by `Producer`."""

    slots: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class FindOpen:
    """List the open transactions of the sink's slots. Answer: tuple of `Producer`.

    Attributes:
        tasks, attempts: numbers to try where brokers cannot list transactions.
    """

    tasks: int
    attempts: int


@dataclass(frozen=True, slots=True)
class AbortOpen:
    """Abort exactly these openings; what has gone on meanwhile is left alone. Answer: None."""

    producers: tuple[Producer, ...]


Step: TypeAlias = (
    TakeLedger
    | WriteLedger
    | FindElsewhere
    | CheckOpen
    | CommitSlots
    | LookAtRows
    | FindOpen
    | AbortOpen
)


# -- answers ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LedgerView:
    """What the ledger says: the sink's record, and the last batch of other queries by query id.

    `is_whole`: whether these are all; of very many streaming queries only the newest are there.
    """

    record: SinkRecord | None = None
    finished: Mapping[str, Batch] = field(default_factory=dict)
    is_whole: bool = True


class Sight(Enum):
    """What is to be seen of a transaction that can no longer be committed."""

    VISIBLE = "visible"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


# -- refusals -----------------------------------------------------------------------------------


class RefusalKind(Enum):
    """Why a batch does not go on. None of them leaves anything wrong behind."""

    FENCED = "another driver is in charge of the sink"
    REPLAY_DIFFERS = "the same batch came with other rows"
    REWOUND = "the checkpoint is older than the ledger"
    ELSEWHERE = "the query has written under another sink id"
    NEW_QUERY = "another query has written under the sink id"
    LOST_BEFORE_DECISION = "a transaction ended before the decision"
    LOST_AFTER_DECISION = "a transaction was aborted after the decision"
    LOST_FOR_GOOD = "rows of another batch are lost"
    OUTCOME_UNKNOWN = "nobody can tell how a transaction ended"
    CONTENDED = "the ledger could not be written"
    TOO_MANY_TASKS = "the batch has too many tasks"


class Refused(Exception):
    """The protocol stops here. The text says what was found; advice is the caller's."""

    def __init__(self, kind: RefusalKind, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
