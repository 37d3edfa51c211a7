"""`moldau bench`: put a load on a running cluster, or on one of its own, and print what came out.

Must not measure anything itself: that is `bench_load` and `bench_metadata`. Transactions and groups
have a module of their own (`bench_coordinators`).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from moldau.cli.bench_coordinators import groups, transactions
from moldau.cli.cluster_options import (
    DEFAULT_TIMEOUT_MS,
    AsJson,
    BootstrapServer,
    CommandConfig,
    TimeoutMs,
    client_config,
)
from moldau.cli.output import fail, print_json, print_table
from moldau.cli.progress import progress_bar
from moldau.client.config.client import ClientConfig
from moldau.client.errors import KafkaError

if TYPE_CHECKING:
    from moldau.cli.bench_load import Figures
    from moldau.client.cluster.cluster_client import ClusterClient

PROGRESS_INTERVAL_S: Final = 0.2

app = typer.Typer(
    help="Measure a running cluster, or (metadata) one of its own.", no_args_is_help=True
)
app.command("transactions")(transactions)
app.command("groups")(groups)


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


Topic = Annotated[str, typer.Argument(help="An existing topic.")]
RecordBytes = Annotated[int, typer.Option(min=1, max=100_000_000, help="Size of each value.")]
AcksOption = Annotated[Acks, typer.Option(help="1 or all.")]


@app.command("produce")
def produce(
    topic: Topic,
    records: Annotated[int, typer.Option(min=1, help="How many records.")] = 1_000_000,
    record_bytes: RecordBytes = 1_000,
    batch_bytes: Annotated[int, typer.Option(min=1, help="About how large a batch is.")] = 262_144,
    in_flight: Annotated[
        int, typer.Option(min=1, max=64, help="Requests under way per partition.")
    ] = 5,
    acks: AcksOption = Acks.ALL,
    codec: Annotated[CodecName, typer.Option(help="Compression.")] = CodecName.NONE,
    idempotent: Annotated[bool, typer.Option(help="With producer id and sequence.")] = True,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS,
    as_json: AsJson = False,
) -> None:
    """Throughput of producing."""
    from moldau.cli.bench_load import ProduceLoad, run_produce
    from moldau.protocol.records import Codec

    load = ProduceLoad(
        topic=topic,
        record_count=records,
        record_bytes=record_bytes,
        batch_bytes=batch_bytes,
        acks=-1 if acks is Acks.ALL else int(acks.value),
        in_flight_count=in_flight,
        codec=Codec[codec.name],
        idempotent=idempotent,
    )

    async def work(client: ClusterClient, figures: Figures) -> None:
        await run_produce(client, load, figures)

    config = client_config(bootstrap_server, command_config, timeout_ms)
    _show(_measure(config, work, "producing", records).document(), as_json)


@app.command("consume")
def consume(
    topic: Topic,
    fetch_bytes: Annotated[int, typer.Option(min=1, help="Most bytes per fetch.")] = 1_048_576,
    records: Annotated[int | None, typer.Option(min=1, help="Stop after about so many.")] = None,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS,
    as_json: AsJson = False,
) -> None:
    """Throughput of fetching a topic from its start to its end."""
    from moldau.cli.bench_load import run_consume

    async def work(client: ClusterClient, figures: Figures) -> None:
        await run_consume(
            client,
            topic_name=topic,
            fetch_bytes=fetch_bytes,
            record_limit=records,
            figures=figures,
        )

    config = client_config(bootstrap_server, command_config, timeout_ms)
    _show(_measure(config, work, "consuming", records or 0).document(), as_json)


@app.command("latency")
def latency(
    topic: Topic,
    rate: Annotated[int, typer.Option(min=1, max=100_000, help="Records per second.")] = 1_000,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long.")] = 10.0,
    record_bytes: RecordBytes = 1_000,
    acks: AcksOption = Acks.ALL,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS,
    as_json: AsJson = False,
) -> None:
    """Latency of producing single records at a fixed rate."""
    from moldau.cli.bench_load import run_latency

    async def work(client: ClusterClient, figures: Figures) -> None:
        await run_latency(
            client,
            topic_name=topic,
            record_bytes=record_bytes,
            acks=-1 if acks is Acks.ALL else int(acks.value),
            rate_per_second=rate,
            seconds=seconds,
            figures=figures,
        )

    config = client_config(bootstrap_server, command_config, timeout_ms)
    _show(_measure(config, work, "producing", int(rate * seconds)).document(), as_json)


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
    """A private cluster with very many partitions: loading, changes, failover, creation.

    Starts three controllers and three brokers on this machine and removes them afterwards. The
    partitions are held by a phantom broker that only the controllers know.
    """
    from moldau.cli.bench_metadata import measure
    from moldau.cli.bench_metadata_cluster import BenchFailed
    from moldau.cli.bench_metadata_figures import COLUMNS, NOTE, MetadataPlan
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
        figures = measure(plan, progress_bar)
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
    typer.echo(f"{NOTE}; load averages meanwhile: {loads}")


def _measure(
    config: ClientConfig,
    work: Callable[[ClusterClient, Figures], Awaitable[None]],
    what: str,
    record_count: int,
) -> Figures:
    """Run a load on uvloop; a `KafkaError` becomes one line and status 1.

    `record_count` 0: the load finds out by itself (`Figures.expected_count`).
    """
    import uvloop

    from moldau.cli.bench_load import Figures
    from moldau.client.cluster.cluster_client import ClusterClient

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

    try:
        uvloop.run(run())
    except (KafkaError, OSError) as error:
        fail(str(error))
    return figures


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


def _show(document: dict[str, object], as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        print_table(("figure", "value"), document.items())
