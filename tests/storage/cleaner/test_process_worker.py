"""Cleaning in a real child process, on real files."""

from __future__ import annotations

import asyncio
import os
import random as random_module
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import uvloop

from moldau.runtime.child_process import ChildProcess, command_of
from moldau.runtime.filesystem import OsFilesystem
from moldau.storage.append import RecordBatches
from moldau.storage.cleaner.job import (
    CleaningDone,
    CleaningEvent,
    CleaningFailed,
    CleaningJob,
    SegmentCleaned,
    SourceSegment,
    encode_job,
)
from moldau.storage.cleaner.log_cleaner import swap_in
from moldau.storage.cleaner.workers import CHILD, CleaningRun, InlineWorker, ProcessWorker
from moldau.storage.log import Log
from tests.kit.manual_clock import ManualClock
from tests.kit.waiting import until_async
from tests.storage.cleaner.cleaner_bench import COMPACTED, PARTITION, batches_of, committed
from tests.storage.log_fixtures import START_MS
from tests.storage.storage_fixtures import batch

pytestmark = pytest.mark.real

DEADLINE_S = 30


@pytest.fixture
async def filesystem() -> AsyncIterator[OsFilesystem]:
    filesystem = OsFilesystem(2)
    yield filesystem
    filesystem.close()


@pytest.fixture
async def worker(filesystem: OsFilesystem) -> AsyncIterator[ProcessWorker]:
    worker = ProcessWorker(filesystem)
    yield worker
    await worker.rest()


MakeLog = Callable[[str], Log]


@pytest.fixture
def make_log(filesystem: OsFilesystem, tmp_path: Path) -> MakeLog:
    return lambda name: filled_log(filesystem, tmp_path / name)


def filled_log(filesystem: OsFilesystem, directory: Path) -> Log:
    log = Log.open(filesystem, ManualClock(START_MS), str(directory), PARTITION, COMPACTED)
    for number in range(30):
        log.append_as_leader(
            RecordBatches.read(batch(3, timestamp_ms=START_MS + number)), leader_epoch=0
        )
    log.update_high_watermark(log.log_end_offset)
    log.flush()
    return log


def job_for(log: Log, **changes: object) -> CleaningJob:
    count = len(log.segments) - 1
    values: dict[str, object] = {
        "directory": log.directory,
        "segments": tuple(
            SourceSegment(each.base_offset, log.end_offset_of(index), each.size_bytes)
            for index, each in enumerate(log.segments[:count])
        ),
        "first_dirty_offset": 0,
        "index_bases": (),
        "epochs": (),
        "producers": (),
        "now_ms": START_MS,
        "delete_retention_ms": 1000,
        "segment_bytes": 100_000,
        "segment_index_bytes": 240,
        "index_interval_bytes": 150,
        "map_bytes": 1 << 20,
        "load_factor": 0.9,
        "io_bytes": 4096,
        "max_bytes_per_second": float("inf"),
        **changes,
    }
    return CleaningJob(**values)  # type: ignore[arg-type]


async def events_of(run: CleaningRun) -> list[CleaningEvent]:
    found: list[CleaningEvent] = []
    async with asyncio.timeout(DEADLINE_S):
        while not (found and isinstance(found[-1], CleaningDone)):
            found.append(await run.next_event())
    return found


def cleaned_files(log: Log) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in Path(log.directory).iterdir()
        if path.name.endswith(".cleaned")
    }


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)


