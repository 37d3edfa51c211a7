"""`…/groups/{group}`: one group with members and offsets; what was seen of its lag."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from moldau.client import (
    CommittedOffset,
    GroupDescription,
    GroupMember,
    GroupNotFound,
    KafkaError,
    TopicPartition,
)
from moldau.console.calls import Call, Reply
from moldau.console.clients import Clients
from moldau.console.lags import STEP_S
from moldau.console.own.gathering import Offsets, ends_of, groups_of, lag_of, offset_in
from moldau.console.own.groups import DESCRIBED
from moldau.console.own.lists import OWN, Row
from moldau.console.own.topics import starts_of
from moldau.console.routes import Route
from moldau.console.schemas import BOOLEAN, INTEGER, STRING, array, named, nullable, record
from moldau.protocol.types import by_topic

CONSUMERS: Final = ("consumer", "")
"""Protocol types of classic groups that read topics, and of those that only keep offsets."""
KINDS: Final = {"share": "Share groups (KIP-932)", "streams": "Streams groups (KIP-1071)"}
ASSIGNED: Final = array(record({"topic": STRING, "partitions": array(INTEGER)}))
MEMBER: Final = record(
    {
        "member_id": STRING,
        "instance_id": nullable(STRING),
        "client_id": STRING,
        "client_host": STRING,
        "rack_id": nullable(STRING),
        "member_epoch": nullable(INTEGER),
        "subscribed_topics": nullable(array(STRING)),
        "assignment": nullable(ASSIGNED),
        "target": nullable(ASSIGNED),
    }
)
OFFSET: Final = record(
    {
        "topic": STRING,
        "partition": INTEGER,
        "committed": nullable(INTEGER),
        "start_offset": nullable(INTEGER),
        "end_offset": nullable(INTEGER),
        "lag": nullable(INTEGER),
        "metadata": nullable(STRING),
        "member_id": nullable(STRING),
        "leader_epoch": nullable(INTEGER),
    }
)
GROUP: Final = named(
    "Group",
    record(
        {
            "group_id": STRING,
            "type": STRING,
            "protocol": nullable(STRING),
            "state": STRING,
            "coordinator": nullable(INTEGER),
            "assignor": nullable(STRING),
            "group_epoch": nullable(INTEGER),
            "target_assignment_epoch": nullable(INTEGER),
            "members": array(MEMBER),
            "offsets": array(OFFSET),
            "is_supported": BOOLEAN,
            "note": nullable(STRING),
        }
    ),
)
HISTORY: Final = named(
    "LagHistory", record({"step_s": INTEGER, "points": array(array(nullable(INTEGER)))})
)


async def show_group(call: Call) -> Reply:
    """One group; of a kind that the client does not describe, what the list of groups says."""
    clients, group_id = await call.clients(), call.path["group"]
    found = (await clients.admin.describe_groups([group_id]))[group_id]
    if isinstance(found, GroupNotFound):
        return Reply(await _named_only(clients, group_id, found))
    if isinstance(found, KafkaError):
        raise found
    committed = (await clients.admin.list_group_offsets([group_id]))[group_id]
    if isinstance(committed, KafkaError):
        raise committed
    owners = {each: member for member in found.members for each in member.assignment}
    partitions = sorted({*committed, *owners})
    starts, ends = await asyncio.gather(
        starts_of(clients.admin, partitions), ends_of(clients.admin, partitions)
    )
    call.remember_lag(group_id, lag_of(committed, ends))
    return Reply(
        {
            **_described(found),
            "offsets": [
                _offset(each, committed.get(each), starts, ends, owners.get(each))
                for each in partitions
            ],
        }
    )


async def _named_only(clients: Clients, group_id: str, problem: GroupNotFound) -> Row:
    """A group that is only listed. Raises: GroupNotFound: it is not listed either."""
    for each in await groups_of(clients) or ():
        if each.group_id == group_id and each.group_type not in DESCRIBED:
            kind = KINDS.get(each.group_type, f"Groups of the kind {each.group_type}")
            return {
                "group_id": group_id,
                "type": each.group_type,
                "protocol": each.protocol_type or None,
                "state": each.state,
                "coordinator": each.coordinator_id,
                "assignor": None,
                "group_epoch": None,
                "target_assignment_epoch": None,
                "members": [],
                "offsets": [],
                "is_supported": False,
                "note": f"{kind} are listed; their members and offsets cannot be shown here yet.",
            }
    raise problem


def _described(group: GroupDescription) -> Row:
    note = None
    if group.protocol_type not in CONSUMERS:
        speak = f"Its members speak the protocol {group.protocol_type!r}, not that of consumers"
        note = f"{speak}: what each of them does is not known here."
    return {
        "group_id": group.group_id,
        "type": group.group_type,
        "protocol": group.protocol_type or None,
        "state": group.state,
        "coordinator": group.coordinator.node_id,
        "assignor": group.assignor or None,
        "group_epoch": group.group_epoch,
        "target_assignment_epoch": group.assignment_epoch,
        "members": [_member(each) for each in group.members],
        "is_supported": True,
        "note": note,
    }


def _member(member: GroupMember) -> Row:
    return {
        "member_id": member.member_id,
        "instance_id": member.group_instance_id,
        "client_id": member.client_id,
        "client_host": member.host,
        "rack_id": member.rack_id or None,
        "member_epoch": member.member_epoch,
        "subscribed_topics": [
            *member.subscribed_topics,
            *((member.subscribed_regex,) if member.subscribed_regex else ()),
        ],
        "assignment": _assigned(member.assignment),
        "target": None if member.target is None else _assigned(member.target),
    }


def _assigned(partitions: Iterable[TopicPartition]) -> list[Row]:
    topics = by_topic(sorted(partitions))
    return [{"topic": name, "partitions": indexes} for name, indexes in topics.items()]


def _offset(
    partition: TopicPartition,
    committed: CommittedOffset | None,
    starts: Offsets,
    ends: Offsets,
    member: GroupMember | None,
) -> Row:
    end, lag = offset_in(ends, partition), None
    if committed is not None and end is not None:
        lag = max(0, end - committed.offset)
    has_epoch = committed is not None and committed.leader_epoch >= 0
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "committed": committed.offset if committed else None,
        "start_offset": offset_in(starts, partition),
        "end_offset": end,
        "lag": lag,
        "metadata": (committed.metadata or None) if committed else None,
        "member_id": member.member_id if member else None,
        "leader_epoch": committed.leader_epoch if committed and has_epoch else None,
    }


async def show_lags(call: Call) -> Reply:
    """What was seen of a group's lag: a point comes with each look at the group, this one too."""
    clients, group_id = await call.clients(), call.path["group"]
    committed = (await clients.admin.list_group_offsets([group_id]))[group_id]
    if isinstance(committed, KafkaError):
        raise committed
    if committed:
        call.remember_lag(group_id, lag_of(committed, await ends_of(clients.admin, committed)))
    return Reply({"step_s": STEP_S, "points": call.lags_of(group_id)})


_ONE: Final = f"{OWN}/groups/{{group}}"
_NEEDS: Final = "Describe on the group, and on the topics for offsets"
ROUTES: Final = (
    Route(
        method="GET",
        path=_ONE,
        handler=show_group,
        name="getGroup",
        summary="One group: members, what they read, offsets and lag",
        needs=_NEEDS,
        answer=GROUP,
    ),
    Route(
        method="GET",
        path=f"{_ONE}/lag-history",
        handler=show_lags,
        name="getLagHistory",
        summary="What you have seen of a group's lag: [time in ms, records behind] by step",
        needs=_NEEDS,
        answer=HISTORY,
    ),
)
