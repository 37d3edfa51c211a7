"""Sequences written by hand, one or more for each row of the list of differences.

Owns: what must be there for every row to be needed, whatever else is drawn. Must not: repeat what
random sequences show by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from tests.interop.differential.asking import build
from tests.interop.differential.groups.classic_steps import LONG_MS
from tests.interop.differential.groups.consumer_steps import LEAVE, STATIC_LEAVE
from tests.interop.differential.groups.drawing import Cast
from tests.interop.differential.groups.offset_steps import last_look
from tests.interop.differential.groups.sequences import (
    Assigned,
    Assignments,
    Generation,
    Group,
    MemberId,
    ProtocolName,
    Sequence,
    Step,
    TopicId,
)

GROUP: Final = Group()
CUT_SHORT: Final = b"\0\0\0\0\0\5"
NO_TOPICS_AT_ALL: Final = b"\0\0\xff\xff\xff\xff\xff\xff\xff\xff"
NOT_UTF_8: Final = b"\0\0\0\0\0\1\0\4\xff\xfe\xfd\xfc\xff\xff\xff\xff"
TIMES: Final = 12
"""So often the leader leaves: which of two others leads then, is chance in Apache Kafka."""

LAST_LOOK: Final = last_look(Cast())


def subscription(*topics: str, owned: dict[str, list[int]] | None = None) -> bytes:
    """What a classic member asks for, in version 1."""
    claims = [{"topic": name, "partitions": each} for name, each in (owned or {}).items()]
    message = build(ConsumerProtocolSubscription, topics=list(topics), owned_partitions=claims)
    return b"\0\1" + b"".join(bytes(part) for part in message.encode(1))


ALPHA: Final = subscription("alpha")


def join(actor: int, *protocols: Any, version: int = 3, label: str = "join", **fields: Any) -> Step:
    """A JoinGroup; a protocol is metadata, or a name and metadata."""
    listed = [each if isinstance(each, tuple) else ("range", each) for each in protocols]
    values = {
        "group_id": GROUP,
        "session_timeout_ms": LONG_MS,
        "rebalance_timeout_ms": LONG_MS,
        "member_id": MemberId(actor),
        "protocol_type": "consumer",
        "protocols": [{"name": name, "metadata": metadata} for name, metadata in listed],
    }
    return Step(actor, ApiKey.JOIN_GROUP, version, label, values | fields)


def sync(actor: int, version: int = 5, **fields: Any) -> Step:
    """A SyncGroup."""
    values: dict[str, Any] = {
        "group_id": GROUP,
        "generation_id": Generation(actor),
        "member_id": MemberId(actor),
        "assignments": Assignments(actor),
    }
    if version >= 5:
        values |= {"protocol_type": "consumer", "protocol_name": ProtocolName(actor)}
    return Step(actor, ApiKey.SYNC_GROUP, version, "sync", values | fields)


def beat(actor: int, label: str = "heartbeat", **fields: Any) -> Step:
    """A ConsumerGroupHeartbeat of a member."""
    values = {
        "group_id": GROUP,
        "member_id": MemberId(actor, f"m{actor}"),
        "member_epoch": Generation(actor),
        "topic_partitions": Assigned(actor),
    }
    return Step(actor, ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, label, values | fields)


def enter(actor: int, *topics: str, label: str = "join", **fields: Any) -> Step:
    """A ConsumerGroupHeartbeat that joins."""
    values = {
        "member_epoch": 0,
        "rebalance_timeout_ms": LONG_MS,
        "subscribed_topic_names": list(topics),
        "topic_partitions": [],
    }
    return beat(actor, label, **values | fields)


def leave(actor: int, *members: dict[str, Any]) -> Step:
    """A LeaveGroup."""
    left = list(members) or [{"member_id": MemberId(actor)}]
    return Step(actor, ApiKey.LEAVE_GROUP, 5, "leave", {"group_id": GROUP, "members": left})


def heartbeat(actor: int) -> Step:
    """A Heartbeat."""
    values = {
        "group_id": GROUP,
        "generation_id": Generation(actor),
        "member_id": MemberId(actor),
    }
    return Step(actor, ApiKey.HEARTBEAT, 4, "heartbeat", values)


def commit(actor: int, metadata: str = "", **fields: Any) -> Step:
    """An OffsetCommit."""
    partition = {"partition_index": 0, "committed_offset": 5, "committed_metadata": metadata}
    topics = [{"topic_id": TopicId("alpha"), "partitions": [partition]}]
    values = {"group_id": GROUP, "topics": topics}
    return Step(actor, ApiKey.OFFSET_COMMIT, 10, "commit", values | fields)


def sequences() -> Iterator[Sequence]:
    """All of them, each with a last look at its group."""
    elections = {f"the leader leaves, {time}": _ELECTION for time in range(TIMES)}
    for name, steps in (_SEQUENCES | elections).items():
        kind, is_special, _ = steps[0].label.rpartition(", ")
        looks = [replace(each, label=f"{kind}{is_special}{each.label}") for each in LAST_LOOK]
        yield Sequence(name, (*steps, *looks))


_REFUSED: Final = join(0, version=9)
"""A JoinGroup without protocols."""

_ELECTION: Final = (
    *(join(actor, ALPHA) for actor in (0, 1, 2, 0)),
    leave(0),
    join(1, ALPHA),
    join(2, ALPHA),
)

_OFFSETS: Final = [{"name": "alpha", "partitions": [{"partition_index": 0}]}]

_SEQUENCES: Final[dict[str, tuple[Step, ...]]] = {
    "a refused join": (_REFUSED,),
    "a commit after a refused join": (
        _REFUSED,
        commit(0, member_id="stranger", generation_id_or_member_epoch=1),
    ),
    "offsets are deleted after a refused join": (
        _REFUSED,
        Step(0, ApiKey.OFFSET_DELETE, 0, "delete offsets", {"group_id": GROUP, "topics": _OFFSETS}),
    ),
    "a deletion after a refused join": (
        _REFUSED,
        Step(0, ApiKey.DELETE_GROUPS, 2, "delete", {"groups_names": [GROUP]}),
    ),
    "a join after a join that was only given an id": (
        join(0, ALPHA, version=9),
        leave(0),
        join(0, ALPHA, version=9, protocol_type=""),
    ),
    "a join takes another's place": (join(0, ALPHA), join(1, ALPHA), *[join(1, ALPHA)] * 2),
    "a sync takes another's place": (
        join(0, ALPHA),
        join(1, ALPHA),
        join(0, ALPHA),
        sync(1),
        sync(1),
    ),
    "a group that cannot be upgraded, with members that wait": (
        join(0, b"\0\0"),
        join(1, ALPHA),
        enter(2, "alpha"),
    ),
    "a subscription cut short": (join(0, CUT_SHORT),),
    "a subscription without topics": (join(0, NO_TOPICS_AT_ALL),),
    "a protocol twice": (join(0, ALPHA, ALPHA),),
    "a protocol twice in a group": (
        join(0, ALPHA, version=8, group_instance_id="i0"),
        *[join(1, ALPHA, ALPHA, version=8, group_instance_id="i1")] * 2,
    ),
    "a subscription cut short in a consumer group": (enter(0, "alpha"), join(1, b"")),
    "a second protocol cut short in a consumer group": (
        enter(0, "alpha"),
        join(1, ALPHA, ("sticky", b""), label="join malformed second protocol"),
    ),
    "a member epoch without an id": (
        enter(0, "alpha"),
        Step(
            1,
            ApiKey.OFFSET_FETCH,
            9,
            "fetch",
            {"groups": [{"group_id": GROUP, "topics": None, "member_epoch": 1}]},
        ),
    ),
    "a name that is not UTF-8 in an upgrade": (join(0, NOT_UTF_8), sync(0), enter(1, "alpha")),
    "a name that is not UTF-8 and offsets": (
        join(0, NOT_UTF_8),
        Step(0, ApiKey.OFFSET_DELETE, 0, "delete offsets", {"group_id": GROUP, "topics": _OFFSETS}),
    ),
    "a static member whose first answer was lost": (
        enter(0, "alpha", instance_id="i0"),
        enter(0, "alpha", instance_id="i0"),
    ),
    "another instance id, and back": (
        enter(0, "alpha", instance_id="i0"),
        enter(0, "alpha", instance_id="i1"),
        enter(0, "alpha", instance_id="i0"),
    ),
    "another instance id, and leaving under the first": (
        enter(0, "alpha", instance_id="i0"),
        enter(0, "alpha", instance_id="i1"),
        beat(0, "leave -2", member_epoch=STATIC_LEAVE, instance_id="i0"),
    ),
    "an instance id is taken later": (
        enter(0, "alpha"),
        enter(1, "no-such"),
        enter(0, "alpha", label="join another's instance", instance_id="i1"),
    ),
    "the epoch before, while partitions are waited for": (
        enter(0, "alpha", instance_id="i0"),
        enter(1, "no-such"),
        enter(1, "alpha", "beta"),
        beat(1, topic_partitions=None),
        beat(1, "heartbeat stale", member_epoch=Generation(1, -1)),
    ),
    "a downgraded group is joined with another protocol": (
        enter(0, "alpha"),
        join(0, ("roundrobin", ALPHA), ("range", ALPHA)),
        enter(1, "alpha"),
        beat(1, "leave -1", member_epoch=LEAVE),
        join(2, ALPHA, version=9),
    ),
    "the last static member goes down": (
        enter(0, "alpha", instance_id="i0"),
        beat(0, member_epoch=STATIC_LEAVE, instance_id="i0"),
        join(1, subscription("beta"), version=9, group_instance_id="i0"),
    ),
    "the last static member goes down, and nothing changes": (
        enter(0, "alpha", instance_id="i0"),
        join(1, ALPHA, version=9, group_instance_id="i0"),
    ),
    "the last static member goes down, and its version cannot be told that it leads": (
        enter(0, "alpha", instance_id="i0"),
        join(1, ALPHA, version=8, group_instance_id="i0"),
        heartbeat(1),
    ),
    "the last static member goes down beside one that has to revoke": (
        enter(0, "alpha"),
        join(0, ALPHA),
        enter(1, "alpha", instance_id="i1"),
        *[join(1, ALPHA, version=9, group_instance_id="i1")] * 2,
    ),
    "an upgrade within a rebalance": (join(0, ALPHA), enter(1, "alpha")),
    "a classic heartbeat while assigning": (
        enter(0, "alpha", instance_id="i0"),
        join(1, ALPHA, version=9, group_instance_id="i1"),
        beat(0, subscribed_topic_names=["beta"], subscribed_topic_regex="al.*"),
        heartbeat(1),
    ),
    "two rebalances": (join(0, ALPHA), sync(0), join(0, subscription("beta")), join(0, ALPHA)),
    "a refused join to an empty consumer group": (
        enter(0, "alpha"),
        beat(0, member_epoch=LEAVE),
        join(1, version=9),
    ),
    "an upgraded member had claimed more": (
        join(0, subscription("beta", owned={"beta": [0]}), label="owning, join"),
        sync(0),
        enter(1, "beta", label="owning, join"),
        beat(1, "owning, heartbeat"),
    ),
    "as many votes": (
        join(0, ("range", ALPHA)),
        join(1, ("range", ALPHA), ("roundrobin", ALPHA)),
        join(0, ("roundrobin", ALPHA), ("range", ALPHA)),
    ),
    "a member subscribes by a pattern alone": (
        enter(0, "alpha"),
        enter(1, "beta"),
        beat(1, "leave -1", member_epoch=LEAVE),
        enter(1, subscribed_topic_names=None, subscribed_topic_regex="al.*"),
        beat(0),
    ),
    "members that subscribe to nothing": (
        enter(0, "alpha", label="nothing, join"),
        enter(1, "no-such", label="nothing, join"),
        beat(1, "nothing, leave -1", member_epoch=LEAVE),
        enter(1, label="nothing, join"),
        beat(0, "nothing, heartbeat"),
    ),
    "the uniform assignor": (
        enter(0, "alpha", label="uniform, join", server_assignor="uniform"),
        enter(1, "alpha", label="uniform, join", server_assignor="uniform"),
        beat(0, "uniform, heartbeat"),
    ),
}
