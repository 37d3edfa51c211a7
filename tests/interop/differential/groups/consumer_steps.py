"""ConsumerGroupHeartbeats, good and bad (KIP-848)."""

from __future__ import annotations

from random import Random
from typing import Any, Final

from moldau.protocol.api_keys import ApiKey
from tests.interop.differential.groups.classic_steps import LONG_MS, LONGEST_MS
from tests.interop.differential.groups.drawing import STRANGER, Cast, chosen, other_than
from tests.interop.differential.groups.sequences import (
    Assigned,
    Generation,
    MemberId,
    Step,
    TopicId,
)

LEAVE, STATIC_LEAVE = -1, -2
PATTERN_VERSION: Final = 1
BAD_PATTERNS: Final = ("al[", "(", "*", "(?<=x)a", "")
SUBSCRIPTIONS: Final = (
    ["alpha"],
    ["alpha"],
    ["alpha", "beta"],
    ["beta", "alpha", "beta"],
    ["beta"],
    ["no-such"],
    ["alpine"],
    [],
)


def own_id(actor: int, time: int = 0) -> str:
    """The id that a client of the new protocol chooses, another one each time that it starts."""
    return f"m{actor}" + "abc"[:time]


def _topics(dice: Random, cast: Cast) -> list[str]:
    return dice.choice(SUBSCRIPTIONS[: None if cast.is_alone else -1])


def join(dice: Random, cast: Cast, actor: int) -> Step:
    """The first heartbeat of a member, or one that begins again."""
    version = chosen(dice, (80, 1), (20, 0))
    label = "join"
    fields: dict[str, Any] = {
        "group_id": cast.group,
        "member_id": chosen(
            dice,
            (75, own_id(actor)),
            (15, MemberId(actor, own_id(actor))),
            (0 if cast.is_alone else 10, own_id(actor, time=dice.randrange(1, 3))),
        ),
        "member_epoch": 0,
        "rebalance_timeout_ms": chosen(
            dice, (66, LONG_MS), (30, LONG_MS + 60_000), (4, LONGEST_MS)
        ),
        "topic_partitions": [],
    }
    if version == 0 and dice.random() < 0.1:
        fields["member_id"] = ""
        label = "join no member id"
    if version >= PATTERN_VERSION and dice.random() < 0.2:
        fields["subscribed_topic_regex"] = cast.pattern
        if dice.random() < 0.3:
            fields["subscribed_topic_names"] = _topics(dice, cast)
    else:
        fields["subscribed_topic_names"] = _topics(dice, cast)
    if actor in cast.instances:
        fields["instance_id"] = cast.instances[actor]
    if dice.random() < 0.3:
        fields["server_assignor"] = "uniform" if cast.is_uniform else "range"
    if dice.random() < 0.15:
        fields["rack_id"] = "rack"
    if dice.random() < 0.12:
        label = f"join {_spoil_join(dice, cast, actor, version, fields)}"
    return Step(actor, ApiKey.CONSUMER_GROUP_HEARTBEAT, version, label, fields)


def _spoil_join(dice: Random, cast: Cast, actor: int, version: int, fields: dict[str, Any]) -> str:
    kind = dice.choice(
        (
            "no timeout", "no subscription", "owns", "owns null", "assignor", "no member id",
            "no group", "empty instance", "empty rack", "another's instance", "another's id",
            "assigned once",
            *(("bad pattern",) if version >= PATTERN_VERSION else ()),
        )
    )  # fmt: skip
    if kind == "no timeout":
        fields["rebalance_timeout_ms"] = -1
    elif kind == "no subscription":
        fields["subscribed_topic_names"] = None
        fields.pop("subscribed_topic_regex", None)
    elif kind == "owns":
        fields["topic_partitions"] = [{"topic_id": TopicId("alpha"), "partitions": [0]}]
    elif kind == "owns null":
        fields["topic_partitions"] = None
    elif kind == "assignor":
        fields["server_assignor"] = dice.choice(("no-such", ""))
    elif kind == "no member id":
        fields["member_id"] = dice.choice(("", " "))
    elif kind == "no group":
        fields["group_id"] = dice.choice(("", " "))
    elif kind == "empty instance":
        fields["instance_id"] = dice.choice(("", " "))
    elif kind == "empty rack":
        fields["rack_id"] = ""
    elif kind == "another's instance":
        fields["instance_id"] = cast.instance_of(other_than(dice, actor))
    elif kind == "another's id":
        fields["member_id"] = own_id(other_than(dice, actor))
    elif kind == "assigned once":
        fields["topic_partitions"] = Assigned(actor)
    elif kind == "bad pattern":
        fields["subscribed_topic_regex"] = dice.choice(BAD_PATTERNS)
    return kind


