"""Which topics, partitions, brokers and groups a command is about.

Invariant: partitions that are named exist; partitions that a group has committed offsets for need
not.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated

import typer

from moldau.cli.output import fail
from moldau.client import Admin, PartitionDescription, TopicDescription, TopicPartition
from moldau.protocol.types import is_legal_topic_name

Targets = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TOPIC[:PARTITION]]…", help="Partitions; a topic's name means all."),
]
Target = tuple[str, int | None]
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


def parse_targets(texts: Iterable[str] | None) -> list[Target]:
    """Topics with a partition, or None for all of its partitions; exits with status 2."""
    targets: list[Target] = []
    for text in texts or []:
        topic, colon, index = text.partition(":")
        if not topic or (colon and not (index.isascii() and index.isdigit())):
            fail(f"{text!r} is not TOPIC or TOPIC:PARTITION", status=2)
        targets.append((topic, int(index) if colon else None))
    return targets


async def describe_targets(
    admin: Admin, targets: Collection[Target]
) -> tuple[dict[str, TopicDescription], list[TopicPartition]]:
    """The topics and the partitions that are meant, all of them when `targets` is empty.

    Exits with status 1 when a partition does not exist. Raises: KafkaError
    """
    names = sorted({topic for topic, _ in targets})
    topics = await admin.describe_topics(names if targets else None)
    indexes = {
        name: {each.partition for each in topic.partitions} for name, topic in topics.items()
    }
    wanted = targets or [(name, None) for name in topics]
    found: dict[TopicPartition, None] = {}
    for name, index in wanted:
        if index is not None and index not in indexes[name]:
            fail(f"there is no partition {index} of {name}; it has {len(indexes[name])}")
        for each in sorted(indexes[name]) if index is None else [index]:
            found[TopicPartition(name, each)] = None
    return topics, list(found)


def partitions_of(
    topics: Mapping[str, TopicDescription],
) -> dict[TopicPartition, PartitionDescription]:
    return {
        TopicPartition(name, each.partition): each
        for name, topic in topics.items()
        for each in topic.partitions
    }


async def resolve_names(
    admin: Admin, names: Iterable[str] | None, *, with_internal: bool
) -> list[str]:
    """Topics by name or by regular expression, as kafka-topics takes them; all when none is given.

    What could be a topic's name is one; anything else has to match whole names. Exits with status 1
    when a pattern matches nothing, 2 when it is no regular expression. Raises: KafkaError
    """
    given = list(names or ())
    patterns = [text for text in given if not is_legal_topic_name(text)]
    compiled = []
    for text in patterns:
        try:
            compiled.append(re.compile(text.replace(",", "|")))
        except re.error as error:
            fail(f"{text!r} is neither a topic's name nor a regular expression: {error}", status=2)
    found = {text for text in given if text not in patterns}
    if patterns or not given:
        known = await admin.list_topics(include_internal=with_internal)
        found.update(known if not given else ())
        for text, pattern in zip(patterns, compiled, strict=True):
            matching = [name for name in known if pattern.fullmatch(name)]
            if not matching:
                fail(f"no topic's name matches {text!r}")
            found.update(matching)
    return sorted(found)


def ids_text(broker_ids: Iterable[int]) -> str:
    return ",".join(map(str, broker_ids)) or "-"


def parse_ids(text: str, option: str) -> list[int]:
    """A list of broker ids; exits with status 2 for anything else, or one that is named twice."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        fail(f"{option} {text!r} is not a list of broker ids", status=2)
    ids = [int(part) for part in parts]
    if len(set(ids)) < len(ids):
        fail(f"{option} {text!r} names a broker twice", status=2)
    return ids


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
    targets: list[Target] = []
    for topic, indexes in sorted(topics.items()):
        targets += (
            [(topic, None)] if indexes is None else [(topic, each) for each in sorted(indexes)]
        )
    return (await describe_targets(admin, targets))[1]
