"""Compaction under load: 10 million updates of 100,000 keys, kill -9 on the way, then what is left.

One node, one partition, one idempotent producer as fast as it goes; cleaning begins when a fifth of
the log is dirty. The node is killed five times while both write. In the end the log is read from
the beginning and compared with what was sent: the newest value of each key, every record at the
offset it was written to. Then 1,000 keys are deleted, and the time is taken until their tombstones
are gone too.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from benchmarks.compaction_load import (
    MemorySamples,
    MemoryWatch,
    Remains,
    Updates,
    send_under_kills,
    wait_until_clean,
)
from benchmarks.figures import Effort, Report, Spread, Table, Target, at_most
from benchmarks.nodes import temporary_directory
from moldau.testing import Cluster, wait_until

UPDATE_COUNT: Final = 10_000_000
KEY_COUNT: Final = 100_000
KILL_COUNT: Final = 5
VALUE_BYTES: Final = 100
SEGMENT_BYTES: Final = 64 * 1024 * 1024
DELETED_COUNT: Final = 1_000
DELETE_RETENTION_MS: Final = 5_000
BACKOFF_MS: Final = 500
TOMBSTONE_SHARE: Final = 0.02
DEADLINE_S: Final = 300.0
SLACK_S: Final = 30.0
"""Within this of `delete.retention.ms` tombstones are gone: a look at the log and a cleaning."""

BROKER_LIMIT_MB: Final = 300.0
CHILD_LIMIT_MB: Final = 128.0 + 100.0
"""log.cleaner.dedupe.buffer.size, and a Python process with its batches."""


def run(effort: Effort) -> Report:
    """One round, however many are asked for."""
    count = effort.count(UPDATE_COUNT, least=20_000)
    keys = effort.count(KEY_COUNT, least=2 * DELETED_COUNT)
    segment_bytes = max(int(SEGMENT_BYTES * min(effort.scale, 1.0)), 1024 * 1024)
    report = Report(f"Compaction: {count:,} updates of {keys:,} keys, {KILL_COUNT} times kill -9")
    with temporary_directory() as directory:
        _measure(report, directory, count, keys, segment_bytes)
    return report


def _measure(report: Report, directory: Path, count: int, keys: int, segment_bytes: int) -> None:
    config = {"log.cleaner.backoff.ms": str(BACKOFF_MS)}
    with Cluster(config=config, directory=directory) as cluster:
        updates = Updates(cluster, keys, seed=1, value_bytes=VALUE_BYTES)
        updates.create_topic(
            **{
                "segment.bytes": str(segment_bytes),
                "min.cleanable.dirty.ratio": "0.2",
                "delete.retention.ms": str(DELETE_RETENTION_MS),
                "file.delete.delay.ms": "1000",
            }
        )
        largest = 0

        def look(_: int) -> None:
            nonlocal largest
            largest = max(largest, updates.log_bytes())

        started = time.monotonic()
        with MemoryWatch(lambda: cluster.node().pid) as memory:
            send_under_kills(
                updates,
                cluster,
                count,
                KILL_COUNT,
                tombstone_share=TOMBSTONE_SHARE,
                on_progress=look,
            )
            sent_s = time.monotonic() - started
            written = updates.count
            updates.fill(0, 2 * segment_bytes)
            wait_until_clean(updates, written, deadline_s=DEADLINE_S)
            clean_s = time.monotonic() - started - sent_s
            left_bytes = updates.log_bytes()
            remains = updates.read_back()
            gone_s = _delete_keys(updates, segment_bytes)
        after = updates.read_back()
    report.tables.append(
        _table(
            ("updates per second while killed", f"{written / sent_s:,.0f}"),
            ("bytes written", f"{written * (VALUE_BYTES + 19):,}"),
            ("largest the log was", f"{largest:,}"),
            ("bytes left", f"{left_bytes:,}"),
            ("records left", f"{remains.record_count:,}"),
            ("seconds from the last update to clean", f"{clean_s:.1f}"),
            ("cleaner's CPU seconds", f"{memory.cleaner_cpu_seconds:.1f}"),
            ("broker's resident memory at most", f"{memory.broker_bytes / 1e6:,.0f} MB"),
            ("cleaner's resident memory at most", f"{memory.child_bytes / 1e6:,.0f} MB"),
            ("tombstones gone after", f"{gone_s:.1f} s, delete.retention.ms is 5 s"),
        )
    )
    report.targets += _targets(remains, after, memory, gone_s)


def _table(*rows: tuple[str, str]) -> Table:
    table = Table(("what", "figure"))
    for row in rows:
        table.add(*row)
    return table


def _targets(
    remains: Remains, after: Remains, memory: MemorySamples, gone_s: float
) -> list[Target]:
    tombstones_s = DELETE_RETENTION_MS / 1000 + SLACK_S
    figures = (
        (
            "keys without exactly their newest value",
            remains.wrong_count + after.wrong_count,
            0,
        ),
        ("records at another offset", remains.moved_count + after.moved_count, 0),
        ("superseded records in the cleaned part", remains.repeated_count, 0),
        (f"tombstones gone ≤ {tombstones_s:.0f} s after", gone_s, tombstones_s),
        (
            f"cleaner's memory ≤ {CHILD_LIMIT_MB:.0f} MB",
            memory.child_bytes / 1e6,
            CHILD_LIMIT_MB,
        ),
        (
            f"broker's memory ≤ {BROKER_LIMIT_MB:.0f} MB",
            memory.broker_bytes / 1e6,
            BROKER_LIMIT_MB,
        ),
    )
    return [
        at_most(f"compaction: {asked}", Spread.of([measured]), limit, 1)
        for asked, measured, limit in figures
    ]


def _delete_keys(updates: Updates, segment_bytes: int) -> float:
    """Delete keys; seconds from when their segment was closed until no tombstone is left."""
    updates.delete(range(1, 1 + DELETED_COUNT))
    end = updates.count
    updates.fill(0, 2 * segment_bytes)
    started = time.monotonic()
    wait_until_clean(updates, end, deadline_s=DEADLINE_S)
    wait_until(
        lambda: updates.read_back().tombstone_count == 0,
        deadline_s=DEADLINE_S,
        what="the end of the tombstones",
    )
    return time.monotonic() - started
