"""Requests of the classic protocol, good and bad: JoinGroup, SyncGroup, Heartbeat, LeaveGroup."""

from __future__ import annotations

from random import Random
from typing import Any, Final

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from tests.interop.differential.asking import build
from tests.interop.differential.groups.drawing import (
    STRANGER,
    Cast,
    chosen,
    from_versions,
    other_than,
)
from tests.interop.differential.groups.sequences import (
    TOPICS,
    Assignments,
    Generation,
    MemberId,
    ProtocolName,
    Step,
)

LONGEST_MS: Final = 2**31 - 1
LONG_MS: Final = 1_800_000
"""The longest session: no timer is over within a run."""

SUBSCRIPTIONS: Final = (
    ["alpha"],
    ["alpha"],
    ["alpha", "beta"],
    ["beta", "alpha", "beta"],
    ["beta"],
    ["no-such"],
    [],
)

MALFORMED: Final = (
    b"",
    b"\0",
    b"\0\0",
    b"\xff\xff\0\0\0\0\xff\xff\xff\xff",
    b"\0\0\0\0\0\1\0\5alpha\xff\xff\xff\xfftrailing",
    b"\0\x63\0\0\0\1\0\5alpha\xff\xff\xff\xff\0\0\0\0\xff\xff\xff\xff\xff\xff",
    b"\0\0\0\0\0\1\0\4\xff\xfe\xfd\xfc\xff\xff\xff\xff",
    b"\0\1\0\0\0\1\0\5alpha\xff\xff\xff\xff\x7f\xff\xff\xff",
)
"""What is no subscription: cut short, with negative or huge counts, of no version."""


def subscription(dice: Random, topics: list[str], *, is_owning: bool = False) -> bytes:
    """A ConsumerProtocolSubscription of some version."""
    version = dice.choice((0, 0, 1, 1, 2, 3))
    values: dict[str, Any] = {"topics": topics}
    if dice.random() < 0.2:
        values["user_data"] = b"user data"
    if version >= 1 and is_owning and dice.random() < 0.5:
        values["owned_partitions"] = [
            {"topic": dice.choice(topics or ["alpha"]), "partitions": [0]}
        ]
    if version >= 2 and dice.random() < 0.3:
        values["generation_id"] = dice.randrange(-1, 3)
    if version >= 3 and dice.random() < 0.3:
        values["rack_id"] = "rack"
    message = build(ConsumerProtocolSubscription, **values)
    return version.to_bytes(2) + b"".join(bytes(part) for part in message.encode(version))


def join(dice: Random, cast: Cast, actor: int) -> Step:
    """A JoinGroup, mostly a good one."""
    version = from_versions(dice, 0, 9)
    label = "join"
    topics = dice.choice(SUBSCRIPTIONS[: None if cast.is_alone else -1])
    protocols = [
        {"name": name, "metadata": subscription(dice, topics, is_owning=cast.is_owning)}
        for name in chosen(
            dice,
            (60, ("range",)),
            (20, ("range", "roundrobin")),
            (10, ("roundrobin", "range")),
            (5, ("roundrobin",)),
            (5, ("cooperative-sticky", "range")),
        )
    ]
    fields: dict[str, Any] = {
        "group_id": cast.group,
        "session_timeout_ms": chosen(dice, (50, LONG_MS), (50, LONG_MS - 60_000)),
        "member_id": MemberId(actor),
        "protocol_type": cast.protocol_type,
        "protocols": protocols,
    }
    if version >= 1:
        fields["rebalance_timeout_ms"] = chosen(
            dice, (48, LONG_MS), (48, LONG_MS + 60_000), (4, LONGEST_MS)
        )
    if version >= 5 and actor in cast.instances:
        fields["group_instance_id"] = cast.instances[actor]
    if version >= 8 and dice.random() < 0.3:
        fields["reason"] = "a reason"
    if dice.random() < 0.22:
        label = f"join {_spoil_join(dice, cast, actor, version, fields)}"
    return Step(actor, ApiKey.JOIN_GROUP, version, label, fields)


def _spoil_join(dice: Random, cast: Cast, actor: int, version: int, fields: dict[str, Any]) -> str:
    kinds = [
        "session timeout",
        "stranger",
        "no member id",
        "another's id",
        "no protocols",
        "malformed protocol",
        "malformed protocol",
        "malformed second protocol",
        "protocol twice",
        "protocol type",
        "no protocol type",
        "no common protocol",
        "no group",
        *(["another's instance", "empty instance", "unknown instance"] if version >= 5 else []),
    ]
    kind = dice.choice(kinds)
    member_ids = {
        "stranger": STRANGER,
        "no member id": "",
        "another's id": MemberId(other_than(dice, actor)),
    }
    if kind in member_ids:
        fields["member_id"] = member_ids[kind]
    elif kind == "session timeout":
        fields["session_timeout_ms"] = dice.choice((0, 1, 999, LONG_MS + 1, -1, 2**31 - 1))
    elif kind == "no protocols":
        fields["protocols"] = []
    elif kind == "malformed protocol":
        fields["protocols"] = [{"name": "range", "metadata": dice.choice(MALFORMED)}]
    elif kind == "malformed second protocol":
        bad = {"name": "sticky", "metadata": dice.choice(MALFORMED)}
        fields["protocols"] = [fields["protocols"][0], bad]
    elif kind == "protocol twice":
        again = {"name": fields["protocols"][0]["name"], "metadata": subscription(dice, ["beta"])}
        fields["protocols"] = [*fields["protocols"], again]
    elif kind == "protocol type":
        fields["protocol_type"] = _other_type(cast)
    elif kind == "no protocol type":
        fields["protocol_type"] = ""
    elif kind == "no common protocol":
        fields["protocols"] = [{"name": f"only {actor}", "metadata": subscription(dice, ["alpha"])}]
    elif kind == "no group":
        fields["group_id"] = ""
    elif kind == "another's instance":
        fields["group_instance_id"] = cast.instance_of(other_than(dice, actor))
    elif kind == "empty instance":
        fields["group_instance_id"] = ""
    elif kind == "unknown instance":
        fields["group_instance_id"] = "i9"
    return kind


