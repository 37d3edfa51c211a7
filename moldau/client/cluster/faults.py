"""What counts as a passing fault, and its words."""

from __future__ import annotations

from typing import Final

from moldau.client.errors import NoBrokerAvailable
from moldau.protocol.errors import RemoteProtocolError
from moldau.runtime.connection import ConnectionLost, RequestTimedOut

PASSING_FAULTS: Final = (
    ConnectionLost,
    RequestTimedOut,
    NoBrokerAvailable,
    RemoteProtocolError,
    OSError,
    TimeoutError,
)
"""Faults after which another node, or the same one later, may serve the request."""


def describe_fault(fault: BaseException | None) -> str:
    """A fault in a few words, also when its own text is empty."""
    if fault is None:
        return "no answer"
    if isinstance(fault, OSError) and fault.strerror:
        return fault.strerror
    return str(fault) or type(fault).__name__
