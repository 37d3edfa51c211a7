"""`moldau topics`: describe, elect-leaders, list, create, alter; reassign and delete have their own
modules.

Invariants: a figure that no broker reported is None, never a guess; Ctrl-C ends `--watch` with
status 0 and leaves the terminal as it was; an election that can lose records is requested only
after the user said yes to exactly that.
"""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import asdict
from enum import Enum, StrEnum
from typing import Annotated, Any, NamedTuple, TypeAlias

import typer

from moldau import client
from moldau.cli.asking import Yes, ask_first, counted, names_text
from moldau.cli.client_settings import key_values
from moldau.cli.completion import complete_topics
from moldau.cli.log_sizes import ANSWER_TIMEOUT_MS, log_directories, missing_text, topic_bytes
from moldau.cli.options import (
    MIN_INTERVAL_S,
    AsJson,
    ClusterAccess,
    Targets,
    describe_targets,
    ids_text,
    parse_targets,
    resolve_names,
)
from moldau.cli.output import (
    Block,
    fail,
    live_view,
    print_json,
    print_table,
    say,
    size_text,
    warn,
)
from moldau.cli.parameters import Within
from moldau.cli.topic_deletion import delete
from moldau.client.admin.topics import TopicCalls
from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import uuid_to_base64

MIN_ISR = "min.insync.replicas"
PARTITION_COLUMNS = (
    *("partition", "leader", "epoch", "replicas", "isr", "out-of-sync", "elr", "last-elr"),
    *("offline", "size", "low", "high", "end", "behind"),
)

Offsets: TypeAlias = "Mapping[client.TopicPartitionReplica, int | client.KafkaError]"
Logs: TypeAlias = "Mapping[client.TopicPartitionReplica, client.ReplicaLog | client.KafkaError]"
Document = dict[str, Any]
Row = Mapping[str, Any]
"""One partition in a document."""
UNCLEAN_WARNING = (
    "one that lacks acknowledged records may lead, and these are then lost on all replicas"
)
app = typer.Typer()
app.command("delete")(delete)
Name = Annotated[str, complete_topics, "The topic's name."]


class Only(Enum):
    """The filters of kafka-topics; a partition under its replication factor, and so on."""

    UNDER_REPLICATED = "--under-replicated-partitions"
    UNAVAILABLE = "--unavailable-partitions"
    UNDER_MIN_ISR = "--under-min-isr-partitions"
    AT_MIN_ISR = "--at-min-isr-partitions"
    OVERRIDES = "--topics-with-overrides"


class Snapshot(NamedTuple):
    """Everything of some topics at about one moment."""

    topics: Mapping[str, client.TopicDescription]
    overrides: Mapping[str, Mapping[str, str | None]]
    min_isr: Mapping[str, int | None]
    moves: Mapping[client.TopicPartition, client.Reassignment]
    live_broker_ids: frozenset[int]
    low: Offsets
    high: Offsets
    ends: Offsets
    logs: Logs


