"""`moldau groups reset-offsets`: where a group shall go on reading, shown first, done if asked.

Must not talk to a cluster except through `moldau.client`. Invariant: without `--execute` nothing is
changed; offsets of a group that somebody is in are never touched.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from moldau.cli.cluster_options import (
    DEFAULT_TIMEOUT_MS,
    AsJson,
    BootstrapServer,
    CommandConfig,
    TimeoutMs,
    with_admin,
)
from moldau.cli.group_offset_files import GroupOffsets, offsets_csv, read_offsets
from moldau.cli.group_offset_plans import (
    Goal,
    NoPlan,
    PlannedOffset,
    Scenario,
    parse_datetime,
    parse_duration,
    plan_offsets,
)
from moldau.cli.group_targets import (
    AllGroups,
    GroupIds,
    Topics,
    chosen_groups,
    existing_partitions,
    parse_topics,
    require_groups,
)
from moldau.cli.output import complain, fail, print_json, print_table
from moldau.client import (
    Admin,
    CommittedOffset,
    GroupDescription,
    KafkaError,
    TopicPartition,
)
from moldau.protocol.errors import ErrorCode

TopicsByName = dict[str, set[int] | None]

AllTopics = Annotated[
    bool, typer.Option("--all-topics", help="Every topic the group has committed for.")
]
ToEarliest = Annotated[bool, typer.Option("--to-earliest", help="The logs' start.")]
ToLatest = Annotated[bool, typer.Option("--to-latest", help="The logs' end.")]
ToCurrent = Annotated[bool, typer.Option("--to-current", help="Where it is; useful with --export.")]
ToOffset = Annotated[int | None, typer.Option("--to-offset", min=0, help="This offset.")]
ShiftBy = Annotated[
    int | None, typer.Option("--shift-by", help="So many further; back when negative.")
]
ToDatetime = Annotated[
    str | None,
    typer.Option(
        "--to-datetime",
        metavar="YYYY-MM-DDTHH:MM:SS.sss",
        help="The first record of then or later; UTC unless it names a time zone.",
    ),
]
ByDuration = Annotated[
    str | None,
    typer.Option(
        "--by-duration", metavar="PnDTnHnMnS", help="The first record not older than that."
    ),
]
FromFile = Annotated[Path | None, typer.Option("--from-file", help="The offsets of a CSV file.")]
Execute = Annotated[bool, typer.Option("--execute", help="Do it, instead of only showing it.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show it (default).")]
Export = Annotated[bool, typer.Option("--export", help="Print CSV that --from-file takes.")]


@dataclass(slots=True)
class Outcome:
    """What came of all groups."""

    plans: dict[str, list[PlannedOffset]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)


def reset_offsets(
    group_ids: GroupIds = None,
    all_groups: AllGroups = False,
    topics: Topics = None,
    all_topics: AllTopics = False,
    to_earliest: ToEarliest = False,
    to_latest: ToLatest = False,
    to_current: ToCurrent = False,
    to_offset: ToOffset = None,
    shift_by: ShiftBy = None,
    to_datetime: ToDatetime = None,
    by_duration: ByDuration = None,
    from_file: FromFile = None,
    execute: Execute = False,
    dry_run: DryRun = False,
    export: Export = False,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS,
    as_json: AsJson = False,
) -> None:
    """Move the offsets of groups that nobody is in."""
    file = read_offsets(from_file) if from_file is not None else None
    if all_groups or group_ids or file is None or None in file:
        require_groups(group_ids, all_groups)
    if execute and dry_run:
        fail("give --execute or --dry-run, not both", status=2)
    if export and as_json:
        fail("give --export or --json, not both", status=2)
    goal = _goal(
        {
            Scenario.EARLIEST: 0 if to_earliest else None,
            Scenario.LATEST: 0 if to_latest else None,
            Scenario.CURRENT: 0 if to_current else None,
            Scenario.OFFSET: to_offset,
            Scenario.SHIFT: shift_by,
            Scenario.FILE: None if file is None else 0,
        },
        to_datetime,
        by_duration,
    )
    wanted = parse_topics(topics)
    if file is None and bool(wanted) == all_topics:
        fail("give --topic or --all-topics" + (", not both" if wanted else ""), status=2)

    async def work(admin: Admin) -> Outcome:
        chosen = await chosen_groups(admin, group_ids, all_groups)
        return await _reset(admin, chosen, goal, wanted, file, execute=execute)

    outcome = with_admin(bootstrap_server, command_config, timeout_ms, work)
    _show(outcome, executed=execute, export=export, as_json=as_json)
    complain(outcome.errors)


def _goal(
    numbers: Mapping[Scenario, int | None], to_datetime: str | None, by_duration: str | None
) -> Goal:
    """The one scenario that is asked for; exits with status 2 for none, several or a bad one."""
    goals = [Goal(scenario, number) for scenario, number in numbers.items() if number is not None]
    for text, option, parse in (
        (to_datetime, "--to-datetime", parse_datetime),
        (by_duration, "--by-duration", _ago),
    ):
        if text is None:
            continue
        try:
            moment_ms = parse(text)
        except ValueError as error:
            fail(f"{option} {text!r}: {error}", status=2)
        # Negative numbers mean other things to a broker; nothing is older than 1970.
        goals.append(Goal(Scenario.TIMESTAMP, max(0, moment_ms)))
    if len(goals) != 1:
        options = ", ".join(scenario.value for scenario in Scenario)
        fail(f"where to? give one of {options}", status=2)
    return goals[0]


def _ago(text: str) -> int:
    return time.time_ns() // 1_000_000 - parse_duration(text)


async def _reset(
    admin: Admin,
    group_ids: list[str],
    goal: Goal,
    wanted: TopicsByName,
    file: GroupOffsets | None,
    *,
    execute: bool,
) -> Outcome:
    """Plan each group by itself, and carry the plan out where that is asked for."""
    outcome = Outcome()
    if file is not None and not group_ids:
        group_ids = [group_id for group_id in file if group_id is not None]
    described = await admin.describe_groups(group_ids)
    committed = await admin.list_group_offsets(group_ids)
    partitions = await existing_partitions(admin, wanted) if wanted else []
    for group_id in group_ids:
        problem = refusal(group_id, described[group_id])
        offsets = committed[group_id]
        if isinstance(offsets, KafkaError):
            problem = problem or str(offsets)
        if problem is not None or isinstance(offsets, KafkaError):
            outcome.errors.append(problem or "")
            continue
        own_goal, chosen = _of_group(group_id, goal, partitions, offsets, file)
        try:
            gone = [] if wanted else await _gone(admin, chosen)
            present = [each for each in chosen if each not in gone]
            plan = await plan_offsets(admin, own_goal, present, offsets)
        except NoPlan as error:
            outcome.errors.append(f"{group_id}: {error}")
            continue
        if not plan:
            outcome.errors.append(f"{group_id}: there are no offsets to move")
            continue
        if execute:
            plan = await _carry_out(admin, group_id, plan, outcome.errors)
        outcome.plans[group_id] = plan + [
            PlannedOffset(each, offsets[each].offset if each in offsets else None, None, GONE)
            for each in gone
        ]
    return outcome


GONE = "there is no such partition any more"


def refusal(group_id: str, described: GroupDescription | KafkaError) -> str | None:
    """Why a group's offsets cannot be moved, None when they can. A group that is not there yet
    is made by the first commit.
    """
    if isinstance(described, KafkaError):
        return None if described.code == ErrorCode.GROUP_ID_NOT_FOUND else str(described)
    if described.is_empty:
        return None
    return (
        f"{group_id}: offsets can only be moved while nobody is in the group; it is "
        f"{described.state}"
    )


def _of_group(
    group_id: str,
    goal: Goal,
    partitions: list[TopicPartition],
    committed: Mapping[TopicPartition, CommittedOffset],
    file: GroupOffsets | None,
) -> tuple[Goal, list[TopicPartition]]:
    """What one group's scenario is, and for which partitions."""
    if file is None:
        return goal, partitions or sorted(committed)
    offsets = file.get(group_id, file.get(None, {}))
    return Goal(Scenario.FILE, offsets=offsets), sorted(offsets)


