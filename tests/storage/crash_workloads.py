"""Workloads for the crash tests: what a node does with one partition, and the model beside it.

Owns: driving a LogManager on a SimulatedFilesystem, taking an image before every operation, and
booting again from images. Must not: judge (crash_model does).
"""

from __future__ import annotations

import asyncio
import random as random_module
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import (
    ControlRecordType,
    EndTxnMarker,
    Record,
    encode_batch,
    encode_end_txn_batch,
    patch_batch,
)
from moldau.protocol.types import TopicPartition
from moldau.storage.append import AppendOrigin, RecordBatches
from moldau.storage.log import Log
from moldau.storage.log_config import LogConfig
from moldau.storage.log_manager import LogManager
from tests.kit.manual_clock import ManualClock
from tests.storage.crash_model import Model, check_files, check_recovered, stored_batches
from tests.storage.simulated_disk import DirectoryNode, DiskImage
from tests.storage.simulated_filesystem import Operation, SimulatedFilesystem
from tests.storage.storage_fixtures import START_MS, format_directory, make_manager, topic_id

PARTITION = TopicPartition("a", 0)
SMALL = LogConfig(
    segment_bytes=1500,
    segment_index_bytes=96,
    index_interval_bytes=150,
    retention_ms=-1,
    file_delete_delay_ms=500,
)
MAY_BE_UNSYNCED = ("partition.metadata",)


@dataclass
class CrashPoint:
    """The instant before one operation."""

    number: int
    operation: Operation
    image: DiskImage
    model: Model


