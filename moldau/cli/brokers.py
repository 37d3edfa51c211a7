"""`moldau brokers`: list, describe and unregister."""

from __future__ import annotations

from typing import Annotated

import typer

from moldau import client
from moldau.cli.asking import Yes, ask_first, counted, is_asked
from moldau.cli.completion import complete_brokers
from moldau.cli.options import AsJson, ClusterAccess, ControllerAccess, registered_broker
from moldau.cli.output import print_json, print_table, say, size_text
from moldau.cli.parameters import Within
from moldau.client.admin.cluster import ClusterCalls, LogDirectory

app = typer.Typer()
BrokerId = Annotated[int, Within(0), complete_brokers, "The broker's id."]


def _logs_in(directory: LogDirectory) -> tuple[int | None, str | None]:
    """How many partitions and bytes; not known of a directory that cannot be read."""
    if directory.error is not None:
        return None, None
    return len(directory.partition_bytes), size_text(sum(directory.partition_bytes.values()))


def _known_size(byte_count: int) -> str | None:
    """A broker says -1 of a disk that is gone, or when it is older than KIP-827."""
    return None if byte_count < 0 else size_text(byte_count)


@app.command("list")
def list_brokers(access: ClusterAccess, as_json: AsJson = False) -> None:
    """List the brokers of the cluster, fenced ones too."""
    cluster = access.ask(
        ClusterCalls, lambda admin: admin.describe_cluster(include_fenced_brokers=True)
    )
    rows = [
        {
            "broker_id": broker.node_id,
            "address": f"{broker.host}:{broker.port}",
            "rack": broker.rack,
            "state": "fenced" if broker.fenced else "serving",
        }
        for broker in cluster.brokers
    ]
    if as_json:
        print_json({"cluster_id": cluster.cluster_id, "brokers": rows})
        return
    say(f"cluster {cluster.cluster_id}")
    print_table(("broker", "address", "rack", "state"), (row.values() for row in rows))


@app.command("describe")
def describe(access: ClusterAccess, broker_id: BrokerId, as_json: AsJson = False) -> None:
    """Show a broker's address, log directories and features."""
    with access.asking(ClusterCalls) as (admin, loop):
        broker = loop.run(registered_broker(admin, broker_id))
        features = loop.run(admin.describe_features())
        directories = loop.run(admin.describe_log_directories([broker_id]))[broker_id]
    address = f"{broker.host}:{broker.port}"
    finalized = sorted(features.finalized.items())
    if as_json:
        print_json(
            {
                "broker_id": broker_id,
                "address": address,
                "rack": broker.rack,
                "fenced": broker.fenced,
                "features": {
                    name: {"finalized": level, "supported": features.supported.get(name)}
                    for name, level in finalized
                },
                "log_directories": [
                    {
                        "directory": directory.directory,
                        "error": directory.error,
                        "partition_count": len(directory.partition_bytes),
                        "log_bytes": sum(directory.partition_bytes.values()),
                        "total_bytes": directory.total_bytes,
                        "usable_bytes": directory.usable_bytes,
                    }
                    for directory in directories
                ],
            }
        )
        return
    state = "fenced" if broker.fenced else "serving"
    rack = f", rack {broker.rack}" if broker.rack else ""
    say(f"broker {broker_id} on {address}{rack}, {state}")
    print_table(
        ("log directory", "partitions", "logs", "usable", "total", "error"),
        (
            (
                directory.directory,
                *_logs_in(directory),
                _known_size(directory.usable_bytes),
                _known_size(directory.total_bytes),
                directory.error,
            )
            for directory in directories
        ),
    )
    print_table(("feature", "finalized"), finalized)


@app.command("unregister")
def unregister(
    access: ControllerAccess,
    broker_id: BrokerId,
    yes: Yes = False,
) -> None:
    """Remove a stopped broker from the cluster for good.

    A script is stopped for a broker that serves alone: the next start of one registers it again.
    """
    deed = f"unregister broker {broker_id}"
    if yes or access.config().asks_controllers:  # these do not describe brokers
        ask_first(deed, yes=yes, scripts_go_on=True)
        access.ask(ClusterCalls, lambda admin: admin.unregister_broker(broker_id))
    else:
        with access.asking(client.Admin) as (admin, loop):
            broker = loop.run(registered_broker(admin, broker_id))
            if not broker.fenced:
                deed += ", which serves: stop it first, or it has to be restarted"
            if is_asked(yes=yes, scripts_go_on=broker.fenced):
                deed += loop.run(_replicas_text(admin, broker_id))
                ask_first(deed, yes=yes, scripts_go_on=broker.fenced)
            loop.run(admin.unregister_broker(broker_id))
    say(f"broker {broker_id} is no longer registered")


async def _replicas_text(admin: client.Admin, broker_id: int) -> str:
    """The replicas that the broker still has, if any. Raises: KafkaError"""
    topics = (await admin.describe_topics()).values()
    counts = [sum(broker_id in each.replicas for each in topic.partitions) for topic in topics]
    replicas, topic_count = sum(counts), sum(map(bool, counts))
    if not replicas:
        return ""
    return f" (it has {counted(replicas, 'replica')} of {counted(topic_count, 'topic')})"