async def gather(
    admin: client.Admin,
    names: Collection[str],
    only: Only | None,
    *,
    timeout_ms: float | None = None,
    note: Callable[[str], object] = warn,
) -> list[Document]:
    """The documents of topics, without the partitions that `only` leaves out. Offsets and sizes
    that a broker does not report within `timeout_ms` stay unknown; so do moves, which only the
    active controller knows: `note` gets a line about that. Raises: KafkaError
    """
    topics = await admin.describe_topics(names)
    overrides, min_isr = await _configurations(admin, topics)
    brokers = (await admin.describe_cluster()).brokers
    live = frozenset(each.node_id for each in brokers)
    snapshot = Snapshot(topics, overrides, min_isr, {}, live, {}, {}, {}, {})
    chosen = {name: list(_chosen(snapshot, name, only)) for name in sorted(topics)}
    leaders = [
        client.TopicPartitionReplica(name, each.partition, each.leader)
        for name, partitions in chosen.items()
        for each in partitions
        if each.leader >= 0
    ]
    replicas = [
        client.TopicPartitionReplica(name, each.partition, broker_id)
        for name, partitions in chosen.items()
        for each in partitions
        for broker_id in each.replicas
        if broker_id in snapshot.live_broker_ids
    ]
    offsets = admin.list_replica_offsets
    snapshot = snapshot._replace(
        low=await offsets(
            leaders, client.OffsetSpec.EARLIEST, as_consumer=True, timeout_ms=timeout_ms
        ),
        high=await offsets(
            leaders, client.OffsetSpec.LATEST, as_consumer=True, timeout_ms=timeout_ms
        ),
        ends=await offsets(replicas, client.OffsetSpec.LATEST, timeout_ms=timeout_ms),
        logs=await admin.describe_replica_logs(replicas, timeout_ms=timeout_ms),
    )
    # Last: a broker passes this on, and without an active controller answers nothing that comes
    # behind it on the same connection. Moves only take partitions out of those chosen.
    snapshot = snapshot._replace(moves=await _moves(admin, timeout_ms, note))
    chosen = {name: list(_chosen(snapshot, name, only)) for name in chosen}
    return [
        _document(snapshot, name, partitions)
        for name, partitions in chosen.items()
        if partitions or only is None or (only is Only.OVERRIDES and overrides[name])
    ]


async def _moves(
    admin: client.Admin, timeout_ms: float | None, note: Callable[[str], object]
) -> Mapping[client.TopicPartition, client.Reassignment]:
    try:
        return await admin.list_partition_reassignments(timeout_ms=timeout_ms)
    except client.AuthorizationFailed:  # for a user that may not see them, as with Kafka's tool
        return {}
    except client.KafkaError as error:
        if not error.retriable and not isinstance(error, client.RequestTimeout):
            raise
        note(f"which replicas are being moved is not known: {error}; see `moldau health`")
        return {}


def cells(row: Row) -> tuple[object, ...]:
    return (
        row["partition"],
        row["leader"] if row["leader"] >= 0 else "none",
        row["leader_epoch"],
        _replicas_text(row),
        ids_text(row["isr"]),
        ids_text(row["out_of_sync_replicas"]),
        ids_text(row["eligible_leader_replicas"]),
        ids_text(row["last_known_eligible_leader_replicas"]),
        ids_text(row["offline_replicas"]),
        None if row["size_bytes"] is None else size_text(row["size_bytes"]),
        row["low_watermark"],
        row["high_watermark"],
        row["log_end_offset"],
        _behind_text(row["replica_logs"]),
    )


def line(name: str, row: Row) -> str:
    shown = ("-" if cell is None else str(cell) for cell in cells(row)[1:])
    told = " ".join(
        f"{column} {cell}" for column, cell in zip(PARTITION_COLUMNS[1:], shown, strict=True)
    )
    return f"{name}-{row['partition']} {told}"


def _replicas_text(row: Row) -> str:
    """The replicas; a plus marks one that is being added, a minus one that is being removed."""
    marks = {
        **dict.fromkeys(row["adding_replicas"], "+"),
        **dict.fromkeys(row["removing_replicas"], "-"),
    }
    return ",".join(f"{marks.get(each, '')}{each}" for each in row["replicas"]) or "-"


def _behind_text(replica_logs: Iterable[Row]) -> str:
    return (
        " ".join(f"{each['broker_id']}:{each['behind']}" for each in replica_logs if each["behind"])
        or "-"
    )


