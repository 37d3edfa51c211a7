"""`…/groups/{group}/reset`: where a group without members shall go on, shown before it is done."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from moldau.client import (
    Admin,
    CommittedOffset,
    GroupDescription,
    GroupNotFound,
    KafkaError,
    TopicPartition,
)
from moldau.console.calls import Call, Reply
from moldau.console.own.commands import command, option
from moldau.console.own.lists import OWN
from moldau.console.problems import Problem
from moldau.console.routes import Route
from moldau.console.schemas import BOOLEAN, INTEGER, STRING, array, named, nullable, record
from moldau.console.v3.shapes import MAX_NUMBER
from moldau.offset_plans import MAX_INT64, Goal, NoPlan, Scenario, parse_duration, plan_offsets
from moldau.protocol.errors import ErrorCode

TO: Final = (
    r"^(earliest|latest|offset:\d{1,19}|timestamp:\d{1,15}|by:[+-]\d{1,19}"
    r"|duration:[-+]?P[0-9A-Za-z.]{1,60})$"
)
MAX_TOPICS: Final = 1_000
LAST_MS: Final = 253_402_300_799_999
"""The last ms of the year 9999, behind which the command has no words for a time."""
_WHOLE: Final = re.compile(r"[+-]?[0-9]+")
_NUMBERED: Final = ("offset", "timestamp", "by")
RESET: Final = record(
    {
        "to": {"type": "string", "pattern": TO},
        "topics": {
            **array(
                record(
                    {"topic": {**STRING, "minLength": 1}},
                    {
                        "partitions": nullable(
                            array({**INTEGER, "minimum": 0, "maximum": MAX_NUMBER}, most=100_000)
                        )
                    },
                ),
                most=MAX_TOPICS,
            ),
            "minItems": 1,
        },
        "dry_run": BOOLEAN,
    }
)
PLAN: Final = named(
    "ResetPlan",
    record(
        {
            "offsets": array(
                record(
                    {
                        "topic": STRING,
                        "partition": INTEGER,
                        "old": nullable(INTEGER),
                        "new": nullable(INTEGER),
                        "note": nullable(STRING),
                    }
                )
            ),
            "command": STRING,
        }
    ),
)


async def reset_offsets(call: Call) -> Reply:
    """Plan new offsets, and commit them unless it is a dry run."""
    clients, group_id, body = await call.clients(), call.path["group"], call.body
    goal = goal_of(body["to"], int(time.time() * 1000))
    chosen = chosen_partitions(body["topics"])
    admin = clients.admin
    described = (await admin.describe_groups([group_id]))[group_id]
    if isinstance(described, KafkaError) and not isinstance(described, GroupNotFound):
        raise described
    committed = (await admin.list_group_offsets([group_id]))[group_id]
    if isinstance(committed, KafkaError):
        raise committed
    if isinstance(described, GroupNotFound) and not body["dry_run"] and not committed:
        raise described
    partitions = await _existing(admin, chosen)
    try:
        plan = await plan_offsets(admin, goal, partitions, committed)
    except NoPlan as problem:
        cause = problem.__cause__
        if isinstance(cause, KafkaError):
            raise cause from None
        raise Problem(422, str(problem)) from None
    if not body["dry_run"]:
        if isinstance(described, GroupDescription) and not described.is_empty:
            why = f"offsets are reset while no member is in the group, and it is {described.state}"
            raise Problem(409, why, kafka_code=ErrorCode.NON_EMPTY_GROUP)
        await _commit(admin, group_id, {each.partition: each.new for each in plan if each.new})
    return Reply(
        {
            "offsets": [
                {
                    "topic": each.partition.topic,
                    "partition": each.partition.partition,
                    "old": each.current,
                    "new": each.new.offset if each.new else None,
                    "note": each.note or None,
                }
                for each in plan
            ],
            "command": reset_command(group_id, body["to"], chosen),
        }
    )


def goal_of(text: str, now_ms: int) -> Goal:
    """What `to` says. Raises: Problem."""
    kind, _, value = text.partition(":")
    is_number = _WHOLE.fullmatch(value) is not None
    if is_number is not (kind in _NUMBERED):
        raise Problem(422, f"{text!r} says nothing about where to go on")
    number = int(value) if is_number else 0
    if abs(number) > MAX_INT64:
        raise Problem(422, f"{value} is more than an offset can be")
    match kind:
        case "earliest":
            return Goal(Scenario.EARLIEST)
        case "latest":
            return Goal(Scenario.LATEST)
        case "offset":
            return Goal(Scenario.OFFSET, number)
        case "by":
            return Goal(Scenario.SHIFT, number)
        case "timestamp":
            if number > LAST_MS:
                raise Problem(422, f"{number} ms is behind the year 9999")
            return Goal(Scenario.TIMESTAMP, number)
    try:
        return Goal(Scenario.TIMESTAMP, max(0, now_ms - parse_duration(value)))
    except ValueError as error:
        raise Problem(422, f"the duration {value!r} is {error}") from None


def chosen_partitions(topics: list[dict[str, Any]]) -> dict[str, list[int] | None]:
    """The partitions by topic, None for all of them. Raises: Problem: a topic is named twice."""
    found: dict[str, list[int] | None] = {}
    for each in topics:
        if each["topic"] in found:
            raise Problem(422, f"the topic {each['topic']} is named twice")
        partitions = each.get("partitions")
        found[each["topic"]] = None if partitions is None else sorted(set(partitions))
    return found


def reset_command(group_id: str, to: str, chosen: Mapping[str, list[int] | None]) -> str:
    """The command that does it for good."""
    topics = [
        word
        for name, indexes in sorted(chosen.items())
        if indexes is None or indexes
        for word in option(
            "--topic", name if indexes is None else f"{name}:{','.join(map(str, indexes))}"
        )
    ]
    return command("groups", "reset-offsets", *topics, *_where(to), "--execute", names=[group_id])


def _where(to: str) -> tuple[str, ...]:
    kind, _, value = to.partition(":")
    match kind:
        case "earliest" | "latest":
            return (f"--to-{kind}",)
        case "offset":
            return option("--to-offset", int(value))
        case "by":
            return option("--shift-by", int(value))
        case "timestamp":
            at = datetime.fromtimestamp(int(value) // 1000, UTC).replace(tzinfo=None)
            text = f"{at:%Y-%m-%dT%H:%M:%S}.{int(value) % 1000:03}"
            return option("--to-datetime", text)
    return option("--by-duration", value)


async def _existing(admin: Admin, chosen: Mapping[str, list[int] | None]) -> list[TopicPartition]:
    """The partitions in order. Raises: Problem: 404 for one that does not exist; KafkaError."""
    topics = await admin.describe_topics([*chosen])
    found: list[TopicPartition] = []
    for name, indexes in sorted(chosen.items()):
        known = [each.partition for each in topics[name].partitions]
        for index in known if indexes is None else indexes:
            if index not in known:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                raise Problem(404, f"{name} has no partition {index}", kafka_code=code)
            found.append(TopicPartition(name, index))
    return sorted(found)


async def _commit(
    admin: Admin, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
) -> None:
    """Raises: Problem: a member has come; KafkaError."""
    outcome = await admin.alter_group_offsets(group_id, offsets)
    for error in outcome.values():
        if error is not None and error.code == ErrorCode.UNKNOWN_MEMBER_ID:
            why = "a member has joined the group: nothing is reset"
            raise Problem(409, why, kafka_code=ErrorCode.NON_EMPTY_GROUP)
        if error is not None:
            raise error


ROUTES: Final = (
    Route(
        method="POST",
        path=f"{OWN}/groups/{{group}}/reset",
        handler=reset_offsets,
        name="resetGroupOffsets",
        summary="Have a group without members go on elsewhere; `command` does it, a dry run not",
        needs="Read on the group and on the topics; for a dry run Describe",
        body=RESET,
        answer=PLAN,
    ),
)
