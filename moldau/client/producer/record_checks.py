"""Checks of a record before it is appended. They touch no state: any thread may call them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from moldau.client.errors import InvalidTopic, SerializationError
from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import RecordHeaders
from moldau.protocol.types import topic_name_problem

HeadersLike: TypeAlias = Sequence[tuple[str, bytes | None]] | Mapping[str, bytes | None]
"""Headers of a record, in their order."""


def check_partition(partition: int) -> None:
    if not isinstance(partition, int) or isinstance(partition, bool) or partition < 0:
        raise SerializationError(f"partition {partition!r}: partitions are numbered from 0")


def check_timestamp(timestamp_ms: int) -> None:
    if not isinstance(timestamp_ms, int) or not 0 <= timestamp_ms < 2**63:
        raise SerializationError(
            f"timestamp_ms {timestamp_ms!r}: milliseconds since 1970 are needed, from 0 on"
        )


def check_bytes(key: object, value: object) -> None:
    for name, part in (("key", key), ("value", value)):
        if part is not None and not isinstance(part, bytes | bytearray | memoryview):
            raise SerializationError(
                f"the {name} is {type(part).__name__}: bytes are needed, or a {name}_serializer"
            )


def serialized(
    serialize: Callable[[str, object], bytes], topic: str, value: object, what: str
) -> object:
    try:
        return serialize(topic, value)
    except SerializationError:
        raise
    except Exception as error:
        raise SerializationError(
            f"the {what} serializer refuses {type(value).__name__} for topic {topic}: {error!r}"
        ) from error


def checked_headers(headers: HeadersLike) -> RecordHeaders:
    try:
        pairs = tuple(headers.items()) if isinstance(headers, Mapping) else tuple(headers)
    except TypeError:
        raise SerializationError(
            f"headers are pairs of str and bytes, not {headers!r:.100}"
        ) from None
    for pair in pairs:
        if (
            not isinstance(pair, tuple | list)
            or len(pair) != 2
            or not isinstance(pair[0], str)
            or not (pair[1] is None or isinstance(pair[1], bytes | bytearray | memoryview))
        ):
            raise SerializationError(
                f"headers are pairs of str and bytes (or None), not {pair!r:.100}"
            )
    return pairs


def unfit(error: Exception, key: object, value: object, headers: object) -> SerializationError:
    try:
        check_bytes(key, value)
    except SerializationError as known:
        return known
    return SerializationError(
        f"headers are pairs of str and bytes (or None), not {headers!r:.100} ({error})"
        if headers
        else f"the record cannot be encoded: {error}"
    )


def check_topic(topic: str) -> None:
    if not isinstance(topic, str):
        raise TypeError(f"the topic is {type(topic).__name__}: a str is needed")
    problem = topic_name_problem(topic)
    if problem is not None:
        raise InvalidTopic(problem, code=ErrorCode.INVALID_TOPIC_EXCEPTION)
