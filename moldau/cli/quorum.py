"""`moldau quorum`, as kafka-metadata-quorum: status, voters, leader; `bootstrap`: `local_nodes`."""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from pathlib import Path
from typing import Annotated, Any

import typer

from moldau import client
from moldau.cli.asking import Yes, ask_first
from moldau.cli.local_nodes import bootstrap
from moldau.cli.options import AsJson, ControllerAccess
from moldau.cli.output import age_text, fail, print_json, print_table, refusing, say
from moldau.cli.parameters import Within
from moldau.client.admin.cluster import ClusterCalls
from moldau.protocol.types import ZERO_UUID, uuid_from_base64, uuid_to_base64

app = typer.Typer()
app.command("bootstrap", short_help="Set up a cluster of several nodes.")(bootstrap)

DryRun = Annotated[bool, "--dry-run", "Only show what would be done."]


@app.command("status")
def status(access: ControllerAccess, as_json: AsJson = False) -> None:
    """Show the leader, its epoch, the voters and observers.

    On a terminal each node has its own line, elsewhere the lines are kafka-metadata-quorum's.
    """
    with access.asking(ClusterCalls) as (admin, loop):
        quorum = loop.run(admin.describe_metadata_quorum())
        cluster_id = loop.run(admin.describe_cluster()).cluster_id
    lag, lag_time_ms = follower_lag(quorum)
    figures = {
        "cluster_id": cluster_id,
        "leader_id": quorum.leader_id,
        "leader_epoch": quorum.leader_epoch,
        "high_watermark": quorum.high_watermark,
        "max_follower_lag": lag,
        "max_follower_lag_time_ms": lag_time_ms,
        "current_voters": [_node(quorum, voter) for voter in quorum.voters],
        "current_observers": [_node(quorum, observer) for observer in quorum.observers],
    }
    if as_json:
        print_json(figures)
        return
    for name, value in figures.items():
        for line in _status_lines(f"{name.title().replace('_', '')}:", value):
            say(line)


def _status_lines(name: str, value: object) -> list[str]:
    if not isinstance(value, list):
        return [f"{name:24}{value}"]
    if not sys.stdout.isatty():
        return [f"{name:24}[{', '.join(map(json.dumps, value))}]"]
    nodes = [
        "  ".join([str(node["id"]), node.get("directoryId", ""), *node.get("endpoints", ())])
        for node in value
    ]
    return [name if nodes else f"{name:24}-", *(f"  {node}".rstrip() for node in nodes)]


@app.command("replication")
def replication(
    access: ControllerAccess,
    human_readable: Annotated[bool, "Ages in milliseconds."] = False,
    timestamps: Annotated[bool, "Milliseconds since 1970 instead of ages."] = False,
    as_json: AsJson = False,
) -> None:
    """Show each node's lag in the metadata log."""
    quorum = access.ask(ClusterCalls, lambda admin: admin.describe_metadata_quorum())
    rows = replication_rows(quorum)
    if as_json:
        print_json(rows)
        return
    if human_readable and timestamps:
        fail("--human-readable and --timestamps exclude each other", status=2)
    now_ms = time.time_ns() // 1_000_000

    def shown(timestamp_ms: int | None) -> object:
        if timestamps or timestamp_ms is None:
            return timestamp_ms
        if human_readable and timestamp_ms <= now_ms:  # else the leader's clock is ahead
            return f"{now_ms - timestamp_ms} ms ago"
        return age_text(timestamp_ms, now_ms)

    print_table(
        ("node", "directory id", "log end", "lag", "last fetch", "caught up", "status"),
        (
            (*figures, shown(fetched_ms), shown(caught_up_ms), status)
            for *figures, fetched_ms, caught_up_ms, status in (row.values() for row in rows)
        ),
    )


@app.command("add-controller")
def add_controller(
    access: ControllerAccess,
    config: Annotated[Path, "--config -c", "The new controller's server.properties."],
    dry_run: DryRun = False,
) -> None:
    """Make a running controller a voter."""
    voter_id, directory_id, cluster_id, endpoints = _new_voter(config)
    shown = (
        f"controller {voter_id} with directory id {uuid_to_base64(directory_id)} and endpoints: "
        f"{', '.join(str(endpoint) for endpoint in endpoints)}"
    )
    if dry_run:
        say(f"would add {shown}")
        return
    with access.asking(client.Admin) as (admin, loop):
        adding = admin.add_raft_voter(voter_id, directory_id, endpoints, cluster_id=cluster_id)
        loop.run(adding)
    say(f"added {shown}")