def heartbeat(dice: Random, cast: Cast, actor: int) -> Step:
    """A heartbeat of a member, which may change what it subscribes to."""
    version = chosen(dice, (80, 1), (20, 0))
    label = "heartbeat"
    fields: dict[str, Any] = {
        "group_id": cast.group,
        "member_id": MemberId(actor, own_id(actor)),
        "member_epoch": Generation(actor),
        "topic_partitions": chosen(
            dice, (60, Assigned(actor)), (20, None), (10, []), (10, Assigned(actor, 1))
        ),
    }
    if actor in cast.instances and dice.random() < 0.6:
        fields["instance_id"] = cast.instances[actor]
    if dice.random() < 0.25:
        label = "heartbeat subscribes"
        fields["subscribed_topic_names"] = _topics(dice, cast)
        if version >= PATTERN_VERSION and dice.random() < 0.4:
            fields["subscribed_topic_regex"] = dice.choice((cast.pattern, cast.pattern, ""))
    if dice.random() < 0.15:
        fields["rebalance_timeout_ms"] = chosen(dice, (70, LONG_MS), (30, LONG_MS + 60_000))
    if dice.random() < 0.04:
        fields["rack_id"] = dice.choice(("rack", "other rack"))
    if dice.random() < 0.08:
        fields["server_assignor"] = "uniform" if cast.is_uniform else "range"
    if dice.random() < 0.15:
        label = f"heartbeat {_spoil_heartbeat(dice, cast, actor, version, fields)}"
    return Step(actor, ApiKey.CONSUMER_GROUP_HEARTBEAT, version, label, fields)


def _spoil_heartbeat(
    dice: Random, cast: Cast, actor: int, version: int, fields: dict[str, Any]
) -> str:
    owned_twice = {"topic_id": TopicId("alpha"), "partitions": [0, 0]}
    spoiled: dict[str, tuple[str, Any]] = {
        "stale": ("member_epoch", Generation(actor, -1)),
        "far behind": ("member_epoch", 1),
        "ahead": ("member_epoch", Generation(actor, 1)),
        "far ahead": ("member_epoch", 2**31 - 1),
        "epoch": ("member_epoch", -3),
        "stranger": ("member_id", STRANGER),
        "owns another's": (
            "topic_partitions",
            [{"topic_id": TopicId("alpha"), "partitions": [0, 1, 2]}],
        ),
        "owns unknown": (
            "topic_partitions",
            [{"topic_id": TopicId("no-such"), "partitions": [7]}],
        ),
        "owns twice": ("topic_partitions", [owned_twice, owned_twice]),
        "assignor": ("server_assignor", "no-such"),
        "no group": ("group_id", ""),
        "unknown group": ("group_id", cast.unknown_group),
        "another's instance": ("instance_id", cast.instance_of(other_than(dice, actor))),
        "unknown instance": ("instance_id", "i9"),
    }
    if version >= PATTERN_VERSION:
        spoiled["bad pattern"] = ("subscribed_topic_regex", dice.choice(BAD_PATTERNS[:-1]))
    kind = dice.choice(list(spoiled))
    name, value = spoiled[kind]
    fields[name] = value
    return kind


def leave(dice: Random, cast: Cast, actor: int) -> Step:
    """A heartbeat that leaves, for good or for a while."""
    is_static = actor in cast.instances
    epoch = chosen(dice, (40, LEAVE), (60, STATIC_LEAVE)) if is_static else LEAVE
    if dice.random() < 0.05:
        epoch = STATIC_LEAVE
    fields: dict[str, Any] = {
        "group_id": cast.group,
        "member_id": chosen(dice, (95, MemberId(actor, own_id(actor))), (5, STRANGER)),
        "member_epoch": epoch,
    }
    if is_static and dice.random() < 0.9:
        fields["instance_id"] = cast.instances[actor]
    if dice.random() < 0.05:
        fields["instance_id"] = cast.instance_of(other_than(dice, actor))
    version = chosen(dice, (80, 1), (20, 0))
    return Step(actor, ApiKey.CONSUMER_GROUP_HEARTBEAT, version, f"leave {epoch}", fields)
