"""`make demo`: flights through a cluster and a Spark pipeline, whichever process is killed, and
then counted.

Three controllers and three brokers as processes. A transactional producer streams 336,776 flights
into `flights`, and a note per transaction into `audit`; Spark pipelines (`story.yaml`) make delays
per carrier and hour into `delays`, exactly once, and archive to Parquet. During that a broker, the
active controller and the Spark driver are killed with SIGKILL. Then everything is compared with a
plain computation on the CSV. Ends with status 1 when anything is lost, duplicated or wrong.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from demo.story_check import (
    TopicReader,
    Verdict,
    check_archive,
    check_audit,
    check_delays,
    check_flights,
    committed_ends,
)
from demo.story_data import (
    AUDIT,
    DELAYS,
    FLIGHTS,
    Flight,
    closing_flight,
    expected_delays,
    flights_by_hour,
)
from demo.story_producer import Feed
from demo.story_stage import Recovery, Stage
from moldau.client import NewTopic, OffsetSpec, TopicPartition
from moldau.client.sync import Admin
from moldau.testing import Cluster, wait_until

PARTITION_COUNT: Final = 4
CONFIG: Final = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    # A prepared transaction of the Spark sink is never timed out (KIP-939).
    "transaction.two.phase.commit.enable": "true",
    # A killed process is missed after seconds.
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "500",
}
KILLS: Final = (("broker", 0.2), ("controller", 0.45), ("driver", 0.7))
"""Who is killed when so much of the input is sent."""

SPARE: Final = 0.05
SETTLE_S: Final = 180.0

console = Console()


@dataclass(slots=True)
class Result:
    """What one run came to."""

    verdicts: list[Verdict] = field(default_factory=list)
    recoveries: list[Recovery] = field(default_factory=list)
    aborted_count: int = 0
    driver_status: int | None = None
    driver_ended_count: int = 0
    seconds: float = 0.0

    @property
    def is_good(self) -> bool:
        """Whether nothing was lost, duplicated or wrong, and the driver has ended as asked."""
        return (
            bool(self.verdicts)
            and all(each.is_good for each in self.verdicts)
            and self.driver_status == 0
        )


def run(
    records: Sequence[Flight], directory: Path, *, seconds: float, with_kills: bool = True
) -> Result:
    """The whole story on its own cluster.

    Args:
        directory: for the pipelines' checkpoints and the archive.
        seconds: how long the sending takes when no process is killed.
    """
    result = Result()
    begin = time.monotonic()

    def say(text: str) -> None:
        line = f"[{time.monotonic() - begin:6.1f} s] {text}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    with Cluster(brokers=3, controllers=3, config=CONFIG) as cluster:
        say(f"3 controllers and 3 brokers serve on {cluster.bootstrap_server}")
        _create_topics(cluster.bootstrap_server)
        feed = Feed(cluster.bootstrap_server, records, seconds)
        with Stage(cluster, directory, say) as stage:
            try:
                commits = directory / "delays" / "commits"
                wait_until(
                    lambda: any(commits.glob("[0-9]*")),  # the first batch, of nothing
                    what="the Spark driver at work",
                    deadline_s=SETTLE_S,
                )
                say("the Spark driver is at work; the flights take off")
                kills = KILLS if with_kills else ()
                feed.allow(_limit_before(kills))
                feed.start()
                _kill(stage, feed, len(records), kills)
                feed.finish()
                say(f"{feed.sent_count:,} flights sent in {len(feed.commits)} transactions")
                found = _settle(stage, cluster.bootstrap_server, feed, records, say)
            except TimeoutError:
                say(f"the end of the driver's log:\n{stage.driver.log_end()}")
                raise
            finally:
                feed.stop()
            result.aborted_count = feed.aborted_count
            stage.driver.stop()
            result.driver_status = stage.driver.status
            result.driver_ended_count = stage.driver.ended_count
            result.recoveries = stage.recoveries
        _wait_for_markers(cluster.bootstrap_server)
        with found:
            delays = found.taken
            while not found.is_at_end():
                delays += found.poll()
        say("comparing everything with the CSV")
        result.verdicts = [
            check_flights(cluster.bootstrap_server, FLIGHTS, records),
            check_audit(cluster.bootstrap_server, AUDIT, records),
            check_archive(directory / "flights.parquet", records),
            *check_delays(delays, records),
        ]
    result.seconds = time.monotonic() - begin
    return result


def _create_topics(bootstrap: str) -> None:
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic(FLIGHTS, PARTITION_COUNT), NewTopic(AUDIT, 1)])


def _kill(stage: Stage, feed: Feed, record_count: int, kills: Sequence[tuple[str, float]]) -> None:
    """Kill each when so much is sent. Until then not much more is, so that after each kill there is
    something left to be sent, however long the recovery before it has taken.
    """
    for number, (kind, share) in enumerate(kills):
        wait_until(
            lambda share=share: feed.is_over() or feed.sent_count >= share * record_count,
            what=f"{share:.0%} of the flights sent",
            deadline_s=SETTLE_S,
        )
        go_on = partial(feed.allow, _limit_before(kills[number + 1 :]))
        if kind == "broker":
            stage.kill_broker(FLIGHTS, feed.commits, go_on)
        elif kind == "controller":
            stage.kill_controller(feed.commits, go_on)
        else:
            stage.kill_driver(go_on)


def _limit_before(kills: Sequence[tuple[str, float]]) -> float:
    """Which share of the input may be sent before the first of these kills."""
    return kills[0][1] + SPARE if kills else 1.0


class _Delays(TopicReader):
    """`delays`, taken as it comes."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap, DELAYS)
        self.taken: list[tuple[bytes, bytes]] = []

    def has(self, count: int) -> bool:
        """Whether so many have come; looks for more."""
        self.taken += self.poll()
        return len(self.taken) >= count


