"""Appending: what a leader takes, refuses (CRC, lengths, counts) and writes, and what becomes of it
after a failure.
"""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from moldau.config.table import BROKER_KEYS
from moldau.config.topic_config import topic_config_defaults
from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import (
    Codec,
    Record,
    TimestampType,
    encode_batch,
    iter_batches,
    read_batch_header,
    verify_crc,
)
from moldau.protocol.records.header import write_header
from moldau.runtime.filesystem import OsFilesystem
from moldau.storage import append as storage_append
from moldau.storage.append import AppendOrigin, RecordBatches, needs_preparation, prepare
from moldau.storage.faults import AppendRejected
from moldau.storage.log_config import LogConfig
from tests.storage.log_fixtures import (
    START_MS,
    LogBench,
    append,
    batch_of,
    fill,
    read_all,
    records,
    values_of,
)
from tests.storage.simulated_filesystem import Fault, SimulatedFile, SimulatedFilesystem


def test_batches_keep_their_bytes_but_for_offset_and_epoch() -> None:
    bench = LogBench()
    log = bench.open()
    append(log, "a", "b")
    sent = batch_of("c", "d", "e", codec=Codec.LZ4)
    original = bytes(sent)

    result = log.append_as_leader(RecordBatches.read(sent), leader_epoch=7)

    assert (result.base_offset, result.last_offset, result.record_count) == (2, 4, 3)
    region = log.read(2, max_bytes=1 << 20).records
    stored = bytes(region)
    assert stored[12:16] == (7).to_bytes(4, "big")
    assert stored[:8] == (2).to_bytes(8, "big")
    assert stored[8:12] + stored[16:] == original[8:12] + original[16:]
    assert log.leader_epoch_cache.entries == [(0, 0), (7, 2)]


def test_many_batches_in_one_append_are_one_write() -> None:
    bench = LogBench()
    log = bench.open()
    assert isinstance(bench.filesystem, SimulatedFilesystem)
    log.append_as_leader(RecordBatches.read(batch_of("first")), leader_epoch=0)
    before = bench.filesystem.operation_count
    joined = batch_of("a") + batch_of("b", "c") + batch_of("d")

    result = log.append_as_leader(RecordBatches.read(joined), leader_epoch=0)

    assert (result.base_offset, result.last_offset) == (1, 4)
    assert [o.name for o in bench.filesystem.operations[before:]] == ["append"]
    assert values_of(log) == ["first", "a", "b", "c", "d"]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_frames_view_is_appended_in_place_and_let_go(codec: Codec) -> None:
    log = LogBench(config=LogConfig(message_timestamp_type="LogAppendTime")).open()
    frame = bytearray(b"head" + batch_of("a", "b", codec=codec) + b"tail")
    with memoryview(frame) as whole, whole[4:-4] as view:
        assert (
            log.append_as_leader(RecordBatches.read(view), leader_epoch=5).error is ErrorCode.NONE
        )
        assert bytes(view) == bytes(log.read(0, max_bytes=1 << 20).records)
    assert (frame[:4], frame[-4:]) == (b"head", b"tail")
    frame.append(0)  # BufferError if a view of it were still held


def refuse(log_config: LogConfig, sent: bytearray) -> ErrorCode:
    bench = LogBench(config=log_config)
    log = bench.open()
    append(log, "before") if log_config.max_message_bytes > 100 else None
    size, before = log.size_bytes, bytes(sent)
    try:
        result = log.append_as_leader(RecordBatches.read(sent), leader_epoch=0)
    except AppendRejected as rejected:
        result = log.rejected(rejected)
    assert bytes(sent) == before, "a refused buffer was changed"
    assert log.size_bytes == size
    assert result.base_offset == -1
    assert result.error_message
    assert log.append_as_leader(RecordBatches.read(batch_of("x")), leader_epoch=0).error in (
        ErrorCode.NONE,
        ErrorCode.MESSAGE_TOO_LARGE,
    )
    return result.error


