"""One kind of request, and what the modules of questions share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

from moldau.protocol.access_control import ResourceType
from moldau.protocol.api_keys import ApiKey
from tests.interop.differential.asking import Ground
from tests.interop.differential.permissions.principals import (
    GONE,
    GROUP,
    HERE,
    MODERN,
    NO_GROUP,
    ODD_GROUP,
    OTHER,
    OTHER_GONE,
    OTHER_GROUP,
    OTHER_NO_GROUP,
)

Fields = dict[str, Any]
Make = Callable[[Ground], Fields]

TOPICS: Final = (HERE, GONE, OTHER, OTHER_GONE)
GROUPS: Final = (GROUP, MODERN, NO_GROUP, OTHER_GROUP, OTHER_NO_GROUP, ODD_GROUP)
UNKNOWN_ID: Final = UUID(int=77)
UNKNOWN_IDS: Final = {GONE: UNKNOWN_ID, OTHER_GONE: UUID(int=78)}
STRANGER_ID: Final = 4_711
"""A producer id that no coordinator gave out, so that no transaction begins or ends."""

NODE, NO_NODE = 1, 99
PARTITIONS: Final = (0, NO_NODE)
"""One that a topic has, if the topic exists, and one that it does not have."""

MARKED: Final = "names marked"
MARKS: Final = ("\0\n\x1b[31m", "\0", "\n", "\x1b[31m")
TOPIC, GROUP_KIND, CLUSTER, IDENTIFIER, TOKEN, USER = (
    ResourceType.TOPIC,
    ResourceType.GROUP,
    ResourceType.CLUSTER,
    ResourceType.TRANSACTIONAL_ID,
    ResourceType.DELEGATION_TOKEN,
    ResourceType.USER,
)
CONFIG_TOPIC, CONFIG_BROKER, CONFIG_LOGGER, CONFIG_METRICS, CONFIG_GROUP = 2, 4, 8, 16, 32
TOPIC_KEY, BROKER_KEY, GROUP_KEY = (
    ("retention.ms", "1000000"),
    ("log.cleaner.backoff.ms", "15001"),
    ("consumer.session.timeout.ms", "600000"),
)


@dataclass(frozen=True)
class Question:
    """One kind of request.

    Attributes:
        api_key: of which API.
        name: names it in the list of differences.
        kinds: the resources whose rights may decide the answer.
        fields: as `build` takes them, for one version and one side.
        first, last: the versions that can say it; None for all that both serve.
        destroys: whether what it names may be gone afterwards, and must be made again.
    """

    api_key: ApiKey
    name: str
    kinds: frozenset[ResourceType]
    fields: Make
    first: int = 0
    last: int = 99
    destroys: bool = False


def ask(
    api_key: ApiKey, name: str, kinds: Iterable[ResourceType], fields: Make, **options: Any
) -> Question:
    return Question(api_key, name, frozenset(kinds), fields, **options)


def marked(question: Question) -> Question:
    """The same with what is no letter in every name, text of the request's own included; another
    mark in the next version.
    """

    def fields(ground: Ground) -> Fields:
        mark = MARKS[ground.api_version % len(MARKS)]
        return {name: _marked(value, mark) for name, value in question.fields(ground).items()}

    return replace(question, name=f"{question.name}, {MARKED}", fields=fields)


def _marked(value: Any, mark: str) -> Any:
    if isinstance(value, str):
        return f"{value[:2]}{mark}{value[2:]}" if value else value
    if isinstance(value, Mapping):
        return {name: _marked(each, mark) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_marked(each, mark) for each in value]
    return value


def topic_id(ground: Ground, topic: str) -> UUID:
    return ground.node.topic_ids.get(topic, UNKNOWN_IDS.get(topic, UNKNOWN_ID))


def named_topic(ground: Ground, topic: str, ids_since: int, field: str = "name") -> Fields:
    return (
        {"topic_id": topic_id(ground, topic)} if ground.api_version >= ids_since else {field: topic}
    )


def since(ground: Ground, first: int, **fields: Any) -> Fields:
    return fields if ground.api_version >= first else {}
