"""Requests about a group's offsets, its description and its end."""

from __future__ import annotations

from random import Random
from typing import Any, Final

from moldau.protocol.api_keys import ApiKey
from tests.interop.differential.groups.consumer_steps import own_id
from tests.interop.differential.groups.drawing import (
    IDS_SINCE,
    STRANGER,
    Cast,
    chosen,
    from_versions,
    topic_word,
)
from tests.interop.differential.groups.sequences import Generation, MemberId, Step

LONG_METADATA: Final = "m" * 4097
MEMBERS_FETCH_SINCE: Final = 9
BATCHED_FETCH_SINCE: Final = 8


def commit(dice: Random, cast: Cast, actor: int) -> Step:
    """An OffsetCommit, as a member or as a simple consumer."""
    version = from_versions(dice, 2, 10)
    label = "commit"
    fields: dict[str, Any] = {"group_id": cast.group}
    kind = chosen(
        dice, (55, "member"), (25, "simple"), (4, "stale"), (4, "ahead"), (3, "stranger"),
        (3, "generation alone"), (2, "id alone"), (2, "no group"), (2, "unknown group"),
    )  # fmt: skip
    if kind not in ("simple", "generation alone"):
        fields["member_id"] = STRANGER if kind == "stranger" else MemberId(actor, own_id(actor))
    if kind not in ("simple", "id alone"):
        by = {"stale": -1, "ahead": 1}.get(kind, 0)
        fields["generation_id_or_member_epoch"] = Generation(actor, by)
    if kind == "no group":
        fields["group_id"] = ""
    elif kind == "unknown group":
        fields["group_id"] = cast.unknown_group
    if kind != "member":
        label = f"commit {kind}"
    if version >= 7 and actor in cast.instances and kind != "simple":
        fields["group_instance_id"] = cast.instances[actor]
    elif version >= 7 and dice.random() < 0.04:
        fields["group_instance_id"] = "i9"
        label = "commit instance"
    if version <= 4 and dice.random() < 0.2:
        fields["retention_time_ms"] = 10_000_000
    topics = []
    for topic in chosen(
        dice, (75, ["alpha"]), (15, ["alpha", "beta"]), (4, ["no-such"]), (4, ["no-such", "beta"]),
        (2, []),
    ):  # fmt: skip
        partitions = [
            {
                "partition_index": dice.choice((0, 0, 1, 2, 9)),
                "committed_offset": dice.choice((0, 5, 7, 7, -1)),
                "committed_metadata": chosen(
                    dice, (70, "note"), (10, None), (15, ""), (5, LONG_METADATA)
                ),
                **({"committed_leader_epoch": dice.choice((-1, 0, 3))} if version >= 6 else {}),
            }
            for _ in range(dice.choice((1, 1, 1, 2)))
        ]
        topics.append({**topic_word(topic, version), "partitions": partitions})
    fields["topics"] = topics
    return Step(actor, ApiKey.OFFSET_COMMIT, version, label, fields)


def fetch(dice: Random, cast: Cast, actor: int) -> Step:
    """An OffsetFetch."""
    version = from_versions(dice, 1, 10)
    fields: dict[str, Any] = {}
    if version >= 7:
        fields["require_stable"] = dice.random() < 0.4
    asked = chosen(
        dice,
        (40, None),
        (35, ["alpha"]),
        (10, ["alpha", "beta"]),
        (5, ["no-such", "alpha"]),
        (5, []),
    )
    group = chosen(dice, (94, cast.group), (4, cast.unknown_group), (2, ""))
    if version < BATCHED_FETCH_SINCE:
        if version == 1 and asked is None:
            asked = ["beta"]
        topics = None if asked is None else [_asked(dice, topic, version) for topic in asked]
        fields |= {"group_id": group, "topics": topics}
        return Step(actor, ApiKey.OFFSET_FETCH, version, "fetch", fields)
    label = "fetch"
    groups = []
    for each in chosen(dice, (88, [group]), (8, [group, cast.unknown_group]), (4, [group, group])):
        topics = None if asked is None else [_asked(dice, topic, version) for topic in asked]
        entry: dict[str, Any] = {"group_id": each, "topics": topics}
        if version >= MEMBERS_FETCH_SINCE and dice.random() < 0.5:
            kind = chosen(
                dice, (70, "member"), (8, "stale"), (8, "ahead"), (7, "stranger"), (7, "no id")
            )
            label = "fetch as a member" if kind == "member" else f"fetch {kind}"
            by = {"stale": -1, "ahead": 1}.get(kind, 0)
            entry["member_epoch"] = Generation(actor, by)
            if kind != "no id":
                entry["member_id"] = (
                    STRANGER if kind == "stranger" else MemberId(actor, own_id(actor))
                )
        groups.append(entry)
    fields["groups"] = groups
    return Step(actor, ApiKey.OFFSET_FETCH, version, label, fields)