async def _gone(admin: Admin, partitions: list[TopicPartition]) -> set[TopicPartition]:
    """Those that do not exist any more: offsets outlive topics for a while."""
    names = set(await admin.list_topics(include_internal=True))
    topics = await admin.describe_topics(sorted({each.topic for each in partitions} & names))
    present = {
        TopicPartition(name, each.partition)
        for name, topic in topics.items()
        for each in topic.partitions
    }
    return {each for each in partitions if each not in present}


async def _carry_out(
    admin: Admin, group_id: str, plan: list[PlannedOffset], errors: list[str]
) -> list[PlannedOffset]:
    """Commit a plan; those of its rows that were committed."""
    news = {each.partition: each.new for each in plan if each.new is not None}
    outcome = await admin.alter_group_offsets(group_id, news)
    refused = {str(error) for error in outcome.values() if error is not None}
    errors.extend(sorted(refused))
    return [each for each in plan if outcome[each.partition] is None]


def _show(outcome: Outcome, *, executed: bool, export: bool, as_json: bool) -> None:
    if export:
        sys.stdout.write(
            offsets_csv(
                {
                    group_id: {each.partition: each.new.offset for each in plan if each.new}
                    for group_id, plan in outcome.plans.items()
                }
            )
        )
        return
    rows: list[dict[str, Any]] = [
        {
            "group_id": group_id,
            "topic": each.partition.topic,
            "partition": each.partition.partition,
            "current_offset": each.current,
            "new_offset": each.new.offset if each.new else None,
            "note": each.note or None,
        }
        for group_id, plan in outcome.plans.items()
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
    typer.echo("done" if executed else "nothing is changed yet: --execute does it")
