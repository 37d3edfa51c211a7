"""What coordinators' clients are told of an append that failed.

Owns the one table from a partition's errors to a coordinator's.
"""

from __future__ import annotations

from typing import Final

from moldau.protocol.errors import ErrorCode

_WRITE_ERRORS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.NOT_COORDINATOR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.INVALID_PRODUCER_EPOCH: ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TXN_STATE: ErrorCode.INVALID_TXN_STATE,
}


def write_error(error: ErrorCode) -> ErrorCode:
    """What a failed append means to whoever asked the coordinator.

    Never REQUEST_TIMED_OUT, which says that the records are in the log (`is_refused`).
    MESSAGE_TOO_LARGE stays: what it is called depends on the request; so does what the log says of
    a transaction's producer. Whatever else a coordinator's own records cannot cause is
    UNKNOWN_SERVER_ERROR.
    """
    return _WRITE_ERRORS.get(error, ErrorCode.UNKNOWN_SERVER_ERROR)