def _asked(dice: Random, topic: str, version: int) -> dict[str, Any]:
    word = {"name": topic} if version < IDS_SINCE else topic_word(topic, version)
    return {**word, "partition_indexes": dice.choice(([0], [0, 1, 2], [9], [1, 0], []))}


def delete_offsets(dice: Random, cast: Cast, actor: int) -> Step:
    """An OffsetDelete."""
    group = chosen(dice, (92, cast.group), (5, cast.unknown_group), (3, ""))
    topics = [
        {
            "name": topic,
            "partitions": [
                {"partition_index": each} for each in dice.choice(([0], [0, 1], [9], [0, 0], []))
            ],
        }
        for topic in chosen(
            dice,
            (60, ["alpha"]),
            (15, ["beta"]),
            (15, ["alpha", "beta"]),
            (5, ["no-such"]),
            (5, []),
        )
    ]
    fields = {"group_id": group, "topics": topics}
    return Step(actor, ApiKey.OFFSET_DELETE, 0, "delete offsets", fields)


def delete_group(dice: Random, cast: Cast, actor: int) -> Step:
    """A DeleteGroups."""
    names = chosen(
        dice,
        (85, [cast.group]),
        (5, [cast.group, cast.group]),
        (5, [cast.unknown_group, cast.group]),
        (5, ["", cast.group]),
    )
    version = from_versions(dice, 0, 2)
    return Step(actor, ApiKey.DELETE_GROUPS, version, "delete", {"groups_names": names})


def describe_classic(dice: Random, cast: Cast, actor: int) -> Step:
    """A DescribeGroups."""
    version = from_versions(dice, 0, 6)
    fields: dict[str, Any] = {"groups": _described(dice, cast)}
    if version >= 3 and dice.random() < 0.3:
        fields["include_authorized_operations"] = True
    return Step(actor, ApiKey.DESCRIBE_GROUPS, version, "describe", fields)


def describe_consumer(dice: Random, cast: Cast, actor: int) -> Step:
    """A ConsumerGroupDescribe."""
    version = from_versions(dice, 0, 1)
    fields: dict[str, Any] = {"group_ids": _described(dice, cast)}
    if dice.random() < 0.3:
        fields["include_authorized_operations"] = True
    return Step(actor, ApiKey.CONSUMER_GROUP_DESCRIBE, version, "describe", fields)


def _described(dice: Random, cast: Cast) -> list[Any]:
    return chosen(
        dice,
        (88, [cast.group]),
        (5, [cast.group, cast.unknown_group]),
        (4, [cast.group, cast.group]),
        (3, [""]),
    )


def last_look(cast: Cast) -> tuple[Step, ...]:
    """What every sequence ends with: all there is to see of its group."""
    return (
        Step(0, ApiKey.DESCRIBE_GROUPS, 6, "last look", {"groups": [cast.group]}),
        Step(0, ApiKey.CONSUMER_GROUP_DESCRIBE, 1, "last look", {"group_ids": [cast.group]}),
        Step(
            0,
            ApiKey.OFFSET_FETCH,
            9,
            "last look",
            {"groups": [{"group_id": cast.group, "topics": None}]},
        ),
    )
