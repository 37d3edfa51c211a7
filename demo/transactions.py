"""`make demo-transactions`: flights enriched into two topics, exactly once, whatever is killed.

Three controllers and three brokers. Two processes of an application (`transactions_app.py`) consume
`flights`, produce to `departures` and `delays`, and commit offsets, 1,000 records per transaction.
During that applications, brokers, coordinators and controllers are killed with SIGKILL at random.
What read_committed then sees is compared with the input, record by record. Ends with status 1 when
anything is lost, doubled, altered, or out of order within a key.
"""

from __future__ import annotations

import argparse
import random
import secrets
import sys
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from demo.enrichment import OUTPUTS
from demo.transactions_check import Output, check_output
from demo.transactions_stage import KINDS, Killing, Stage
from moldau.testing import Cluster

PROTOCOLS = ("classic", "consumer")
CONFIG = {
    "num.partitions": "4",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    # A killed process is missed after seconds.
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "500",
    "group.consumer.session.timeout.ms": "10000",
    "group.consumer.min.session.timeout.ms": "6000",
}
APPLICATIONS = ("one", "two")
SETTLE_S = 180.0

console = Console()


class Result:
    """What one run came to."""

    def __init__(self) -> None:
        self.input_count = 0
        self.committed_count = 0
        self.killed: Counter[str] = Counter()
        self.outputs: dict[str, Output] = {}
        self.complaints: list[str] = []
        self.seconds = 0.0

    @property
    def is_good(self) -> bool:
        """Whether every input record came out exactly once in both outputs."""
        return not self.complaints and all(
            output.is_exactly_once(self.input_count) for output in self.outputs.values()
        )


def run(
    records: list[tuple[bytes, bytes]],
    *,
    seed: int,
    kill_count: int,
    records_per_transaction: int = 1_000,
    protocol: str = "classic",
    directory: Path | None = None,
) -> Result:
    """The whole demo on its own cluster.

    Args:
        records: key and value of each flight, in order.
        kill_count: how many processes are killed while the input is consumed.
    """
    result = Result()
    result.input_count = len(records)
    dice = random.Random(seed)
    with (
        Cluster(brokers=3, controllers=3, config=CONFIG, directory=directory) as cluster,
        Stage(cluster, protocol, records_per_transaction, console.print) as stage,
    ):
        stage.load(records)
        begin = time.monotonic()
        for name in APPLICATIONS:
            stage.start(name)
        for killing in plan(dice, kill_count, len(records)):
            stage.wait_consumed(killing.at_count, SETTLE_S)
            stage.kill(killing)
            result.killed[killing.kind] += 1
        stage.wait_consumed(len(records), SETTLE_S)
        result.seconds = time.monotonic() - begin
        result.complaints += stage.stop()
        result.committed_count = stage.committed_count
        result.complaints += stage.complaints
        for topic in OUTPUTS:
            result.outputs[topic] = check_output(cluster.bootstrap_server, topic, records)
    return result


def plan(dice: random.Random, count: int, record_count: int) -> list[Killing]:
    """Who is killed, and when: each kind as often as the others, at random moments."""
    kinds = [KINDS[number % len(KINDS)] for number in range(count)]
    dice.shuffle(kinds)
    moments = sorted(dice.uniform(0.02, 0.9) for _ in range(count))
    return [
        Killing(kind, int(moment * record_count), dice.random())
        for kind, moment in zip(kinds, moments, strict=True)
    ]


def show(result: Result) -> None:
    """The table."""
    table = Table(
        title=f"{result.input_count:,} flights, enriched in transactions", title_justify="left"
    )
    table.add_column("what")
    for topic in result.outputs:
        table.add_column(topic, justify="right")
    for name, of in (
        ("input records", lambda _: result.input_count),
        ("read under read_committed", lambda output: output.read_count),
        ("lost", lambda output: output.lost_count),
        ("doubled", lambda output: output.doubled_count),
        ("altered", lambda output: output.altered_count),
        ("out of order within a key", lambda output: output.reordered_count),
        ("aborted, seen by read_uncommitted only", lambda output: output.aborted_count),
    ):
        table.add_row(name, *(f"{of(output):,}" for output in result.outputs.values()))
    console.print(table)
    killed = ", ".join(f"{kind} {count}" for kind, count in sorted(result.killed.items()))
    console.print(
        f"{result.committed_count:,} transactions in {result.seconds:.1f} s, killed: {killed}"
    )
    for complaint in result.complaints:
        console.print(f"[red]{complaint}", markup=True, soft_wrap=True)
    console.print("[green]exactly once" if result.is_good else "[red]NOT exactly once")


def main() -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(description="Exactly once, whatever is killed.")
    parser.add_argument("--flights", type=int, default=None, help="how many; all by default")
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--records", type=int, default=1_000, help="per transaction, at most")
    parser.add_argument("--protocol", choices=PROTOCOLS, default="classic")
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    from demo.flights_data import flights

    seed = secrets.randbits(32) if options.seed is None else options.seed
    console.print(f"seed {seed}")
    result = run(
        list(flights())[: options.flights],
        seed=seed,
        kill_count=options.kills,
        records_per_transaction=options.records,
        protocol=options.protocol,
    )
    show(result)
    return 0 if result.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
