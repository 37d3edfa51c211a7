"""`moldau topics`: list, create, alter and delete; what has a module of its own is added here.

Must not talk to a cluster except through `moldau.client`.
"""

from __future__ import annotations

from typing import Annotated

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
from moldau.cli.output import fail, print_json
from moldau.cli.reassign import app as reassign
from moldau.cli.topic_describe import describe
from moldau.cli.topic_elections import elect_leaders
from moldau.client import (
    Admin,
    ConfigChange,
    ConfigOperation,
    ConfigResource,
    ConfigResourceType,
    NewPartitions,
    NewTopic,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)

app = typer.Typer(help="Topics: list, create, describe, alter, delete, move.", no_args_is_help=True)
app.command("describe")(describe)
app.add_typer(reassign, name="reassign")
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
