"""What counts as a passing fault, and how faults and error codes become exceptions and words."""

from __future__ import annotations

from typing import Final

from moldau.client.errors import NoBrokerAvailable, error_for
from moldau.protocol.errors import ErrorCode, RemoteProtocolError
from moldau.runtime.connection import ConnectionLost, RequestTimedOut

PASSING_FAULTS: Final = (
    ConnectionLost,
    RequestTimedOut,
    NoBrokerAvailable,
    RemoteProtocolError,
    OSError,
    TimeoutError,
)
"""What a passing fault looks like: trying another node, or the same one later, may help."""


def describe_fault(fault: BaseException | None) -> str:
    """A fault in a few words, also when its own text is empty."""
    if fault is None:
        return "no answer"
    if isinstance(fault, OSError) and fault.strerror:
        return fault.strerror
    return str(fault) or type(fault).__name__


def raise_for(error_code: int, message: str | None, what: str) -> None:
    """Raise the exception of an error code; nothing for NONE."""
    if error_code != ErrorCode.NONE:
        raise error_for(error_code, message, what)
