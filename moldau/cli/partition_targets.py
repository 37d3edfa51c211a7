"""Which partitions a command is about: `TOPIC`, `TOPIC:PARTITION` or patterns of names.

Must not talk to a cluster except through `moldau.client`. Invariant: what is resolved exists.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated

import typer

from moldau.cli.output import fail
from moldau.client import Admin, TopicDescription, TopicPartition
from moldau.protocol.types import is_legal_topic_name

Targets = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TOPIC[:PARTITION]]…", help="Partitions; a topic's name means all."),
]
Target = tuple[str, int | None]


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
    admin: Admin, targets: list[Target]
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
    """Broker ids for people."""
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
