"""Which faults are passing, and their words; `protocol.errors` says which codes are retriable."""

from __future__ import annotations

import os
import re
import socket
from typing import Final

from moldau.client.errors import NoBrokerAvailable
from moldau.protocol.errors import RemoteProtocolError
from moldau.runtime.connection import ConnectionLost, NothingHeard, RequestTimedOut
from moldau.runtime.fault_words import words_of

PASSING_FAULTS: Final = (
    ConnectionLost,
    RequestTimedOut,
    NoBrokerAvailable,
    RemoteProtocolError,
    OSError,
    TimeoutError,
)
"""Faults after which another node, or the same one later, may serve the request."""


_NUMBER: Final = re.compile(r"\[Errno (\d+)\]")
"""asyncio joins the errors of a name's several addresses in one text."""


def describe_fault(fault: BaseException | None) -> str:
    """A fault in a few words, the same for every event loop, also when its own text is empty."""
    if fault is None:
        return "no answer"
    if isinstance(fault, socket.gaierror):
        return "the host name does not resolve"
    if isinstance(fault, NothingHeard):
        return f"{fault}: it has said nothing (is it TLS, or no broker?)"
    if isinstance(fault, OSError):
        numbers = [fault.errno] if fault.errno else _NUMBER.findall(str(fault))
        if numbers:
            return ", ".join(dict.fromkeys(os.strerror(int(each)).lower() for each in numbers))
    return words_of(fault)