def corrupt(position: int, value: int) -> bytearray:
    sent = batch_of("hello", "world")
    sent[position] ^= value
    return sent


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (corrupt(16, 3), ErrorCode.INVALID_RECORD),  # magic
        (corrupt(17, 1), ErrorCode.CORRUPT_MESSAGE),  # crc
        (corrupt(70, 1), ErrorCode.CORRUPT_MESSAGE),  # a record
        (corrupt(11, 0x40), ErrorCode.CORRUPT_MESSAGE),  # length
        (bytearray(), ErrorCode.INVALID_RECORD),
        (bytearray(b"\0" * 61), ErrorCode.INVALID_RECORD),
        (batch_of("a")[:-1], ErrorCode.CORRUPT_MESSAGE),
        (batch_of("a") + b"\0", ErrorCode.CORRUPT_MESSAGE),
        (batch_of("a", is_control=True), ErrorCode.INVALID_RECORD),
        (
            batch_of("a", is_control=True, producer_id=1, producer_epoch=0, base_sequence=0),
            ErrorCode.INVALID_RECORD,
        ),
        (batch_of("a", base_offset=5), ErrorCode.INVALID_RECORD),
        (batch_of("a", producer_id=1, producer_epoch=0), ErrorCode.INVALID_RECORD),
        (batch_of("a", is_transactional=True), ErrorCode.INVALID_RECORD),
        (batch_of("a", timestamp_type=TimestampType.LOG_APPEND_TIME), ErrorCode.INVALID_TIMESTAMP),
        (batch_of("a", timestamp_ms=START_MS + 3_600_001), ErrorCode.INVALID_TIMESTAMP),
        (batch_of("ok") + corrupt(17, 1), ErrorCode.CORRUPT_MESSAGE),
        (encode_batch(records("ab"), last_offset_delta=5), ErrorCode.INVALID_RECORD),
        (encode_batch([]), ErrorCode.INVALID_RECORD),
    ],
)
def test_bad_batches_are_refused_whole(sent: bytearray, error: ErrorCode) -> None:
    assert refuse(LogConfig(), sent) is error


def test_a_record_count_the_bytes_cannot_hold_is_refused() -> None:
    sent = encode_batch(records("ab"), last_offset_delta=2**30)
    sent[57:61] = (2**30 + 1).to_bytes(4, "big")
    from moldau.protocol.records.header import write_crc

    write_crc(sent, 0, len(sent))
    assert refuse(LogConfig(), sent) is ErrorCode.INVALID_RECORD


def test_a_batch_of_exactly_the_largest_size_is_taken() -> None:
    sent = batch_of("x" * 100)
    for max_bytes, error in [
        (len(sent), ErrorCode.NONE),
        (len(sent) - 1, ErrorCode.MESSAGE_TOO_LARGE),
    ]:
        log = LogBench(config=LogConfig(max_message_bytes=max_bytes)).open()
        result = log.append_as_leader(RecordBatches.read(bytearray(sent)), leader_epoch=0)
        assert result.error is error


def test_as_many_records_as_the_bytes_can_hold_are_taken_and_no_more() -> None:
    from moldau.protocol.records.header import write_crc

    sent = encode_batch([Record(n, START_MS, None, None) for n in range(5)])
    assert len(sent) == 61 + 5 * 7, "the least that a record takes"
    assert LogBench().open().append_as_leader(
        RecordBatches.read(bytearray(sent)), leader_epoch=0
    ).error is (ErrorCode.NONE)
    sent[23:27] = (5).to_bytes(4, "big")
    sent[57:61] = (6).to_bytes(4, "big")
    write_crc(sent, 0, len(sent))
    result = LogBench().open().append_as_leader(RecordBatches.read(sent), leader_epoch=0)
    assert result.error is ErrorCode.INVALID_RECORD
    assert "6 records in" in (result.error_message or "")


def test_keys_of_more_records_than_the_loop_may_look_at_are_looked_at_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(storage_append, "MAX_INLINE_KEY_CHECKS", 3)
    compacted = LogConfig(cleanup_policy=("compact",))
    for count, is_needed in [(3, False), (4, True)]:
        sent = encode_batch([Record(n, START_MS, b"k", b"v") for n in range(count)])
        batches = RecordBatches.read(sent)
        assert storage_append.needs_preparation(batches, compacted) is is_needed
        assert not storage_append.needs_preparation(batches, LogConfig())