def _other_type(cast: Cast) -> str:
    return "consumer" if cast.protocol_type == "connect" else "connect"


def sync(dice: Random, cast: Cast, actor: int) -> Step:
    """A SyncGroup, a leader's with assignments."""
    version = from_versions(dice, 0, 5)
    label = "sync"
    fields: dict[str, Any] = {
        "group_id": cast.group,
        "generation_id": Generation(actor),
        "member_id": MemberId(actor),
        "assignments": Assignments(actor, dice.choice(list(TOPICS))),
    }
    if version >= 3 and actor in cast.instances:
        fields["group_instance_id"] = cast.instances[actor]
    if version >= 5 and dice.random() < 0.7:
        fields["protocol_type"] = cast.protocol_type
        fields["protocol_name"] = ProtocolName(actor)
    if dice.random() < 0.2:
        kind = dice.choice(
            (
                "stale", "ahead", "stranger", "no assignments", "malformed assignments",
                "no member id", "no group", "unknown group", "stranger assigned",
                *(("another's instance", "unknown instance") if version >= 3 else ()),
                *(("protocol type", "protocol name") if version >= 5 else ()),
            )
        )  # fmt: skip
        label = f"sync {kind}"
        if kind == "no assignments":
            fields["assignments"] = []
        elif kind == "malformed assignments":
            fields["assignments"] = Assignments(actor, raw=dice.choice(MALFORMED))
        elif kind == "stranger assigned":
            fields["assignments"] = [{"member_id": STRANGER, "assignment": b"\0\0"}]
        elif kind == "protocol type":
            fields["protocol_type"] = _other_type(cast)
        elif kind == "protocol name":
            fields["protocol_name"] = "no-such"
        else:
            _spoil_member(dice, cast, actor, kind, fields)
    return Step(actor, ApiKey.SYNC_GROUP, version, label, fields)


def heartbeat(dice: Random, cast: Cast, actor: int) -> Step:
    """A Heartbeat."""
    version = from_versions(dice, 0, 4)
    label = "heartbeat"
    fields: dict[str, Any] = {
        "group_id": cast.group,
        "generation_id": Generation(actor),
        "member_id": MemberId(actor),
    }
    if version >= 3 and actor in cast.instances:
        fields["group_instance_id"] = cast.instances[actor]
    if dice.random() < 0.25:
        kind = dice.choice(
            (
                "stale", "ahead", "stranger", "no member id", "no group", "unknown group",
                *(("another's instance", "unknown instance") if version >= 3 else ()),
            )
        )  # fmt: skip
        label = f"heartbeat {kind}"
        _spoil_member(dice, cast, actor, kind, fields)
    return Step(actor, ApiKey.HEARTBEAT, version, label, fields)


def _spoil_member(dice: Random, cast: Cast, actor: int, kind: str, fields: dict[str, Any]) -> None:
    if kind == "stale":
        fields["generation_id"] = Generation(actor, -1)
    elif kind == "ahead":
        fields["generation_id"] = Generation(actor, 1)
    elif kind == "stranger":
        fields["member_id"] = STRANGER
    elif kind == "no member id":
        fields["member_id"] = ""
    elif kind == "no group":
        fields["group_id"] = ""
    elif kind == "unknown group":
        fields["group_id"] = cast.unknown_group
    elif kind == "another's instance":
        fields["group_instance_id"] = cast.instance_of(other_than(dice, actor))
    else:
        fields["group_instance_id"] = "i9"


def leave(dice: Random, cast: Cast, actor: int) -> Step:
    """A LeaveGroup; since version 3 of any number of members."""
    version = from_versions(dice, 0, 5)
    fields: dict[str, Any] = {"group_id": cast.group}
    label = "leave"
    if dice.random() < 0.06:
        fields["group_id"] = dice.choice(("", cast.unknown_group))
        label = "leave no group"
    if version < 3:
        fields["member_id"] = chosen(dice, (90, MemberId(actor)), (5, STRANGER), (5, ""))
        return Step(actor, ApiKey.LEAVE_GROUP, version, label, fields)
    members: list[dict[str, Any]] = []
    for number in chosen(
        dice, (75, [actor]), (10, [actor, other_than(dice, actor)]), (5, [actor, actor]), (3, []),
        (7, [other_than(dice, actor)]),
    ):  # fmt: skip
        member: dict[str, Any] = {"member_id": MemberId(number)}
        if number in cast.instances:
            member["group_instance_id"] = cast.instances[number]
            if dice.random() < 0.5:
                member["member_id"] = ""
        if dice.random() < 0.12:
            name = dice.choice(("member_id", "group_instance_id"))
            member[name] = dice.choice((STRANGER, "")) if name == "member_id" else "i9"
            label = "leave spoiled"
        if version >= 5 and dice.random() < 0.3:
            member["reason"] = "a reason"
        members.append(member)
    fields["members"] = members
    return Step(actor, ApiKey.LEAVE_GROUP, version, label, fields)
