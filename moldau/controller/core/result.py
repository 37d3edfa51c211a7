"""What a manager answers: records to write and the response to send once they are committed.

A manager changes nothing; its records do, when they are replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from moldau.protocol.errors import ErrorCode
from moldau.protocol.schema import Message
from moldau.text import short_message

Response_co = TypeVar("Response_co", bound=Message, covariant=True)
VersionedRecord: TypeAlias = tuple[Message, int]
"""A metadata record and the version to write it as."""

MAX_RECORDS_PER_REQUEST: Final = 10_000
"""How many records one user request may make (Kafka's limit): more is POLICY_VIOLATION."""

MAX_CHANGES_PER_STEP: Final = 2_000
"""How many partitions a broker's coming or going changes in one batch, so that the controller's
loop gives way to others in between; well below Kafka's 10,000 records per batch.
"""

TakesPermits: TypeAlias = Callable[[int], bool]
"""Whether the sender's quota lets it create or delete so many partitions; it counts them if so."""


def unlimited(_count: int) -> bool:
    """The quota of a sender without a limit."""
    return True


class Asked(NamedTuple):
    """When and for whom a request is decided.

    Attributes:
        log_end_offset: the offset that the next record will get.
        now_ms: monotonic milliseconds, for sessions.
        time_ms: milliseconds since 1970, for what has an end.
        principal: the sender.
        takes_permits: the sender's quota of partitions created and deleted (KIP-599).
    """

    log_end_offset: int
    now_ms: float
    time_ms: int = 0
    principal: str = ""
    takes_permits: TakesPermits = unlimited


Resume: TypeAlias = "Callable[[Asked], ControllerResult[Message]]"


@dataclass(slots=True)
class ControllerResult(Generic[Response_co]):
    """`records` are appended as one batch, all or nothing; `response` leaves after their commit.

    A change that is too big for one batch comes in steps: after appending, `resume` is called with
    the log's end offset and the time, and gives the next step, whose response counts instead.
    Each batch alone leaves the cluster consistent, so that nothing breaks when the steps end early;
    other requests are decided in between, and every step looks at the state again. `leaving` is the
    broker that is on its way out: until the last step it may neither lead nor join an ISR.

    A manager whose request may name much answers in `Steps` instead. Its records must not depend
    on the log's end, where the quorum may append records of its own between two parts; the core
    says of the result that it `may_wait`.
    """

    response: Response_co
    records: list[VersionedRecord] = field(default_factory=list)
    resume: Resume | None = None
    leaving: int | None = None
    may_wait: bool = False


class Refusal(Exception):
    """One item of a request cannot be done; the manager turns it into that item's error code."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        self.error = error
        self.message = short_message(message)
        super().__init__(self.message)

    @classmethod
    def invalid(cls, message: str) -> Refusal:
        return cls(ErrorCode.INVALID_REQUEST, message)

    @classmethod
    def too_many(cls, message: str) -> Refusal:
        """One request would change more than it may."""
        return cls(ErrorCode.POLICY_VIOLATION, message)

    def tell(self, *answers: Any) -> None:
        """Write it into these parts of a response."""
        for answer in answers:
            answer.error_code, answer.error_message = self.error, self.message


@contextmanager
def refusals_to(answer: Any) -> Iterator[None]:
    """An item that is refused in the block says so in `answer`, and the others go on."""
    try:
        yield
    except Refusal as refusal:
        refusal.tell(answer)


def permits_refusal() -> Refusal:
    """The answer to a sender whose quota is used up."""
    return Refusal(
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        "the quota controller_mutation_rate is used up; wait for the throttle time",
    )
