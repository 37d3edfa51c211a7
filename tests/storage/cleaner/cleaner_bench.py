"""What the tests of compaction share: a node with one compacted log, and a model of its records."""

from __future__ import annotations

import asyncio
import random as random_module
from dataclasses import dataclass, replace
from typing import Any

from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import (
    BatchHeader,
    Codec,
    ControlRecordType,
    EndTxnMarker,
    Record,
    decode_records,
    encode_batch,
    encode_end_txn_batch,
    iter_batches,
)
from moldau.protocol.types import TopicPartition
from moldau.storage.append import AppendOrigin, RecordBatches
from moldau.storage.cleaner.job import CleaningEvent, CleaningJob
from moldau.storage.cleaner.workers import CleaningRun, InlineWorker
from moldau.storage.log import Log
from moldau.storage.log_config import CleanerSettings, LogConfig
from moldau.storage.log_manager import LogManager
from tests.kit.manual_clock import ManualClock
from tests.storage.simulated_filesystem import SimulatedFilesystem
from tests.storage.storage_fixtures import START_MS, format_directory, make_manager, topic_id
from tests.storage.transaction_reader import aborted_transactions

PARTITION = TopicPartition("compacted", 0)
DIRECTORY = f"/data/{PARTITION}"
COMPACTED = LogConfig(
    segment_bytes=1500,
    segment_index_bytes=240,
    index_interval_bytes=150,
    retention_ms=-1,
    cleanup_policy=("compact",),
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=1000,
    file_delete_delay_ms=500,
)
ABORT, COMMIT = ControlRecordType.ABORT, ControlRecordType.COMMIT
MAX_TURNS = 5_000

Pair = tuple[str | None, str | None]


@dataclass(frozen=True)
class Told:
    """A record as a reader sees it."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class PausingWorker:
    """Works inside this process; events after the first `free` ones wait for `gate`."""

    def __init__(self, filesystem: SimulatedFilesystem, free: int) -> None:
        self._worker = InlineWorker(filesystem, random_module.Random(5))
        self.gate = asyncio.Event()
        self.free = free
        self.aborted_count = 0

    async def start(self, job: CleaningJob) -> CleaningRun:
        return _PausingRun(self, await self._worker.start(job))

    async def rest(self) -> None:
        await self._worker.rest()


class _PausingRun:
    def __init__(self, worker: PausingWorker, run: CleaningRun) -> None:
        self._worker = worker
        self._run = run

    async def next_event(self) -> CleaningEvent:
        if not self._worker.free:
            await self._worker.gate.wait()
        else:
            self._worker.free -= 1
        return await self._run.next_event()

    def abort(self) -> None:
        self._worker.aborted_count += 1
        self._worker.gate.set()
        self._run.abort()


class CleanerBench:
    """A log manager on a simulated disk, and its one log."""

    def __init__(
        self, config: LogConfig = COMPACTED, *, settings: CleanerSettings | None = None
    ) -> None:
        self.config = config
        self.settings = settings or CleanerSettings()
        self.clock = ManualClock(START_MS)
        self.filesystem = SimulatedFilesystem(now_ms=self.clock.now_ms)
        format_directory(self.filesystem, "/data")
        self.worker: PausingWorker | None = None
        self.manager: LogManager
        self.log: Log
        self.sequences: dict[int, int] = {}

    async def start(self) -> CleanerBench:
        self.manager = make_manager(
            self.filesystem,
            self.clock,
            config=self.config,
            cleaner_settings=self.settings,
            make_cleaner_worker=None if self.worker is None else lambda: self.worker,
        )
        await self.manager.start()
        self.log = self.manager.get_or_create(PARTITION, topic_id(1))
        return self

    async def begin_cleaning(self) -> None:
        """The cleaner works until its worker pauses."""
        self.manager.cleaner.soon()
        for _ in range(100):
            await asyncio.sleep(0)
        assert self.manager.cleaner.is_cleaning(self.log)

    async def restart(self, *, clean: bool = True) -> None:
        """Stop and start, or come back after a kill."""
        high_watermark = self.log.high_watermark
        if clean:
            await self.manager.shutdown(1)
        else:
            await self.manager.cleaner.stop()
            await self.manager.jobs.stop()
            self.filesystem = SimulatedFilesystem(
                self.filesystem.image().after_kill(), now_ms=self.clock.now_ms
            )
        await self.start()
        self.log.update_high_watermark(high_watermark)

    async def configure(self, **changes: Any) -> None:
        self.config = replace(self.config, **changes)
        self.log.update_config(self.config)

    def append(
        self,
        *pairs: Pair,
        producer_id: int = -1,
        producer_epoch: int = 0,
        transactional: bool = False,
        codec: Codec = Codec.NONE,
        timestamp_ms: int | None = None,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> int:
        """Append a batch of (key, value), committed at once; its base offset."""
        base_ms = self.clock.now_ms() if timestamp_ms is None else timestamp_ms
        records = [
            Record(
                number,
                base_ms + number,
                None if key is None else key.encode(),
                None if value is None else value.encode(),
                (("n", str(number).encode()),) if number % 2 else (),
            )
            for number, (key, value) in enumerate(pairs)
        ]
        sequence = self.sequences.get(producer_id, 0)
        if producer_id >= 0:
            self.sequences[producer_id] = sequence + len(records)
        data = encode_batch(
            records,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch if producer_id >= 0 else -1,
            base_sequence=sequence if producer_id >= 0 else -1,
            is_transactional=transactional,
        )
        return self._append(data, origin)

    def end(self, producer_id: int, kind: ControlRecordType, *, producer_epoch: int = 0) -> int:
        """Write a transaction's marker; its offset."""
        data = encode_end_txn_batch(
            EndTxnMarker(kind, 3),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            timestamp_ms=self.clock.now_ms(),
        )
        return self._append(data, AppendOrigin.COORDINATOR)

    def _append(self, data: bytearray, origin: AppendOrigin) -> int:
        result = self.log.append_as_leader(RecordBatches.read(data), leader_epoch=0, origin=origin)
        assert result.error is ErrorCode.NONE, result
        self.log.update_high_watermark(self.log.log_end_offset)
        return result.base_offset

    def roll(self) -> None:
        self.log.roll()

    async def clean(self) -> None:
        """Let the cleaner look, and wait until it has nothing to do."""
        cleaner = self.manager.cleaner
        cleaner.soon()
        for _ in range(MAX_TURNS):
            if not cleaner.is_busy:
                return
            await asyncio.sleep(0)
        raise AssertionError("the cleaner does not come to an end")

    # -- what is in the log ----------------------------------------------------------------------

    def batches(self) -> list[tuple[BatchHeader, list[Record]]]:
        return batches_of(self.log)

    def offsets(self) -> list[int]:
        """Offsets of all records of data."""
        return [
            record.offset
            for header, records in self.batches()
            if not header.is_control
            for record in records
        ]

    def newest(self) -> dict[bytes, Told]:
        """What a reader of committed data knows at the end."""
        return newest_of(committed(self.log))

    def names(self, suffix: str = "") -> list[str]:
        return [n for n in self.filesystem.listdir(DIRECTORY) if n.endswith(suffix)]


