"""Groups to assign partitions to: how the golden vectors write them down, and random ones."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

from moldau.client.consumer.assignors.assignor import (
    ConsumerPartitionAssignor,
    Subscription,
    Topics,
)
from moldau.client.consumer.assignors.range import RangeAssignor
from moldau.client.consumer.assignors.roundrobin import RoundRobinAssignor
from moldau.client.consumer.assignors.sticky import (
    CooperativeStickyAssignor,
    StickyAssignor,
    write_sticky_user_data,
)
from moldau.protocol.types import TopicPartition

ASSIGNORS: Final[Mapping[str, type[ConsumerPartitionAssignor]]] = {
    kind.name: kind
    for kind in (RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor)
}
RACKS: Final = ("a", "b", "c")

Case = dict[str, Any]


def partition_of(text: str) -> TopicPartition:
    """`topic-3` as a partition."""
    topic, _, index = text.rpartition("-")
    return TopicPartition(topic, int(index))


def topics_of(case: Case) -> Topics:
    """A case's topics as assignors get them: those that exist and that a member wants."""
    wanted = {topic for member in case["members"] for topic in member["topics"]}
    return {
        topic: [frozenset(racks) for racks in partitions]
        for topic, partitions in case["topics"].items()
        if partitions and topic in wanted
    }


def subscriptions_of(case: Case) -> dict[str, Subscription]:
    """A case's members as assignors get them."""
    return {
        member["id"]: Subscription(
            topics=tuple(member["topics"]),
            owned_partitions=tuple(partition_of(each) for each in member["owned"]),
            generation_id=member["generation"],
            rack_id=member["rack"],
            group_instance_id=member["instance"],
            user_data=None if member["user_data"] is None else bytes.fromhex(member["user_data"]),
        )
        for member in case["members"]
    }


def assigned(case: Case) -> dict[str, list[str]]:
    """What ours assigns in this case, in the vectors' form."""
    result = ASSIGNORS[case["assignor"]]().assign(topics_of(case), subscriptions_of(case))
    return {member: sorted(str(each) for each in mine) for member, mine in result.items()}


def random_history(source: random.Random, assignor: str, rounds: int) -> list[Case]:
    """The rebalances of one group: members come, go, change what they want; topics grow; a member
    comes back with what it had long ago, or claims what another one has.
    """
    racked = source.random() < 0.4
    same_topics = source.random() < 0.5
    names = [f"t{index}" for index in range(source.randint(1, 5))]
    topics: dict[str, list[list[str]]] = {}
    for name in names:
        topics[name] = [_racks(source, racked) for _ in range(source.randint(0, 9))]
    members: list[Case] = []
    past: dict[str, tuple[list[str], int]] = {}
    cases = []
    for generation in range(1, rounds + 1):
        _change_members(source, members, names, racked=racked, same_topics=same_topics)
        grown = source.choice(names)
        topics[grown] = topics[grown] + [_racks(source, racked)] * source.randint(0, 3)
        if source.random() < 0.1:
            topics[source.choice(names)] = []
        for member in members:
            _remember(source, member, past.get(member["id"], ([], None)), assignor, generation)
        case = {
            "assignor": assignor,
            "topics": dict(topics),
            "members": [dict(member) for member in members],
        }
        cases.append(case)
        for member_id, mine in assigned(case).items():
            if source.random() < 0.9 or not mine:
                past[member_id] = (mine, generation)
            else:
                past[member_id] = ([*mine[1:], source.choice(mine)], generation - 1)
    return cases


def _racks(source: random.Random, racked: bool) -> list[str]:
    return source.sample(RACKS, source.randint(1, 2)) if racked else []


def _change_members(
    source: random.Random,
    members: list[Case],
    names: Sequence[str],
    *,
    racked: bool,
    same_topics: bool,
) -> None:
    while not members or source.random() < 0.5:
        members.append(
            {
                "id": f"{source.choice(('consumer', 'ab', 'Z'))}-{source.randrange(10_000)}",
                "rack": source.choice(RACKS) if racked and source.random() < 0.9 else None,
                "instance": f"i{source.randrange(10_000)}" if source.random() < 0.2 else None,
                "topics": source.sample(names, source.randint(1, len(names))),
            }
        )
    while len(members) > 1 and source.random() < 0.35:
        members.pop(source.randrange(len(members)))
    if source.random() < 0.2:
        source.choice(members)["topics"] = source.sample(names, source.randint(1, len(names)))
    if same_topics:
        for member in members:
            member["topics"] = source.sample(members[0]["topics"], len(members[0]["topics"]))


def _remember(
    source: random.Random,
    member: Case,
    past: tuple[list[str], int | None],
    assignor: str,
    generation: int,
) -> None:
    had, since = past
    if source.random() < 0.05:
        had, since = [], None
    eager = assignor != "cooperative-sticky"
    member["owned"] = [] if eager else had
    member["generation"] = since if not eager or source.random() < 0.3 else None
    member["user_data"] = None
    if assignor == "sticky" and since is not None:
        data = write_sticky_user_data([partition_of(each) for each in had], since)
        member["user_data"] = (data[:-4] if source.random() < 0.05 else data).hex()
    elif assignor == "cooperative-sticky" and source.random() < 0.2:
        member["generation"] = None
        member["user_data"] = None if since is None else since.to_bytes(4, "big").hex()
