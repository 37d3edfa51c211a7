"""One batch: what is written into its bytes, where its records are after a split, its sizes."""

from __future__ import annotations

from uuid import UUID

import pytest

from moldau.client.producer.core.batch import Outcome, ProducerBatch
from moldau.client.producer.core.transaction_states import ProducerIdAndEpoch
from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import (
    BATCH_HEADER_SIZE,
    Codec,
    RecordBuffer,
    decode_records,
    read_batch_header,
    verify_crc,
)

PAIR = ProducerIdAndEpoch(7, 3)
TIMES_MS = (500, 900, 400)


def filled(count: int = 3, value_bytes: int = 40) -> ProducerBatch:
    """A batch that takes records, with some in it."""
    buffer = RecordBuffer(1 << 16)
    batch = ProducerBatch("t", 5, 10.0, buffer)
    for number in range(count):
        timestamp_ms = TIMES_MS[number % len(TIMES_MS)]
        assert buffer.append(timestamp_ms, b"%d" % number, bytes(value_bytes), ()) == number
    return batch


def closed(codec: Codec = Codec.NONE, count: int = 3, value_bytes: int = 40) -> ProducerBatch:
    batch = filled(count, value_bytes)
    batch.close(codec, None)
    return batch


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_closed_batch_describes_its_records(codec: Codec) -> None:
    batch = filled(value_bytes=2_000)
    assert batch.is_filling
    assert batch.buffer is not None
    size_bytes = batch.size_bytes
    assert size_bytes == batch.buffer.size_bytes
    batch.close(codec, None)
    assert not batch.is_filling
    assert (batch.record_count, batch.uncompressed_bytes) == (3, size_bytes)
    batch.prepare(is_transactional=False)
    assert batch.encoded is not None
    header = read_batch_header(batch.encoded)
    assert verify_crc(batch.encoded, 0, header)
    assert batch.size_bytes == header.size_bytes == len(batch.encoded)
    assert (batch.size_bytes < size_bytes) == (codec is Codec.LZ4)
    assert batch.uncompressed_section_bytes() == size_bytes
    assert (header.base_offset, header.last_offset_delta, header.record_count) == (0, 2, 3)
    assert (header.partition_leader_epoch, header.magic) == (-1, 2)
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (500, 900)
    assert header.attributes == codec
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert [record.timestamp_ms for record in decode_records(batch.encoded)] == list(TIMES_MS)
    encoded = bytes(batch.encoded)
    batch.close(Codec.GZIP, None)
    assert bytes(batch.encoded) == encoded, "a batch is closed once"


@pytest.mark.parametrize(
    ("base_sequence", "written"),
    [(0, 0), (2**31 - 1, 2**31 - 1), (2**31, 0), (2**31 + 5, 5)],
)
@pytest.mark.parametrize("is_transactional", [False, True])
def test_numbers_wrap_in_the_bytes(
    base_sequence: int, written: int, is_transactional: bool
) -> None:
    batch = closed(Codec.LZ4)
    assert not batch.is_numbered
    batch.number(PAIR, base_sequence)
    assert batch.is_numbered
    assert batch.end_sequence == base_sequence + 3
    batch.prepare(is_transactional=is_transactional)
    assert batch.encoded is not None
    header = read_batch_header(batch.encoded)
    assert verify_crc(batch.encoded, 0, header)
    assert (header.producer_id, header.producer_epoch) == PAIR
    assert header.base_sequence == written
    assert header.is_transactional == is_transactional
    assert header.codec is Codec.LZ4


