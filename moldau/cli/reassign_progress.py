"""How far moves have come: which replicas lack what, how fast they get it, how long it may take.

Owns the figures and the waiting. Invariant: a figure that no broker told is None; an estimate is
made of what was seen, never of what was configured.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from moldau.cli.options import partitions_of
from moldau.cli.output import SUMMARY, Block, LiveView, size_text
from moldau.client import (
    Admin,
    KafkaError,
    Reassignment,
    ReplicaLog,
    RequestTimeout,
    TopicPartition,
    TopicPartitionReplica,
)

COLUMNS = ("partition", "replica", "in-sync", "end", "leader-end", "behind", "size", "missing")
WINDOW_COUNT = 30
"""Looks that a rate is taken over."""
FIGURES_TIMEOUT_MS = 5_000


@dataclass(frozen=True, slots=True)
class ReplicaProgress:
    """One replica that is being added. Sizes differ a little between equal replicas, since each
    deletes segments by itself, so missing bytes are about right.
    """

    partition: TopicPartition
    broker_id: int
    in_sync: bool
    log_end_offset: int | None
    leader_end_offset: int | None
    size_bytes: int | None
    leader_size_bytes: int | None

    @property
    def behind_records(self) -> int | None:
        if self.log_end_offset is None or self.leader_end_offset is None:
            return None
        return max(0, self.leader_end_offset - self.log_end_offset)

    @property
    def missing_bytes(self) -> int | None:
        """About how many bytes are still to be copied."""
        if self.behind_records == 0:
            return 0
        if self.size_bytes is None or self.leader_size_bytes is None:
            return None
        return max(0, self.leader_size_bytes - self.size_bytes)

    def document(self) -> dict[str, object]:
        return {
            "broker_id": self.broker_id,
            "in_sync": self.in_sync,
            "log_end_offset": self.log_end_offset,
            "leader_log_end_offset": self.leader_end_offset,
            "behind_records": self.behind_records,
            "size_bytes": self.size_bytes,
            "missing_bytes": self.missing_bytes,
        }


async def look(
    admin: Admin, partitions: Collection[TopicPartition] | None
) -> tuple[dict[TopicPartition, Reassignment], list[ReplicaProgress]]:
    """The moves that are going on among some partitions (None: all), and how far each replica is.

    Raises: KafkaError
    """
    moves = await admin.list_partition_reassignments(partitions)
    if not moves:
        return moves, []
    topics = await admin.describe_topics(sorted({partition.topic for partition in moves}))
    described = partitions_of(topics)
    wanted = {
        TopicPartitionReplica(*partition, broker_id)
        for partition, move in moves.items()
        if partition in described
        for broker_id in (*move.adding_replicas, described[partition].leader)
        if broker_id >= 0
    }
    ends, logs = await asyncio.gather(
        admin.list_replica_offsets(wanted, timeout_ms=FIGURES_TIMEOUT_MS),
        admin.describe_replica_logs(wanted, timeout_ms=FIGURES_TIMEOUT_MS),
    )

    def end(replica: TopicPartitionReplica) -> int | None:
        found = ends.get(replica)
        return found if isinstance(found, int) and found >= 0 else None

    def size(replica: TopicPartitionReplica) -> int | None:
        found = logs.get(replica)
        return found.size_bytes if isinstance(found, ReplicaLog) else None

    rows = []
    for partition, move in sorted(moves.items()):
        if partition not in described:  # the broker that was asked does not know it yet
            continue
        leader = TopicPartitionReplica(*partition, described[partition].leader)
        for broker_id in move.adding_replicas:
            own = TopicPartitionReplica(*partition, broker_id)
            rows.append(
                ReplicaProgress(
                    partition,
                    broker_id,
                    broker_id in described[partition].isr,
                    end(own),
                    end(leader),
                    size(own),
                    size(leader),
                )
            )
    return moves, rows


class Estimate:
    """How fast the replicas catch up, from the looks that were taken."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int]] = deque(maxlen=WINDOW_COUNT)

    def add(self, now_s: float, rows: Iterable[ReplicaProgress]) -> None:
        """Take one more look into account, unless one of its figures is missing."""
        missing = [row.missing_bytes for row in rows]
        known = [each for each in missing if each is not None]
        if len(known) == len(missing):
            self._looks.append((now_s, sum(known)))

    @property
    def missing_bytes(self) -> int | None:
        """The bytes that are still to be copied; None when they are not known."""
        return self._looks[-1][1] if self._looks else None

    @property
    def bytes_per_second(self) -> float | None:
        """How fast the missing bytes become fewer; None when they do not, or that is unknown."""
        if len(self._looks) < 2:
            return None
        (first_s, first), (last_s, last) = self._looks[0], self._looks[-1]
        if last >= first or last_s <= first_s:
            return None
        return (first - last) / (last_s - first_s)

    @property
    def remaining_s(self) -> float | None:
        rate, missing = self.bytes_per_second, self.missing_bytes
        return None if rate is None or missing is None else missing / rate

    def text(self) -> str:
        missing, rate, left_s = self.missing_bytes, self.bytes_per_second, self.remaining_s
        return (
            f"{'-' if missing is None else size_text(missing)} to copy, "
            f"{'-' if rate is None else size_text(int(rate))}/s, "
            f"{'-' if left_s is None else duration_text(left_s)} left"
        )


def duration_text(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def progress_block(
    moves: Mapping[TopicPartition, Reassignment], rows: Iterable[ReplicaProgress], told: str
) -> Block:
    listed = list(rows)
    copying = {row.partition for row in listed}
    lines = {f"{row.partition} replica {row.broker_id}": _line(row) for row in listed}
    # A move that only gives replicas up, or changes their order, has nothing to wait for.
    lines.update(
        (str(each), f"{each} needs no copies") for each in sorted(moves) if each not in copying
    )
    if moves:
        lines[SUMMARY] = told
    title = f"{len(moves)} partitions are being moved: {told}"
    return Block(title, COLUMNS, [progress_cells(row) for row in listed], lines)


def progress_cells(row: ReplicaProgress) -> tuple[object, ...]:
    return (
        row.partition,
        row.broker_id,
        "yes" if row.in_sync else "no",
        row.log_end_offset,
        row.leader_end_offset,
        row.behind_records,
        None if row.size_bytes is None else size_text(row.size_bytes),
        None if row.missing_bytes is None else size_text(row.missing_bytes),
    )


def _line(row: ReplicaProgress) -> str:
    behind = "-" if row.behind_records is None else row.behind_records
    missing = "-" if row.missing_bytes is None else size_text(row.missing_bytes)
    state = "in sync" if row.in_sync else f"{behind} records behind, {missing} to copy"
    return f"{row.partition} replica {row.broker_id}: {state}"


async def wait_for_moves(
    admin: Admin,
    partitions: Collection[TopicPartition],
    view: LiveView,
    *,
    interval_s: float,
    limit_s: float | None,
    quiet: bool = False,
) -> bool:
    """Show how moves go until none of these partitions is being moved; False after `limit_s`.

    Faults that pass are said and waited for. Raises: KafkaError
    """
    started_s = time.monotonic()
    estimate = Estimate()
    while True:
        try:
            moves, rows = await look(admin, partitions)
        except KafkaError as error:
            if not error.retriable and not isinstance(error, RequestTimeout):
                raise
            view.say(str(error))
        else:
            estimate.add(time.monotonic(), rows)
            if not quiet:
                view.show([progress_block(moves, rows, estimate.text())], gone="is done")
            if not moves:
                return True
        if limit_s is not None and time.monotonic() - started_s >= limit_s:
            return False
        await asyncio.sleep(interval_s)
