"""What a request is refused with: problems of RFC 9457, with Kafka's code or Confluent's number.

Must not know routes. Invariant: a text that others have chosen is cut and in one line.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from moldau.client import BufferFull, ClientClosed, KafkaError, SerializationError
from moldau.protocol.errors import ErrorCode
from moldau.text import one_line, short_message

Headers = tuple[tuple[str, str], ...]
RETRY: Final[Headers] = (("Retry-After", "1"),)


class Problem(Exception):
    """A request that is not served, or that failed.

    Attributes:
        status: of HTTP.
        detail: one sentence for people.
        kafka_code: the cluster's answer, if it gave one.
        headers: of the answer.
        number: Confluent's, where the status does not say it.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        *headers: tuple[str, str],
        kafka_code: ErrorCode | None = None,
        number: int | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = short_message(one_line(detail))
        self.kafka_code = kafka_code
        self.headers = headers
        self.number = number

    @property
    def title(self) -> str:
        return HTTPStatus(self.status).phrase

    def document(self, path: str, *, is_confluents: bool) -> dict[str, Any]:
        """The body of the answer.

        Args:
            path: what was asked for.
            is_confluents: whether readers expect the numbers of Confluent's REST v3.
        """
        code = self.kafka_code
        number = confluent_number(self) if is_confluents else (code or self.status)
        return {
            "type": "about:blank",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "instance": path,
            "error_code": int(number),
            "kafka_error": None if code is None else code.name,
            "message": self.detail,
        }


_FORBIDDEN: Final = frozenset(code for code in ErrorCode if "AUTHORIZATION_FAILED" in code.name)
_ABSENT: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.RESOURCE_NOT_FOUND,
        ErrorCode.BROKER_ID_NOT_REGISTERED,
        ErrorCode.LOG_DIR_NOT_FOUND,
        ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
    }
)
_IN_THE_WAY: Final = frozenset(
    {
        ErrorCode.TOPIC_ALREADY_EXISTS,
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ErrorCode.DUPLICATE_RESOURCE,
        ErrorCode.REASSIGNMENT_IN_PROGRESS,
        ErrorCode.TOPIC_DELETION_DISABLED,
        ErrorCode.SECURITY_DISABLED,
        ErrorCode.FEATURE_UPDATE_FAILED,
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.INVALID_TXN_STATE,
    }
)
_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
_WRONG: Final = frozenset(
    {
        *(code for code in ErrorCode if code.name.startswith("INVALID_")),
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.UNACCEPTABLE_CREDENTIAL,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    }
) - {ErrorCode.INVALID_TXN_STATE}

STATUSES: Final[Mapping[ErrorCode, int]] = {
    **dict.fromkeys(_WRONG, 422),
    **dict.fromkeys(_TOO_LARGE, 413),
    **dict.fromkeys(_IN_THE_WAY, 409),
    **dict.fromkeys(_ABSENT, 404),
    **dict.fromkeys(_FORBIDDEN, 403),
    ErrorCode.SASL_AUTHENTICATION_FAILED: 401,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: 429,
    ErrorCode.UNSUPPORTED_VERSION: 501,
}
"""What answers of a cluster are in HTTP; of the others, 503 where a retry may help, else 500."""


def problem_of(error: KafkaError) -> Problem:
    """The problem that says what a client's error says."""
    code = error.code
    status = STATUSES.get(code)
    if isinstance(error, SerializationError):
        status = 422
    elif isinstance(error, BufferFull | ClientClosed):
        status = 503
    if status is None:
        passes = code.retriable or code is ErrorCode.NETWORK_EXCEPTION
        status = 503 if passes else 500
    headers = RETRY if status in (429, 503) else ()
    return Problem(status, str(error), *headers, kafka_code=code)


#: What readers of Confluent's REST v3 know, by status.
_CONFLUENT: Final = {
    401: 40101,
    403: 40301,
    404: 404,
    409: 40002,
    413: 41301,
    422: 40002,
    429: 429,
    500: 50002,
    501: 50101,
    503: 50003,
}
_UNKNOWN_PARTITION: Final = 40403
_UNKNOWN_TOPIC: Final = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID}
)


def confluent_number(problem: Problem) -> int:
    """The `error_code` that Confluent's REST v3 has for it."""
    if problem.kafka_code in _UNKNOWN_TOPIC:
        return _UNKNOWN_PARTITION
    if problem.number is not None:
        return problem.number
    return _CONFLUENT.get(problem.status, problem.status)


def as_confluents(problem: Problem) -> Problem:
    """The same problem with the status that Confluent's REST v3 has: what cannot be is 400 there,
    a name that is taken too. Its number sets it apart from what is no JSON.
    """
    if problem.status not in (409, 422):
        return problem
    number, code = confluent_number(problem), problem.kafka_code
    return Problem(400, problem.detail, *problem.headers, kafka_code=code, number=number)
