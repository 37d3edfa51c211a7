"""Which groups a command is about, and which partitions of their topics.

Must not talk to a cluster except through `moldau.client`. Invariant: partitions that are named
exist; that is not asked of those a group has committed offsets for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from moldau.cli.output import fail
from moldau.client import Admin, TopicPartition

GroupIds = Annotated[list[str] | None, typer.Argument(metavar="[GROUP]…", help="Groups.")]
AllGroups = Annotated[bool, typer.Option("--all-groups", help="Every group of the cluster.")]
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        metavar="TOPIC[:PARTITION,…]",
        help="A topic, or some of its partitions; may be repeated.",
    ),
]


def require_groups(group_ids: list[str] | None, all_groups: bool) -> None:
    """Exits with status 2 unless it is said which groups are meant, and in one way."""
    if bool(group_ids) == all_groups:
        fail("give groups or --all-groups" + (", not both" if group_ids else ""), status=2)


async def chosen_groups(admin: Admin, group_ids: list[str] | None, all_groups: bool) -> list[str]:
    """The groups' ids, each once. Raises: KafkaError"""
    if all_groups:
        # As Kafka's tool: those of consumers, and simple ones that only keep offsets.
        listed = await admin.list_groups()
        return [each.group_id for each in listed if each.protocol_type in ("consumer", "")]
    return list(dict.fromkeys(group_ids or ()))


def parse_topics(texts: Iterable[str] | None) -> dict[str, set[int] | None]:
    """Partitions by topic, None for all of them; exits with status 2 for anything else."""
    found: dict[str, set[int] | None] = {}
    for text in texts or ():
        topic, colon, list_text = text.rpartition(":") if ":" in text else (text, "", "")
        parts = list_text.split(",") if colon else []
        if not topic or not all(part.isascii() and part.isdigit() for part in parts):
            fail(f"--topic {text!r} is not TOPIC or TOPIC:PARTITION,…", status=2)
        known = found.get(topic, set())
        found[topic] = None if not colon or known is None else known | {int(each) for each in parts}
    return found


async def existing_partitions(
    admin: Admin, topics: dict[str, set[int] | None]
) -> list[TopicPartition]:
    """The partitions in order. Exits with status 1 for one that is not there. Raises: KafkaError"""
    described = await admin.describe_topics(sorted(topics))
    partitions = []
    for topic in sorted(topics):
        indexes = {each.partition for each in described[topic].partitions}
        wanted = topics[topic]
        for index in sorted(indexes if wanted is None else wanted):
            if index not in indexes:
                fail(f"there is no partition {index} of {topic}; it has {len(indexes)}")
            partitions.append(TopicPartition(topic, index))
    return partitions
