"""Broker CPU per Produce request of one 16 KB batch, acks=all, beside the bare loop and Kafka.

User and system time of the whole node process from /proc, divided by the requests. One connection,
one partition, idempotent, five requests in flight.
"""

from __future__ import annotations

from typing import Final

from benchmarks.figures import Effort, Report, Spread, Table, at_most
from benchmarks.produce_load import compete, megabytes, microseconds, sender_share, server_share

LIMIT_US: Final = 80.0
BATCH_BYTES: Final = 16 * 1024
REQUEST_COUNT: Final = 30_000


def run(effort: Effort) -> Report:
    """One batch size."""
    report = Report("Produce in 16 KB batches")
    contest = compete(
        effort, batch_bytes=BATCH_BYTES, request_count=effort.count(REQUEST_COUNT, 20)
    )
    table = Table(
        (
            "server",
            "CPU µs per request",
            "requests/s",
            "MB/s",
            "server busy",
            "sender busy",
        ),
        "Minimum / median / maximum:",
    )
    for server, outcomes in (
        ("Moldau", contest.ours),
        ("bare loop", contest.bare),
        ("Apache Kafka", contest.kafka),
    ):
        if outcomes:
            rate = Spread.of([outcome.request_count / outcome.seconds for outcome in outcomes])
            table.add(
                server,
                microseconds(outcomes).text(1),
                rate.text(0),
                megabytes(outcomes).text(0),
                server_share(outcomes).text(),
                sender_share(outcomes).text(),
            )
    report.tables.append(table)
    report.targets.append(
        at_most(
            "16 KB batches: ≤ 80 µs of CPU per request", microseconds(contest.ours), LIMIT_US, 1
        )
    )
    return report
