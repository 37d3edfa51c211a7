"""`moldau groups reset-offsets`: where a group shall go on reading, shown first, done if asked.

Owns the meaning of the scenarios (that of kafka-consumer-groups) and the CSV of offsets:
`topic,partition,offset`, with the group in front where there are several. Invariants: without
`--execute` nothing is changed; offsets of a group that has members are never touched; a new offset
lies within its log, from its start to its end, and where the offset that was asked for does not,
the row says so; a file names no partition twice.
"""

from __future__ import annotations

import csv
import io
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Final

from moldau import client
from moldau.cli.options import (
    AsJson,
    ClusterAccess,
    GroupChoice,
    Topics,
    existing_partitions,
    parse_topics,
    partitions_of,
    read_small_file,
)
from moldau.cli.output import (
    byte_output,
    complain,
    fail,
    print_json,
    print_table,
    refusing,
    safe_bytes,
    say,
)
from moldau.cli.parameters import Within
from moldau.moments import parse_datetime
from moldau.protocol.errors import ErrorCode

MAX_INT64: Final = 2**63 - 1
_DURATION: Final = re.compile(
    r"([-+]?)P(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d{1,9})?)S)?)?", re.IGNORECASE
)
_UNIT_MS: Final = (86_400_000, 3_600_000, 60_000)
FORM: Final = "topic,partition,offset or group,topic,partition,offset"
GroupOffsets = dict[str | None, dict[client.TopicPartition, int]]
"""Offsets by group; None where lines name no group."""
GONE = "there is no such partition any more"


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


