"""What the log's own tests share: a log on either filesystem, a model of what it must hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import Record, decode_records, encode_batch, iter_batches
from moldau.protocol.types import TopicPartition
from moldau.runtime.filesystem import Filesystem
from moldau.storage.append import AppendOrigin, AppendResult, RecordBatches
from moldau.storage.log import Log
from moldau.storage.log_config import LogConfig
from moldau.storage.log_segments import ReadResult
from moldau.storage.timestamp_search import TimestampedOffset, TimestampSearch
from tests.kit.manual_clock import ManualClock
from tests.storage.simulated_filesystem import SimulatedFilesystem

TOPIC_PARTITION = TopicPartition("topic", 0)
START_MS = 1_700_000_000_000


@dataclass
class LogBench:
    """A log directory with everything needed to open it again and again."""

    filesystem: Filesystem = field(default_factory=SimulatedFilesystem)
    directory: str = "/data/topic-0"
    clock: ManualClock = field(default_factory=lambda: ManualClock(START_MS))
    config: LogConfig = field(default_factory=LogConfig)

    def open(self, *, clean: bool = False, recovery_point: int = 0, **options: Any) -> Log:
        return Log.open(
            self.filesystem,
            self.clock,
            self.directory,
            TOPIC_PARTITION,
            self.config,
            clean_shutdown=clean,
            recovery_point=recovery_point,
            **options,
        )

    def reopen(self, log: Log, *, clean: bool = False, **options: Any) -> Log:
        """Close (cleanly or as a kill would) and open with what a manager would have written."""
        recovery_point, log_start_offset = log.recovery_point, log.log_start_offset
        if clean:
            log.close()
            recovery_point = log.recovery_point
        else:
            log.abandon()
        options.setdefault("log_start_offset", log_start_offset)
        return self.open(clean=clean, recovery_point=recovery_point, **options)

    def path(self, base_offset: int, suffix: str = ".log") -> str:
        return f"{self.directory}/{base_offset:020d}{suffix}"

    def overwrite(self, path: str, position: int, data: bytes) -> None:
        """Damage a file behind the log's back."""
        file = self.filesystem.open(path)
        file.pwrite(data, position)
        file.close()

    def names(self, suffix: str = "") -> list[str]:
        return [n for n in self.filesystem.listdir(self.directory) if n.endswith(suffix)]


def records(
    values: Sequence[bytes | str], *, timestamp_ms: int = START_MS, step_ms: int = 0
) -> list[Record]:
    return [
        Record(n, timestamp_ms + n * step_ms, None, v.encode() if isinstance(v, str) else v)
        for n, v in enumerate(values)
    ]


def batch_of(*values: bytes | str, timestamp_ms: int = START_MS, **options: Any) -> bytearray:
    return encode_batch(records(values, timestamp_ms=timestamp_ms), **options)


def append(
    log: Log,
    *values: bytes | str,
    leader_epoch: int = 0,
    origin: AppendOrigin = AppendOrigin.CLIENT,
    **options: Any,
) -> AppendResult:
    """Append one batch that must be taken."""
    result = log.append_as_leader(
        RecordBatches.read(batch_of(*values, **options)), leader_epoch=leader_epoch, origin=origin
    )
    assert result.error is ErrorCode.NONE, result
    return result


def fill(log: Log, batch_count: int, *, value_bytes: int = 100, **options: Any) -> None:
    for number in range(batch_count):
        append(log, f"{number:0{value_bytes}d}", **options)


def read_once(log: Log, offset: int, **options: Any) -> tuple[ReadResult, list[Record]]:
    """One read, verified if need be, decoded; the region is released."""
    options.setdefault("max_bytes", 1 << 20)
    result = log.read(offset, **options)
    if result.verification is not None:
        result.verification.run()
        result = log.finish_verification(result)
    data = bytes(result.records)
    if not isinstance(result.records, bytes):
        result.records.release()
    found = []
    for position, _ in iter_batches(data):
        found += decode_records(data, position)
    return result, found


def read_all(log: Log, offset: int | None = None, **options: Any) -> list[Record]:
    """Every record from `offset` on (data and control alike)."""
    at = log.log_start_offset if offset is None else offset
    found: list[Record] = []
    while at < log.log_end_offset:
        result, more = read_once(log, at, **options)
        assert result.error is ErrorCode.NONE, result
        assert result.next_offset > at or not more
        if result.next_offset == at:
            break
        found += [record for record in more if record.offset >= at]
        at = result.next_offset
    return found


def values_of(log: Log, **options: Any) -> list[str]:
    return [bytes(r.value or b"").decode() for r in read_all(log, **options)]


def as_records(view: Sequence[Record]) -> list[tuple[int, bytes | None]]:
    return [(r.offset, None if r.value is None else bytes(r.value)) for r in view]


def offset_for_timestamp(
    log: Log, timestamp_ms: int, *, max_offset: int | None = None
) -> TimestampedOffset | None:
    """The first record at or after `timestamp_ms` below `max_offset`, found at once."""
    return _found(TimestampSearch(log, timestamp_ms, max_offset=max_offset))


def offset_of_max_timestamp(log: Log) -> TimestampedOffset | None:
    """The record with the largest timestamp; None in an empty log."""
    return _found(TimestampSearch.for_max_timestamp(log))


def _found(search: TimestampSearch) -> TimestampedOffset | None:
    while search.locate():
        search.run()
    return search.found
