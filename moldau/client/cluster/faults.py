"""What counts as a passing fault, its words, and how long to wait before the next try."""

from __future__ import annotations

import random
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

JITTER: Final = 0.2
"""The share by which a pause is longer or shorter, so that clients do not come in step."""


def describe_fault(fault: BaseException | None) -> str:
    """A fault in a few words, also when its own text is empty."""
    if fault is None:
        return "no answer"
    if isinstance(fault, OSError) and fault.strerror:
        return fault.strerror
    return str(fault) or type(fault).__name__


def backoff_ms(source: random.Random, failure_count: int, first_ms: int, most_ms: int) -> float:
    """Doubles with every failure up to `most_ms`, with jitter (KIP-144, KIP-580)."""
    base_ms = min(most_ms, first_ms << min(max(failure_count - 1, 0), 20))
    return base_ms * source.uniform(1 - JITTER, 1 + JITTER)
