"""What every error code means to a producer with a producer id: the one table (KIP-1050).

Owns the verdicts. Changes nothing and knows no states. Invariant: every code has a verdict for
every request, those of later releases of Kafka too (they count as UNKNOWN_SERVER_ERROR).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final

from moldau.protocol.errors import ErrorCode

_E = ErrorCode


class Verdict(Enum):
    """What follows from an error."""

    RETRY = "retry"
    """The same request again, after a pause."""
    LOOK_UP = "look up"
    """Again, at the coordinator that has to be found first."""
    RESTART = "restart"
    """Initialization failed and may be tried again by the application, when it was permitted."""
    ABORT = "abort"
    """The transaction can only be aborted; the producer goes on with the next one."""
    ABORT_AND_BUMP = "abort and bump"
    """The same, and sequence numbers cannot go on under this producer epoch (KIP-360)."""
    FENCED = "fenced"
    """Somebody else is this transactional id now. Fatal."""
    FATAL = "fatal"
    """This producer cannot go on; what it had open is aborted by the next one of its id."""

    @property
    def is_passing(self) -> bool:
        """Whether asking again makes sense."""
        return self in (Verdict.RETRY, Verdict.LOOK_UP)

    @property
    def is_fatal(self) -> bool:
        """Whether the producer is of no use any more."""
        return self in (Verdict.FENCED, Verdict.FATAL)


class RequestKind(Enum):
    """Which request an error answers."""

    INITIALIZE = "get a producer id"
    ADD_PARTITIONS = "add partitions to the transaction"
    ADD_OFFSETS = "add the group's offsets to the transaction"
    COMMIT_OFFSETS = "commit offsets in the transaction"
    END = "end the transaction"
    PRODUCE = "produce"


_ABORTABLE: Final = frozenset(
    {
        _E.TRANSACTION_ABORTABLE,
        # Something in it is wrong or not permitted; the next transaction may be without it.
        _E.TOPIC_AUTHORIZATION_FAILED,
        _E.GROUP_AUTHORIZATION_FAILED,
        _E.INVALID_TOPIC_EXCEPTION,
        _E.INVALID_GROUP_ID,
        _E.GROUP_ID_NOT_FOUND,
        _E.OFFSET_METADATA_TOO_LARGE,
        _E.INVALID_COMMIT_OFFSET_SIZE,
        _E.OPERATION_NOT_ATTEMPTED,
        _E.MESSAGE_TOO_LARGE,
        _E.RECORD_LIST_TOO_LARGE,
        _E.INVALID_TIMESTAMP,
        _E.INVALID_RECORD,
        # The consumer whose offsets they are has lost its partitions (KIP-447).
        _E.ILLEGAL_GENERATION,
        _E.UNKNOWN_MEMBER_ID,
        _E.FENCED_INSTANCE_ID,
        _E.FENCED_MEMBER_EPOCH,
        _E.STALE_MEMBER_EPOCH,
        _E.REBALANCE_IN_PROGRESS,
    }
)

_DEFAULT_VERDICTS: Final[Mapping[ErrorCode, Verdict]] = MappingProxyType(
    {
        **{code: Verdict.RETRY if code.retriable else Verdict.FATAL for code in ErrorCode},
        **dict.fromkeys(_ABORTABLE, Verdict.ABORT),
        _E.NOT_COORDINATOR: Verdict.LOOK_UP,
        _E.COORDINATOR_NOT_AVAILABLE: Verdict.LOOK_UP,
        _E.UNKNOWN_PRODUCER_ID: Verdict.ABORT_AND_BUMP,
        _E.INVALID_PRODUCER_ID_MAPPING: Verdict.ABORT_AND_BUMP,
        _E.PRODUCER_FENCED: Verdict.FENCED,
        _E.INVALID_PRODUCER_EPOCH: Verdict.FENCED,
    }
)

_FATAL_TO_PRODUCE: Final = frozenset(
    {
        _E.CLUSTER_AUTHORIZATION_FAILED,
        _E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        _E.UNSUPPORTED_VERSION,
        _E.INVALID_PRODUCER_ID_MAPPING,
    }
)

_VERDICTS: Final[Mapping[RequestKind, Mapping[ErrorCode, Verdict]]] = MappingProxyType(
    {
        RequestKind.INITIALIZE: MappingProxyType(
            {
                **_DEFAULT_VERDICTS,
                _E.CLUSTER_AUTHORIZATION_FAILED: Verdict.RESTART,
                _E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Verdict.RESTART,
                _E.UNSUPPORTED_VERSION: Verdict.RESTART,
                _E.SASL_AUTHENTICATION_FAILED: Verdict.RESTART,
                _E.UNSUPPORTED_SASL_MECHANISM: Verdict.RESTART,
                # There is no transaction yet that could be aborted.
                **dict.fromkeys(_ABORTABLE, Verdict.FATAL),
                _E.TRANSACTION_ABORTABLE: Verdict.RETRY,
                _E.UNKNOWN_PRODUCER_ID: Verdict.FENCED,
                _E.INVALID_PRODUCER_ID_MAPPING: Verdict.FENCED,
            }
        ),
        RequestKind.ADD_PARTITIONS: _DEFAULT_VERDICTS,
        RequestKind.ADD_OFFSETS: _DEFAULT_VERDICTS,
        RequestKind.COMMIT_OFFSETS: _DEFAULT_VERDICTS,
        RequestKind.END: _DEFAULT_VERDICTS,
        # A batch that failed for good, after all its retries: whatever was wrong with it, the
        # transaction lacks it. A leader's INVALID_PRODUCER_EPOCH need not mean that somebody
        # else is there: the end of the transaction will tell.
        RequestKind.PRODUCE: MappingProxyType(
            {
                **dict.fromkeys(ErrorCode, Verdict.ABORT),
                **dict.fromkeys(_FATAL_TO_PRODUCE, Verdict.FATAL),
                _E.PRODUCER_FENCED: Verdict.FENCED,
                _E.INVALID_PRODUCER_EPOCH: Verdict.ABORT_AND_BUMP,
                _E.UNKNOWN_PRODUCER_ID: Verdict.ABORT_AND_BUMP,
                _E.OUT_OF_ORDER_SEQUENCE_NUMBER: Verdict.ABORT_AND_BUMP,
            }
        ),
    }
)


def verdict_of(kind: RequestKind, code: ErrorCode) -> Verdict:
    """What `code` means in an answer to a request of that kind; not to be asked about NONE."""
    return _VERDICTS[kind][code]
