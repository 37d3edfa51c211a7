"""`moldau bench transactions` and `moldau bench groups`: loads on a cluster's coordinators.

Must not measure anything itself: that is `bench_transactions_load` and `bench_groups_load`.
"""

from __future__ import annotations

from collections.abc import Awaitable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from moldau.cli.cluster_options import (
    AsJson,
    BootstrapServer,
    CommandConfig,
    TimeoutMs,
    client_config,
)
from moldau.cli.output import fail, print_json, print_table
from moldau.client.errors import KafkaError

if TYPE_CHECKING:
    from moldau.cli.bench_groups_load import CpuSeconds

Result = TypeVar("Result")

DEFAULT_TIMEOUT_MS = 60_000
"""Creating the topics of a load, and the coordinators' own, takes longer than most calls."""

ReplicationFactor = Annotated[
    int, typer.Option(help="Of the topic that is made; -1 is the brokers' default.")
]


class GroupProtocol(StrEnum):
    """As `group.protocol` of Kafka's consumers."""

    CLASSIC = "classic"
    CONSUMER = "consumer"


def transactions(
    partitions: Annotated[
        list[int] | None,
        typer.Option(
            min=1, max=10_000, help="Of each transaction; may be repeated.  [default: 1, 10, 100]"
        ),
    ] = None,
    producers: Annotated[
        int, typer.Option(min=1, max=1_000, help="How many commit at the same time.")
    ] = 8,
    seconds: Annotated[float, typer.Option(min=0.1, help="For each number of partitions.")] = 10.0,
    warm_up_seconds: Annotated[float, typer.Option(min=0, help="Before each of them.")] = 3.0,
    record_bytes: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Of the record on each partition.")
    ] = 100,
    topic: Annotated[
        str | None, typer.Option(help="An existing topic; else one is made and deleted.")
    ] = None,
    replication_factor: ReplicationFactor = -1,
    transaction_version: Annotated[
        int | None,
        typer.Option(min=1, max=2, help="2: an epoch per transaction.  [default: as finalized]"),
    ] = None,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS,
    as_json: AsJson = False,
) -> None:
    """Commits per second and their latency: a record on each partition, then the commit.

    "latency" is a whole transaction, "commit" its last request alone.
    """
    from moldau.cli.bench_transactions_load import TransactionsPlan, measure_transactions

    plan = TransactionsPlan(
        partition_counts=partitions or (1, 10, 100),
        producer_count=producers,
        seconds=seconds,
        warm_up_seconds=warm_up_seconds,
        record_bytes=record_bytes,
        topic=topic,
        replication_factor=replication_factor,
        transaction_version=transaction_version,
    )
    config = client_config(bootstrap_server, command_config, timeout_ms)
    version, figures = _run(measure_transactions(config, plan))
    rows = [each.document() for each in figures]
    if as_json:
        print_json({"transaction_version": version, "producers": producers, "figures": rows})
        return
    print_table(
        ("figure", *(f"{row['partitions']} per transaction" for row in rows)),
        ((name, *(row.get(name) for row in rows)) for name in rows[0] if name != "partitions"),
        title=f"{producers} producers, transaction version {version}",
    )


def groups(
    protocol: Annotated[
        GroupProtocol, typer.Option(help="classic, or consumer (KIP-848).")
    ] = GroupProtocol.CONSUMER,
    members: Annotated[int, typer.Option(min=1, max=50_000, help="How many.")] = 1_000,
    partitions: Annotated[
        int, typer.Option(min=1, max=50_000, help="Of the topic they read.")
    ] = 1_000,
    idle_seconds: Annotated[
        float, typer.Option(min=0, help="How long they stay, only heartbeating.")
    ] = 10.0,
    heartbeat_ms: Annotated[
        int,
        typer.Option(min=1, help="Between a classic member's heartbeats; else the broker says."),
    ] = 3_000,
    pid: Annotated[
        int | None,
        typer.Option(min=1, help="The coordinator's process, to read its CPU time (Linux)."),
    ] = None,
    replication_factor: ReplicationFactor = -1,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS,
    as_json: AsJson = False,
) -> None:
    """Very many members in one group: all join, all stay, one joins, one leaves.

    A rebalance is over when all members know of it and every partition has one owner.
    """
    from moldau.cli.bench_groups_load import GroupLoad, GroupsPlan

    plan = GroupsPlan(
        protocol=protocol.value,
        member_count=members,
        partition_count=partitions,
        idle_seconds=idle_seconds,
        heartbeat_ms=heartbeat_ms,
        replication_factor=replication_factor,
    )
    config = client_config(bootstrap_server, command_config, timeout_ms)
    phases = _run(GroupLoad.measure(config, plan, None if pid is None else cpu_of(pid)))
    rows = [phase.document() for phase in phases]
    if as_json:
        print_json({"protocol": protocol.value, "members": members, "phases": rows})
        return
    print_table(
        ("phase", "seconds", "coordinator's CPU seconds", "client's CPU seconds", "heartbeats"),
        (row.values() for row in rows),
        title=f"{members} members, {partitions} partitions, {protocol.value} protocol",
    )


def cpu_of(pid: int) -> CpuSeconds:
    """What tells the CPU time of a process, all its threads; exits with status 2 without one."""
    import os

    ticks_per_second = os.sysconf("SC_CLK_TCK")
    stat = Path(f"/proc/{pid}/stat")
    if not stat.exists():
        fail(f"--pid {pid}: there is no {stat}", status=2)

    def seconds() -> float:
        fields = stat.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / ticks_per_second

    return seconds


def _run(work: Awaitable[Result]) -> Result:
    """Run a load on uvloop; a `KafkaError` becomes one line and status 1."""
    import uvloop

    async def run() -> Result:
        return await work

    try:
        return uvloop.run(run())
    except (KafkaError, OSError) as error:
        fail(str(error))