def _settle(
    stage: Stage, bootstrap: str, feed: Feed, records: Sequence[Flight], say: Callable[[str], None]
) -> _Delays:
    """Wait until both pipelines have read everything and every hour has come out."""
    _wait_read(stage, committed_ends(bootstrap, FLIGHTS), ("delays", "archive"))
    say("both pipelines have read all flights; the closing one follows")
    # Only now: the watermark must not run ahead of flights that are still to be read.
    feed.send_one(closing_flight())
    _wait_read(stage, committed_ends(bootstrap, FLIGHTS), ("delays", "archive"))
    delays = _Delays(bootstrap)
    expected_count = len(expected_delays(records))
    wait_until(
        lambda: delays.has(expected_count),
        what=f"{expected_count:,} hours in {DELAYS}",
        deadline_s=SETTLE_S,
    )
    return delays


def _wait_for_markers(bootstrap: str) -> None:
    """No producer writes any more: what is still open or on its way would be missed by the
    counting.
    """
    topics = (FLIGHTS, AUDIT, DELAYS)
    with Admin(bootstrap) as admin:
        described = admin.describe_topics(topics)
        specs: dict[TopicPartition, int] = {
            TopicPartition(topic, each.partition): OffsetSpec.LATEST
            for topic in topics
            for each in described[topic].partitions
        }

        def all_is_stable() -> bool:
            ends = admin.list_offsets(specs)
            stable = admin.list_offsets(specs, read_committed=True)
            return all(stable[each].offset == ends[each].offset for each in specs)

        wait_until(all_is_stable, what="the end of every transaction", deadline_s=SETTLE_S)


def _wait_read(stage: Stage, ends: dict[str, int], pipelines: Sequence[str]) -> None:
    def is_read() -> bool:
        last = {each.pipeline: each.end_offsets for each in list(stage.driver.batches)}
        return all(
            last.get(name, {}).get(FLIGHTS, {}).get(partition, 0) >= end
            for name in pipelines
            for partition, end in ends.items()
        )

    wait_until(is_read, what="both pipelines at the end of flights", deadline_s=SETTLE_S)


def show(result: Result) -> None:
    """The two tables."""
    table = Table(title="What went in and what came out", title_justify="left")
    table.add_column("")
    for name in ("in", "out", "lost", "duplicated", "wrong"):
        table.add_column(name, justify="right")
    for each in result.verdicts:
        numbers = (
            each.in_count,
            each.out_count,
            each.lost_count,
            each.duplicated_count,
            each.wrong_count,
        )
        table.add_row(each.what, *(f"{number:,}" for number in numbers))
    console.print(table)
    table = Table(title="How long each recovery took", title_justify="left")
    for name in ("killed", "what came back", "after"):
        table.add_column(name, justify="right" if name == "after" else "left")
    for recovery in result.recoveries:
        table.add_row(recovery.killed, recovery.back, f"{recovery.seconds:.1f} s")
    console.print(table)
    for each in result.verdicts:
        for example in each.examples[:3]:
            console.print(f"{each.what}: {example}", style="red", markup=False)
    if result.driver_status != 0:
        console.print(f"the Spark driver ended with status {result.driver_status}", style="red")
    console.print(
        f"{result.aborted_count} transactions of the feed were aborted and sent again; the Spark "
        f"driver gave up {result.driver_ended_count} times; {result.seconds:.0f} s in all",
        highlight=False,
    )
    console.print("[green]exactly once" if result.is_good else "[red]NOT exactly once")


def main() -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(description="The whole story, with kills, counted at the end.")
    parser.add_argument("--flights", type=int, default=None, help="how many; all by default")
    parser.add_argument("--seconds", type=float, default=75.0, help="how long the sending takes")
    parser.add_argument("--no-kills", action="store_true")
    parser.add_argument("--keep", metavar="DIR", help="keep checkpoints, archive and log there")
    options = parser.parse_args()
    records = flights_by_hour(options.flights)
    with tempfile.TemporaryDirectory(prefix="moldau-demo-") as temporary:
        directory = Path(options.keep or temporary).absolute()
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            parser.error(f"--keep: {directory} is not empty")
        try:
            result = run(
                records, directory, seconds=options.seconds, with_kills=not options.no_kills
            )
        except TimeoutError as error:
            console.print(f"{error}", style="red", markup=False)
            return 1
    show(result)
    return 0 if result.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
