"""Producer id and epoch, and the states of a producer that has them, with their transitions."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple, Self

from moldau.protocol.errors import ErrorCode

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1

LAST_PRODUCER_EPOCH: Final = 2**15 - 1
"""After it the producer needs another producer id."""


class ProducerIdAndEpoch(NamedTuple):
    """A producer's identity; the greater epoch of the same id fences the smaller."""

    producer_id: int
    producer_epoch: int

    @property
    def is_known(self) -> bool:
        """Whether it is not NO_PRODUCER."""
        return self.producer_id != NO_PRODUCER_ID

    def __str__(self) -> str:
        return f"{self.producer_id}:{self.producer_epoch}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` wrote.

        Raises:
            ValueError: it is not `PRODUCER_ID:PRODUCER_EPOCH`.
        """
        producer_id, colon, producer_epoch = text.strip().partition(":")
        if not (colon and producer_id.isdecimal() and producer_epoch.isdecimal()):
            raise ValueError(f"{text!r} is not PRODUCER_ID:PRODUCER_EPOCH, such as 4000:3")
        read = cls(int(producer_id), int(producer_epoch))
        if read.producer_id >= 2**63 or read.producer_epoch > LAST_PRODUCER_EPOCH:
            raise ValueError(f"{text!r} is not a producer id and epoch: too large")
        return read


NO_PRODUCER: Final[ProducerIdAndEpoch] = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


class TransactionState(Enum):
    """What a producer is doing.

    A producer that is only idempotent has the first three, and FATAL_ERROR.
    """

    UNINITIALIZED = "uninitialized"
    INITIALIZING = "initializing"
    """It has requested a producer id."""
    READY = "ready"
    """It has a producer id, and no transaction is open."""
    IN_TRANSACTION = "in a transaction"
    PREPARING = "preparing a transaction"
    """The records of a transaction are being flushed; its outcome is decided elsewhere."""
    PREPARED = "prepared"
    """A transaction waits for its outcome (KIP-939)."""
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "in a transaction that can only be aborted"
    FATAL_ERROR = "of no use any more"


_S = TransactionState

TRANSITIONS: Final[Mapping[TransactionState, frozenset[TransactionState]]] = MappingProxyType(
    {
        _S.UNINITIALIZED: frozenset({_S.INITIALIZING, _S.FATAL_ERROR}),
        _S.INITIALIZING: frozenset({_S.READY, _S.PREPARED, _S.UNINITIALIZED, _S.FATAL_ERROR}),
        # READY → INITIALIZING: the epochs of an idempotent producer's id are used up.
        _S.READY: frozenset({_S.INITIALIZING, _S.IN_TRANSACTION, _S.FATAL_ERROR}),
        _S.IN_TRANSACTION: frozenset(
            {_S.PREPARING, _S.COMMITTING, _S.ABORTING, _S.ABORTABLE_ERROR, _S.FATAL_ERROR}
        ),
        _S.PREPARING: frozenset({_S.PREPARED, _S.ABORTING, _S.ABORTABLE_ERROR, _S.FATAL_ERROR}),
        _S.PREPARED: frozenset({_S.COMMITTING, _S.ABORTING, _S.FATAL_ERROR}),
        # COMMITTING → ABORTING: no coordinator has been asked to commit yet.
        _S.COMMITTING: frozenset({_S.READY, _S.ABORTING, _S.ABORTABLE_ERROR, _S.FATAL_ERROR}),
        _S.ABORTING: frozenset({_S.READY, _S.FATAL_ERROR}),
        _S.ABORTABLE_ERROR: frozenset({_S.ABORTING, _S.FATAL_ERROR}),
        _S.FATAL_ERROR: frozenset(),
    }
)

OPEN_STATES: Final[frozenset[TransactionState]] = frozenset(
    {_S.IN_TRANSACTION, _S.PREPARING, _S.PREPARED, _S.COMMITTING, _S.ABORTING, _S.ABORTABLE_ERROR}
)
"""A transaction has begun and has not ended."""


class Problem(NamedTuple):
    """Why something cannot be done, in a code and in words."""

    code: ErrorCode
    message: str