def test_limits_of_size_and_time() -> None:
    small = LogConfig(max_message_bytes=80)
    assert refuse(small, batch_of("x" * 100)) is ErrorCode.MESSAGE_TOO_LARGE
    tiny_segment = LogConfig(segment_bytes=300)
    assert refuse(tiny_segment, batch_of("x" * 300)) is ErrorCode.RECORD_LIST_TOO_LARGE
    past = LogConfig(message_timestamp_before_max_ms=1000)
    old = batch_of("x", timestamp_ms=START_MS - 1001)
    bench = LogBench(config=past)
    assert (
        bench.open().append_as_leader(RecordBatches.read(old), leader_epoch=0).error
        is ErrorCode.INVALID_TIMESTAMP
    )


def test_records_without_timestamp_pass_the_time_limits() -> None:
    log = LogBench(config=LogConfig(message_timestamp_before_max_ms=1000)).open()
    result = append(log, "x", timestamp_ms=-1)
    assert result.error is ErrorCode.NONE


def test_log_append_time_stamps_and_renews_the_crc() -> None:
    bench = LogBench(config=LogConfig(message_timestamp_type="LogAppendTime"))
    log = bench.open()
    bench.clock.advance(5000)
    result = append(log, "a", "b", timestamp_ms=START_MS - 10**9)
    assert result.log_append_time_ms == START_MS + 5000
    data = bytes(log.read(0, max_bytes=1 << 20).records)
    header = read_batch_header(data)
    assert verify_crc(data, 0, header)
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert {r.timestamp_ms for r in read_all(log)} == {START_MS + 5000}