@app.command("remove-controller")
def remove_controller(
    access: ControllerAccess,
    controller_id: Annotated[int, "--controller-id -i", Within(0), "The voter's id."],
    directory_id: Annotated[
        str | None,
        "--controller-directory-id -d",
        "Which one, when several voters have the id; the only one when left out.",
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Take a voter out of the quorum.

    The node goes on as an observer until it is stopped.
    """
    removed: uuid.UUID | None = None
    if directory_id is not None:
        try:
            removed = uuid_from_base64(directory_id)
        except ValueError:
            text = f"--controller-directory-id {directory_id!r} is not 22 characters of base64"
            fail(text, status=2)
    with access.asking(ClusterCalls) as (admin, loop):
        if removed is None:
            quorum = loop.run(admin.describe_metadata_quorum())
            found = [each for each in quorum.voters if each.replica_id == controller_id]
            if len(found) != 1:
                known = ", ".join(str(each.replica_id) for each in quorum.voters)
                fail(
                    f"{len(found)} voters have id {controller_id}: give --controller-directory-id"
                    if found
                    else f"node {controller_id} is no voter; voters are {known}"
                )
            removed = found[0].directory_id
        if not dry_run:
            what = f"controller {controller_id} out of the quorum"
            ask_first(f"take {what}: one vote less", yes=yes, scripts_go_on=True)
            loop.run(admin.remove_raft_voter(controller_id, removed))
    done = "would remove" if dry_run else "removed"
    say(f"{done} controller {controller_id} with directory id {uuid_to_base64(removed)}")


@app.command("transfer-leader")
def transfer_leader(
    access: ControllerAccess, node_id: Annotated[int, "NODE", "The voter that is to lead."]
) -> None:
    """Make another voter the leader of the quorum.

    The leader resigns and names its successor, for instance before its machine is stopped.
    """
    quorum = access.ask(ClusterCalls, lambda admin: admin.transfer_quorum_leader(node_id))
    told = f"controller {quorum.leader_id} leads in epoch {quorum.leader_epoch}"
    if quorum.leader_id != node_id:
        fail(f"another voter was elected: {told}")
    say(told)


def follower_lag(quorum: client.QuorumDescription) -> tuple[int, int]:
    """The lag of the slowest voter, in records and in ms (-1 when it is not known)."""
    leader = quorum.voter(quorum.leader_id)
    if leader is None:
        return 0, -1
    slowest = min(quorum.voters, key=lambda voter: voter.log_end_offset)
    lag = leader.log_end_offset - slowest.log_end_offset
    if slowest.log_end_offset == leader.log_end_offset:
        return lag, 0
    times = (leader.last_caught_up_timestamp_ms, slowest.last_caught_up_timestamp_ms)
    if times[0] is None or times[1] is None:
        return lag, -1
    return lag, times[0] - times[1]


def replication_rows(quorum: client.QuorumDescription) -> list[dict[str, Any]]:
    leader = quorum.voter(quorum.leader_id)
    leader_end = None if leader is None else leader.log_end_offset
    followers = [each for each in quorum.voters if each is not leader]
    ordered = [(leader, "Leader")] if leader is not None else []
    ordered += [(each, "Follower") for each in followers]
    ordered += [(each, "Observer") for each in quorum.observers]
    return [
        {
            "node_id": replica.replica_id,
            "directory_id": uuid_to_base64(replica.directory_id),
            "log_end_offset": replica.log_end_offset,
            "lag": None if leader_end is None else leader_end - replica.log_end_offset,
            "last_fetch_timestamp_ms": replica.last_fetch_timestamp_ms,
            "last_caught_up_timestamp_ms": replica.last_caught_up_timestamp_ms,
            "status": status,
        }
        for replica, status in ordered
    ]


def _node(quorum: client.QuorumDescription, replica: client.QuorumReplica) -> dict[str, object]:
    node: dict[str, object] = {"id": replica.replica_id}
    if replica.directory_id != ZERO_UUID:
        node["directoryId"] = uuid_to_base64(replica.directory_id)
    endpoints = quorum.endpoints.get(replica.replica_id, ())
    if endpoints:
        node["endpoints"] = [str(endpoint) for endpoint in endpoints]
    return node


def _new_voter(path: Path) -> tuple[int, uuid.UUID, str, list[client.QuorumEndpoint]]:
    """Node id, directory id, cluster id and addresses of a controller that is formatted."""
    from moldau.config import ConfigError, NodeConfig
    from moldau.runtime.filesystem import OsFilesystem
    from moldau.storage.faults import CorruptFile
    from moldau.storage.meta_properties import read_meta_properties

    with refusing(ConfigError, of=path):
        config = NodeConfig.load(str(path), {}, os.environ)
    if not config.is_controller:
        fail(f"{path}: process.roles has no controller", status=2)
    directory = config.metadata_log_directory
    with refusing(CorruptFile, OSError, status=1):
        identity = read_meta_properties(OsFilesystem(), directory)
    if identity is None or identity.directory_id is None:
        fail(
            f"{directory} is not formatted, or has no directory id: "
            "`moldau storage format --no-initial-controllers` gives it one"
        )
    if identity.node_id != config.node_id:
        fail(f"{directory} belongs to node {identity.node_id}, {path} is node {config.node_id}")
    endpoints = [
        client.QuorumEndpoint(each.listener_name, each.host or "localhost", each.port)
        for each in config.advertised_controller_listeners
    ]
    return config.node_id, identity.directory_id, identity.cluster_id, endpoints
