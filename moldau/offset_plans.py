"""Where a group shall go on reading: what the scenarios of kafka-consumer-groups mean.

Must not change anything. Invariant: a new offset lies within its log, from its start to its end,
and where the offset that was asked for does not, the plan says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from moldau import client

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
    offsets: Mapping[client.TopicPartition, int] | None = None


@dataclass(frozen=True, slots=True)
class PlannedOffset:
    """One partition's way; `new` is None when it is left as it is, `note` says what is special."""

    partition: client.TopicPartition
    current: int | None
    new: client.CommittedOffset | None
    note: str = ""


class NoPlan(Exception):
    """The scenario cannot be carried out for a group; the text is one line."""


async def plan_offsets(
    admin: client.Admin,
    goal: Goal,
    partitions: Sequence[client.TopicPartition],
    committed: Mapping[client.TopicPartition, client.CommittedOffset],
) -> list[PlannedOffset]:
    """The new offsets of one group's partitions, in their order. Raises: KafkaError; NoPlan: a
    log's bounds are not known, or an offset is to be shifted that is not there
    """
    if goal.scenario is Scenario.SHIFT:
        without = next((each for each in partitions if each not in committed), None)
        if without is not None:
            raise NoPlan(f"{without}: nothing is committed that could be shifted")
    earliest = await _offsets(admin, partitions, client.OffsetSpec.EARLIEST)
    latest = await _offsets(admin, partitions, client.OffsetSpec.LATEST)
    at_time: Mapping[client.TopicPartition, client.PartitionOffset] = {}
    if goal.scenario is Scenario.TIMESTAMP:
        at_time = await _offsets(admin, partitions, goal.number)
    planned = []
    for partition in partitions:
        current = committed.get(partition)
        first_offset, end_offset = earliest[partition].offset, latest[partition].offset
        found_offset = at_time[partition].offset if at_time else -1
        new, note = _wanted(goal, partition, current, first_offset, end_offset, found_offset)
        if new.offset < first_offset:
            note = f"{new.offset} is before the log's start"
            new = client.CommittedOffset(first_offset)
        elif new.offset > end_offset:
            note = f"{new.offset} is behind the log's end"
            new = client.CommittedOffset(end_offset)
        planned.append(PlannedOffset(partition, current.offset if current else None, new, note))
    return planned


def _wanted(
    goal: Goal,
    partition: client.TopicPartition,
    current: client.CommittedOffset | None,
    first_offset: int,
    end_offset: int,
    found_offset: int,
) -> tuple[client.CommittedOffset, str]:
    """The offset that the scenario asks for, before the log's bounds are applied; `found_offset` is
    that of the first record young enough, negative where there is none.
    """
    end = client.CommittedOffset(end_offset)
    match goal.scenario:
        case Scenario.EARLIEST:
            return client.CommittedOffset(first_offset), ""
        case Scenario.LATEST:
            return end, ""
        case Scenario.OFFSET:
            return client.CommittedOffset(goal.number), ""
        case Scenario.FILE:
            assert goal.offsets is not None, "the partitions are those of the file"
            return client.CommittedOffset(goal.offsets[partition]), ""
        case Scenario.SHIFT:
            assert current is not None, "checked before"
            return client.CommittedOffset(current.offset + goal.number), ""
        case Scenario.CURRENT:
            return (current, "") if current is not None else (end, "nothing committed: the end")
        case Scenario.TIMESTAMP:
            if found_offset < 0:
                return end, "no record at or after that time: the end"
            return client.CommittedOffset(found_offset), ""


async def _offsets(
    admin: client.Admin, partitions: Sequence[client.TopicPartition], spec: int
) -> dict[client.TopicPartition, client.PartitionOffset]:
    outcome = await admin.list_partition_offsets(dict.fromkeys(partitions, spec))
    found: dict[client.TopicPartition, client.PartitionOffset] = {}
    for partition, answer in outcome.items():
        if isinstance(answer, client.KafkaError):
            raise NoPlan(f"{partition}: its offsets are not known: {answer}") from answer
        found[partition] = answer
    return found


def parse_duration(text: str) -> int:
    """Milliseconds of an ISO 8601 duration of days down to seconds. Raises: ValueError"""
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()[1:]):
        raise ValueError("not of the form PnDTnHnMnS")
    sign, *units, seconds = match.groups()
    total = sum(int(value or 0) * unit for value, unit in zip(units, _UNIT_MS, strict=True))
    total += round(float(seconds or 0) * 1000)
    if total > MAX_INT64:
        raise ValueError("too long")
    return -total if sign == "-" else total