class Workload:
    """A node with one partition; every change of the disk is preceded by a recorded CrashPoint."""

    def __init__(self, seed: int, config: LogConfig = SMALL) -> None:
        self.random = random_module.Random(seed)
        self.clock = ManualClock(START_MS)
        self.filesystem = SimulatedFilesystem(now_ms=self.clock.now_ms)
        format_directory(self.filesystem, "/data")
        self.config = config
        self.model = Model()
        self.points: list[CrashPoint] = []
        self.manager: LogManager
        self.log: Log
        self.leader_epoch = 0
        self.sequences: dict[int, int] = {}
        self.producer_epochs: dict[int, int] = {}
        self.open_transactions: set[int] = set()
        self.counter = 0

    def record(self) -> None:
        """From now on, take an image before every operation."""
        self.filesystem.observer = self._observe

    def _observe(self, operation: Operation, image: DiskImage) -> None:
        self.points.append(CrashPoint(len(self.points), operation, image, self.model.copy()))

    async def start(self) -> None:
        self.manager = make_manager(self.filesystem, self.clock, config=self.config)
        await self.manager.start()
        self.log = self.manager.get_or_create(PARTITION, topic_id(1))

    async def settle(self) -> None:
        """Let what was started in the background happen."""
        for _ in range(20):
            await asyncio.sleep(0)
        self._note_flushed()

    def _note_flushed(self) -> None:
        if self.log.recovery_point > self.model.flushed_end:
            self.model.flushed(self.log.recovery_point)

    # -- steps -----------------------------------------------------------------------------------

    def _batch(
        self, count: int, producer_id: int = -1, *, transactional: bool = False
    ) -> bytearray:
        records = []
        for delta in range(count):
            self.counter += 1
            value = f"{self.counter}:".encode() + bytes([self.counter % 251]) * 30
            records.append(Record(delta, START_MS + self.counter * 10, b"k", value))
        return self._encoded(records, producer_id, transactional=transactional)

    def _encoded(
        self, records: list[Record], producer_id: int, *, transactional: bool
    ) -> bytearray:
        sequence = self.sequences.get(producer_id, 0)
        if producer_id >= 0:
            self.sequences[producer_id] = sequence + len(records)
        return encode_batch(
            records,
            producer_id=producer_id,
            producer_epoch=self.producer_epochs.get(producer_id, 0) if producer_id >= 0 else -1,
            base_sequence=sequence if producer_id >= 0 else -1,
            is_transactional=transactional,
        )

    def append(self, count: int = 2, producer_id: int = -1, *, transactional: bool = False) -> None:
        if transactional:
            self.open_transactions.add(producer_id)
        self._append(self._batch(count, producer_id, transactional=transactional))

    def _append(self, data: bytearray, origin: AppendOrigin = AppendOrigin.CLIENT) -> None:
        expected = bytearray(data)
        patch_batch(
            expected,
            0,
            base_offset=self.log.log_end_offset,
            partition_leader_epoch=self.leader_epoch,
        )
        self.model.begin_append(stored_batches(expected))
        result = self.log.append_as_leader(
            RecordBatches.read(data), leader_epoch=self.leader_epoch, origin=origin
        )
        assert result.error is ErrorCode.NONE, result
        assert data == expected
        self.model.end_append()
        self.log.update_high_watermark(self.log.log_end_offset)

    def end_transaction(self, producer_id: int, record_type: ControlRecordType) -> None:
        self.open_transactions.discard(producer_id)
        data = encode_end_txn_batch(
            EndTxnMarker(record_type, 3),
            producer_id=producer_id,
            producer_epoch=self.producer_epochs.get(producer_id, 0),
            timestamp_ms=START_MS + self.counter * 10,
        )
        self._append(data, AppendOrigin.COORDINATOR)

    async def flush(self) -> None:
        assert await self.manager.jobs.flush(self.log)
        self._note_flushed()

    async def checkpoint(self) -> None:
        for job in (
            self.manager.jobs.recovery_points,
            self.manager.jobs.log_start_offsets,
            self.manager.jobs.high_watermarks,
        ):
            job.soon()
        await self.settle()

    def delete_records(self, offset: int) -> None:
        self.model.log_start = max(self.model.log_start, offset)
        error, _ = self.log.delete_records(offset)
        assert error is ErrorCode.NONE

    def retain(self, retention_bytes: int) -> None:
        self.log.update_config(
            LogConfig(
                segment_bytes=self.config.segment_bytes,
                segment_index_bytes=self.config.segment_index_bytes,
                index_interval_bytes=self.config.index_interval_bytes,
                retention_ms=-1,
                retention_bytes=retention_bytes,
                file_delete_delay_ms=500,
            )
        )
        doomed = 0
        excess = self.log.size_bytes - retention_bytes
        for segment in self.log.segments:
            if excess < segment.size_bytes:
                break
            excess -= segment.size_bytes
            doomed += 1
        if doomed:
            start = self.log.end_offset_of(doomed - 1)
            self.model.log_start = max(self.model.log_start, start)
        self.log.apply_retention(self.clock.now_ms())
        assert self.log.log_start_offset <= self.model.log_start

    def truncate(self, offset: int) -> None:
        self.model.begin_truncate(offset)
        self.log.truncate_to(offset)
        self.model.end_truncate()
        self.sequences.clear()
        for producer_id, entry in self.log.producer_state.producers.items():
            self.sequences[producer_id] = entry.last_sequence + 1
        self.leader_epoch += 1

    async def pass_time(self, elapsed_ms: int) -> None:
        self.clock.advance(elapsed_ms)
        await self.settle()

    async def stop(self) -> None:
        await self.manager.shutdown(4)
        self._note_flushed()


Steps = Callable[[Workload], Awaitable[None]]


def run_workload(
    steps: Steps, seed: int, config: LogConfig = SMALL, kind: type[Workload] = Workload
) -> Workload:
    """Run from a fresh directory, recording from the first operation of the node on."""

    async def run() -> Workload:
        workload = kind(seed, config)
        workload.record()
        await steps(workload)
        workload.filesystem.observer = None
        return workload

    with asyncio.Runner() as runner:
        return runner.run(run())


