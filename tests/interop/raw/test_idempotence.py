"""Producer ids, epochs and sequences, sent by hand (KIP-98)."""

from __future__ import annotations

from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import Record, encode_batch
from tests.interop.raw.probe import (
    connected,
    fetch_raw,
    new_producer_id,
    produce_raw,
    topic_metadata,
)
from tests.interop.samples import BASE_TIMESTAMP_MS


def batch(producer_id: int, sequence: int, count: int = 1, *, producer_epoch: int = 0) -> bytearray:
    records = [Record(number, BASE_TIMESTAMP_MS, b"k", b"%d" % sequence) for number in range(count)]
    return encode_batch(
        records, producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=sequence
    )


async def test_a_batch_sent_again_is_acknowledged_with_its_first_offset(
    bootstrap: str, topic: str
) -> None:
    async with connected(bootstrap) as connection:
        await topic_metadata(connection, topic)
        producer_id = await new_producer_id(connection)
        offsets = []
        for sequence in range(5):
            answer = await produce_raw(connection, topic, batch(producer_id, sequence))
            assert answer.error_code == ErrorCode.NONE
            offsets.append(answer.base_offset)
        assert offsets == [0, 1, 2, 3, 4]
        for sequence in (4, 0, 2):
            again = await produce_raw(connection, topic, batch(producer_id, sequence))
            assert (again.error_code, again.base_offset) == (ErrorCode.NONE, sequence)
        # The sixth forgets the first: then it looks like disorder.
        await produce_raw(connection, topic, batch(producer_id, 5))
        forgotten = await produce_raw(connection, topic, batch(producer_id, 0))
        assert forgotten.error_code in (
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
        )
        assert len(await fetch_raw(connection, topic)) == 6 * len(batch(producer_id, 0))


async def test_a_gap_is_out_of_order(bootstrap: str, topic: str) -> None:
    async with connected(bootstrap) as connection:
        await topic_metadata(connection, topic)
        producer_id = await new_producer_id(connection)
        first = await produce_raw(connection, topic, batch(producer_id, 0, count=3))
        assert first.error_code == ErrorCode.NONE
        gap = await produce_raw(connection, topic, batch(producer_id, 5))
        assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        following = await produce_raw(connection, topic, batch(producer_id, 3))
        assert (following.error_code, following.base_offset) == (ErrorCode.NONE, 3)


async def test_an_old_producer_epoch_is_fenced(bootstrap: str, topic: str) -> None:
    async with connected(bootstrap) as connection:
        await topic_metadata(connection, topic)
        producer_id = await new_producer_id(connection)
        newer = await produce_raw(connection, topic, batch(producer_id, 0, producer_epoch=1))
        assert newer.error_code == ErrorCode.NONE
        older = await produce_raw(connection, topic, batch(producer_id, 1, producer_epoch=0))
        assert older.error_code == ErrorCode.INVALID_PRODUCER_EPOCH


async def test_a_new_epoch_starts_at_sequence_zero(bootstrap: str, topic: str) -> None:
    async with connected(bootstrap) as connection:
        await topic_metadata(connection, topic)
        producer_id = await new_producer_id(connection)
        await produce_raw(connection, topic, batch(producer_id, 0))
        wrong = await produce_raw(connection, topic, batch(producer_id, 1, producer_epoch=1))
        assert wrong.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        right = await produce_raw(connection, topic, batch(producer_id, 0, producer_epoch=1))
        assert right.error_code == ErrorCode.NONE


async def test_producer_ids_are_never_given_twice(bootstrap: str) -> None:
    async with connected(bootstrap) as connection:
        given = [await new_producer_id(connection) for _ in range(50)]
    assert len(set(given)) == 50
