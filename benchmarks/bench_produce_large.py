"""Produce 1 KB records with acks=all in large batches, beside the bare receive-and-write loop.

One connection, one partition, idempotent, five requests in flight. The limit receives the same
frames from the same sender and writes them to a file, nothing else.
"""

from __future__ import annotations

from typing import Final

from benchmarks.figures import Effort, Report, Table, at_least
from benchmarks.produce_load import compete, megabytes, sender_share, server_share

LIMIT: Final = 0.7
SIZES: Final = (("256 KB", 256 * 1024, 1_500), ("1 MB (10^6 bytes)", 1_000_000, 400))


def run(effort: Effort) -> Report:
    """Two batch sizes: the least that the row names, and about the largest that is allowed."""
    report = Report("Produce in large batches")
    for name, batch_bytes, request_count in SIZES:
        contest = compete(
            effort, batch_bytes=batch_bytes, request_count=effort.count(request_count, 5)
        )
        table = Table(
            ("server", "MB/s", "ratio to the bare loop", "server busy", "sender busy"),
            f"Batches of {name}, minimum / median / maximum:",
        )
        bare = megabytes(contest.bare)
        for server, outcomes in (
            ("Moldau", contest.ours),
            ("bare loop", contest.bare),
            ("Apache Kafka", contest.kafka),
        ):
            if outcomes:
                table.add(
                    server,
                    megabytes(outcomes).text(0),
                    megabytes(outcomes).per(bare).text(),
                    server_share(outcomes).text(),
                    sender_share(outcomes).text(),
                )
        report.tables.append(table)
        report.targets.append(
            at_least(
                f"produce, batches of {name}: ≥ 0.7 × the bare loop",
                megabytes(contest.ours).per(bare),
                LIMIT,
            )
        )
    return report
