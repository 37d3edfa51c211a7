"""What the accumulator promises in one step: room, numbers behind a split, retries at once."""

from __future__ import annotations

import pytest

from moldau.client.errors import DeliveryTimeout, KafkaError
from moldau.client.producer.core.accumulator import (
    FORGOTTEN_MS,
    NEVER,
    PLENTY_RESERVE_BYTES,
    Room,
)
from moldau.client.producer.core.batch import ProducerBatch
from moldau.client.producer.core.results import Results
from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import BATCH_HEADER_SIZE, Codec, RecordBuffer, record_size_bound
from tests.unit.client.producer.core.world import (
    DELIVERY_TIMEOUT_MS,
    TOPIC,
    World,
    accumulator_of,
    config_of,
)


@pytest.mark.parametrize(("missing_bytes", "expected"), [(0, Room.MADE), (1, Room.NO_MEMORY)])
def test_a_record_may_take_all_memory_there_is(missing_bytes: int, expected: Room) -> None:
    bound = record_size_bound(None, bytes(10))
    memory_bytes = BATCH_HEADER_SIZE + bound - missing_bytes
    config = config_of(buffer_memory=memory_bytes)
    accumulator = accumulator_of(config)
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
    config = config_of(buffer_memory=memory_bytes)
    accumulator = accumulator_of(config)
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


def test_what_a_node_will_never_take_ends_with_the_batch_that_is_being_filled() -> None:
    """What it has on the wire may still be answered, and the other node's records go on."""
    world = World("idempotent")
    world.append(0, 10)
    world.pass_time(6.0)
    world.drain()
    for partition in (0, 1):
        world.append(partition, 10)
    world.refuse_node(0)
    world.announce()
    assert {number: str(error) for number, (error, _) in world.ended.items()} == {1: "refused"}
    world.pass_time(6.0)
    world.drain()
    world.serve_all()
    world.announce()
    assert [world.ended[number][0] for number in (0, 2)] == [None, None]
    world.finish()


def test_a_batch_expires_at_the_time_for_which_the_next_look_is_planned() -> None:
    """Whatever the clock's fractions are rounded to: the sender would not let go otherwise."""
    for step in range(200):
        created_ms = step * 0.7
        world = World("plain")
        world.now_ms = created_ms
        assert world.append(0, 10)
        world.results.expire(world.accumulator.expiry_ms())
        assert world.accumulator.expiry_ms() == NEVER, f"created at {created_ms!r}"


def test_an_expired_batch_says_how_many_records_it_had() -> None:
    """Also one that nothing has closed before."""
    world = World("plain")
    for _ in range(3):
        world.append(0, 10)
    world.results.expire(DELIVERY_TIMEOUT_MS)
    (error,) = {error for error, _ in announced(world)}
    assert isinstance(error, DeliveryTimeout)
    assert str(error).startswith("3 records for flights-0 were not acknowledged within")


def test_a_batch_expires_at_the_very_time_that_its_turn_was_planned_for() -> None:
    """Found by tests/simulation/replication, seed 2: a difference was rounded otherwise than the
    sum, and the sender looked again and again without any time between.
    """
    world = World("plain")
    for place in range(200):
        world.now_ms = 1_000.0 + place / 7
        world.append(0, 10)
        due_ms = world.accumulator.expiry_ms()
        world.results.expire(due_ms)
        assert len(announced(world)) == place + 1, due_ms


def announced(world: World) -> list[tuple[Exception | None, int]]:
    world.announce()
    return list(world.ended.values())


@pytest.mark.parametrize(("idle_ms", "requests"), [(FORGOTTEN_MS, 2), (FORGOTTEN_MS + 1, 1)])
def test_a_log_may_have_forgotten_a_producer_that_was_idle_for_long(
    idle_ms: float, requests: int
) -> None:
    """One batch alone goes out then: a log that knows nothing takes any first number."""
    world = World("idempotent")
    world.pass_time(FORGOTTEN_MS)
    for paused_ms in (0.0, idle_ms):
        world.pass_time(paused_ms)
        for _ in range(2):
            world.append(0, 120)
        world.pass_time(6.0)
        sent = world.drain() + world.drain()
        assert sent == (requests if paused_ms else 1)
        while world.accumulator.incomplete:
            world.serve_all()
            world.drain()


