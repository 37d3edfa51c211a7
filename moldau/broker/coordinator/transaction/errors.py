"""What clients of different ages are told of a producer that was fenced (KIP-588).

Owns the one rule.
"""

from __future__ import annotations

from moldau.protocol.errors import ErrorCode


def producer_fenced_error(error: ErrorCode, *, is_known: bool) -> ErrorCode:
    """PRODUCER_FENCED is INVALID_PRODUCER_EPOCH to clients that do not know it."""
    if error is ErrorCode.PRODUCER_FENCED and not is_known:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error
