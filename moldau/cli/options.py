"""The options that commands share, what they stand for, and the way into the client.

Owns the options of a running cluster, which topics, partitions, brokers and groups a command is
about, and the mapping from a `KafkaError` to one line.
Must not know which settings there are: the client does. Invariant: partitions that are named exist;
partitions that a group has committed offsets for need not.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from moldau import client
from moldau.cli.client_settings import client_properties
from moldau.cli.completion import complete_groups, complete_profiles, complete_topics
from moldau.cli.output import fail, file_errors, refusing
from moldau.cli.parameters import Within
from moldau.config import small_files
from moldau.protocol.types import is_legal_topic_name
from moldau.runtime.connection import UnsupportedByPeer
from moldau.schema_registry.settings import take_registry_settings
from moldau.text import did_you_mean

if TYPE_CHECKING:
    from moldau.client.admin.calls import AdminCalls
    from moldau.client.admin.cluster import ClusterCalls

Result = TypeVar("Result")
Value = TypeVar("Value")
Calls = TypeVar("Calls", bound="AdminCalls")

AsJson = Annotated[bool, "--json", "Print JSON instead of a table."]
TimeoutMs = Annotated[int, Within(1), "Give up after this many milliseconds."]

DEFAULT_TIMEOUT_MS = 15_000
MIN_INTERVAL_S = 0.1  # between two updates of a view
MAX_FILE_BYTES = 64 * 1024 * 1024
Properties = Annotated[
    list[str] | None, "--property", "KEY=VALUE, a setting of the client; may be repeated."
]
Targets = Annotated[
    list[str] | None,
    "[TOPIC[:PARTITION]]…",
    complete_topics,
    "Partitions; a topic's name alone means all its partitions.",
]
Target = tuple[str, int | None]
Topics = Annotated[
    list[str] | None,
    "--topic TOPIC[:PARTITION,…]",
    "A topic, or some of its partitions; may be repeated.",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """The options that say which cluster a command is for, and who asks there."""

    bootstrap_server: Annotated[
        str | None,
        "--bootstrap-server -b",
        "HOST:PORT of one or more brokers, separated by commas.  [default: "
        "MOLDAU_BOOTSTRAP_SERVER, the profile's, or localhost:9092]",
    ] = None
    bootstrap_controller: str | None = None
    """An option of `ControllerAccess` alone."""
    command_config: Annotated[str | None, "A file of client properties, as for Kafka's tools."] = (
        None
    )
    profile: Annotated[
        str | None, complete_profiles, "The profile to use (`moldau profile`); none: without one."
    ] = None

    def properties(
        self,
        given: list[str] | None = None,
        defaults: Mapping[str, str] | None = None,
        options: Mapping[str, str | None] | None = None,
    ) -> dict[str, object]:
        """The settings, as `client_properties` finds them."""
        return client_properties(
            *(self.bootstrap_server, self.command_config, given),
            profile=self.profile,
            defaults=defaults,
            options=options,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAccess(ClientOptions):
    """The running cluster that a command is for."""

    timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS

    def config(self) -> client.ClientConfig:
        """The client's configuration; exits with status 2 when it is wrong."""
        settings = self.properties()
        take_registry_settings(settings)  # nothing is asked of a registry here
        if self.bootstrap_controller is not None:
            settings["bootstrap.controllers"] = self.bootstrap_controller
            settings.pop("bootstrap.servers", None)
        with refusing(client.ConfigurationError):
            config = client.AdminConfig.from_properties(settings)
            return client.AdminConfig.resolve(
                None,
                config,
                {
                    "request_timeout_ms": min(config.request_timeout_ms, self.timeout_ms),
                    "default_api_timeout_ms": self.timeout_ms,
                },
            )

    @contextmanager
    def asking(self, kind: type[Calls]) -> Iterator[tuple[Calls, asyncio.Runner]]:
        """A client that has the calls of one subject, to import these alone, and what runs them.
        A `KafkaError` becomes one line and status 1, settings that cannot be used status 2.
        """
        config = self.config()

        async def made() -> Calls:
            return kind(config=config)

        with (
            refusing(client.KafkaError, status=1),
            refusing(client.ConfigurationError),  # one that only shows in use
            asyncio.Runner() as loop,
        ):
            admin = loop.run(made())
            try:
                yield admin, loop
            finally:
                loop.run(admin.close())

    def ask(
        self, kind: type[Calls], call: Callable[[Calls], Coroutine[Any, Any, Result]]
    ) -> Result:
        """Run one call, as `asking`."""
        with self.asking(kind) as (admin, loop):
            return loop.run(call(admin))


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerAccess(ClusterAccess):
    """The same for a command that controllers serve too; they are asked when they are given."""

    bootstrap_controller: Annotated[
        str | None, "HOST:PORT of one or more controllers, to ask instead of brokers."
    ] = None


