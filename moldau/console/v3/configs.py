"""Configurations of topics, of brokers, and of the cluster: the defaults of all its brokers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from moldau.client import ConfigChange, ConfigEntry, ConfigOperation, ConfigResource, ConfigSource
from moldau.client import ConfigResourceType as Kind
from moldau.console.calls import NO_CONTENT, Call, Reply
from moldau.console.problems import Problem
from moldau.console.routes import Route
from moldau.console.schemas import BOOLEAN, INTEGER, STRING, Schema, array, nullable, one_of, record
from moldau.console.v3.brokers import broker_of
from moldau.console.v3.shapes import BASE, Document, Places, described, listed

NO_TOPICS_AT_ONCE: Final = 500
"""Topics that are described by one request."""
_SOURCES: Final = tuple(source.name for source in ConfigSource)
_SYNONYM: Final = record({"name": STRING, "source": one_of(*_SOURCES)}, {"value": nullable(STRING)})
_ENTRY: Final[dict[str, Schema]] = {
    "name": STRING,
    "value": nullable(STRING),
    "is_default": BOOLEAN,
    "is_read_only": BOOLEAN,
    "is_sensitive": BOOLEAN,
    "source": one_of(*_SOURCES),
    "synonyms": array(_SYNONYM),
}
_VALUE: Final = {"type": ["string", "null"], "maxLength": 100_000}
NEW_VALUE: Final = record({"value": _VALUE})
CHANGES: Final = record(
    {
        "data": array(
            record(
                {"name": STRING},
                {"value": _VALUE, "operation": nullable(one_of("SET", "DELETE"))},
            ),
            most=1_000,
        )
    },
    {"validate_only": BOOLEAN},
)


@dataclass(frozen=True, slots=True)
class _Owner:
    """What has configurations.

    Attributes:
        noun: in names of operations.
        path: of its configurations.
        find: makes the resource of a call, the segments of its path, and its name.
        fields: of each entry's document, beside the common ones.
        described, altered: what ACLs have to allow.
    """

    noun: str
    path: str
    find: Callable[[Call], Awaitable[tuple[ConfigResource, tuple[object, ...], str]]]
    fields: dict[str, Schema]
    described: str
    altered: str

    @property
    def alter_path(self) -> str:
        return f"{self.path}:alter"

    @property
    def kind(self) -> str:
        return f"Kafka{self.noun}Config"


async def _topic(call: Call) -> tuple[ConfigResource, tuple[object, ...], str]:
    name = call.path["topic_name"]
    return ConfigResource(Kind.TOPIC, name), ("topics", name, "configs"), f"/topic={name}/config"


async def _broker(call: Call) -> tuple[ConfigResource, tuple[object, ...], str]:
    number = (await broker_of(call)).node_id
    at = ("brokers", number, "configs")
    return ConfigResource(Kind.BROKER, str(number)), at, f"/broker={number}/config"


async def _cluster(_call: Call) -> tuple[ConfigResource, tuple[object, ...], str]:
    return ConfigResource(Kind.BROKER, ""), ("broker-configs",), "/broker-config"


OWNERS: Final = (
    _Owner(
        "Topic",
        f"{BASE}/topics/{{topic_name}}/configs",
        _topic,
        {"topic_name": STRING},
        "DescribeConfigs on the topic",
        "AlterConfigs on the topic",
    ),
    _Owner(
        "Broker",
        f"{BASE}/brokers/{{broker_id}}/configs",
        _broker,
        {"broker_id": INTEGER},
        "DescribeConfigs on the cluster",
        "AlterConfigs on the cluster",
    ),
    _Owner(
        "Cluster",
        f"{BASE}/broker-configs",
        _cluster,
        {"config_type": one_of("BROKER")},
        "DescribeConfigs on the cluster",
        "AlterConfigs on the cluster",
    ),
)


async def _described(call: Call, resource: ConfigResource) -> dict[str, ConfigEntry]:
    """Raises: Problem, KafkaError."""
    clients = await call.clients()
    found = await clients.admin.describe_configs([resource], include_synonyms=True)
    return found.get(resource, {})


def _document(
    places: Places, kind: str, resource: ConfigResource, entry: ConfigEntry, *at: object
) -> Document:
    """One entry; `at`: its name behind the cluster's, and the path of its resource's."""
    called, *path = at
    shown = places.resource(kind, f"{called}={entry.name}", *path, entry.name)
    if resource.resource_type is Kind.TOPIC:
        shown["topic_name"] = resource.name
    elif resource.name:
        shown["broker_id"] = int(resource.name)
    else:
        shown["config_type"] = "BROKER"
    synonyms = [
        {"name": name, "value": value, "source": source.name}
        for name, value, source in entry.synonyms
    ]
    return shown | {
        "name": entry.name,
        "value": entry.value,
        "is_default": entry.source is ConfigSource.DEFAULT_CONFIG,
        "is_read_only": entry.read_only,
        "is_sensitive": entry.sensitive,
        "source": entry.source.name,
        "synonyms": synonyms,
    }


def _list(owner: _Owner) -> Callable[[Call], Awaitable[Reply]]:
    async def list_configs(call: Call) -> Reply:
        places = await Places.of(call)
        resource, at, called = await owner.find(call)
        found = await _described(call, resource)
        data = [
            _document(places, owner.kind, resource, entry, called, *at)
            for _, entry in sorted(found.items())
        ]
        return Reply(places.collection(f"{owner.kind}List", data, *at))

    return list_configs


def _show(owner: _Owner) -> Callable[[Call], Awaitable[Reply]]:
    async def show_config(call: Call) -> Reply:
        places = await Places.of(call)
        resource, at, called = await owner.find(call)
        name = call.path["name"]
        entry = (await _described(call, resource)).get(name)
        if entry is None:
            raise Problem(404, f"{resource} has no {name}")
        return Reply(_document(places, owner.kind, resource, entry, called, *at))

    return show_config


def _change(owner: _Owner, operation: ConfigOperation) -> Callable[[Call], Awaitable[Reply]]:
    async def change_config(call: Call) -> Reply:
        resource, _, _ = await owner.find(call)
        value = call.body["value"] if operation is ConfigOperation.SET else None
        made = operation if value is not None else ConfigOperation.DELETE
        clients = await call.clients()
        await clients.admin.alter_configs(
            {resource: [ConfigChange(call.path["name"], value, made)]}
        )
        return Reply(status=NO_CONTENT)

    return change_config


def _alter(owner: _Owner) -> Callable[[Call], Awaitable[Reply]]:
    async def alter_configs(call: Call) -> Reply:
        resource, _, _ = await owner.find(call)
        body: dict[str, Any] = call.body
        changes = [_change_of(each) for each in body["data"]]
        clients = await call.clients()
        await clients.admin.alter_configs(
            {resource: changes}, validate_only=body.get("validate_only", False)
        )
        return Reply(status=NO_CONTENT)

    return alter_configs


def _change_of(each: dict[str, Any]) -> ConfigChange:
    """One change of several. Raises: Problem."""
    name, value = each["name"], each.get("value")
    if each.get("operation") == "DELETE":
        return ConfigChange(name, None, ConfigOperation.DELETE)
    if value is None:
        raise Problem(422, f"{name}: SET needs a value")
    return ConfigChange(name, value)


async def list_all_topics(call: Call) -> Reply:
    """The configurations of every topic that the person may describe."""
    places, clients = await Places.of(call), await call.clients()
    names = await clients.admin.list_topics(include_internal=True)
    data: list[Document] = []
    for first in range(0, len(names), NO_TOPICS_AT_ONCE):
        some = [
            ConfigResource(Kind.TOPIC, name) for name in names[first : first + NO_TOPICS_AT_ONCE]
        ]
        found = await clients.admin.describe_configs(some, include_synonyms=True)
        for resource, entries in found.items():
            at = (f"/topic={resource.name}/config", "topics", resource.name, "configs")
            data += [
                _document(places, "KafkaTopicConfig", resource, each, *at)
                for each in entries.values()
            ]
    return Reply(places.collection("KafkaTopicConfigList", data, "topics", "-", "configs"))


async def list_all_brokers(call: Call) -> Reply:
    """What was set for single brokers while they ran."""
    places, clients = await Places.of(call), await call.clients()
    brokers = (await clients.admin.describe_cluster()).brokers
    resources = [ConfigResource(Kind.BROKER, str(each.node_id)) for each in brokers]
    found = await clients.admin.describe_configs(resources, include_synonyms=True)
    data = [
        _document(
            places,
            "KafkaBrokerConfig",
            resource,
            entry,
            *(f"/broker={resource.name}/config", "brokers", resource.name, "configs"),
        )
        for resource, entries in found.items()
        for entry in entries.values()
        if entry.source is ConfigSource.DYNAMIC_BROKER_CONFIG
    ]
    return Reply(places.collection("KafkaBrokerConfigList", data, "brokers", "-", "configs"))


def _routes() -> Iterator[Route]:
    for owner in OWNERS:
        entry = described(f"{owner.noun}ConfigData", {**owner.fields, **_ENTRY})
        entries, noun = listed(f"{owner.noun}ConfigDataList", entry), owner.noun
        one = f"{owner.path}/{{name}}"
        yield Route(
            method="GET",
            path=owner.path,
            handler=_list(owner),
            name=f"listKafkaV3{noun}Configs",
            summary=f"List the configuration of a {noun.lower()}",
            needs=owner.described,
            answer=entries,
        )
        yield Route(
            method="GET",
            path=one,
            handler=_show(owner),
            name=f"getKafkaV3{noun}Config",
            summary=f"Get one key of a {noun.lower()}",
            needs=owner.described,
            answer=entry,
        )
        yield Route(
            method="PUT",
            path=one,
            handler=_change(owner, ConfigOperation.SET),
            name=f"updateKafkaV3{noun}Config",
            summary=f"Set one key of a {noun.lower()}",
            needs=owner.altered,
            body=NEW_VALUE,
            status=NO_CONTENT,
        )
        yield Route(
            method="DELETE",
            path=one,
            handler=_change(owner, ConfigOperation.DELETE),
            name=f"deleteKafkaV3{noun}Config",
            summary=f"Reset one key of a {noun.lower()} to its default",
            needs=owner.altered,
            status=NO_CONTENT,
        )
        yield Route(
            method="POST",
            path=owner.alter_path,
            handler=_alter(owner),
            name=f"updateKafkaV3{noun}ConfigBatch",
            summary=f"Set and reset keys of a {noun.lower()}",
            needs=owner.altered,
            body=CHANGES,
            status=NO_CONTENT,
        )
        everything = _EVERYTHING.get(noun)
        if everything is not None:
            yield _list_everything(owner, entries, *everything)


_EVERYTHING: Final = {
    "Topic": (list_all_topics, "List the configurations of all topics"),
    "Broker": (list_all_brokers, "List what was set for single brokers while they ran"),
}


def _list_everything(
    owner: _Owner, entries: Schema, handler: Callable[[Call], Awaitable[Reply]], summary: str
) -> Route:
    """The route of all owners' entries; `-` stands for their names."""
    return Route(
        method="GET",
        path=f"{BASE}/{owner.noun.lower()}s/-/configs",
        handler=handler,
        name=f"listKafkaV3All{owner.noun}Configs",
        summary=summary,
        needs=owner.described,
        answer=entries,
    )


ROUTES: Final = tuple(_routes())