def batches_of(log: Log) -> list[tuple[BatchHeader, list[Record]]]:
    """Every batch in the log's files with its records."""
    found = []
    for segment in log.segments:
        data = segment.file().pread(segment.size_bytes, 0)
        found += [(header, decode_records(data, at)) for at, header in iter_batches(data)]
    return found


def told(record: Record) -> Told:
    return Told(record.offset, record.timestamp_ms, record.key, record.value, tuple(record.headers))


def committed(log: Log, start_offset: int = 0) -> list[Told]:
    """Records below the last stable offset as a consumer with read_committed gets them: by the
    fetch path, with the list of aborted transactions, and nothing else.
    """
    found: list[Told] = []
    at = max(start_offset, log.log_start_offset)
    end_offset = log.last_stable_offset
    aborted_now: set[int] = set()
    while at < end_offset:
        result = log.read(at, max_bytes=1 << 20, max_offset=end_offset)
        if result.verification is not None:
            result.verification.run()
            result = log.finish_verification(result)
        assert result.error is ErrorCode.NONE, result
        if result.next_offset == at:
            break
        waiting = aborted_transactions(log, at, result.next_offset)
        data = bytes(result.records)
        if not isinstance(result.records, bytes):
            result.records.release()
        for position, header in iter_batches(data):
            while waiting and waiting[0].first_offset <= header.last_offset:
                aborted_now.add(waiting.pop(0).producer_id)
            records = decode_records(data, position)
            if header.is_control:
                if records and records[0].key == b"\0\0\0\0":
                    aborted_now.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted_now):
                found += [told(record) for record in records if record.offset >= at]
        at = result.next_offset
    return found


def newest_of(records: list[Told]) -> dict[bytes, Told]:
    """The newest record of each key, keys that were deleted left out."""
    newest: dict[bytes, Told] = {}
    for record in records:
        assert record.key is not None
        if record.value is None:
            newest.pop(record.key, None)
        else:
            newest[record.key] = record
    return newest
