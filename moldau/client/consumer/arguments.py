"""Checks of what users hand to a consumer's calls: what passes has the right type and range."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from moldau.client.errors import InvalidSubscription
from moldau.client.records import OffsetAndMetadata, TopicPartition


def partition_of(given: object) -> TopicPartition:
    topic, partition = given if isinstance(given, tuple) and len(given) == 2 else (None, None)
    if not isinstance(topic, str) or not isinstance(partition, int) or isinstance(partition, bool):
        raise TypeError(f"{given!r} is no partition: TopicPartition(topic, number) is needed")
    if not topic or partition < 0:
        raise ValueError(f"{given!r} is no partition: a topic's name, and a number from 0 on")
    return TopicPartition(topic, partition)


def partitions_of(given: Iterable[object]) -> list[TopicPartition]:
    """Partitions' names, each once. Raises: TypeError, ValueError."""
    if isinstance(given, TopicPartition | str):
        raise TypeError(f"{given!r}: several partitions are needed, in a list")
    return list(dict.fromkeys(map(partition_of, given)))


def offset_of(given: object) -> int:
    if not isinstance(given, int) or isinstance(given, bool):
        raise TypeError(f"an offset is a number, not {given!r}")
    if not 0 <= given < 2**63:
        raise ValueError(f"an offset is at least 0 and below 2^63, not {given}")
    return given


def commits_of(
    given: Mapping[TopicPartition, OffsetAndMetadata | int] | None,
) -> dict[TopicPartition, OffsetAndMetadata] | None:
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise TypeError(f"offsets are a mapping from partitions to offsets, not {given!r}")
    return {
        partition_of(name): each
        if isinstance(each, OffsetAndMetadata)
        else OffsetAndMetadata(offset_of(each))
        for name, each in given.items()
    }


def times_of(given: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Points in time, in milliseconds since 1970 UTC. Raises: TypeError, ValueError."""
    if not isinstance(given, Mapping):
        raise TypeError(f"times are a mapping from partitions to milliseconds, not {given!r}")
    times = {partition_of(name): each for name, each in given.items()}
    for name, time_ms in times.items():
        if not isinstance(time_ms, int) or isinstance(time_ms, bool):
            raise TypeError(f"{name}: a time is a number of milliseconds, not {time_ms!r}")
        if not 0 <= time_ms < 2**63:
            raise ValueError(f"{name}: a time is at least 0, not {time_ms}")
    return times


def record_count_of(given: object, default: int) -> int:
    """A limit of records; None for the default. Raises: TypeError, ValueError."""
    if given is None:
        return default
    if not isinstance(given, int) or isinstance(given, bool):
        raise TypeError(f"max_records is a number, not {given!r}")
    if given < 1:
        raise ValueError(f"max_records is at least 1, not {given}")
    return given


def topic_names_of(given: Iterable[str]) -> list[str]:
    if isinstance(given, str):
        raise InvalidSubscription(
            f"topics are a list of names: subscribe([{given!r}]), or pattern={given!r}"
        )
    names = list(given)
    for name in names:
        if not isinstance(name, str) or not name.strip():
            raise InvalidSubscription(f"{name!r} is no topic's name")
    return names


def pattern_of(given: str | re.Pattern[str], *, is_matched_here: bool) -> str:
    """The text of a pattern; one that this client matches itself is tried. Raises:
    InvalidSubscription, TypeError.
    """
    text = given.pattern if isinstance(given, re.Pattern) else given
    if not isinstance(text, str):
        raise TypeError(f"a pattern is text, not {given!r}")
    if not text:
        raise InvalidSubscription("an empty pattern matches no topic")
    if is_matched_here:
        try:
            re.compile(text)
        except re.error as error:
            raise InvalidSubscription(f"{text!r} is no regular expression: {error}") from error
    return text
