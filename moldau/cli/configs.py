"""`moldau configs`: describe and alter the configuration of topics, brokers and loggers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, replace
from enum import StrEnum
from typing import Annotated

import typer

from moldau import client
from moldau.cli.client_settings import key_values
from moldau.cli.options import AsJson, ClusterAccess, registered_broker
from moldau.cli.output import fail, print_json, print_table, say
from moldau.client.admin.cluster import BROKER_RESOURCES, ClusterCalls
from moldau.text import did_you_mean

app = typer.Typer()
Entity = Annotated[str, "A topic, or a broker's id ('' for the default of all brokers)."]


class EntityType(StrEnum):
    """The `ConfigResourceType`s of the same names, in the words of kafka-configs."""

    TOPIC = "topics"
    BROKER = "brokers"
    BROKER_LOGGER = "broker-loggers"

    @classmethod
    def named(cls, word: str) -> EntityType:
        """The type by its plural or its singular. Raises: typer.BadParameter"""
        for each in cls:
            if word in (each, each.removesuffix("s")):
                return each
        raise typer.BadParameter(f"{word!r} is not one of {', '.join(cls)}")


Kind = Annotated[
    EntityType,
    typer.Argument(
        parser=EntityType.named, metavar="ENTITY_TYPE", help="topics, brokers or broker-loggers."
    ),
]


@app.command("describe")
def describe(
    access: ClusterAccess,
    entity_type: Kind,
    name: Entity,
    everything: Annotated[bool, "--all", "Show every key, not only changed ones."] = False,
    documentation: Annotated[bool, "Say what each key is for."] = False,
    as_json: AsJson = False,
) -> None:
    """Show configuration keys that have been changed, or all."""
    resource = client.ConfigResource(client.ConfigResourceType[entity_type.name], name)
    with access.asking(ClusterCalls) as (admin, loop):
        loop.run(_require_broker(admin, resource))
        described = admin.describe_configs(
            [resource], include_synonyms=True, include_documentation=documentation
        )
        entries = loop.run(described)[resource]
    source = client.ConfigSource
    quiet = () if everything else (source.DEFAULT_CONFIG, source.STATIC_BROKER_CONFIG)
    shown = [entries[key] for key in sorted(entries) if entries[key].source not in quiet]
    if as_json:
        print_json(
            [
                {
                    **asdict(entry),
                    "source": entry.source.name,
                    "synonyms": [
                        {"name": key, "value": value, "source": source.name}
                        for key, value, source in entry.synonyms
                    ],
                }
                for entry in shown
            ]
        )
        return
    columns = ["key", "value", "source"] + (["what it is for"] if documentation else [])
    print_table(
        columns,
        (
            (
                entry.name,
                "(hidden)" if entry.sensitive else entry.value,
                entry.source.name,
                *([entry.documentation] if documentation else []),
            )
            for entry in shown
        ),
    )


@app.command("alter")
def alter(
    access: ClusterAccess,
    entity_type: Kind,
    name: Entity,
    set_pairs: Annotated[list[str] | None, "--set", "KEY=VALUE to set; may be repeated."] = None,
    delete_keys: Annotated[list[str] | None, "--delete", "KEY to reset; may be repeated."] = None,
    append: Annotated[list[str] | None, "KEY=VALUE to add to a list."] = None,
    subtract: Annotated[list[str] | None, "KEY=VALUE to remove from a list."] = None,
    validate_only: Annotated[bool, "Only check, change nothing."] = False,
) -> None:
    """Set or reset configuration keys, all of them or none."""
    changes = [
        client.ConfigChange(key, None, client.ConfigOperation.DELETE) for key in delete_keys or []
    ]
    for pairs, option, operation in (
        (set_pairs, "--set", client.ConfigOperation.SET),
        (append, "--append", client.ConfigOperation.APPEND),
        (subtract, "--subtract", client.ConfigOperation.SUBTRACT),
    ):
        for key, value in key_values(pairs or [], option).items():
            changes.append(client.ConfigChange(key, value, operation))
    if not changes:
        fail("nothing to change: give --set, --delete, --append or --subtract", status=2)
    resource = client.ConfigResource(client.ConfigResourceType[entity_type.name], name)
    with access.asking(ClusterCalls) as (admin, loop):
        loop.run(_require_broker(admin, resource))
        if delete_keys and entity_type is not EntityType.BROKER_LOGGER:
            loop.run(_check_deleted(admin, resource, delete_keys))
        loop.run(admin.alter_configs({resource: changes}, validate_only=validate_only))
    say("valid" if validate_only else "altered")


async def _require_broker(admin: ClusterCalls, resource: client.ConfigResource) -> None:
    if resource.resource_type in BROKER_RESOURCES and resource.name.isdigit():
        await registered_broker(admin, int(resource.name))


async def _check_deleted(
    admin: ClusterCalls, resource: client.ConfigResource, keys: Collection[str]
) -> None:
    """Exits with status 1 for a key that is neither known nor set, which brokers delete without a
    word. Raises: KafkaError
    """
    asked = [resource]
    if not resource.name:  # the default of all brokers has those that are set alone
        some = (await admin.describe_cluster()).brokers[:1]
        asked += [replace(resource, name=str(each.node_id)) for each in some]
    known = {key for entries in (await admin.describe_configs(asked)).values() for key in entries}
    for key in keys:
        if key not in known:
            fail(f"--delete {key}: no such key, and it is not set{did_you_mean(key, known)}")
