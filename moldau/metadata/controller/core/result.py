"""What a manager answers: records to write and the response to send once they are committed.

Owns: ControllerResult and Refusal. Must not: know any request.
Invariant: a manager changes nothing; its records do, when they are replayed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Generic, TypeAlias, TypeVar

from moldau.protocol.errors import ErrorCode
from moldau.protocol.schema import Message

Response = TypeVar("Response")
VersionedRecord: TypeAlias = tuple[Message, int]
"""A metadata record and the version to write it as."""

MAX_RECORDS_PER_REQUEST: Final = 10_000
"""How many records one user request may make (Kafka's limit): more is POLICY_VIOLATION."""


@dataclass(slots=True)
class ControllerResult(Generic[Response]):
    """`records` are appended as one batch, all or nothing; `response` leaves after their commit."""

    response: Response
    records: list[VersionedRecord] = field(default_factory=list)


class Refusal(Exception):
    """One item of a request cannot be done; the manager turns it into that item's error code."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error
        self.message = message