@pytest.mark.parametrize("max_request_bytes", [1 << 20, 10_000])
def test_a_batch_that_grows_reserves_twice_as_much(max_request_bytes: int) -> None:
    """But never so much at once that a record larger than a request may be would find room."""
    config = config_of(
        compression_type="lz4",
        batch_size=1 << 19,
        buffer_memory=1 << 20,
        max_request_size=max_request_bytes,
    )
    accumulator = accumulator_of(config)
    queue = accumulator.set_leaders("t", [(1, 0)]).queues[0]
    bound = record_size_bound(None, bytes(1_000))
    reserved = []
    while len(reserved) < 2:
        assert accumulator.make_room(queue, bound, 0.0) is Room.MADE
        assert queue.filling is not None
        assert queue.filling.buffer is not None
        used_bytes = queue.filling.buffer.size_bytes
        reserved.append((1 << 20) - accumulator.free_bytes)
        while queue.appender.append(0, None, bytes(1_000), ()) >= 0:
            continue
    assert reserved[0] == PLENTY_RESERVE_BYTES
    assert reserved[1] == min(2 * PLENTY_RESERVE_BYTES, used_bytes + max_request_bytes)


@pytest.mark.parametrize("mode", ["idempotent", "transactional"])
def test_a_number_that_is_not_the_next_one_ends_a_transaction(mode: str) -> None:
    """Without one the batch goes out again under a new epoch (KIP-360)."""
    world = World(mode)
    world.append(0, 10)
    world.pass_time(6.0)
    world.drain()
    world.serve(0, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    world.answer(0)
    world.announce()
    errors = [error for error, _ in world.ended.values()]
    if mode == "idempotent":
        assert errors == []
    else:
        assert [getattr(each, "code", None) for each in errors] == [
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        ]
    world.finish()


def test_another_epoch_is_asked_for_once() -> None:
    """However often the sender looks before it comes."""
    world = World("idempotent")
    assert world.identity is not None
    world.set_identity(is_open=True, grants_at_once=False)
    world.append(0, 10)
    world.pass_time(6.0)
    world.drain()
    world.serve(0, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    world.answer(0)
    for _ in range(3):
        assert world.drain() == 0
    assert world.identity.bump_count == 1
    world.finish()


def test_a_delivered_batch_holds_no_bytes() -> None:
    """An application may keep its deliveries for as long as it likes."""
    world = World("plain")
    world.append(0, 10)
    world.pass_time(6.0)
    world.drain()
    (batch,) = world.wires[0].requests[0]
    assert batch.encoded is not None
    world.serve_all()
    assert batch.is_done
    assert (batch.encoded, batch.buffer) == (None, None)


def test_a_compressed_batch_that_is_too_large_is_halved_as_it_is_without_compression() -> None:
    made = ProducerBatch("t", 0, 0.0, RecordBuffer(1 << 16))
    assert made.buffer is not None
    for number in range(40):
        made.buffer.append(number, None, bytes(100), ())
    made.close(Codec.LZ4, None)
    assert made.encoded is not None
    assert made.header is not None
    assert len(made.encoded) < 1_000
    config = config_of(batch_size=1 << 16, compression_type="lz4")
    accumulator = accumulator_of(config)
    queue = accumulator.set_leaders("t", [(1, 0)]).queues[0]
    assert accumulator.append_encoded(queue, made.encoded, made.header, 0.0) is not None
    (batch,) = accumulator.drain([queue], 1 << 16, 0.0)
    Results(accumulator).refused(batch, ErrorCode.MESSAGE_TOO_LARGE, None, 0.0)
    assert 2 <= len(batch.parts()) <= 3


def test_a_batch_is_sent_again_as_often_as_it_may_be() -> None:
    config = config_of(retries=2)
    accumulator = accumulator_of(config)
    queue = accumulator.set_leaders("t", [(1, 0)]).queues[0]
    assert accumulator.make_room(queue, 100, 0.0) is Room.MADE
    queue.appender.append(0, None, b"value", ())
    now_ms = 0.0
    for attempt in range(3):
        (batch,) = accumulator.drain([queue], 1_000, now_ms)
        assert not batch.is_done, attempt
        Results(accumulator).refused(batch, ErrorCode.NOT_ENOUGH_REPLICAS, None, now_ms)
        now_ms = batch.not_before_ms
    assert isinstance(batch.error, KafkaError)
    assert batch.error.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert queue.is_empty
