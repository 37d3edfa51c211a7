"""The states of a transactional id and how one may follow another.

Owns the numbers and names of the states, which are those of Apache Kafka's log and tools, and the
one table of legal transitions. Invariant: nothing is written that the table does not allow.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class TransactionStatus(IntEnum):
    """Where a transactional id is; the number is `transaction_status` of the log record.

    EMPTY → ONGOING → PREPARE_COMMIT or PREPARE_ABORT → COMPLETE_COMMIT or COMPLETE_ABORT → ONGOING,
    or → EMPTY when a producer comes anew. An id ends with a tombstone. DEAD and PREPARE_EPOCH_FENCE
    are Kafka's names for moments that here take no time: no id is ever seen in them, but tools may
    name them.
    """

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def words(self) -> str:
        """The name that DescribeTransactions and ListTransactions use, such as "PrepareCommit"."""
        return "".join(part.capitalize() for part in self.name.split("_"))

    @property
    def is_prepared(self) -> bool:
        """Whether the outcome is in the log, and markers are still to be written."""
        return self in _PREPARED

    @property
    def is_at_rest(self) -> bool:
        """Whether there is no transaction: the id may be forgotten, or begin one."""
        return self in _AT_REST


_PREPARED: Final = frozenset({TransactionStatus.PREPARE_COMMIT, TransactionStatus.PREPARE_ABORT})
_AT_REST: Final = frozenset(
    {
        TransactionStatus.EMPTY,
        TransactionStatus.COMPLETE_COMMIT,
        TransactionStatus.COMPLETE_ABORT,
    }
)

LEGAL_PREDECESSORS: Final[dict[TransactionStatus, frozenset[TransactionStatus]]] = {
    TransactionStatus.EMPTY: _AT_REST,
    TransactionStatus.ONGOING: _AT_REST | {TransactionStatus.ONGOING},
    TransactionStatus.PREPARE_COMMIT: frozenset({TransactionStatus.ONGOING}),
    # From a state at rest: a client of transaction version 2 may abort before it has written.
    TransactionStatus.PREPARE_ABORT: _AT_REST | {TransactionStatus.ONGOING},
    TransactionStatus.COMPLETE_COMMIT: frozenset({TransactionStatus.PREPARE_COMMIT}),
    TransactionStatus.COMPLETE_ABORT: frozenset({TransactionStatus.PREPARE_ABORT}),
}
"""Which states a state may follow. What is not in here is never written."""

STATUS_BY_WORDS: Final = {status.words: status for status in TransactionStatus}
"""The states by the names that tools use."""


def is_legal(before: TransactionStatus, after: TransactionStatus) -> bool:
    """Whether `after` may follow `before`."""
    return before in LEGAL_PREDECESSORS.get(after, frozenset())