def value_of(answer: Value | client.KafkaError) -> Value:
    """What came of one of several items. Raises: KafkaError, when that is an error"""
    if isinstance(answer, client.KafkaError):
        raise answer
    return answer


def raise_first(answers: Iterable[object]) -> None:
    """Raises: KafkaError, the first one of what came of several items."""
    for each in answers:
        value_of(each)


def read_small_file(path: Path) -> bytes:
    """What is in a file, or comes from a pipe; exits with status 2 when it cannot be read, or is
    too big.
    """
    with file_errors(path, status=2):
        return small_files.read_small_file(str(path), MAX_FILE_BYTES, takes_pipe=True)


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
    admin: client.Admin, targets: Collection[Target]
) -> tuple[dict[str, client.TopicDescription], list[client.TopicPartition]]:
    """The topics and the partitions that are meant, all of them when `targets` is empty. Exits with
    status 1 when a partition does not exist. Raises: KafkaError
    """
    names = sorted({topic for topic, _ in targets})
    topics = await admin.describe_topics(names if targets else None)
    indexes = {
        name: {each.partition for each in topic.partitions} for name, topic in topics.items()
    }
    wanted = targets or [(name, None) for name in topics]
    found: dict[client.TopicPartition, None] = {}
    for name, index in wanted:
        if index is not None and index not in indexes[name]:
            fail(f"there is no partition {index} of {name}; it has {len(indexes[name])}")
        for each in sorted(indexes[name]) if index is None else [index]:
            found[client.TopicPartition(name, each)] = None
    return topics, list(found)


def partitions_of(
    topics: Mapping[str, client.TopicDescription],
) -> dict[client.TopicPartition, client.PartitionDescription]:
    return {
        client.TopicPartition(name, each.partition): each
        for name, topic in topics.items()
        for each in topic.partitions
    }


async def resolve_names(
    admin: client.Admin, names: Iterable[str] | None, *, with_internal: bool
) -> list[str]:
    """Topics by name or by regular expression, as kafka-topics takes them; all when none is given.

    What could be a topic's name is one; anything else has to match whole names. Exits with status 1
    when a pattern matches nothing, 2 when it is no regular expression. Raises: KafkaError
    """
    given = list(names or ())
    patterns = [text for text in given if not is_legal_topic_name(text)]
    compiled = []
    for text in patterns:
        with refusing(re.error, of=f"{text!r} is neither a topic's name nor a regular expression"):
            compiled.append(re.compile(text.replace(",", "|")))
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


def unknown_topic(
    name: str, known: Iterable[str], hint: str = ""
) -> client.UnknownTopicOrPartition:
    """The error of a topic that does not exist; it names the topics with the nearest names."""
    return client.UnknownTopicOrPartition(
        f"there is no topic {name!r}{did_you_mean(name, known, most=3)}{hint}"
    )


async def registered_broker(admin: ClusterCalls, broker_id: int) -> client.RegisteredBroker:
    """The broker as the cluster knows it; ends the command when there is none."""
    try:
        cluster = await admin.describe_cluster(include_fenced_brokers=True)
    except UnsupportedByPeer:  # Apache Kafka before 4.0 only names those that serve
        cluster = await admin.describe_cluster()
    for broker in cluster.brokers:
        if broker.node_id == broker_id:
            return broker
    known = ", ".join(str(broker.node_id) for broker in cluster.brokers)
    fail(f"there is no broker {broker_id}; there are {known or 'none'}")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupChoice:
    """The options that say which groups are meant."""

    group_ids: Annotated[list[str] | None, "[GROUP]…", complete_groups, "Groups."] = None
    all_groups: Annotated[bool, "Every group of the cluster."] = False

    def check(self) -> None:
        """Exits with status 2 unless it is said which, and in one way."""
        if bool(self.group_ids) == self.all_groups:
            fail("give groups or --all-groups" + (", not both" if self.group_ids else ""), status=2)

    async def found(self, admin: client.Admin) -> list[str]:
        """The groups' ids, each once. Raises: KafkaError"""
        if self.all_groups:
            # As Kafka's tool: those of consumers, and simple ones that only keep offsets.
            listed = await admin.list_groups()
            return [each.group_id for each in listed if each.protocol_type in ("consumer", "")]
        return list(dict.fromkeys(self.group_ids or ()))


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
    admin: client.Admin, topics: dict[str, set[int] | None]
) -> list[client.TopicPartition]:
    """The partitions in order. Exits with status 1 for one that is not there. Raises: KafkaError"""
    targets: list[Target] = []
    for topic, indexes in sorted(topics.items()):
        targets += (
            [(topic, None)] if indexes is None else [(topic, each) for each in sorted(indexes)]
        )
    return (await describe_targets(admin, targets))[1]
