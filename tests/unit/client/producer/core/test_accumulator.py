"""What the accumulator promises in one step: room, numbers behind a split, retries at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moldau.client.producer.core.accumulator import Accumulator, Room
from moldau.client.producer.core.batch import ProducerBatch
from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import BATCH_HEADER_SIZE, Codec, RecordBuffer, record_size_bound
from tests.unit.client.producer.core.world import TOPIC, Errors, World


@pytest.mark.parametrize(("missing_bytes", "expected"), [(0, Room.MADE), (1, Room.NO_MEMORY)])
def test_a_record_may_take_all_memory_there_is(missing_bytes: int, expected: Room) -> None:
    bound = record_size_bound(None, bytes(10))
    memory_bytes = BATCH_HEADER_SIZE + bound - missing_bytes
    settings = replace(World("plain").settings, buffer_memory_bytes=memory_bytes)
    accumulator = Accumulator(settings, identity=None, errors=Errors(), randrange=lambda count: 0)
    queue = accumulator.set_leaders("t", [(1, 0)]).queues[0]
    assert accumulator.make_room(queue, bound, 0.0) is expected
    assert accumulator.free_bytes == (0 if expected is Room.MADE else memory_bytes)


@pytest.mark.parametrize("missing_bytes", [0, 1])
def test_a_batch_made_elsewhere_is_taken_whole_or_not_at_all(missing_bytes: int) -> None:
    made = ProducerBatch("t", 0, 0.0, RecordBuffer(1_000))
    assert made.buffer is not None
    made.buffer.append(1, None, b"value", ())
    made.close(Codec.NONE, None)
    assert made.encoded is not None
    assert made.header is not None
    memory_bytes = len(made.encoded) - missing_bytes
    settings = replace(World("plain").settings, buffer_memory_bytes=memory_bytes)
    accumulator = Accumulator(settings, identity=None, errors=Errors(), randrange=lambda count: 0)
    queue = accumulator.set_leaders("t", [(1, 0)]).queues[0]
    batch = accumulator.append_encoded(queue, made.encoded, made.header, 0.0)
    assert (batch is None) == queue.is_empty == (missing_bytes > 0)
    assert accumulator.free_bytes == (memory_bytes if batch is None else 0)


def test_a_batch_that_a_leader_refused_goes_to_its_successor_at_once() -> None:
    """Also when the refusal came from the first leader there was, with epoch 0 (KIP-951)."""
    world = World("idempotent")
    assert world.append(0, 10)
    world.pass_time(6.0)
    world.drain()
    world.move_leader(0, 1, told=False)
    world.serve(0, None)
    world.answer(0)
    assert world.drain() == 0
    world.learn_leaders()
    assert world.drain() == 1
    assert world.wires[1].requests


def test_batches_behind_one_that_is_split_count_on_behind_its_parts() -> None:
    world = World("idempotent")
    world.append(0, 10)
    world.pass_time(6.0)
    world.drain()
    world.serve_all()
    for _ in range(8):
        world.append(0, 60)
    world.pass_time(6.0)
    world.drain()
    world.drain()
    queue = world.accumulator.topics[TOPIC].queues[0]
    assert len(queue.outstanding) == 2
    world.serve(0, ErrorCode.MESSAGE_TOO_LARGE)
    world.answer(0)
    assert len(queue.outstanding) > 2
    ordinals = [batch.ordinal for batch in queue.outstanding]
    assert ordinals == list(range(ordinals[0], queue.next_ordinal))