def _chosen(
    snapshot: Snapshot, name: str, only: Only | None
) -> Iterable[client.PartitionDescription]:
    min_isr = snapshot.min_isr.get(name)
    for partition in snapshot.topics[name].partitions:
        in_sync_count = len(partition.isr)
        move = snapshot.moves.get(client.TopicPartition(name, partition.partition))
        # Replicas that are still being added do not count as missing.
        factor = len(partition.replicas) - (len(move.adding_replicas) if move else 0)
        is_like = {
            None: True,
            Only.UNDER_REPLICATED: in_sync_count < factor,
            Only.UNAVAILABLE: partition.leader not in snapshot.live_broker_ids,
            Only.UNDER_MIN_ISR: min_isr is not None and in_sync_count < min_isr,
            Only.AT_MIN_ISR: in_sync_count == min_isr,
            Only.OVERRIDES: bool(snapshot.overrides.get(name)),
        }
        if is_like[only]:
            yield partition


def _document(
    snapshot: Snapshot, name: str, partitions: Iterable[client.PartitionDescription]
) -> Document:
    topic = snapshot.topics[name]
    rows = [_row(snapshot, name, partition) for partition in partitions]
    sizes = [log["size_bytes"] for row in rows for log in row["replica_logs"]]
    is_known = None not in sizes and len(rows) == len(topic.partitions)
    return {
        "name": name,
        "topic_id": uuid_to_base64(topic.topic_id),
        "internal": topic.is_internal,
        "partition_count": len(topic.partitions),
        "configs": dict(snapshot.overrides.get(name, {})),
        "min_insync_replicas": snapshot.min_isr.get(name),
        "size_bytes": sum(sizes) if is_known else None,
        "partitions": rows,
    }


def _row(snapshot: Snapshot, name: str, partition: client.PartitionDescription) -> Document:
    def of(offsets: Offsets, broker_id: int) -> int | None:
        found = offsets.get(client.TopicPartitionReplica(name, partition.partition, broker_id))
        return found if isinstance(found, int) and found >= 0 else None

    def size_on(broker_id: int) -> int | None:
        found = snapshot.logs.get(
            client.TopicPartitionReplica(name, partition.partition, broker_id)
        )
        return found.size_bytes if isinstance(found, client.ReplicaLog) else None

    end = of(snapshot.ends, partition.leader)
    high = of(snapshot.high, partition.leader)
    move = snapshot.moves.get(client.TopicPartition(name, partition.partition))
    logs = []
    for broker_id in partition.replicas:
        own_end = of(snapshot.ends, broker_id)
        # Asked one after the other: a follower may have got more in the meantime.
        behind = None if own_end is None or end is None else max(0, end - own_end)
        logs.append(
            {
                "broker_id": broker_id,
                "log_end_offset": own_end,
                "behind": behind,
                "size_bytes": size_on(broker_id),
            }
        )
    return {
        **asdict(partition),
        "out_of_sync_replicas": [each for each in partition.replicas if each not in partition.isr],
        "adding_replicas": list(move.adding_replicas) if move else [],
        "removing_replicas": list(move.removing_replicas) if move else [],
        "low_watermark": of(snapshot.low, partition.leader),
        "high_watermark": high,
        "log_end_offset": end,
        "size_bytes": size_on(partition.leader),
        "replica_logs": logs,
    }


async def _configurations(
    admin: client.Admin, names: Collection[str]
) -> tuple[dict[str, dict[str, str | None]], dict[str, int | None]]:
    """What is set on each topic itself, and its min.insync.replicas wherever that comes from."""
    resources = {
        name: client.ConfigResource(client.ConfigResourceType.TOPIC, name) for name in names
    }
    configs = await admin.describe_configs(resources.values()) if resources else {}
    overrides, min_isr = {}, {}
    for name, resource in resources.items():
        entries = configs[resource]
        overrides[name] = {
            key: entry.value
            for key, entry in sorted(entries.items())
            if entry.source == client.ConfigSource.DYNAMIC_TOPIC_CONFIG
        }
        value = entries[MIN_ISR].value if MIN_ISR in entries else None
        min_isr[name] = None if value is None else int(value)
    return overrides, min_isr


