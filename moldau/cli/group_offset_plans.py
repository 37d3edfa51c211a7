"""Where a group's offsets shall go: the scenarios of `moldau groups reset-offsets`.

Owns their meaning (that of kafka-consumer-groups). Must not change anything. Invariant: a new
offset lies within its log, from its start to its end; where what was asked for does not, the row
says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Final

from moldau.client import (
    Admin,
    CommittedOffset,
    KafkaError,
    OffsetSpec,
    PartitionOffset,
    TopicPartition,
)

MAX_INT64: Final = 2**63 - 1
_DURATION: Final = re.compile(
    r"([-+]?)P(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d{1,9})?)S)?)?", re.IGNORECASE
)
_UNIT_MS: Final = (86_400_000, 3_600_000, 60_000)


class Scenario(Enum):
    """What the new offsets are taken from."""

    EARLIEST = "--to-earliest"
    LATEST = "--to-latest"
    CURRENT = "--to-current"
    OFFSET = "--to-offset"
    SHIFT = "--shift-by"
    TIMESTAMP = "--to-datetime or --by-duration"
    FILE = "--from-file"


@dataclass(frozen=True, slots=True)
class Goal:
    """A scenario with its number: an offset, a distance, or a time in ms since 1970.

    `offsets` are those of a file.
    """

    scenario: Scenario
    number: int = 0
    offsets: Mapping[TopicPartition, int] | None = None


@dataclass(frozen=True, slots=True)
class PlannedOffset:
    """One partition's way; `new` is None when it is left as it is, `note` says what is special."""

    partition: TopicPartition
    current: int | None
    new: CommittedOffset | None
    note: str = ""


class NoPlan(Exception):
    """The scenario cannot be carried out for a group; the text is one line."""


async def plan_offsets(
    admin: Admin,
    goal: Goal,
    partitions: Sequence[TopicPartition],
    committed: Mapping[TopicPartition, CommittedOffset],
) -> list[PlannedOffset]:
    """The new offsets of one group's partitions, in their order.

    Raises:
        NoPlan: a log's bounds are not known, or an offset is to be shifted that is not there.
        KafkaError
    """
    if goal.scenario is Scenario.SHIFT:
        without = next((each for each in partitions if each not in committed), None)
        if without is not None:
            raise NoPlan(f"{without}: nothing is committed that could be shifted")
    earliest = await _offsets(admin, partitions, OffsetSpec.EARLIEST)
    latest = await _offsets(admin, partitions, OffsetSpec.LATEST)
    at_time: Mapping[TopicPartition, PartitionOffset] = {}
    if goal.scenario is Scenario.TIMESTAMP:
        at_time = await _offsets(admin, partitions, goal.number)
    planned = []
    for partition in partitions:
        current = committed.get(partition)
        wanted, note = _wanted(goal, partition, current, earliest, latest, at_time)
        planned.append(
            _within(partition, current, wanted, note, earliest[partition], latest[partition])
        )
    return planned


def _wanted(
    goal: Goal,
    partition: TopicPartition,
    current: CommittedOffset | None,
    earliest: Mapping[TopicPartition, PartitionOffset],
    latest: Mapping[TopicPartition, PartitionOffset],
    at_time: Mapping[TopicPartition, PartitionOffset],
) -> tuple[CommittedOffset, str]:
    """What is asked for, before the log's bounds are looked at."""
    end = CommittedOffset(latest[partition].offset)
    match goal.scenario:
        case Scenario.EARLIEST:
            return CommittedOffset(earliest[partition].offset), ""
        case Scenario.LATEST:
            return end, ""
        case Scenario.OFFSET:
            return CommittedOffset(goal.number), ""
        case Scenario.FILE:
            assert goal.offsets is not None, "the partitions are those of the file"
            return CommittedOffset(goal.offsets[partition]), ""
        case Scenario.SHIFT:
            assert current is not None, "checked before"
            return CommittedOffset(current.offset + goal.number), ""
        case Scenario.CURRENT:
            return (current, "") if current is not None else (end, "nothing committed: the end")
        case Scenario.TIMESTAMP:
            found = at_time[partition].offset
            if found < 0:
                return end, "no record at or after that time: the end"
            return CommittedOffset(found), ""


def _within(
    partition: TopicPartition,
    current: CommittedOffset | None,
    wanted: CommittedOffset,
    note: str,
    earliest: PartitionOffset,
    latest: PartitionOffset,
) -> PlannedOffset:
    if wanted.offset < earliest.offset:
        note = f"{wanted.offset} is before the log's start"
        wanted = CommittedOffset(earliest.offset)
    elif wanted.offset > latest.offset:
        note = f"{wanted.offset} is behind the log's end"
        wanted = CommittedOffset(latest.offset)
    return PlannedOffset(partition, current.offset if current else None, wanted, note)


async def _offsets(
    admin: Admin, partitions: Sequence[TopicPartition], spec: int
) -> dict[TopicPartition, PartitionOffset]:
    outcome = await admin.list_partition_offsets(dict.fromkeys(partitions, spec))
    found: dict[TopicPartition, PartitionOffset] = {}
    for partition, answer in outcome.items():
        if isinstance(answer, KafkaError):
            raise NoPlan(f"{partition}: its offsets are not known: {answer}") from answer
        found[partition] = answer
    return found


def parse_datetime(text: str) -> int:
    """Milliseconds since 1970 of an ISO 8601 date and time, UTC unless it names a time zone.

    Raises: ValueError
    """
    moment = datetime.fromisoformat(text)
    if "T" not in text.upper() and ":" not in text:
        raise ValueError("there is no time of day")
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def parse_duration(text: str) -> int:
    """Milliseconds of an ISO 8601 duration of days, hours, minutes and seconds (`P1DT2H`).

    Raises: ValueError
    """
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()[1:]):
        raise ValueError("not of the form PnDTnHnMnS")
    sign, *units, seconds = match.groups()
    total = sum(int(value or 0) * unit for value, unit in zip(units, _UNIT_MS, strict=True))
    total += round(float(seconds or 0) * 1000)
    if total > MAX_INT64:
        raise ValueError("too long")
    return -total if sign == "-" else total
