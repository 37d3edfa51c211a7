"""What a follower takes of what it is sent, and what it sees of its own log."""

from __future__ import annotations

from moldau.protocol.metadata_records import TopicRecord
from moldau.protocol.records import Record, encode_batch, patch_batch
from moldau.raft.batch_codec import FetchedBatches, check_fetched, encode_data_batch
from moldau.raft.core.values import EpochEnd, ReplicaKey, SnapshotId
from moldau.raft.core.voters import VoterSet
from moldau.raft.log_files import LogFiles, open_log_files
from moldau.raft.snapshot_files import (
    SnapshotWriter,
    install_snapshot,
    snapshot_batches,
    snapshot_path,
)
from moldau.raft.values import MetadataLogSettings
from moldau.storage.append import AppendOrigin, RecordBatches
from tests.kit.manual_clock import ManualClock
from tests.storage.simulated_filesystem import SimulatedFilesystem

from .fixtures import DIRECTORY, DIRECTORY_ID, LOG_DIRECTORY, VOTERS


def batch(base_offset: int, leader_epoch: int, count: int = 2) -> bytearray:
    return encode_data_batch(
        [(TopicRecord(name=f"t{base_offset + index}"), 0) for index in range(count)],
        timestamp_ms=5,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
    )


def checked(data: bytes, base_offset: int = 10, **changes: int) -> FetchedBatches:
    options = {"last_leader_epoch": 3, "leader_epoch": 5, **changes}
    return check_fetched(data, base_offset=base_offset, **options)


def taken(fetched: FetchedBatches) -> bytes:
    return b"".join(bytes(piece.records) for piece in fetched.pieces)


def test_good_batches_are_taken_byte_for_byte() -> None:
    data = bytes(batch(10, 3) + batch(12, 4) + batch(14, 5, count=1))
    fetched = checked(data)
    assert fetched.refusal is None
    assert taken(fetched) == data
    batches = [each for piece in fetched.pieces for each in piece.batches if each is not None]
    assert [(each.base_offset, each.last_offset, each.leader_epoch) for each in batches] == [
        (10, 11, 3),
        (12, 13, 4),
        (14, 14, 5),
    ]
    pieces = checked(data, max_piece_bytes=100).pieces
    assert [len(piece.batches) for piece in pieces] == [1, 1, 1]
    assert b"".join(bytes(piece.records) for piece in pieces) == data


def test_everything_before_a_fault_is_taken_and_nothing_after_it() -> None:
    good = bytes(batch(10, 3))
    damaged = batch(12, 4)
    damaged[-1] ^= 1
    faults = {
        "CRC": bytes(damaged),
        "base offset 13 where 12 is next": bytes(batch(13, 4)),
        "base offset 11 where 12 is next": bytes(batch(11, 4)),
        "leader epoch 6": bytes(batch(12, 6)),
        "leader epoch 2": bytes(batch(12, 2)),
    }
    for refusal, bad in faults.items():
        fetched = checked(good + bad + bytes(batch(14, 5)))
        assert taken(fetched) == good
        assert fetched.refusal is not None
        assert refusal in fetched.refusal
        alone = checked(bad, base_offset=12)
        assert taken(alone) == b""
        assert alone.refusal is not None


def test_an_answer_may_end_inside_a_batch_but_not_inside_the_first() -> None:
    first, second = bytes(batch(10, 3)), bytes(batch(12, 4))
    for length in range(len(first), len(first) + len(second)):
        fetched = checked((first + second)[:length])
        assert (taken(fetched), fetched.refusal) == (first, None)
    for length in range(1, len(first)):
        fetched = checked(first[:length])
        assert taken(fetched) == b""
        assert fetched.refusal is not None


def test_records_of_a_later_release_are_taken_control_records_that_make_no_sense_are_not() -> None:
    data = encode_batch([Record(10, 5, None, b"\x01\xff\x7f\x00")], base_offset=10)
    patch_batch(data, 0, base_offset=10, partition_leader_epoch=3)
    fetched = checked(bytes(data))
    assert (taken(fetched), fetched.refusal) == (bytes(data), None)
    assert fetched.pieces[0].batches == [None]
    control = encode_batch([Record(10, 5, b"\x00", b"")], base_offset=10, is_control=True)
    patch_batch(control, 0, base_offset=10, partition_leader_epoch=3)
    assert checked(bytes(control)).refusal is not None