@app.command("describe")
def describe(
    access: ClusterAccess,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Names of topics, or regular expressions; by default all topics.",
            autocompletion=complete_topics,
        ),
    ] = None,
    under_replicated: Annotated[
        bool, Only.UNDER_REPLICATED.value, "Only partitions with replicas that are not in sync."
    ] = False,
    unavailable: Annotated[
        bool, Only.UNAVAILABLE.value, "Only partitions without a leader."
    ] = False,
    under_min_isr: Annotated[
        bool, Only.UNDER_MIN_ISR.value, "Only partitions below min.insync.replicas."
    ] = False,
    at_min_isr: Annotated[
        bool, Only.AT_MIN_ISR.value, "Only partitions exactly at min.insync.replicas."
    ] = False,
    overrides: Annotated[
        bool, Only.OVERRIDES.value, "Only topics with their own configuration."
    ] = False,
    exclude_internal: Annotated[bool, "Leave internal topics out."] = False,
    watch: Annotated[bool, "--watch -w", "Show it again and again, until Ctrl-C."] = False,
    interval: Annotated[
        float, Within(MIN_INTERVAL_S), "Seconds between two updates of --watch."
    ] = 2.0,
    as_json: AsJson = False,
) -> None:
    """Show leaders, replicas, sizes, offsets and configuration.

    Of replicas, + marks one that is being added and - one that is being removed. "size" is that of
    the leader's log, a topic's that of all replicas. "end" is the leader's log end offset, "behind"
    how many records each replica lacks; "-" means none, or not known.
    """
    flags = (under_replicated, unavailable, under_min_isr, at_min_isr, overrides)
    chosen = [each for each, given in zip(Only, flags, strict=True) if given]
    if len(chosen) > 1:
        fail(f"{' and '.join(each.value for each in chosen)} exclude each other", status=2)
    only = chosen[0] if chosen else None
    figures_timeout_ms = min(access.timeout_ms, ANSWER_TIMEOUT_MS)

    note = functools.cache(warn)  # the same line once, with --watch too

    async def look(admin: client.Admin) -> list[Document]:
        wanted = await resolve_names(admin, names, with_internal=not exclude_internal)
        return await gather(admin, wanted, only, timeout_ms=figures_timeout_ms, note=note)

    if watch:
        try:
            access.ask(client.Admin, lambda admin: _follow(admin, look, interval, as_json))
        except KeyboardInterrupt:
            return
    documents = access.ask(client.Admin, look)
    if as_json:
        print_json(documents)
        return
    for document in documents:
        say(_title(document))
        print_table(PARTITION_COLUMNS, (cells(row) for row in document["partitions"]))


async def _follow(
    admin: client.Admin,
    look: Callable[[client.Admin], Awaitable[list[Document]]],
    interval_s: float,
    as_json: bool,
) -> None:
    """Look again and again until Ctrl-C; an error that passes is reported once, and waited for."""
    with live_view(plain=as_json) as view:
        while True:
            try:
                documents = await look(admin)
            except client.KafkaError as error:
                if not error.retriable and not isinstance(error, client.RequestTimeout):
                    raise
                view.say(str(error))
            else:
                if as_json:
                    print_json(documents, is_row=True)
                    sys.stdout.flush()
                else:
                    view.show([_block(document) for document in documents])
            await asyncio.sleep(interval_s)


def _title(document: Document) -> str:
    shown = ", ".join(f"{key}={value}" for key, value in document["configs"].items())
    size = document["size_bytes"]
    parts = (
        document["name"],
        f"id {document['topic_id']}",
        counted(document["partition_count"], "partition"),
        *([] if size is None else [size_text(size)]),
        shown,
    )
    return "  ".join(parts).rstrip()


def _block(document: Document) -> Block:
    rows = document["partitions"]
    return Block(
        _title(document),
        PARTITION_COLUMNS,
        [cells(row) for row in rows],
        {f"{document['name']}-{row['partition']}": line(document["name"], row) for row in rows},
    )