@pytest.mark.parametrize("target", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_the_topics_codec_is_applied_off_the_loop(target: str) -> None:
    bench = LogBench(config=LogConfig(compression_type=target))
    log = bench.open()
    sent = b"".join(
        batch_of("a" * 50, "b" * 50, codec=codec, producer_id=3, producer_epoch=0, base_sequence=2)
        for codec in Codec
    )
    batches = RecordBatches.read(bytearray(sent))
    assert log.needs_preparation(batches)
    prepared = prepare(batches, log.config)
    assert not log.needs_preparation(prepared)
    assert prepared.headers == list(iter_batches(prepared.data))
    for _, header in prepared.headers:
        assert header.codec is bench.config.target_codec
        assert (header.producer_id, header.base_sequence) == (3, 2)
    first = RecordBatches.read(prepared.data[: prepared.headers[0][1].size_bytes])
    assert log.append_as_leader(first, leader_epoch=0).error is ErrorCode.NONE
    assert values_of(log) == ["a" * 50, "b" * 50]


def test_preparation_refuses_what_it_cannot_read() -> None:
    config = LogConfig(compression_type="zstd")
    broken = batch_of("a")
    broken[-1] ^= 1
    with pytest.raises(AppendRejected) as caught:
        prepare(RecordBatches.read(broken), config)
    assert caught.value.error is ErrorCode.CORRUPT_MESSAGE
    compressed = RecordBatches.read(batch_of("a", codec=Codec.GZIP))
    assert not needs_preparation(compressed, LogConfig())


def test_a_batch_that_is_too_large_is_not_prepared_and_its_crc_is_verified_by_the_append() -> None:
    broken = batch_of("x" * 100)
    broken[-1] ^= 1
    batches = RecordBatches.read(broken)
    small = LogConfig(compression_type="gzip", max_message_bytes=80)
    assert prepare(batches, small) is batches
    assert refuse(small, broken) is ErrorCode.MESSAGE_TOO_LARGE
    assert refuse(LogConfig(), broken) is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize(
    ("ahead_ms", "error"),
    [
        (-START_MS, ErrorCode.INVALID_TIMESTAMP),
        (-501, ErrorCode.INVALID_TIMESTAMP),
        (-500, ErrorCode.NONE),
        (300, ErrorCode.NONE),
        (301, ErrorCode.INVALID_TIMESTAMP),
    ],
)
def test_timestamps_may_be_as_far_off_as_configured_and_no_farther(
    ahead_ms: int, error: ErrorCode
) -> None:
    config = LogConfig(message_timestamp_before_max_ms=500, message_timestamp_after_max_ms=300)
    log = LogBench(config=config).open()
    sent = batch_of("a", timestamp_ms=START_MS + ahead_ms)
    assert log.append_as_leader(RecordBatches.read(sent), leader_epoch=0).error is error


def test_a_full_disk_leaves_the_log_as_it_was() -> None:
    filesystem = SimulatedFilesystem()
    bench = LogBench(filesystem, config=LogConfig(segment_index_bytes=1024))
    log = bench.open()
    append(log, "a", producer_id=1, producer_epoch=0, base_sequence=0)
    filesystem.faults.append(Fault("append", ".log", errno.ENOSPC, count=3))
    refused = batch_of("b", producer_id=1, producer_epoch=0, base_sequence=1)
    for _ in range(3):
        result = log.append_as_leader(RecordBatches.read(bytearray(refused)), leader_epoch=0)
        assert result.error is ErrorCode.KAFKA_STORAGE_ERROR
        assert not log.offline
        assert values_of(log) == ["a"]
    result = log.append_as_leader(RecordBatches.read(bytearray(refused)), leader_epoch=0)
    assert (result.error, result.base_offset) == (ErrorCode.NONE, 1)
    assert values_of(log) == ["a", "b"]


def test_half_a_batch_that_cannot_be_cut_off_again_takes_the_log_offline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = LogBench(config=LogConfig(segment_index_bytes=1024)).open()
    append(log, "a")
    whole = SimulatedFile.append

    def half(file: SimulatedFile, data: bytes) -> None:
        whole(file, bytes(data)[:20])
        raise OSError(errno.ENOSPC, "no room for the rest")

    monkeypatch.setattr(SimulatedFile, "append", half)
    result = log.append_as_leader(RecordBatches.read(batch_of("b")), leader_epoch=0)
    assert result.error is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.offline
    assert "could not be undone" in log.offline_reason


def test_what_is_behind_a_batch_without_room_is_no_gap() -> None:
    filesystem = SimulatedFilesystem()
    bench = LogBench(filesystem, config=LogConfig(segment_index_bytes=1024))
    log = bench.open()
    append(log, "a", producer_id=1, producer_epoch=0, base_sequence=0)
    append(log, "other", producer_id=2, producer_epoch=0, base_sequence=0)
    filesystem.faults.append(Fault("append", ".log", errno.ENOSPC, count=1))
    batches = [
        batch_of(value, producer_id=1, producer_epoch=0, base_sequence=number)
        for number, value in ((1, "b"), (2, "c"))
    ]

    def sent(number: int) -> ErrorCode:
        return log.append_as_leader(
            RecordBatches.read(bytearray(batches[number])), leader_epoch=0
        ).error

    assert sent(0) is ErrorCode.KAFKA_STORAGE_ERROR
    assert sent(1) is ErrorCode.KAFKA_STORAGE_ERROR, "it was in flight behind the first"
    gap = batch_of("d", producer_id=2, producer_epoch=0, base_sequence=2)
    result = log.append_as_leader(RecordBatches.read(gap), leader_epoch=0)
    assert result.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "another producer's own gap"
    bench.clock.advance(1_000)
    assert sent(1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "the first does not come any more"
    assert [sent(0), sent(1)] == [ErrorCode.NONE] * 2
    assert values_of(log) == ["a", "other", "b", "c"]
    assert not log.roomless_producers


def test_no_room_to_roll_keeps_the_old_segment_and_rolls_later() -> None:
    filesystem = SimulatedFilesystem()
    bench = LogBench(filesystem, config=LogConfig(segment_bytes=500))
    log = bench.open()
    fill(log, 2)
    for path_part in (".log", ".index", ".timeindex", ".snapshot"):
        for operation in ("create", "append"):
            if path_part != ".snapshot" and operation == "append":
                continue
            filesystem.faults.append(Fault(operation, f"2{path_part}", errno.ENOSPC))
            result = log.append_as_leader(RecordBatches.read(batch_of("x" * 200)), leader_epoch=0)
            assert result.error is ErrorCode.KAFKA_STORAGE_ERROR, (path_part, operation)
            assert not log.offline
            assert len(log.segments) == 1
            assert bench.names(".log") == ["00000000000000000000.log"]
    assert filesystem.faults[-1].count == 0
    append(log, "x" * 200)
    assert len(log.segments) == 2


def test_a_lack_of_room_is_logged_once_and_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    filesystem = SimulatedFilesystem()
    log = LogBench(filesystem).open()
    for _ in range(2):
        filesystem.faults.append(Fault("append", ".log", errno.ENOSPC, count=3))
        for _ in range(3):
            sent = RecordBatches.read(batch_of("a"))
            assert log.append_as_leader(sent, leader_epoch=0).error is not ErrorCode.NONE
        append(log, "b")
        append(log, "c")
    told = [each.getMessage() for each in caplog.records if "room" in each.getMessage()]
    assert [each.partition(": ")[2].partition(" to append")[0] for each in told] == [
        "no room",
        "there is room again",
    ] * 2


def test_damage_that_an_append_comes_across_takes_the_log_offline() -> None:
    """It reads the first batch of the segment to know whether to roll."""
    bench = LogBench()
    log = bench.open()
    fill(log, 3)
    log = bench.reopen(log, clean=True)
    bench.overwrite(bench.path(0), 16, b"\x07")
    result = log.append_as_leader(RecordBatches.read(batch_of("a")), leader_epoch=0)
    assert result.error is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.offline
    assert not log.roomless_producers


def test_an_index_without_room_only_becomes_sparser() -> None:
    filesystem = SimulatedFilesystem()
    bench = LogBench(filesystem, config=LogConfig(index_interval_bytes=200))
    log = bench.open()
    filesystem.faults.append(Fault("pwrite", ".index", errno.ENOSPC, count=3))
    fill(log, 20)
    assert len(read_all(log)) == 20
    assert log.segments.active.offset_index.entry_count > 0


@pytest.mark.parametrize("error_number", [errno.EIO, errno.EROFS])
def test_a_failing_disk_takes_the_partition_offline(error_number: int) -> None:
    filesystem = SimulatedFilesystem()
    bench = LogBench(filesystem)
    log = bench.open()
    neighbour = LogBench(filesystem, "/data/topic-1").open()
    told = []
    log.on_offline = told.append
    append(log, "a")
    filesystem.faults.append(Fault("append", "topic-0", error_number))
    assert (
        log.append_as_leader(RecordBatches.read(batch_of("b")), leader_epoch=0).error
        is ErrorCode.KAFKA_STORAGE_ERROR
    )
    assert log.offline
    assert told == [log]
    assert log.append_as_leader(RecordBatches.read(batch_of("b")), leader_epoch=0).error is (
        ErrorCode.KAFKA_STORAGE_ERROR
    )
    assert log.read(0, max_bytes=100).error is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.delete_records(0)[0] is ErrorCode.KAFKA_STORAGE_ERROR
    append(neighbour, "still here")


def test_a_short_write_on_a_real_disk_is_cut_back(tmp_path: Path) -> None:
    import resource

    filesystem = OsFilesystem()
    config = LogConfig(segment_index_bytes=800)
    bench = LogBench(filesystem, str(tmp_path / "topic-0"), config=config)
    log = bench.open()
    append(log, "a" * 500)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    import signal

    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (log.size_bytes + 100, hard))
        result = log.append_as_leader(RecordBatches.read(batch_of("b" * 500)), leader_epoch=0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, previous)
    assert result.error is ErrorCode.KAFKA_STORAGE_ERROR
    assert not log.offline
    assert Path(bench.path(0)).stat().st_size == log.size_bytes
    append(log, "c")
    assert [v[0] for v in values_of(log)] == ["a", "c"]
    log.close()
    filesystem.close()


def test_followers_take_offsets_and_epochs_as_they_come() -> None:
    leader, follower = LogBench().open(), LogBench().open()
    for epoch in (0, 0, 2, 5):
        append(leader, f"e{epoch}", "x", leader_epoch=epoch)
    fetched = bytearray(bytes(leader.read(0, max_bytes=1 << 20).records))
    result = follower.append_as_follower(fetched, leader_epoch=2)
    assert (result.base_offset, result.last_offset) == (0, 5)
    assert follower.leader_epoch_cache.entries == [(0, 0), (2, 4)]
    assert follower.log_end_offset == 6
    again = follower.append_as_follower(fetched, leader_epoch=5)
    assert again.error is ErrorCode.CORRUPT_MESSAGE
    rest = bytearray(bytes(leader.read(6, max_bytes=1 << 20).records))
    assert follower.append_as_follower(rest, leader_epoch=5).last_offset == 7
    assert values_of(follower) == values_of(leader)


def test_control_batches_are_the_quorums_to_write() -> None:
    log = LogBench().open()
    sent = encode_batch([Record(0, START_MS, b"\0\0\0\2", b"leader")], is_control=True)
    result = log.append_as_leader(
        RecordBatches.read(sent), leader_epoch=3, origin=AppendOrigin.RAFT_LEADER
    )
    assert result.error is ErrorCode.NONE
    assert log.producer_state.producers == {}


def test_config_from_topic_keys() -> None:
    config = LogConfig.from_config(
        {
            **topic_config_defaults({name: key.default for name, key in BROKER_KEYS.items()}),
            "segment.bytes": 1000,
            "compression.type": "zstd",
            "compression.zstd.level": 7,
            "message.timestamp.type": "LogAppendTime",
            "cleanup.policy": ("compact", "delete"),
            "retention.ms": -1,
            "preallocate": True,
        }
    )
    assert (config.segment_bytes, config.retention_ms, config.preallocate) == (1000, -1, True)
    assert config.uses_log_append_time
    assert (config.target_codec, config.compression_level) == (Codec.ZSTD, 7)
    assert config.max_message_bytes == 1048588
    assert config.compacts


def test_default_log_config_is_that_of_a_topic_without_overrides() -> None:
    values = topic_config_defaults({name: key.default for name, key in BROKER_KEYS.items()})
    assert LogConfig() == LogConfig.from_config(values)


@pytest.mark.parametrize("path_part", [".log", ".index", ".timeindex"])
def test_running_out_of_descriptors_is_reported_and_passes(path_part: str) -> None:
    filesystem = SimulatedFilesystem()
    bench = LogBench(filesystem)
    log = bench.open()
    append(log, "a")
    log.rest()
    fault = Fault("open" if path_part == ".log" else "map", path_part, errno.EMFILE, count=None)
    filesystem.faults.append(fault)
    refused = log.append_as_leader(RecordBatches.read(batch_of("lost")), leader_epoch=0)
    assert refused.error is ErrorCode.KAFKA_STORAGE_ERROR
    if path_part == ".log":
        assert log.read(0, max_bytes=100).error is ErrorCode.KAFKA_STORAGE_ERROR
    assert not log.offline
    filesystem.faults.clear()
    assert append(log, "b").base_offset == 1
    assert values_of(log) == ["a", "b"]
    assert values_of(bench.reopen(log)) == ["a", "b"]


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_count_that_no_compression_can_hold_is_refused(codec: Codec) -> None:
    """Else a hundred bytes take two thousand million offsets, and a segment each time."""
    log = LogBench().open()
    lying = batch_of("a", codec=codec)
    header = read_batch_header(lying)
    header.record_count = 2**31 - 1
    header.last_offset_delta = 2**31 - 2
    write_header(lying, header)
    refused = log.append_as_leader(RecordBatches.read(lying), leader_epoch=0)
    assert refused.error is ErrorCode.INVALID_RECORD
    assert log.log_end_offset == 0
    dense = batch_of(*[b""] * 100_000, codec=codec)
    assert log.append_as_leader(RecordBatches.read(dense), leader_epoch=0).error is ErrorCode.NONE


def test_a_leader_appends_nothing_behind_records_of_a_newer_epoch() -> None:
    """No leader's records are newer than its own epoch: that bit was never written."""
    bench = LogBench()
    log = bench.open()
    append(log, "a", leader_epoch=3)
    append(log, "b", leader_epoch=3)
    log.abandon()
    bench.overwrite(bench.path(0), log.segments.active.size_bytes // 2 + 12, bytes([64]))
    log = bench.open()
    assert log.leader_epoch_cache.latest_epoch == 64 << 24 | 3
    result = log.append_as_leader(RecordBatches.read(batch_of("c")), leader_epoch=4)
    assert (result.error, log.offline) == (ErrorCode.KAFKA_STORAGE_ERROR, True)
    assert "the leader has 4" in log.offline_reason