def test_each_part_of_the_numbering_reaches_the_bytes_again() -> None:
    batch = closed()
    for pair, sequence, is_transactional in (
        (PAIR, 4, False),
        (PAIR, 5, False),
        (ProducerIdAndEpoch(7, 4), 5, False),
        (ProducerIdAndEpoch(8, 4), 5, False),
        (ProducerIdAndEpoch(8, 4), 5, True),
        (ProducerIdAndEpoch(8, 4), 5, False),
    ):
        batch.number(pair, sequence)
        batch.prepare(is_transactional=is_transactional)
        assert batch.encoded is not None
        header = read_batch_header(batch.encoded)
        assert verify_crc(batch.encoded, 0, header)
        written = header.producer_id, header.producer_epoch, header.base_sequence
        assert written == (*pair, sequence)
        assert header.is_transactional == is_transactional


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("is_numbered", [False, True])
def test_the_parts_of_a_split_go_on_where_the_batch_was(codec: Codec, is_numbered: bool) -> None:
    batch = closed(codec, count=8, value_bytes=60)
    batch.attempt_count, batch.last_code = 2, ErrorCode.MESSAGE_TOO_LARGE
    batch.sent_leader_epoch, batch.sent_topic_id = 4, UUID(int=9)
    if is_numbered:
        batch.number(PAIR, 10)
    parts = batch.split(2 * 70 + BATCH_HEADER_SIZE, codec, None)
    assert batch.is_replaced
    assert batch.parts() == parts
    assert [part.record_count for part in parts] == [2, 2, 2, 2]
    for place, part in enumerate(parts):
        assert (part.topic, part.partition, part.created_ms) == ("t", 5, 10.0)
        assert (part.attempt_count, part.last_code) == (2, ErrorCode.MESSAGE_TOO_LARGE)
        assert (part.sent_leader_epoch, part.sent_topic_id) == (4, UUID(int=9))
        assert part.is_split_part
        assert not part.is_filling
        assert part.is_numbered == is_numbered
        assert not is_numbered or (part.pair, part.base_sequence) == (PAIR, 10 + 2 * place)
        assert part.header is not None
        assert part.header.codec is codec
        assert part.encoded is not None
        part.prepare(is_transactional=False)
        keys = [bytes(record.key or b"") for record in decode_records(part.encoded)]
        assert keys == [b"%d" % (2 * place + index) for index in range(2)]


def test_a_record_that_is_larger_than_a_part_may_be_is_alone_in_one() -> None:
    batch = closed(count=3, value_bytes=200)
    parts = batch.split(BATCH_HEADER_SIZE + 10, Codec.NONE, None)
    assert [part.record_count for part in parts] == [1, 1, 1]


def test_waiters_follow_their_records_wherever_they_go() -> None:
    batch = closed(count=6, value_bytes=60)
    heard: list[tuple[int, Outcome, int]] = []
    for number in range(6):
        batch.when_done(
            number, lambda outcome, index, number=number: heard.append((number, outcome, index))
        )
    halves = batch.split(3 * 70 + BATCH_HEADER_SIZE, Codec.NONE, None)
    quarters = halves[1].split(70 + BATCH_HEADER_SIZE, Codec.NONE, None)
    batch.when_done(4, lambda outcome, index: heard.append((-4, outcome, index)))
    expected = [(halves[0], index) for index in range(3)] + [(part, 0) for part in quarters]
    assert [batch.locate(number) for number in range(6)] == expected
    assert batch.take_waiters() == halves[1].take_waiters() == []
    for part in (halves[0], *quarters):
        for index, waiter in part.take_waiters():
            waiter(part, index)
        assert part.take_waiters() == []
    assert sorted(heard, key=lambda each: each[0])[1:] == [
        (number, *place) for number, place in enumerate(expected)
    ]
    assert min(heard, key=lambda each: each[0]) == (-4, quarters[1], 0)


def test_an_outcome_says_where_its_first_record_is_or_what_went_wrong() -> None:
    fresh = Outcome("t", 0)
    assert (fresh.is_done, fresh.is_replaced, fresh.parts()) == (False, False, [])
    assert (fresh.base_offset, fresh.log_append_time_ms, fresh.error) == (-1, -1, None)
    assert fresh.locate(3) == (fresh, 3)
    fresh.finish(base_offset=5, log_append_time_ms=77)
    assert (fresh.is_done, fresh.base_offset, fresh.log_append_time_ms) == (True, 5, 77)
    failed, error = Outcome("t", 0), ValueError("no")
    failed.finish(error=error)
    assert (failed.base_offset, failed.log_append_time_ms, failed.error) == (-1, -1, error)


def test_what_has_been_let_go_of_still_has_its_size() -> None:
    batch = closed()
    size_bytes = batch.size_bytes
    batch.release()
    assert (batch.encoded, batch.size_bytes) == (None, size_bytes)


def test_a_batch_made_elsewhere_counts_as_it_lies() -> None:
    made = closed(Codec.LZ4, value_bytes=2_000)
    made.prepare(is_transactional=False)
    assert made.encoded is not None
    assert made.header is not None
    batch = ProducerBatch.of_encoded("t", 5, 10.0, made.encoded, made.header)
    assert (batch.topic, batch.partition, batch.created_ms) == ("t", 5, 10.0)
    assert (batch.record_count, batch.size_bytes) == (3, len(made.encoded))
    assert batch.uncompressed_bytes == len(made.encoded)
    assert batch.uncompressed_section_bytes() == made.uncompressed_bytes > batch.size_bytes
    assert not batch.is_filling
    assert not batch.is_numbered
