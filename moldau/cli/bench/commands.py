"""`moldau bench`: put a load on a running cluster, or on a private one, and print the figures.

Must not measure anything itself: the other modules of this package do.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from moldau.cli.options import AsJson, ClusterAccess, asks_cluster
from moldau.cli.output import fail, print_json, print_table, progress_bar, say
from moldau.client import ClientConfig, KafkaError
from moldau.client.cluster.cluster_client import ClusterClient
from moldau.runtime.event_loop import new_event_loop

if TYPE_CHECKING:
    from moldau.cli.bench.groups import CpuSeconds
    from moldau.cli.bench.records import Figures

PROGRESS_INTERVAL_S: Final = 0.2

app = typer.Typer()
Topic = Annotated[str, typer.Argument(help="An existing topic.")]
RecordBytes = Annotated[int, typer.Option(min=1, max=100_000_000, help="Bytes of each value.")]
Result = TypeVar("Result")
COORDINATORS_TIMEOUT_MS = 60_000
"""Creating the topics of a load, and the coordinators' own, takes longer than most calls."""
ReplicationFactor = Annotated[
    int, typer.Option(help="Replicas of the topic that is created; -1: the brokers' default.")
]


class CodecName(StrEnum):
    """The codecs of record batches."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Acks(StrEnum):
    """Which acknowledgement to wait for; 0 sends no response and cannot be measured here."""

    LEADER = "1"
    ALL = "all"

    @property
    def number(self) -> int:
        return -1 if self is Acks.ALL else 1


AcksOption = Annotated[Acks, typer.Option(help="Acknowledgements to wait for: 1 or all.")]


class GroupProtocol(StrEnum):
    """As `group.protocol` of Kafka's consumers."""

    CLASSIC = "classic"
    CONSUMER = "consumer"


