"""What was flushed and is damaged stops a start; what was not is the ordinary end of a crash."""

from __future__ import annotations

import errno

import pytest

from moldau.raft import log_store
from moldau.raft.state_files import (
    FLUSHED_END,
    forget_flushed_end,
    read_flushed_end,
    write_flushed_end,
)
from tests.storage.simulated_filesystem import Fault, SimulatedFilesystem

from .fixtures import LOG_DIRECTORY, Listener, append, format_directory, open_log
from .test_quorum_of_one import FIRST_SEGMENT, refused, settled

NOTE = f"{LOG_DIRECTORY}/{FLUSHED_END}"


@pytest.fixture
def filesystem() -> SimulatedFilesystem:
    filesystem = SimulatedFilesystem()
    format_directory(filesystem)
    return filesystem


async def written(filesystem: SimulatedFilesystem, count: int = 3) -> int:
    """A log with so many batches and no snapshot of them; its end."""
    log = await open_log(filesystem)
    listener = Listener()
    log.add_listener(listener)
    for number in range(count):
        append(log, f"topic-{number}")
    await settled(log, listener)
    end_offset = log.log_end_offset
    await log.close()
    return end_offset


def flip(filesystem: SimulatedFilesystem, path: str, position: int) -> None:
    data = bytearray(filesystem.read_bytes(path))
    data[position] ^= 0xFF
    filesystem.put(path, bytes(data))


@pytest.mark.parametrize("position", [20, 200, -1])
async def test_damage_in_what_was_flushed_is_refused(
    filesystem: SimulatedFilesystem, position: int
) -> None:
    end_offset = await written(filesystem)
    assert read_flushed_end(filesystem, LOG_DIRECTORY) == end_offset
    flip(filesystem, FIRST_SEGMENT, position)
    message = await refused(filesystem)
    assert FIRST_SEGMENT in message
    assert f"recovery point {end_offset}" in message


async def test_a_log_that_ends_early_is_refused(filesystem: SimulatedFilesystem) -> None:
    await written(filesystem)
    filesystem.put(FIRST_SEGMENT, filesystem.read_bytes(FIRST_SEGMENT)[:-10])
    assert FIRST_SEGMENT in await refused(filesystem)


@pytest.mark.parametrize("operation", ["append", "fsync", "rename", "fsync_directory"])
async def test_a_note_that_cannot_be_written_does_not_stop_the_node(
    filesystem: SimulatedFilesystem, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    monkeypatch.setattr(log_store, "NOTE_EVERY", 3)
    log = await open_log(filesystem)
    listener = Listener()
    log.add_listener(listener)
    await settled(log, listener)
    part = LOG_DIRECTORY if operation == "fsync_directory" else FLUSHED_END
    fault = Fault(operation, part, errno.ENOSPC)
    filesystem.faults.append(fault)
    for number in range(10):
        append(log, f"topic-{number}")
        await settled(log, listener)
        assert read_flushed_end(filesystem, LOG_DIRECTORY) <= log.log_end_offset
    assert fault.count == 0
    await log.close()
    assert read_flushed_end(filesystem, LOG_DIRECTORY) == log.log_end_offset


async def test_the_tail_of_a_crash_is_cut(filesystem: SimulatedFilesystem) -> None:
    end_offset = await written(filesystem)
    filesystem.put(FIRST_SEGMENT, filesystem.read_bytes(FIRST_SEGMENT) + b"torn")
    log = await open_log(filesystem)
    assert log.log_end_offset > end_offset, "what its new epoch appended"
    await log.close()
    assert read_flushed_end(filesystem, LOG_DIRECTORY) == log.log_end_offset


@pytest.mark.parametrize("content", [b"", b"-5", b"many", b"1" * 400])
async def test_a_note_that_makes_no_sense_promises_nothing(
    filesystem: SimulatedFilesystem, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    await written(filesystem)
    filesystem.put(NOTE, content)
    await (await open_log(filesystem)).close()
    assert f"{NOTE} holds no offset" in caplog.text


async def test_a_quorum_state_that_is_older_than_its_log_is_refused(
    filesystem: SimulatedFilesystem,
) -> None:
    await written(filesystem)
    path = f"{LOG_DIRECTORY}/quorum-state"
    old = filesystem.read_bytes(path)
    await written(filesystem)
    await (await open_log(filesystem)).close()
    filesystem.put(path, old)
    message = await refused(filesystem)
    assert f"{path}: leaderEpoch 1 is below 3" in message


async def test_without_quorum_state_the_epoch_comes_from_the_log(
    filesystem: SimulatedFilesystem, caplog: pytest.LogCaptureFixture
) -> None:
    await written(filesystem)
    filesystem.unlink(f"{LOG_DIRECTORY}/quorum-state")
    log = await open_log(filesystem)
    assert log.state.leader_epoch == 2
    await log.close()
    assert "has no quorum-state" in caplog.text


def test_the_note_can_be_withdrawn(filesystem: SimulatedFilesystem) -> None:
    assert read_flushed_end(filesystem, LOG_DIRECTORY) == 0
    forget_flushed_end(filesystem, LOG_DIRECTORY)
    write_flushed_end(filesystem, LOG_DIRECTORY, 2**40)
    assert read_flushed_end(filesystem, LOG_DIRECTORY) == 2**40
    forget_flushed_end(filesystem, LOG_DIRECTORY)
    assert read_flushed_end(filesystem, LOG_DIRECTORY) == 0
