"""`moldau bench`: put a load on a running cluster, or on a private one, and print the figures.

Must not measure anything itself: the other modules of this package do.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import typer

from moldau.cli.bench.plans import (
    ConsumePlan,
    GroupsPlan,
    LatencyPlan,
    MetadataPlan,
    ProducePlan,
    TransactionsPlan,
)
from moldau.cli.options import AsJson, ClusterAccess, TimeoutMs
from moldau.cli.output import fail, print_json, print_table, progress_bar, refusing, say
from moldau.client import ClientConfig, KafkaError
from moldau.client.cluster.cluster_client import ClusterClient
from moldau.runtime.event_loop import new_event_loop

if TYPE_CHECKING:
    from moldau.cli.bench.records import Figures

PROGRESS_INTERVAL_S: Final = 0.2

app = typer.Typer()
Plan = TypeVar("Plan", ProducePlan, ConsumePlan, LatencyPlan)
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorAccess(ClusterAccess):
    """Creating the topics of a load, and the coordinators' own, takes longer than most calls."""

    timeout_ms: TimeoutMs = 60_000


@app.command("transactions")
def transactions(
    access: CoordinatorAccess, plan: TransactionsPlan, as_json: AsJson = False
) -> None:
    """Measure commits per second and their latency.

    Each transaction writes a record to each partition, then commits. "latency" is a whole
    transaction, "commit" its last request alone.
    """
    from moldau.cli.bench.transactions import measure_transactions

    version, figures = _run(measure_transactions(access.config(), plan))
    rows = [each.document() for each in figures]
    if as_json:
        print_json({"transaction_version": version, "producers": plan.producers, "figures": rows})
        return
    print_table(
        ("figure", *(f"{row['partitions']} per transaction" for row in rows)),
        ((name, *(row.get(name) for row in rows)) for name in rows[0] if name != "partitions"),
        title=f"{plan.producers} producers, transaction version {version}",
    )


@app.command("groups")
def groups(access: CoordinatorAccess, plan: GroupsPlan, as_json: AsJson = False) -> None:
    """Measure a group of very many members.

    All join, all stay, one joins, one leaves. A rebalance is over when all members know of it and
    every partition has one owner.
    """
    from moldau.cli.bench.groups import GroupLoad

    if plan.pid is not None and not Path(f"/proc/{plan.pid}/stat").exists():
        fail(f"--pid {plan.pid}: there is no /proc/{plan.pid}/stat", status=2)
    phases = _run(GroupLoad.measure(access.config(), plan))
    rows = [phase.document() for phase in phases]
    protocol = plan.protocol.value
    if as_json:
        print_json({"protocol": protocol, "members": plan.members, "phases": rows})
        return
    print_table(
        ("phase", "seconds", "coordinator's CPU seconds", "client's CPU seconds", "heartbeats"),
        (row.values() for row in rows),
        title=f"{plan.members} members, {plan.partitions} partitions, {protocol} protocol",
    )


@app.command("produce")
def produce(access: ClusterAccess, plan: ProducePlan, as_json: AsJson = False) -> None:
    """Measure the throughput of producing."""
    from moldau.cli.bench.records import run_produce

    _measure(access.config(), run_produce, plan, "producing", as_json)


@app.command("consume")
def consume(access: ClusterAccess, plan: ConsumePlan, as_json: AsJson = False) -> None:
    """Measure the throughput of fetching a whole topic."""
    from moldau.cli.bench.records import run_consume

    _measure(access.config(), run_consume, plan, "consuming", as_json)


@app.command("latency")
def latency(access: ClusterAccess, plan: LatencyPlan, as_json: AsJson = False) -> None:
    """Measure the latency of single records at a fixed rate."""
    from moldau.cli.bench.records import run_latency

    _measure(access.config(), run_latency, plan, "producing", as_json)


@app.command("metadata")
def metadata(plan: MetadataPlan, as_json: AsJson = False) -> None:
    """Measure a private cluster with very many partitions.

    The figures are of loading, changes, failover and creation. Starts three controllers and three
    brokers on this machine and removes them afterwards. The partitions are held by a phantom broker
    that only the controllers know.
    """
    from moldau.cli.bench.metadata import COLUMNS, NOTE, BenchFailed, measure
    from moldau.testing import NodeFailed

    with refusing(BenchFailed, NodeFailed, KafkaError, OSError, status=1):
        figures = measure(plan)
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
    load: Callable[[ClusterClient, Figures, Plan], Awaitable[None]],
    plan: Plan,
    what: str,
    as_json: bool,
) -> None:
    """Run a load of records and show its figures."""
    from moldau.cli.bench.records import Figures

    figures = Figures()

    async def run() -> None:
        client = ClusterClient(config)
        showing = asyncio.create_task(_show_progress(figures, what, plan.records or 0))
        try:
            await load(client, figures, plan)
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
    """Move a bar until cancelled; on no terminal there is nothing to do. With a `record_count` of 0
    the load finds out how many records there will be (`Figures.expected_count`).
    """
    if not sys.stderr.isatty():
        return
    while not record_count:
        await asyncio.sleep(PROGRESS_INTERVAL_S)
        record_count = figures.expected_count
    with progress_bar(what, record_count) as bar:
        while True:
            bar.move_to(figures.record_count)
            await asyncio.sleep(PROGRESS_INTERVAL_S)


def _run(work: Coroutine[None, None, Result]) -> Result:
    """Run a load; a `KafkaError` becomes one line and status 1."""
    runner = asyncio.Runner(loop_factory=new_event_loop)
    with refusing(KafkaError, OSError, status=1), runner:
        return runner.run(work)
