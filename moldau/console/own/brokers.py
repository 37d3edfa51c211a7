"""`…/brokers`: brokers with their disks and what they hold; one with its log directories,
configurations and the levels of its loggers.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from moldau.client import (
    Admin,
    ClusterDescription,
    ConfigChange,
    ConfigEntry,
    ConfigResource,
    ConfigResourceType,
    KafkaError,
    LogDirectory,
    RegisteredBroker,
    TopicDescription,
    TopicPartitionReplica,
)
from moldau.console.calls import Call, Reply
from moldau.console.own.commands import command, option
from moldau.console.own.figures import add_figures
from moldau.console.own.gathering import (
    ANSWER_TIMEOUT_MS,
    CONFIG,
    Directories,
    cluster_of,
    config_documents,
    controller_of,
    directories_of,
    directories_on,
    has_answered,
    known,
    topics_of,
)
from moldau.console.own.lists import OWN, Row, list_parameters, listed, searched
from moldau.console.problems import Problem
from moldau.console.routes import Route
from moldau.console.schemas import (
    BOOLEAN,
    INTEGER,
    STRING,
    Schema,
    array,
    named,
    nullable,
    one_of,
    record,
)
from moldau.console.v3.shapes import number_in

LEVELS: Final = ("FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE")
_COUNT: Final = nullable(INTEGER)
_FIELDS: Final[dict[str, Schema]] = {
    "broker_id": INTEGER,
    "host": STRING,
    "port": INTEGER,
    "rack": nullable(STRING),
    "is_fenced": BOOLEAN,
    "is_controller": BOOLEAN,
    "leaders": _COUNT,
    "replicas": _COUNT,
    "size_bytes": _COUNT,
    "disk_total_bytes": _COUNT,
    "disk_usable_bytes": _COUNT,
    "is_reachable": BOOLEAN,
    "listeners": nullable(array(STRING)),
    "version": nullable(STRING),
    "connections": _COUNT,
    "loop_lag_ms": nullable({"type": "number"}),
}
BROKER_ROW: Final = named("BrokerRow", record(_FIELDS))
DIRECTORY: Final = record(
    {
        "path": STRING,
        "error": nullable(STRING),
        "total_bytes": _COUNT,
        "usable_bytes": _COUNT,
        "partitions": array(
            record(
                {
                    "topic": STRING,
                    "partition": INTEGER,
                    "size_bytes": INTEGER,
                    "offset_lag": INTEGER,
                    "is_future": BOOLEAN,
                }
            )
        ),
    }
)
BROKER: Final = named(
    "Broker",
    record(
        {
            **_FIELDS,
            "log_directories": nullable(array(DIRECTORY)),
            "configs": nullable(array(CONFIG)),
            "loggers": nullable(array(record({"name": STRING, "level": STRING}))),
        }
    ),
)
DONE: Final = named("Done", record({"command": STRING}))
"""The answer of a change: the command that does the same."""


async def list_brokers(call: Call) -> Reply:
    """Every broker that is registered."""
    clients = await call.clients()
    cluster = await cluster_of(clients.admin)
    topics, directories = await asyncio.gather(
        topics_of(clients), directories_of(clients, serving(cluster))
    )
    controller = await controller_of(clients.admin)
    rows = broker_rows(cluster, topics, directories, controller.node_id)
    await add_figures(call, rows, directories)
    return Reply(searched(call, rows, name="broker_id", fields=("broker_id", "host", "rack")))


def serving(cluster: ClusterDescription) -> list[int]:
    """The brokers that clients are sent to."""
    return [each.node_id for each in cluster.brokers if not each.fenced]


def broker_rows(
    cluster: ClusterDescription,
    topics: Mapping[str, TopicDescription],
    directories: Directories,
    controller_id: int | None,
) -> list[Row]:
    """A row for each broker; what it has is counted in the topics that the person may describe."""
    partitions = [each for topic in topics.values() for each in topic.partitions]
    leaders = Counter(each.leader for each in partitions)
    replicas = Counter(broker_id for each in partitions for broker_id in each.replicas)
    return [
        {
            **_address(each),
            "is_controller": each.node_id == controller_id,
            "leaders": leaders[each.node_id],
            "replicas": replicas[each.node_id],
            **_disks(directories.get(each.node_id)),
            **_INSIDE,
        }
        for each in sorted(cluster.brokers, key=lambda each: each.node_id)
    ]


_INSIDE: Final[Row] = dict.fromkeys(("listeners", "version", "connections", "loop_lag_ms"))
"""What the protocol has no words for; a node adds what it knows."""


def _address(broker: RegisteredBroker) -> Row:
    return {
        "broker_id": broker.node_id,
        "host": broker.host,
        "port": broker.port,
        "rack": broker.rack,
        "is_fenced": broker.fenced,
    }


def _disks(found: list[LogDirectory] | KafkaError | None) -> Row:
    """Sizes of a broker's directories; a disk that several directories share is counted once, as
    far as that can be seen. A broker that is fenced is not asked: clients do not reach it.
    """
    if found is None or isinstance(found, KafkaError):
        is_reachable = found is not None and has_answered(found)
        sizes = dict.fromkeys(("size_bytes", "disk_total_bytes", "disk_usable_bytes"))
        return {**sizes, "is_reachable": is_reachable}
    disks = {
        (each.total_bytes, each.usable_bytes)
        for each in found
        if each.error is None and each.total_bytes >= 0
    }
    return {
        "size_bytes": sum(sum(each.partition_bytes.values()) for each in found),
        "disk_total_bytes": sum(total for total, _ in disks) if disks else None,
        "disk_usable_bytes": sum(usable for _, usable in disks) if disks else None,
        "is_reachable": True,
    }


async def show_broker(call: Call) -> Reply:
    """One broker; what it does not say, or may not to this person, is null."""
    broker_id, clients = number_in(call, "broker_id"), await call.clients()
    cluster = await cluster_of(clients.admin)
    if all(each.node_id != broker_id for each in cluster.brokers):
        raise Problem(404, f"there is no broker {broker_id}")
    topics = await topics_of(clients)
    found: list[LogDirectory] | KafkaError | None = None
    if broker_id in serving(cluster):
        found = await directories_on(clients.admin, broker_id)
    configs = loggers = directories = None
    if found is not None and has_answered(found):
        configs, loggers = await asyncio.gather(
            _configs(clients.admin, ConfigResourceType.BROKER, broker_id),
            _configs(clients.admin, ConfigResourceType.BROKER_LOGGER, broker_id),
        )
    if isinstance(found, list):
        directories = await _directories(clients.admin, broker_id, found)
    known_directories = {} if found is None else {broker_id: found}
    controller = await controller_of(clients.admin)
    rows = broker_rows(cluster, topics, known_directories, controller.node_id)
    await add_figures(call, rows, known_directories)
    [row] = (each for each in rows if each["broker_id"] == broker_id)
    return Reply(
        row
        | {
            "log_directories": directories,
            "configs": None if configs is None else config_documents(configs),
            "loggers": None if loggers is None else _loggers(loggers),
        }
    )


async def _configs(
    admin: Admin, kind: ConfigResourceType, broker_id: int
) -> dict[str, ConfigEntry] | None:
    resource = ConfigResource(kind, str(broker_id))
    is_broker = kind is ConfigResourceType.BROKER
    described = await known(
        admin.describe_configs(
            [resource],
            include_synonyms=is_broker,
            include_documentation=is_broker,
            timeout_ms=ANSWER_TIMEOUT_MS,
        )
    )
    return None if described is None else described.get(resource, {})


def _loggers(entries: Mapping[str, ConfigEntry]) -> list[Row]:
    return [{"name": name, "level": entry.value} for name, entry in sorted(entries.items())]


async def _directories(
    admin: Admin, broker_id: int, found: list[LogDirectory]
) -> list[dict[str, Any]]:
    replicas = {
        TopicPartitionReplica(*partition, broker_id)
        for each in found
        for partition in each.partition_bytes
    }
    logs = await admin.describe_replica_logs(replicas, timeout_ms=ANSWER_TIMEOUT_MS)

    def partitions(directory: LogDirectory) -> list[Row]:
        rows: list[Row] = []
        for partition, size_bytes in sorted(directory.partition_bytes.items()):
            log = logs[TopicPartitionReplica(*partition, broker_id)]
            is_future, lag = False, 0
            if not isinstance(log, KafkaError):
                is_future = log.future_directory == directory.directory
                lag = (log.future_offset_lag or 0) if is_future else log.offset_lag
            rows.append(
                {
                    "topic": partition.topic,
                    "partition": partition.partition,
                    "size_bytes": size_bytes,
                    "offset_lag": lag,
                    "is_future": is_future,
                }
            )
        return rows

    return [
        {
            "path": each.directory,
            "error": each.error,
            "total_bytes": each.total_bytes if each.total_bytes >= 0 else None,
            "usable_bytes": each.usable_bytes if each.usable_bytes >= 0 else None,
            "partitions": partitions(each),
        }
        for each in found
    ]


async def set_level(call: Call) -> Reply:
    """Set the level of one logger, until the broker is started again."""
    broker_id, name, level = number_in(call, "broker_id"), call.path["logger"], call.body["level"]
    clients = await call.clients()
    if broker_id not in serving(await cluster_of(clients.admin)):
        raise Problem(404, f"there is no broker {broker_id}, or it does not serve")
    resource = ConfigResource(ConfigResourceType.BROKER_LOGGER, str(broker_id))
    await clients.admin.alter_configs({resource: [ConfigChange(name, level)]})
    assignment = option("--set", f"{name}={level}")
    line = command("configs", "alter", "broker-loggers", broker_id, *assignment)
    return Reply({"command": line})


_ONE: Final = f"{OWN}/brokers/{{broker_id}}"
_SEEN: Final = "Describe on the cluster for disks; what may not be seen is null"
ROUTES: Final = (
    Route(
        method="GET",
        path=f"{OWN}/brokers",
        handler=list_brokers,
        name="listBrokers",
        summary="Brokers, with their disks and what they hold",
        needs=_SEEN,
        query=list_parameters([each for each in _FIELDS if each != "listeners"], by="broker_id"),
        answer=listed("BrokerRows", BROKER_ROW),
    ),
    Route(
        method="GET",
        path=_ONE,
        handler=show_broker,
        name="getBroker",
        summary="One broker: log directories, configurations, levels of its loggers",
        needs=f"{_SEEN}; DescribeConfigs on the cluster for configurations and levels",
        answer=BROKER,
    ),
    Route(
        method="PUT",
        path=f"{_ONE}/loggers/{{logger}}",
        handler=set_level,
        name="setLoggerLevel",
        summary="Set the level of a broker's logger",
        needs="AlterConfigs on the cluster",
        body=record({"level": one_of(*LEVELS)}),
        answer=DONE,
    ),
)