class Rebooter:
    """Boots nodes from what crashes left, in one event loop."""

    def __init__(self, config: LogConfig = SMALL) -> None:
        self._runner = asyncio.Runner()
        self._config = config

    def __enter__(self) -> Rebooter:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.close()

    def boot(
        self, root: DirectoryNode, observer: Callable[[Operation, DiskImage], None] | None = None
    ) -> tuple[SimulatedFilesystem, LogManager]:
        filesystem = SimulatedFilesystem(root)
        filesystem.observer = observer

        async def start() -> LogManager:
            manager = make_manager(filesystem, ManualClock(START_MS), config=self._config)
            await manager.start()
            for job in (manager.jobs.retention, manager.jobs.removal):
                await job.stop()
            await manager.jobs.stop()
            return manager

        return filesystem, self._runner.run(start())

    def check(
        self,
        root: DirectoryNode,
        model: Model,
        *,
        power_loss: bool,
        observer: Callable[[Operation, DiskImage], None] | None = None,
    ) -> None:
        """Recover, check against the model, recover again, and see that nothing changed."""
        filesystem, manager = self.boot(root, observer)
        filesystem.observer = None
        log = manager.get(PARTITION)
        if log is None:
            reason = manager.offline_reason(PARTITION)
            assert reason is None, f"offline: {reason}"
            assert not model.flushed_end, "a flushed partition is gone"
            assert power_loss or not model.history, "a partition is gone"
            return
        self.judge(log, model, power_loss=power_loss)
        check_files(filesystem, "/data", allow=MAY_BE_UNSYNCED)
        before = (log.log_start_offset, log.log_end_offset, self.kept_files(filesystem, log))
        again, second = self.boot(filesystem.image().after_kill())
        log = second.get(PARTITION)
        assert log is not None, f"the second recovery failed: {second.offline_reason(PARTITION)}"
        after = (log.log_start_offset, log.log_end_offset, self.kept_files(again, log))
        assert after == before, "the second recovery changed something"
        self.judge(log, model, power_loss=power_loss)

    def judge(self, log: Log, model: Model, *, power_loss: bool) -> None:
        """Compare a recovered log with what it was."""
        check_recovered(log, model, power_loss=power_loss)

    def kept_files(self, filesystem: SimulatedFilesystem, log: Log) -> dict[str, bytes]:
        """What a second recovery must not change."""
        return {path: data for path, data in filesystem.files().items() if path.endswith(".log")}

    def check_point(
        self, point: CrashPoint, random: random_module.Random, seed: int, power_losses: int
    ) -> None:
        """All ways to crash at one point."""
        try:
            how = "kill"
            self.check(point.image.after_kill(), point.model, power_loss=False)
            torn = point.image.after_kill_mid_write(random)
            if torn is not None:
                how = "kill inside the write"
                self.check(torn, point.model, power_loss=False)
            for _ in range(power_losses):
                how = "power loss"
                self.check(point.image.after_power_loss(random), point.model, power_loss=True)
        except AssertionError as error:
            message = (
                f"seed {seed}: {how} before operation {point.number} ({point.operation}): {error}"
            )
            raise AssertionError(message) from error

    def check_starts(
        self,
        point: CrashPoint,
        root: DirectoryNode,
        random: random_module.Random,
        seed: int,
        *,
        power_loss: bool,
    ) -> None:
        """A crash at the point has left `root`; crash again at each operation of the start."""
        images: list[tuple[Operation, DiskImage]] = []
        self.check(
            root,
            point.model,
            power_loss=power_loss,
            observer=lambda operation, image: images.append((operation, image)),
        )
        for number, (operation, image) in enumerate(images):
            try:
                self.check(image.after_kill(), point.model, power_loss=power_loss)
                self.check(image.after_power_loss(random), point.model, power_loss=True)
            except AssertionError as error:
                raise AssertionError(
                    f"seed {seed}: crash {point.number} ({point.operation}), then in the start "
                    f"before operation {number} ({operation}): {error}"
                ) from error
