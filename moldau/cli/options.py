"""The options that commands share, what they stand for, and the way into the client.

Owns the options of a running cluster, which topics, partitions, brokers and groups a command is
about, and the mapping from a `KafkaError` to one line.
Must not know which settings there are: the client does. Invariant: partitions that are named exist;
partitions that a group has committed offsets for need not.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar, get_type_hints

import typer

from moldau import client
from moldau.cli.client_settings import client_properties
from moldau.cli.completion import complete_groups, complete_profiles, complete_topics
from moldau.cli.output import fail
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
Calls = TypeVar("Calls", bound="AdminCalls")

BootstrapServer = Annotated[
    str | None,
    "--bootstrap-server -b",
    "HOST:PORT of one or more brokers, separated by commas.  [default: MOLDAU_BOOTSTRAP_SERVER, "
    "the profile's, or localhost:9092]",
]
BootstrapController = Annotated[
    str | None, "HOST:PORT of one or more controllers, to ask instead of brokers."
]
CommandConfig = Annotated[str | None, "A file of client properties, as for Kafka's tools."]
ProfileName = Annotated[
    str | None, complete_profiles, "The profile to use (`moldau profile`); none: without one."
]
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
GroupIds = Annotated[list[str] | None, "[GROUP]…", complete_groups, "Groups."]
AllGroups = Annotated[bool, "--all-groups", "Every group of the cluster."]
Topics = Annotated[
    list[str] | None,
    "--topic TOPIC[:PARTITION,…]",
    "A topic, or some of its partitions; may be repeated.",
]


class ClusterAccess(NamedTuple):
    """The running cluster that a command is for; `asks_cluster` makes it of the options.

    Controllers, when they are given, are asked instead of brokers.
    """

    bootstrap_server: str | None
    command_config: str | None
    timeout_ms: int
    bootstrap_controller: str | None = None
    profile: str | None = None

    def config(self) -> client.ClientConfig:
        """The client's configuration; exits with status 2 when it is wrong."""
        settings = client_properties(
            self.bootstrap_server,
            self.command_config,
            None,
            profile=self.profile,
            defaults={},
            options={},
        )
        take_registry_settings(settings)  # nothing is asked of a registry here
        if self.bootstrap_controller is not None:
            settings["bootstrap.controllers"] = self.bootstrap_controller
            settings.pop("bootstrap.servers", None)
        try:
            config = client.AdminConfig.from_properties(settings)
            return client.AdminConfig.resolve(
                None,
                config,
                {
                    "request_timeout_ms": min(config.request_timeout_ms, self.timeout_ms),
                    "default_api_timeout_ms": self.timeout_ms,
                },
            )
        except client.ConfigurationError as error:
            fail(str(error), status=2)

    def run(self, work: Callable[[client.Admin], Awaitable[Result]]) -> Result:
        """Run `work` with an admin client, as `ask`."""
        return self.ask(client.Admin, work)

    def ask(self, kind: type[Calls], work: Callable[[Calls], Awaitable[Result]]) -> Result:
        """Run `work` with a client that has the calls of one subject, to import these alone. A
        `KafkaError` becomes one line and status 1, settings that cannot be used status 2.
        """
        config = self.config()

        async def run() -> Result:
            async with kind(config=config) as admin:
                return await work(admin)

        try:
            return asyncio.run(run())
        except client.ConfigurationError as error:  # one that only shows in use
            fail(str(error), status=2)
        except client.KafkaError as error:
            fail(str(error))


def asks_cluster(
    *, controllers: bool = False, timeout_ms: int = DEFAULT_TIMEOUT_MS
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of a running cluster in place of its first parameter, a
    `ClusterAccess`.

    Args:
        controllers: whether `--bootstrap-controller` is one of them.
        timeout_ms: the default of `--timeout-ms`.
    """
    options: dict[str, tuple[object, object]] = {
        "bootstrap_server": (BootstrapServer, None),
        **({"bootstrap_controller": (BootstrapController, None)} if controllers else {}),
        "command_config": (CommandConfig, None),
        "profile": (ProfileName, None),
        "timeout_ms": (TimeoutMs, timeout_ms),
    }
    return asks(options, ClusterAccess)


def cluster_command(
    tree: typer.Typer, name: str, *, controllers: bool = False, timeout_ms: int = DEFAULT_TIMEOUT_MS
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a command to a tree, with the options of `asks_cluster`."""
    asked = asks_cluster(controllers=controllers, timeout_ms=timeout_ms)
    return lambda command: tree.command(name)(asked(command))


def asks(
    options: Mapping[str, tuple[object, object]], make: Callable[..., object]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command options (by name: type and default) in place of its first parameter, which
    `make` makes of them. They come behind the command's own options, before `--json`. In place of
    every other parameter that is a dataclass come its fields, which several commands may take.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        _, *own = signature(command, eval_str=True).parameters.values()
        groups: dict[str, Any] = {
            each.name: each.annotation for each in own if is_dataclass(each.annotation)
        }

        @wraps(command)
        def run(**given: Any) -> None:
            access = make(**{name: given.pop(name) for name in options})
            for name, group in groups.items():
                given[name] = group(**{each.name: given.pop(each.name) for each in fields(group)})
            command(access, **given)

        taken: list[tuple[str, object, object]] = []
        for each in own:
            if (group := groups.get(each.name)) is None:
                taken.append((each.name, each.annotation, each.default))
                continue
            taken += [(name, *option) for name, option in options_of(group).items()]
        end = len(taken) - (taken[-1:] != [] and taken[-1][0] == "as_json")
        taken[end:end] = [(name, kind, default) for name, (kind, default) in options.items()]
        vars(run)["__signature__"] = Signature(
            [
                Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind, default=default)
                for name, kind, default in taken
            ]
        )
        run.__annotations__ = {name: kind for name, kind, _ in taken}
        return run

    return decorate


def options_of(group: type) -> dict[str, tuple[object, object]]:
    """Type and default of each field of a dataclass, as `asks` takes options."""
    kinds = get_type_hints(group, include_extras=True)
    return {
        each.name: (kinds[each.name], Parameter.empty if each.default is MISSING else each.default)
        for each in fields(group)
    }


def read_small_file(path: Path) -> bytes:
    """What is in a file, or comes from a pipe; exits with status 2 when it cannot be read, or is
    too big.
    """
    try:
        return small_files.read_small_file(str(path), MAX_FILE_BYTES, takes_pipe=True)
    except OSError as error:
        fail(f"{path}: {error.strerror or error}", status=2)


def parse_datetime(text: str) -> int:
    """Milliseconds since 1970 of an ISO 8601 date, which means its midnight, or date and time; UTC
    by default. Raises: ValueError
    """
    if text.isdigit():  # a date without dashes could be a number of milliseconds
        raise ValueError("a date has dashes")
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


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


def require_groups(group_ids: list[str] | None, all_groups: bool) -> None:
    """Exits with status 2 unless it is said which groups are meant, and in one way."""
    if bool(group_ids) == all_groups:
        fail("give groups or --all-groups" + (", not both" if group_ids else ""), status=2)


async def chosen_groups(
    admin: client.Admin, group_ids: list[str] | None, all_groups: bool
) -> list[str]:
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
    admin: client.Admin, topics: dict[str, set[int] | None]
) -> list[client.TopicPartition]:
    """The partitions in order. Exits with status 1 for one that is not there. Raises: KafkaError"""
    targets: list[Target] = []
    for topic, indexes in sorted(topics.items()):
        targets += (
            [(topic, None)] if indexes is None else [(topic, each) for each in sorted(indexes)]
        )
    return (await describe_targets(admin, targets))[1]