class Election(StrEnum):
    """Who may be elected."""

    PREFERRED = "preferred"
    UNCLEAN = "unclean"


@app.command("elect-leaders")
def elect_leaders(
    access: ClusterAccess,
    targets: Targets = None,
    election: Annotated[
        Election, "preferred, or unclean: a replica that may lack records."
    ] = Election.PREFERRED,
    everything: Annotated[bool, "--all", "All partitions of all topics."] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Elect the preferred leaders of partitions."""
    if everything == bool(targets):
        fail("say which: TOPIC[:PARTITION]… or --all", status=2)
    wanted = parse_targets(targets)
    if election is Election.UNCLEAN:
        where = names_text(list(targets or ())) or "all partitions"
        ask_first(f"elect leaders of {where}: {UNCLEAN_WARNING}", yes=yes)
    kind = (
        client.ElectionType.PREFERRED
        if election is Election.PREFERRED
        else client.ElectionType.UNCLEAN
    )
    with access.asking(client.Admin) as (admin, loop):
        partitions = loop.run(describe_targets(admin, wanted))[1] if wanted else None
        outcome = loop.run(admin.elect_leaders(kind, partitions))
    failed = {
        partition: error
        for partition, error in outcome.items()
        if error is not None and error.code is not ErrorCode.ELECTION_NOT_NEEDED
    }
    if as_json:
        print_json(
            [
                {
                    **partition._asdict(),
                    "elected": error is None,
                    "error": None if error is None else error.code.name,
                }
                for partition, error in sorted(outcome.items())
            ]
        )
    else:
        for partition, error in sorted(outcome.items()):
            if partition not in failed:
                say(f"{partition} {'elected' if error is None else 'needed no election'}")
        if not outcome:
            say("no partition needed an election")
    if failed:
        texts = "; ".join(str(error) for error in list(failed.values())[:3])
        fail(f"{len(failed)} of {len(outcome)} elections failed: {texts}")


class Order(StrEnum):
    """What topics are listed by."""

    NAME = "name"
    SIZE = "size"
    PARTITIONS = "partitions"


@app.command("list")
def list_topics(
    access: ClusterAccess,
    internal: Annotated[bool, typer.Option(help="Show internal topics too.")] = False,
    sort: Annotated[
        Order | None, "name, size or partitions, the largest first.  [default: name]"
    ] = None,
    names: Annotated[bool, "Names alone, one a line, as away from a terminal."] = False,
    as_json: AsJson = False,
) -> None:
    """List the topics with partitions, replicas and size.

    The size is that of all replicas, on all brokers. Away from a terminal, as in a pipe, names
    alone are printed, unless --sort asks for the table.
    """
    is_plain = names or not (as_json or sort is not None or sys.stdout.isatty())
    rows: list[Document] = []
    if is_plain and sort in (None, Order.NAME):
        found = access.ask(TopicCalls, lambda topics: topics.list_topics(include_internal=internal))
    else:
        timeout_ms = min(access.timeout_ms, ANSWER_TIMEOUT_MS)
        rows, missing = access.ask(
            client.Admin, lambda admin: _listed(admin, internal, timeout_ms=timeout_ms)
        )
        rows.sort(key=lambda row: _rank(row, sort))
        if missing:
            warn(missing)
        found = [row["name"] for row in rows]
    if as_json:
        print_json(found if is_plain else rows)
    elif is_plain:
        for name in found:
            say(name)
    else:
        _print_listed(rows)


async def _listed(
    admin: client.Admin, internal: bool, *, timeout_ms: float
) -> tuple[list[Document], str | None]:
    """A row for each topic, and what keeps their sizes from being complete. The number of requests
    grows with the brokers, and by one for every 2,000 partitions. Raises: KafkaError
    """
    topics = await admin.describe_topics()
    live = {each.node_id for each in (await admin.describe_cluster()).brokers}
    directories = await log_directories(admin, live, timeout_ms)
    sizes = topic_bytes(directories)
    shown = {name: each for name, each in topics.items() if internal or not each.is_internal}
    having = {
        broker_id
        for topic in shown.values()
        for partition in topic.partitions
        for broker_id in partition.replicas
    }
    rows = [
        {
            "name": name,
            "topic_id": uuid_to_base64(topic.topic_id),
            "internal": topic.is_internal,
            "partition_count": len(topic.partitions),
            "replication_factor": min((len(each.replicas) for each in topic.partitions), default=0),
            "size_bytes": sizes.get(name),
        }
        for name, topic in sorted(shown.items())
    ]
    return rows, missing_text(directories, having - live)


def _rank(row: Row, sort: Order | None) -> tuple[int, str]:
    by = {Order.SIZE: row["size_bytes"] or 0, Order.PARTITIONS: row["partition_count"]}
    return -by.get(sort or Order.NAME, 0), row["name"]


def _print_listed(rows: list[Document]) -> None:
    print_table(
        ("topic", "partitions", "replicas", "size"),
        (
            (
                row["name"],
                row["partition_count"],
                row["replication_factor"],
                None if row["size_bytes"] is None else size_text(row["size_bytes"]),
            )
            for row in rows
        ),
    )
    sizes = [row["size_bytes"] for row in rows if row["size_bytes"] is not None]
    partition_count = sum(row["partition_count"] for row in rows)
    totals = [counted(len(rows), "topic"), counted(partition_count, "partition")]
    say(", ".join(totals + ([size_text(sum(sizes))] if sizes else [])))


@app.command("create")
def create(
    access: ClusterAccess,
    name: Name,
    partitions: Annotated[
        int,
        "--partitions -p",
        "How many partitions; -1: the brokers' default (num.partitions).",
    ] = -1,
    replication_factor: Annotated[
        int,
        "--replication-factor -r",
        "How many replicas of each partition; -1: the brokers' default.",
    ] = -1,
    config: Annotated[
        list[str] | None, "--config -c", "A topic configuration, KEY=VALUE; may be repeated."
    ] = None,
    if_not_exists: Annotated[bool, "Succeed if the topic exists already."] = False,
    validate_only: Annotated[bool, "Only check whether it could be created."] = False,
) -> None:
    """Create a topic."""
    topic = client.NewTopic(
        name, partitions, replication_factor, key_values(config or [], "--config")
    )
    done = f"{name} could be created" if validate_only else f"created {name}"
    with access.asking(TopicCalls) as (admin, loop):
        try:
            loop.run(admin.create_topics([topic], validate_only=validate_only))
        except client.TopicAlreadyExists:
            if not if_not_exists:
                raise
            done = f"{name} exists"
    say(done)


@app.command("alter")
def alter(
    access: ClusterAccess,
    name: Name,
    partitions: Annotated[
        int | None, "--partitions -p", "The new total number of partitions; it can only grow."
    ] = None,
    config: Annotated[
        list[str] | None,
        "--config -c",
        "A topic configuration to set, KEY=VALUE; may be repeated.",
    ] = None,
    delete_config: Annotated[
        list[str] | None, "A configuration key to reset to its default; may be repeated."
    ] = None,
) -> None:
    """Change a topic's configuration or add partitions."""
    changes = [
        client.ConfigChange(key, value)
        for key, value in key_values(config or [], "--config").items()
    ]
    changes += [
        client.ConfigChange(key, None, client.ConfigOperation.DELETE) for key in delete_config or []
    ]
    if not changes and partitions is None:
        fail("nothing to change: give --partitions, --config or --delete-config", status=2)
    resource = client.ConfigResource(client.ConfigResourceType.TOPIC, name)
    with access.asking(client.Admin) as (admin, loop):
        if changes:
            loop.run(admin.alter_configs({resource: changes}))
        if partitions is not None:
            loop.run(admin.create_partitions({name: client.NewPartitions(partitions)}))
    say(f"altered {name}")