def offsets_csv(offsets: Mapping[str, Mapping[client.TopicPartition, int]]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    for group_id, partitions in offsets.items():
        group = (group_id,) if len(offsets) > 1 else ()
        for partition, offset in sorted(partitions.items()):
            writer.writerow((*group, *partition, offset))
    return file.getvalue()


def read_offsets(path: Path) -> GroupOffsets:
    """The offsets in a file; exits with status 2 when it cannot be read or has another form."""
    not_text = refusing(UnicodeDecodeError, of=f"{path}: not UTF-8")
    with refusing(ValueError, csv.Error, of=path), not_text:
        text = io.TextIOWrapper(io.BytesIO(read_small_file(path)), encoding="utf-8").read()
        return parse_offsets(text)


def parse_offsets(text: str) -> GroupOffsets:
    """The offsets in a file's text. Raises: ValueError, with one line that says what is wrong."""
    found: GroupOffsets = {}
    reader = csv.reader(io.StringIO(text), strict=True)
    for row in reader:
        cells = [cell.strip() for cell in row]
        if not any(cells):
            continue
        where = f"line {reader.line_num}"
        if len(cells) not in (3, 4):
            raise ValueError(f"{where} has {len(cells)} columns, not {FORM}")
        topic, index, offset = cells[-3:]
        group_id = cells[0] if len(cells) == 4 else None
        if not topic or not _is_number(index) or not _is_number(offset):
            raise ValueError(f"{where} is not {FORM}")
        partition = client.TopicPartition(topic, int(index))
        offsets = found.setdefault(group_id, {})
        if partition in offsets:
            raise ValueError(f"{where}: {partition} is named twice")
        if int(offset) > MAX_INT64 or partition.partition >= 2**31:
            raise ValueError(f"{where}: a number is too big")
        offsets[partition] = int(offset)
    if not found:
        raise ValueError(f"no lines of the form {FORM}")
    if None in found and len(found) > 1:
        raise ValueError("some lines name a group, others do not")
    return found


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


Plans = dict[str, list[PlannedOffset]]
"""What is planned for each group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalOptions:
    """The options that say where a group shall go on."""

    to_earliest: Annotated[bool, "To the start of each log."] = False
    to_latest: Annotated[bool, "To the end of each log."] = False
    to_current: Annotated[bool, "Keep the present offsets, for --export."] = False
    to_offset: Annotated[int | None, Within(0), "To this offset."] = None
    shift_by: Annotated[int | None, "Forward by this many offsets; back if negative."] = None
    to_datetime: Annotated[
        str | None,
        "--to-datetime YYYY-MM-DD[THH:MM:SS.sss]",
        "To the first record of that time or later; UTC unless a time zone is given; a date "
        "alone is its midnight.",
    ] = None
    by_duration: Annotated[
        str | None, "--by-duration PnDTnHnMnS", "To the first record that is not older than this."
    ] = None
    from_file: Annotated[Path | None, "To the offsets in this CSV file."] = None

    def goal(self) -> Goal:
        """The scenario that is asked for; exits with status 2 for none, several or a bad one."""
        numbers = {
            Scenario.EARLIEST: 0 if self.to_earliest else None,
            Scenario.LATEST: 0 if self.to_latest else None,
            Scenario.CURRENT: 0 if self.to_current else None,
            Scenario.OFFSET: self.to_offset,
            Scenario.SHIFT: self.shift_by,
            Scenario.FILE: None if self.from_file is None else 0,
        }
        given = {kind.value: Goal(kind, n) for kind, n in numbers.items() if n is not None}
        now_ms = time.time_ns() // 1_000_000
        for text, option, parse in (
            (self.to_datetime, "--to-datetime", parse_datetime),
            (self.by_duration, "--by-duration", lambda text: now_ms - parse_duration(text)),
        ):
            if text is None:
                continue
            with refusing(ValueError, of=f"{option} {text!r}"):
                moment_ms = parse(text)
            # Negative numbers mean other things to a broker; nothing is older than 1970.
            given[option] = Goal(Scenario.TIMESTAMP, max(0, moment_ms))
        if len(given) > 1:
            fail(f"{' and '.join(given)} exclude each other: give one of them", status=2)
        if not given:
            options = ", ".join(scenario.value for scenario in Scenario)
            fail(f"where to? give one of {options}", status=2)
        return next(iter(given.values()))


def reset_offsets(
    access: ClusterAccess,
    groups: GroupChoice,
    *,
    topics: Topics = None,
    all_topics: Annotated[bool, "Every topic of which the group has committed offsets."] = False,
    where: GoalOptions,
    execute: Annotated[bool, "Change the offsets; otherwise they are only shown."] = False,
    dry_run: Annotated[bool, "Only show what would change (the default)."] = False,
    export: Annotated[bool, "Print CSV for --from-file."] = False,
    as_json: AsJson = False,
) -> None:
    """Move the offsets of groups without members."""
    file = read_offsets(where.from_file) if where.from_file is not None else None
    if groups.all_groups or groups.group_ids or file is None or None in file:
        groups.check()
    if execute and dry_run:
        fail("give --execute or --dry-run, not both", status=2)
    if export and as_json:
        fail("give --export or --json, not both", status=2)
    goal, wanted = where.goal(), parse_topics(topics)
    if file is None and bool(wanted) == all_topics:
        fail("give --topic or --all-topics" + (", not both" if wanted else ""), status=2)
    with access.asking(client.Admin) as (admin, loop):
        chosen = loop.run(groups.found(admin))
        plans, errors = loop.run(_reset(admin, chosen, goal, wanted, file, execute=execute))
    _show(plans, executed=execute, export=export, as_json=as_json)
    complain(errors)


async def _reset(
    admin: client.Admin,
    group_ids: list[str],
    goal: Goal,
    wanted: dict[str, set[int] | None],
    file: GroupOffsets | None,
    *,
    execute: bool,
) -> tuple[Plans, list[str]]:
    """Plan each group by itself, and carry the plan out where that is asked for."""
    plans: Plans = {}
    errors: list[str] = []
    if file is not None and not group_ids:
        group_ids = [group_id for group_id in file if group_id is not None]
    described = await admin.describe_groups(group_ids)
    committed = await admin.list_group_offsets(group_ids)
    partitions = await existing_partitions(admin, wanted) if wanted else []
    for group_id in group_ids:
        problem, offsets = refusal(group_id, described[group_id]), committed[group_id]
        if problem is not None or isinstance(offsets, client.KafkaError):
            errors.append(problem or str(offsets))
            continue
        chosen = partitions or sorted(offsets)
        if file is not None:
            goal = Goal(Scenario.FILE, offsets=file.get(group_id, file.get(None, {})))
            chosen = sorted(goal.offsets or ())
        try:
            gone = [] if wanted else await _gone(admin, chosen)
            present = [each for each in chosen if each not in gone]
            plan = await plan_offsets(admin, goal, present, offsets)
        except NoPlan as error:
            errors.append(f"{group_id}: {error}")
            continue
        if not plan:
            errors.append(f"{group_id}: there are no offsets to move")
            continue
        if execute:
            plan = await _carry_out(admin, group_id, plan, errors)
        plans[group_id] = plan + [
            PlannedOffset(each, offsets[each].offset if each in offsets else None, None, GONE)
            for each in gone
        ]
    return plans, errors


def refusal(group_id: str, described: client.GroupDescription | client.KafkaError) -> str | None:
    """Why a group's offsets cannot be moved, None when they can. A group that is not there yet
    is made by the first commit.
    """
    if isinstance(described, client.KafkaError):
        return None if described.code == ErrorCode.GROUP_ID_NOT_FOUND else str(described)
    if described.is_empty:
        return None
    return (
        f"{group_id}: offsets can only be moved while no member is in the group, and it is "
        f"{described.state}: stop its members first"
    )


async def _gone(
    admin: client.Admin, partitions: list[client.TopicPartition]
) -> set[client.TopicPartition]:
    """The partitions that do not exist any more: offsets outlive topics for a while."""
    names = set(await admin.list_topics(include_internal=True))
    topics = await admin.describe_topics(sorted({each.topic for each in partitions} & names))
    return set(partitions) - partitions_of(topics).keys()


async def _carry_out(
    admin: client.Admin, group_id: str, plan: list[PlannedOffset], errors: list[str]
) -> list[PlannedOffset]:
    """Commit a plan; returns the rows that were committed."""
    news = {each.partition: each.new for each in plan if each.new is not None}
    outcome = await admin.alter_group_offsets(group_id, news)
    refused = {str(error) for error in outcome.values() if error is not None}
    errors.extend(sorted(refused))
    return [each for each in plan if outcome[each.partition] is None]


def _show(plans: Plans, *, executed: bool, export: bool, as_json: bool) -> None:
    if export:
        document = offsets_csv(
            {
                group_id: {each.partition: each.new.offset for each in plan if each.new}
                for group_id, plan in plans.items()
            }
        ).encode()
        byte_output().write(safe_bytes(document) if sys.stdout.isatty() else document)
        return
    rows: list[dict[str, object]] = [
        {
            "group_id": group_id,
            **each.partition._asdict(),
            "current_offset": each.current,
            "new_offset": each.new.offset if each.new else None,
            "note": each.note or None,
        }
        for group_id, plan in plans.items()
        for each in plan
    ]
    if as_json:
        print_json({"executed": executed, "offsets": rows})
        return
    if not rows:
        return
    print_table(
        ("group", "topic", "partition", "current offset", "new offset", "note"),
        (row.values() for row in rows),
    )
    say("done" if executed else "nothing is changed yet: --execute does it")