@app.command("transactions")
@asks_cluster(timeout_ms=COORDINATORS_TIMEOUT_MS)
def transactions(
    access: ClusterAccess,
    partitions: Annotated[
        list[int] | None,
        typer.Option(
            min=1, max=10_000, help="Per transaction; may be repeated.  [default: 1, 10, 100]"
        ),
    ] = None,
    producers: Annotated[
        int, typer.Option(min=1, max=1_000, help="How many commit at the same time.")
    ] = 8,
    seconds: Annotated[float, typer.Option(min=0.1, help="Per number of partitions.")] = 10.0,
    warm_up_seconds: Annotated[float, typer.Option(min=0, help="Before each measurement.")] = 3.0,
    record_bytes: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Bytes of each record's value.")
    ] = 100,
    topic: Annotated[
        str | None, typer.Option(help="An existing topic; by default a new one.")
    ] = None,
    replication_factor: ReplicationFactor = -1,
    transaction_version: Annotated[
        int | None,
        typer.Option(min=1, max=2, help="2: an epoch per transaction.  [default: as finalized]"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure commits per second and their latency.

    Each transaction writes a record to each partition, then commits. "latency" is a whole
    transaction, "commit" its last request alone.
    """
    from moldau.cli.bench.transactions import TransactionsPlan, measure_transactions

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
    version, figures = _run(measure_transactions(access.config(), plan))
    rows = [each.document() for each in figures]
    if as_json:
        print_json({"transaction_version": version, "producers": producers, "figures": rows})
        return
    print_table(
        ("figure", *(f"{row['partitions']} per transaction" for row in rows)),
        ((name, *(row.get(name) for row in rows)) for name in rows[0] if name != "partitions"),
        title=f"{producers} producers, transaction version {version}",
    )


@app.command("groups")
@asks_cluster(timeout_ms=COORDINATORS_TIMEOUT_MS)
def groups(
    access: ClusterAccess,
    protocol: Annotated[
        GroupProtocol, typer.Option(help="classic, or consumer (KIP-848).")
    ] = GroupProtocol.CONSUMER,
    members: Annotated[int, typer.Option(min=1, max=50_000, help="How many members.")] = 1_000,
    partitions: Annotated[
        int, typer.Option(min=1, max=50_000, help="Partitions of their topic.")
    ] = 1_000,
    idle_seconds: Annotated[
        float, typer.Option(min=0, help="How long they only send heartbeats.")
    ] = 10.0,
    heartbeat_ms: Annotated[
        int, typer.Option(min=1, help="Between heartbeats of a classic member.")
    ] = 3_000,
    pid: Annotated[
        int | None,
        typer.Option(min=1, help="The coordinator's process id, to read its CPU time (Linux)."),
    ] = None,
    replication_factor: ReplicationFactor = -1,
    as_json: AsJson = False,
) -> None:
    """Measure a group of very many members.

    All join, all stay, one joins, one leaves. A rebalance is over when all members know of it and
    every partition has one owner.
    """
    from moldau.cli.bench.groups import GroupLoad, GroupsPlan

    plan = GroupsPlan(
        protocol=protocol.value,
        member_count=members,
        partition_count=partitions,
        idle_seconds=idle_seconds,
        heartbeat_ms=heartbeat_ms,
        replication_factor=replication_factor,
    )
    server_cpu = None if pid is None else _cpu_of(pid)
    phases = _run(GroupLoad.measure(access.config(), plan, server_cpu))
    rows = [phase.document() for phase in phases]
    if as_json:
        print_json({"protocol": protocol.value, "members": members, "phases": rows})
        return
    print_table(
        ("phase", "seconds", "coordinator's CPU seconds", "client's CPU seconds", "heartbeats"),
        (row.values() for row in rows),
        title=f"{members} members, {partitions} partitions, {protocol.value} protocol",
    )


@app.command("produce")
@asks_cluster()
def produce(
    access: ClusterAccess,
    topic: Topic,
    records: Annotated[int, typer.Option(min=1, help="How many records.")] = 1_000_000,
    record_bytes: RecordBytes = 1_000,
    batch_bytes: Annotated[int, typer.Option(min=1, help="Bytes of a batch, about.")] = 262_144,
    in_flight: Annotated[
        int, typer.Option(min=1, max=64, help="How many requests are in flight per partition.")
    ] = 5,
    acks: AcksOption = Acks.ALL,
    codec: Annotated[CodecName, typer.Option(help="How batches are compressed.")] = CodecName.NONE,
    idempotent: Annotated[bool, typer.Option(help="Number the batches.")] = True,
    as_json: AsJson = False,
) -> None:
    """Measure the throughput of producing."""
    from moldau.cli.bench.records import ProduceLoad, run_produce
    from moldau.protocol.records import Codec

    load = ProduceLoad(
        topic=topic,
        record_count=records,
        record_bytes=record_bytes,
        batch_bytes=batch_bytes,
        acks=acks.number,
        in_flight_count=in_flight,
        codec=Codec[codec.name],
        idempotent=idempotent,
    )

    work = partial(run_produce, load=load)
    _measure(access.config(), work, "producing", records, as_json)


@app.command("consume")
@asks_cluster()
def consume(
    access: ClusterAccess,
    topic: Topic,
    fetch_bytes: Annotated[int, typer.Option(min=1, help="Most bytes per fetch.")] = 1_048_576,
    records: Annotated[int | None, typer.Option(min=1, help="Stop after about so many.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure the throughput of fetching a whole topic."""
    from moldau.cli.bench.records import run_consume

    work = partial(run_consume, topic_name=topic, fetch_bytes=fetch_bytes, record_limit=records)
    _measure(access.config(), work, "consuming", records or 0, as_json)


@app.command("latency")
@asks_cluster()
def latency(
    access: ClusterAccess,
    topic: Topic,
    rate: Annotated[int, typer.Option(min=1, max=100_000, help="Records per second.")] = 1_000,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to measure.")] = 10.0,
    record_bytes: RecordBytes = 1_000,
    acks: AcksOption = Acks.ALL,
    as_json: AsJson = False,
) -> None:
    """Measure the latency of single records at a fixed rate."""
    from moldau.cli.bench.records import run_latency

    work = partial(
        run_latency,
        topic_name=topic,
        record_bytes=record_bytes,
        acks=acks.number,
        rate_per_second=rate,
        seconds=seconds,
    )
    _measure(access.config(), work, "producing", int(rate * seconds), as_json)


@app.command("metadata")
def metadata(
    partitions: Annotated[
        int, typer.Option(min=1, max=2_000_000, help="How many partitions.")
    ] = 100_000,
    partitions_per_topic: Annotated[
        int, typer.Option(min=1, max=4_999, help="How many of them a topic has.")
    ] = 10,
    samples: Annotated[int, typer.Option(min=1, max=10_000, help="Single topics to create.")] = 50,
    kills: Annotated[
        int, typer.Option(min=1, max=1_000, help="How often to kill the active controller.")
    ] = 5,
    repeats: Annotated[
        int, typer.Option(min=1, max=1_000, help="How often to start a broker, to load an image.")
    ] = 3,
    as_json: AsJson = False,
) -> None:
    """Measure a private cluster with very many partitions.

    The figures are of loading, changes, failover and creation. Starts three controllers and three
    brokers on this machine and removes them afterwards. The partitions are held by a phantom broker
    that only the controllers know.
    """
    from moldau.cli.bench.metadata import COLUMNS, NOTE, BenchFailed, MetadataPlan, measure
    from moldau.testing import NodeFailed

    plan = MetadataPlan(
        partition_count=partitions,
        partitions_per_topic=partitions_per_topic,
        sample_count=samples,
        kill_count=kills,
        restart_count=repeats,
        load_count=repeats,
    )
    try:
        figures = measure(plan)
    except (BenchFailed, NodeFailed, KafkaError, OSError) as error:
        fail(str(error))
    document = figures.document()
    if as_json:
        print_json(document)
        return
    loads = " ".join(f"{each:.2f}" for each in figures.load_averages)
    print_table(
        COLUMNS,
        figures.table(),
        title=f"{document['partitions']:,} partitions in {document['topics']:,} topics",
    )
    say(f"{NOTE}; load averages meanwhile: {loads}")


def _measure(
    config: ClientConfig,
    work: Callable[[ClusterClient, Figures], Awaitable[None]],
    what: str,
    record_count: int,
    as_json: bool,
) -> None:
    """Run a load and show its figures. `record_count` 0: the load finds out how many records there
    will be (`Figures.expected_count`).
    """
    from moldau.cli.bench.records import Figures

    figures = Figures()

    async def run() -> None:
        client = ClusterClient(config)
        showing = asyncio.create_task(_show_progress(figures, what, record_count))
        try:
            await work(client, figures)
        finally:
            showing.cancel()
            await asyncio.wait([showing])
            await client.close()

    _run(run())
    document = figures.document()
    if as_json:
        print_json(document)
    else:
        print_table(("figure", "value"), document.items())


async def _show_progress(figures: Figures, what: str, record_count: int) -> None:
    """Move a bar until cancelled; on no terminal there is nothing to do."""
    if not sys.stderr.isatty():
        return
    while not record_count:
        await asyncio.sleep(PROGRESS_INTERVAL_S)
        record_count = figures.expected_count
    with progress_bar(what, record_count) as bar:
        while True:
            bar.move_to(figures.record_count)
            await asyncio.sleep(PROGRESS_INTERVAL_S)


def _cpu_of(pid: int) -> CpuSeconds:
    """The clock of a process's CPU time; exits with status 2 when there is no such process."""
    from moldau.cli.bench.figures import process_cpu_seconds

    if not Path(f"/proc/{pid}/stat").exists():
        fail(f"--pid {pid}: there is no /proc/{pid}/stat", status=2)
    return lambda: sum(process_cpu_seconds(pid))


def _run(work: Coroutine[None, None, Result]) -> Result:
    """Run a load; a `KafkaError` becomes one line and status 1."""
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(work)
    except (KafkaError, OSError) as error:
        fail(str(error))
