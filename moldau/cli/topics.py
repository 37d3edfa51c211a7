"""`moldau topics`: list, create, describe, alter, delete; what `topic_replicas` adds besides.

Must not talk to a cluster except through `moldau.client`.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from moldau.cli.cluster_options import (
    DEFAULT_TIMEOUT_MS,
    AsJson,
    BootstrapServer,
    CommandConfig,
    TimeoutMs,
    key_values,
    with_admin,
)
from moldau.cli.output import fail, print_json, print_table
from moldau.cli.topic_replicas import elect_leaders, reassign
from moldau.client import (
    Admin,
    ConfigChange,
    ConfigOperation,
    ConfigResource,
    ConfigResourceType,
    ConfigSource,
    KafkaError,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    PartitionDescription,
    TopicAlreadyExists,
    TopicDescription,
    TopicPartition,
    UnknownTopicOrPartition,
)
from moldau.protocol.types import uuid_to_base64

app = typer.Typer(help="Topics: list, create, describe, alter, delete, move.", no_args_is_help=True)
app.command("reassign")(reassign)
app.command("elect-leaders")(elect_leaders)

Name = Annotated[str, typer.Argument(help="The topic's name.")]


@app.command("list")
def list_topics(
    internal: Annotated[bool, typer.Option(help="Show internal topics too.")] = False,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS,
    as_json: AsJson = False,
) -> None:
    """List the topics."""

    async def work(admin: Admin) -> list[str]:
        return await admin.list_topics(include_internal=internal)

    names = with_admin(bootstrap_server, command_config, timeout_ms, work)
    if as_json:
        print_json(names)
    else:
        for name in names:
            typer.echo(name)


@app.command("create")
def create(
    name: Name,
    partitions: Annotated[
        int, typer.Option(help="How many; -1 is the brokers' default (num.partitions).")
    ] = -1,
    replication_factor: Annotated[
        int, typer.Option(help="How many copies; -1 is the brokers' default.")
    ] = -1,
    config: Annotated[
        list[str] | None, typer.Option("--config", help="KEY=VALUE; may be repeated.")
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="It is fine when the topic is there.")
    ] = False,
    validate_only: Annotated[
        bool, typer.Option("--validate-only", help="Check, but create nothing.")
    ] = False,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS,
) -> None:
    """Create a topic."""
    topic = NewTopic(name, partitions, replication_factor, key_values(config or [], "--config"))

    async def work(admin: Admin) -> str:
        try:
            await admin.create_topics([topic], validate_only=validate_only)
        except TopicAlreadyExists:
            if not if_not_exists:
                raise
            return f"{name} exists"
        return f"{name} could be created" if validate_only else f"created {name}"

    typer.echo(with_admin(bootstrap_server, command_config, timeout_ms, work))


@app.command("describe")
def describe(
    names: Annotated[
        list[str] | None, typer.Argument(help="Topics; all when none is named.")
    ] = None,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS,
    as_json: AsJson = False,
) -> None:
    """Show partitions, leaders, replicas, low and high watermarks and changed configuration."""

    async def work(admin: Admin) -> list[dict[str, Any]]:
        described = await admin.describe_topics(names or None)
        resources = {name: ConfigResource(ConfigResourceType.TOPIC, name) for name in described}
        configs = await admin.describe_configs(resources.values()) if resources else {}
        documents = []
        for name in sorted(described):
            overrides = {
                key: entry.value
                for key, entry in sorted(configs[resources[name]].items())
                if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG
            }
            documents.append(await _document(admin, described[name], overrides))
        return documents

    documents = with_admin(bootstrap_server, command_config, timeout_ms, work)
    if as_json:
        print_json(documents)
        return
    for document in documents:
        shown = ", ".join(f"{key}={value}" for key, value in document["configs"].items())
        typer.echo(
            f"{document['name']}  id {document['topic_id']}  "
            f"{len(document['partitions'])} partitions  {shown}".rstrip()
        )
        print_table(
            ("partition", "leader", "epoch", "replicas", "isr", "elr", "offline", "low", "high"),
            (
                (
                    row["partition"],
                    row["leader"] if row["leader"] >= 0 else "none",
                    row["leader_epoch"],
                    _ids(row["replicas"]),
                    _ids(row["isr"]),
                    _ids(row["eligible_leader_replicas"]),
                    _ids(row["offline_replicas"]),
                    row["low_watermark"],
                    row["high_watermark"],
                )
                for row in document["partitions"]
            ),
        )


@app.command("alter")
def alter(
    name: Name,
    partitions: Annotated[
        int | None, typer.Option(help="The new total number of partitions; only more are possible.")
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option("--config", help="KEY=VALUE to set; may be repeated.")
    ] = None,
    delete_config: Annotated[
        list[str] | None, typer.Option("--delete-config", help="KEY to reset; may be repeated.")
    ] = None,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS,
) -> None:
    """Change a topic's configuration or add partitions."""
    changes = [
        ConfigChange(key, value) for key, value in key_values(config or [], "--config").items()
    ]
    changes += [ConfigChange(key, None, ConfigOperation.DELETE) for key in delete_config or []]
    if not changes and partitions is None:
        fail("nothing to change: give --partitions, --config or --delete-config", status=2)

    async def work(admin: Admin) -> None:
        if changes:
            await admin.alter_configs({ConfigResource(ConfigResourceType.TOPIC, name): changes})
        if partitions is not None:
            await admin.create_partitions({name: NewPartitions(partitions)})

    with_admin(bootstrap_server, command_config, timeout_ms, work)
    typer.echo(f"altered {name}")


@app.command("delete")
def delete(
    names: Annotated[list[str], typer.Argument(help="The topics to delete.")],
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="It is fine when a topic is not there.")
    ] = False,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS,
) -> None:
    """Delete topics and everything in them."""

    async def work(admin: Admin) -> None:
        for name in names:
            try:
                await admin.delete_topics([name])
            except UnknownTopicOrPartition:
                if not if_exists:
                    raise
                typer.echo(f"{name} does not exist")
            else:
                typer.echo(f"deleted {name}")

    with_admin(bootstrap_server, command_config, timeout_ms, work)


async def _document(
    admin: Admin, topic: TopicDescription, overrides: dict[str, str | None]
) -> dict[str, Any]:
    partitions = [
        TopicPartition(topic.name, p.partition) for p in topic.partitions if p.leader >= 0
    ]
    try:
        low = await admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.EARLIEST))
        high = await admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST))
    except KafkaError as error:
        # The description is still worth showing when a leader does not answer.
        typer.echo(f"moldau: watermarks of {topic.name} unknown: {error}", err=True)
        low, high = {}, {}

    def row(partition: PartitionDescription) -> dict[str, Any]:
        identity = TopicPartition(topic.name, partition.partition)
        return {
            **asdict(partition),
            "low_watermark": low[identity].offset if identity in low else None,
            "high_watermark": high[identity].offset if identity in high else None,
        }

    return {
        "name": topic.name,
        "topic_id": uuid_to_base64(topic.topic_id),
        "internal": topic.is_internal,
        "configs": overrides,
        "partitions": [row(partition) for partition in topic.partitions],
    }


def _ids(broker_ids: tuple[int, ...]) -> str:
    return ",".join(map(str, broker_ids)) or "-"
