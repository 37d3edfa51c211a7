"""The same records in the log whatever the batches: sizes, lingering, codecs, splits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from moldau.client.producer.core.accumulator import Room
from moldau.client.producer.core.results import Results
from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import Codec, Record, RecordHeaders, decode_records, record_size_bound
from tests.unit.client.producer.core.world import Identity, accumulator_of, config_of

HEADERS = st.lists(
    st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=10)), max_size=2
).map(tuple)
RECORDS = st.lists(
    st.tuples(
        st.integers(0, 2**40),
        st.none() | st.binary(max_size=20),
        st.none() | st.binary(max_size=300),
        HEADERS,
    ),
    min_size=1,
    max_size=40,
)


@hypothesis_settings(max_examples=80, deadline=None)
@given(
    records=RECORDS,
    batch_size=st.integers(0, 2000),
    codec=st.sampled_from(list(Codec)),
    max_message_bytes=st.sampled_from([150, 400, 10_000]),
    drain_after=st.sets(st.integers(0, 40)),
)
def test_the_same_records_whatever_the_batch_boundaries(
    records: list[tuple[int, bytes | None, bytes | None, RecordHeaders]],
    batch_size: int,
    codec: Codec,
    max_message_bytes: int,
    drain_after: set[int],
) -> None:
    config = config_of(
        batch_size=batch_size,
        buffer_memory=1 << 20,
        max_request_size=1 << 16,
        compression_type=codec.name.lower(),
        linger_ms=0,
    )
    accumulator = accumulator_of(
        config, identity=Identity(transactional=False), backoff_ms=lambda attempt: 0.0
    )
    results = Results(accumulator)
    topic = accumulator.set_leaders("t", [(1, 0)])
    queue = topic.queues[0]
    log: list[Record] = []
    places = []

    def send_all() -> None:
        while batches := accumulator.drain([queue], 1 << 20, 0.0):
            [batch] = batches
            assert batch.encoded is not None
            if len(batch.encoded) > max_message_bytes and batch.record_count > 1:
                results.refused(batch, ErrorCode.MESSAGE_TOO_LARGE, None, 0.0)
                continue
            base_offset = len(log)
            log.extend(decode_records(batch.encoded))
            results.acknowledged(batch, base_offset=base_offset)

    for number, values in enumerate(records):
        bound = record_size_bound(*values[1:])
        while (index := queue.appender.append(*values)) < 0:
            assert accumulator.make_room(queue, bound, 0.0) is not Room.NO_MEMORY
        places.append((queue.filling, index))
        if number in drain_after:
            send_all()
    send_all()
    stored = [(each.timestamp_ms, each.key, each.value, each.headers) for each in log]
    assert stored == records
    for number, (batch, index) in enumerate(places):
        assert batch is not None
        outcome, at = batch.locate(index)
        assert outcome.base_offset + at == number
    assert accumulator.free_bytes == 1 << 20