def opened(filesystem: SimulatedFilesystem) -> LogFiles:
    settings = MetadataLogSettings(
        metadata_directory=DIRECTORY,
        local=ReplicaKey(1, DIRECTORY_ID),
        endpoints=(),
        segment_bytes=8 * 1024 * 1024,
        segment_index_bytes=4096,
    )
    return open_log_files(filesystem, ManualClock(), DIRECTORY, settings.log_config(), VoterSet())


def test_the_ends_of_epochs() -> None:
    filesystem = SimulatedFilesystem()
    filesystem.mkdirs(DIRECTORY)
    files = opened(filesystem)
    view = files
    assert (view.last_leader_epoch, view.log_end_offset) == (0, 0)
    assert view.end_of_epoch(7) == EpochEnd(0, 0)
    for leader_epoch in (2, 3, 6):
        data = batch(0, -1)
        files.log.append_as_leader(
            RecordBatches.read(data), leader_epoch=leader_epoch, origin=AppendOrigin.RAFT_LEADER
        )
    assert view.last_leader_epoch == 6
    ends = {epoch: view.end_of_epoch(epoch) for epoch in range(8)}
    assert ends == {
        0: EpochEnd(0, 0),
        1: EpochEnd(0, 0),
        2: EpochEnd(2, 2),
        3: EpochEnd(3, 4),
        4: EpochEnd(3, 4),
        5: EpochEnd(3, 4),
        6: EpochEnd(6, 6),
        7: EpochEnd(6, 6),
    }
    files.log.truncate_to(3)  # the batch that holds it goes as a whole
    assert (view.last_leader_epoch, view.log_end_offset) == (2, 2)
    assert view.end_of_epoch(6) == EpochEnd(2, 2)


def test_an_installed_snapshot_leaves_no_epochs_of_the_log_it_replaced() -> None:
    filesystem = SimulatedFilesystem()
    filesystem.mkdirs(DIRECTORY)
    files = opened(filesystem)
    view = files
    for leader_epoch in (2, 9):
        files.log.append_as_leader(
            RecordBatches.read(batch(0, -1)),
            leader_epoch=leader_epoch,
            origin=AppendOrigin.RAFT_LEADER,
        )
    files.log.flush()
    snapshot_id = SnapshotId(100, 5)
    writer = SnapshotWriter(filesystem, snapshot_path(LOG_DIRECTORY, snapshot_id))
    for data in snapshot_batches(
        [(TopicRecord(name="a"), 0)],
        leader_epoch=5,
        last_contained_log_time_ms=5,
        voters=VOTERS,
        timestamp_ms=5,
    ):
        writer.append(data)
    loaded, voters = install_snapshot(filesystem, LOG_DIRECTORY, files.log, snapshot_id, writer)
    files.snapshots[:] = [snapshot_id]
    assert (loaded.end_offset, voters) == (100, VOTERS)

    def check(view: LogFiles) -> None:
        assert (view.log_start_offset, view.log_end_offset) == (100, 100)
        assert view.last_leader_epoch == 5
        assert view.end_of_epoch(9) == EpochEnd(5, 100)
        assert view.end_of_epoch(5) == EpochEnd(5, 100)
        assert view.end_of_epoch(4) == EpochEnd(0, 100)
        assert view.latest_snapshot == view.earliest_snapshot == snapshot_id
        assert view.has_snapshot(snapshot_id)
        assert not view.has_snapshot(SnapshotId(100, 4))

    check(view)
    files.log.append_as_follower(bytearray(batch(100, 5)), leader_epoch=5)
    assert view.end_of_epoch(9) == EpochEnd(5, 102)
    files.log.truncate_to(100)
    files.log.close()
    again = opened(filesystem)
    check(again)
    assert again.voters.latest == VOTERS
    again.log.abandon()
    opening, *_ = snapshot_batches(
        (), leader_epoch=5, last_contained_log_time_ms=5, voters=VOTERS, timestamp_ms=5
    )
    assert opening in filesystem.read_bytes(snapshot_path(LOG_DIRECTORY, snapshot_id))
