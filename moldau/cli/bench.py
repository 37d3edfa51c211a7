"""`moldau bench`: put a load on a running cluster and print what came out.

Must not measure anything itself: that is `bench_load`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from moldau.cli.cluster_options import (
    DEFAULT_TIMEOUT_MS,
    AsJson,
    BootstrapServer,
    CommandConfig,
    TimeoutMs,
    client_config,
)
from moldau.cli.output import fail, print_json, print_table
from moldau.client.errors import KafkaError

if TYPE_CHECKING:
    from moldau.cli.bench_load import Figures

app = typer.Typer(help="Measure a running cluster.", no_args_is_help=True)


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
    from moldau.client.cluster_client import ClusterClient
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

    async def work() -> Figures:
        client = ClusterClient(client_config(bootstrap_server, command_config, timeout_ms))
        try:
            return await run_produce(client, load)
        finally:
            await client.close()

    _show(_measure(work).document(), as_json)


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
    from moldau.client.cluster_client import ClusterClient

    async def work() -> Figures:
        client = ClusterClient(client_config(bootstrap_server, command_config, timeout_ms))
        try:
            return await run_consume(
                client, topic_name=topic, fetch_bytes=fetch_bytes, record_limit=records
            )
        finally:
            await client.close()

    _show(_measure(work).document(), as_json)


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
    from moldau.client.cluster_client import ClusterClient

    async def work() -> Figures:
        client = ClusterClient(client_config(bootstrap_server, command_config, timeout_ms))
        try:
            return await run_latency(
                client,
                topic_name=topic,
                record_bytes=record_bytes,
                acks=-1 if acks is Acks.ALL else int(acks.value),
                rate_per_second=rate,
                seconds=seconds,
            )
        finally:
            await client.close()

    _show(_measure(work).document(), as_json)


def _measure(work: Callable[[], Coroutine[object, object, Figures]]) -> Figures:
    """Run a load on uvloop; a `KafkaError` becomes one line and status 1."""
    import uvloop

    try:
        return uvloop.run(work())
    except (KafkaError, OSError) as error:
        fail(str(error))


def _show(document: dict[str, object], as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        print_table(("figure", "value"), document.items())
