"""`moldau groups reset-offsets`: where a group shall go on reading, shown first, done if asked; and
`seek`, which does it at once, to the start, the end or a time.

Owns the CSV of offsets: `topic,partition,offset`, with the group in front where there are several;
what the scenarios mean stands in `moldau.offset_plans`. Invariants: without `--execute`
`reset-offsets` changes nothing, and `seek` prints the offsets before; offsets of a group that has
members are never touched; a file names no partition twice.
"""

from __future__ import annotations

import csv
import io
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
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
from moldau.offset_plans import (
    MAX_INT64,
    Goal,
    NoPlan,
    PlannedOffset,
    Scenario,
    parse_duration,
    plan_offsets,
)
from moldau.protocol.errors import ErrorCode

FIRST_MS: Final = 10_000_000_000
"""Numbers below are no times of records: April 1970 in ms."""
FORM: Final = "topic,partition,offset or group,topic,partition,offset"
GroupOffsets = dict[str | None, dict[client.TopicPartition, int]]
"""Offsets by group; None where lines name no group."""
GONE = "there is no such partition any more"


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


def seek(
    access: ClusterAccess,
    groups: GroupChoice,
    *,
    to: Annotated[
        str,
        "--to start|end|TIME",
        "start, end, or the first record of then: 10m (ago), ISO 8601 (UTC unless it names a "
        "zone; a date is its midnight), ms of 1970.",
    ],
    topics: Topics = None,
    dry_run: Annotated[bool, "Only show what would change."] = False,
    as_json: AsJson = False,
) -> None:
    """Have groups without members go on elsewhere, at once.

    All topics of which the group has committed offsets are meant, or those that are named. The
    offsets before are printed, too. `reset-offsets` has more ways to say where, and shows first.
    """
    groups.check()
    goal, wanted = _goal_of(to), parse_topics(topics)
    with access.asking(client.Admin) as (admin, loop):
        chosen = loop.run(groups.found(admin))
        resetting = _reset(admin, chosen, goal, wanted, None, execute=not dry_run)
        plans, errors = loop.run(resetting)
    how = "without --dry-run it is done"
    _show(plans, executed=not dry_run, export=False, as_json=as_json, how=how)
    complain(errors)


def _goal_of(text: str) -> Goal:
    """What `--to` says; exits with status 2 when it says nothing."""
    if text in ("start", "earliest"):
        return Goal(Scenario.EARLIEST)
    if text in ("end", "latest"):
        return Goal(Scenario.LATEST)
    if text.isascii() and text.isdigit() and int(text) < FIRST_MS:
        how = f"`reset-offsets --to-offset {text}`"
        fail(f"--to {text} is no time; to go to an offset there is {how}", status=2)
    from moldau.cli.consume import milliseconds
    from moldau.cli.record_formats import InputProblem

    with refusing(InputProblem):
        return Goal(Scenario.TIMESTAMP, milliseconds(text, "--to", "start, end, "))


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


def _show(
    plans: Plans, *, executed: bool, export: bool, as_json: bool, how: str = "--execute does it"
) -> None:
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
    say("done" if executed else f"nothing is changed yet: {how}")
