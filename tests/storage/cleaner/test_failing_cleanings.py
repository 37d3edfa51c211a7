"""A cleaning on a disk on which one operation fails, each of them once.

Whatever the operation is: the cleaning says that it failed, keeps no file open and changes none of
its sources, and the next one does all of it.
"""

from __future__ import annotations

import errno
from typing import Any

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import (
    ControlRecordType,
    EndTxnMarker,
    Record,
    encode_batch,
    encode_end_txn_batch,
)
from moldau.storage.append import AppendOrigin, RecordBatches
from moldau.storage.cleaner.cleaned_segment import CLEANED_SUFFIX
from moldau.storage.cleaner.cleaning import clean
from moldau.storage.cleaner.job import CleaningDone, CleaningFailed, CleaningJob, SourceSegment
from moldau.storage.cleaner.offset_map import SEED_BYTES
from moldau.storage.log_config import MIN_MAP_BYTES, LogConfig
from tests.storage.log_fixtures import START_MS, LogBench
from tests.storage.test_failing_operations import ERRORS, OneFailure

CONFIG = LogConfig(
    segment_bytes=500,
    segment_index_bytes=400,
    index_interval_bytes=1,
    cleanup_policy=("compact",),
)


def dirty_log(filesystem: OneFailure) -> CleaningJob:
    """A job for a log of some segments, with an aborted transaction in one of them."""
    bench = LogBench(filesystem, config=CONFIG)
    log = bench.open()
    producer = {"producer_id": 7, "producer_epoch": 0}
    for number in range(12):
        records = [Record(0, START_MS, b"k%d" % (number % 3), b"v" * 60)]
        in_transaction = number in (4, 5)
        options: dict[str, Any] = (
            {**producer, "base_sequence": number - 4} if in_transaction else {}
        )
        batch = encode_batch(records, is_transactional=in_transaction, **options)
        assert (
            log.append_as_leader(RecordBatches.read(batch), leader_epoch=0).error is ErrorCode.NONE
        )
        if number == 5:
            marker = EndTxnMarker(ControlRecordType.ABORT, 1)
            batch = encode_end_txn_batch(marker, producer_id=7, producer_epoch=0, timestamp_ms=1)
            log.append_as_leader(
                RecordBatches.read(batch), leader_epoch=0, origin=AppendOrigin.COORDINATOR
            )
    log.flush()
    segments = [
        SourceSegment(segment.base_offset, log.end_offset_of(index), segment.size_bytes)
        for index, segment in enumerate(log.segments[:-1])
    ]
    bases = tuple(segment.base_offset for segment in log.segments)
    log.abandon()
    assert len(segments) > 2
    return CleaningJob(
        directory=log.directory,
        segments=tuple(segments),
        first_dirty_offset=0,
        index_bases=bases,
        epochs=(),
        producers=(),
        now_ms=START_MS,
        delete_retention_ms=1000,
        segment_bytes=CONFIG.segment_bytes,
        segment_index_bytes=CONFIG.segment_index_bytes,
        index_interval_bytes=CONFIG.index_interval_bytes,
        map_bytes=MIN_MAP_BYTES,
        load_factor=0.9,
        io_bytes=300,
        max_bytes_per_second=float("inf"),
    )


def cleaned(filesystem: OneFailure, job: CleaningJob) -> dict[str, bytes]:
    """The files that a cleaning makes."""
    events = list(clean(filesystem, job, seed=bytes(SEED_BYTES)))
    assert isinstance(events[-1], CleaningDone)
    return {
        path: data for path, data in filesystem.files().items() if path.endswith(CLEANED_SUFFIX)
    }


@ERRORS
def test_any_operation_of_a_cleaning_may_fail(error_number: int) -> None:
    filesystem = OneFailure()
    job = dirty_log(filesystem)
    before = filesystem.files()
    filesystem.seen = 0
    expected = cleaned(filesystem, job)
    assert expected
    for fails_at in range(filesystem.seen):
        filesystem = OneFailure()
        job = dirty_log(filesystem)
        filesystem.seen, filesystem.fails_at, filesystem.error_number = 0, fails_at, error_number
        with pytest.raises(CleaningFailed) as failed:
            cleaned(filesystem, job)
        where = f"operation {fails_at}"
        assert failed.value.is_out_of_room is (error_number != errno.EIO), where
        assert (filesystem.open_files, filesystem.open_maps) == (0, 0), where
        after = filesystem.files()
        assert {path: after.get(path) for path in before} == before, where
        assert cleaned(filesystem, job) == expected, where
        assert {path: filesystem.files()[path] for path in before} == before, where
        assert filesystem.open_files == 0