async def test_a_child_does_what_this_process_would(
    filesystem: OsFilesystem, worker: ProcessWorker, make_log: MakeLog
) -> None:
    logs = [make_log("child"), make_log("inline")]
    inline = InlineWorker(filesystem, random_module.Random(1))
    outcomes = [
        await events_of(await each.start(job_for(log)))
        for each, log in zip((worker, inline), logs, strict=True)
    ]
    assert outcomes[0] == outcomes[1]
    cleaned, done = outcomes[0]
    assert isinstance(cleaned, SegmentCleaned)
    assert isinstance(done, CleaningDone)
    files = [cleaned_files(log) for log in logs]
    assert files[0] == files[1]
    assert len(files[0]) == 3
    log = logs[0]
    newest = {record.key: record for record in committed(log)}
    swap_in(log, log.segments[:-1], cleaned.size_bytes)
    assert {record.key: record for record in committed(log)} == newest
    assert len(batches_of(log)) < 30
    # The same child takes the next job, and ends when there is none.
    assert isinstance((await events_of(await worker.start(job_for(logs[1]))))[-1], CleaningDone)


async def test_a_log_that_cannot_be_cleaned_is_reported(
    worker: ProcessWorker, make_log: MakeLog
) -> None:
    log = make_log("damaged")
    path = Path(log.segments[1].path)
    damage(path)
    run = await worker.start(job_for(log))
    with pytest.raises(CleaningFailed, match="the CRC does not match") as caught:
        await events_of(run)
    assert path.name in str(caught.value)
    assert not caught.value.is_worker_lost
    assert not cleaned_files(log)
    os.unlink(path)
    with pytest.raises(CleaningFailed, match=path.name):
        await events_of(await worker.start(job_for(log)))
    # One bad log is no reason to lose the process.
    assert await events_of(await worker.start(job_for(make_log("good"))))


async def test_one_child_does_one_job_after_the_other(
    worker: ProcessWorker, make_log: MakeLog
) -> None:
    assert worker.child.pid is None
    pids = []
    for name in ("first", "second"):
        assert await events_of(await worker.start(job_for(make_log(name))))
        pids.append(worker.child.pid)
    assert pids[0] is not None
    assert pids[0] == pids[1]
    await worker.rest()
    assert worker.child.pid is None


@pytest.mark.parametrize("how", ["killed", "aborted"])
async def test_a_child_that_is_gone(worker: ProcessWorker, make_log: MakeLog, how: str) -> None:
    log = make_log("slow")
    run = await worker.start(job_for(log, max_bytes_per_second=10.0))
    if how == "killed":
        assert worker.child.pid is not None
        os.kill(worker.child.pid, signal.SIGKILL)
    else:
        run.abort()
    with pytest.raises(CleaningFailed) as caught:
        await events_of(run)
    assert caught.value.is_worker_lost
    assert await events_of(await worker.start(job_for(log)))


def test_a_child_whose_parent_is_gone_ends_without_a_word(make_log: MakeLog) -> None:
    """Killed in the middle of a job: no thread reads events, and the job's thread may be the first
    to find that out (its pipe is still open here, so that it is).
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(command_of(CHILD), stdin=pipe, stdout=pipe, stderr=pipe) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        child.stdin.write(encode_job(job_for(make_log("orphan"))))
        child.stdin.flush()
        assert child.wait(DEADLINE_S) == 0
        assert child.stderr.read() == b""


def test_a_child_that_dies_before_it_is_given_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop is uvloop, as in brokers: there a write to a pipe that is closed is a
    RuntimeError.
    """
    make_child = ChildProcess._running

    async def dead_child(child: ChildProcess) -> asyncio.subprocess.Process:
        process = await make_child(child)
        pipe = process.stdin
        assert pipe is not None

        async def is_closed() -> bool:
            return pipe.is_closing()

        process.kill()
        await until_async(is_closed, what="the end of its pipe")
        return process

    async def go() -> None:
        filesystem = OsFilesystem(2)
        worker = ProcessWorker(filesystem)
        job = job_for(filled_log(filesystem, tmp_path / "log"))
        with monkeypatch.context() as patched:
            patched.setattr(ChildProcess, "_running", dead_child)
            with pytest.raises(CleaningFailed) as caught:
                await worker.start(job)
        assert caught.value.is_worker_lost
        assert await events_of(await worker.start(job)), "the next one does it"
        await worker.rest()
        filesystem.close()

    uvloop.run(go())
