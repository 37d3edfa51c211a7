"""What clients are told when the coordinator's log could not be written.

Owns: the mapping of a failed write to the codes that group clients know. Must not: decide whether
a write failed.
"""

from __future__ import annotations

from typing import Final

from moldau.protocol.errors import ErrorCode

_TOO_LARGE: Final = (
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.INVALID_FETCH_SIZE,
)
_NOT_THERE: Final = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
)
_ELSEWHERE: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR)


def group_write_error(error: ErrorCode) -> ErrorCode:
    """For everything but offsets: a record that is too large is nobody's but the broker's fault."""
    if error in _NOT_THERE:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error in _ELSEWHERE:
        return ErrorCode.NOT_COORDINATOR
    if error in _TOO_LARGE:
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return error


def offset_write_error(error: ErrorCode) -> ErrorCode:
    """For offset commits."""
    if error in _TOO_LARGE:
        return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    return group_write_error(error)


def offset_read_error(error: ErrorCode) -> ErrorCode:
    """For offset fetches: a coordinator that cannot commit may be a former one, so the client
    should look for another.
    """
    if error is ErrorCode.REQUEST_TIMED_OUT:
        return ErrorCode.NOT_COORDINATOR
    return group_write_error(error)
