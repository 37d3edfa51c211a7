"""What the accumulator promises in one step: room, numbers behind a split, retries at once."""

from __future__ import annotations

from uuid import UUID

import pytest

from moldau.client.errors import DeliveryTimeout, KafkaError
from moldau.client.producer.core.accumulator import (
    FORGOTTEN_MS,
    NEVER,
    PLENTY_BATCHES,
    PLENTY_RESERVE_BYTES,
    RESERVE_BYTES,
    Accumulator,
    Room,
)
from moldau.client.producer.core.batch import ProducerBatch
from moldau.client.producer.core.queues import PartitionQueue
from moldau.client.producer.core.results import Results
from moldau.client.producer.core.transaction_states import ProducerIdAndEpoch
from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import BATCH_HEADER_SIZE, Codec, RecordBuffer, record_size_bound
from tests.unit.client.producer.core.world import (
    BUFFER_MEMORY,
    DELIVERY_TIMEOUT_MS,
    TOPIC,
    Identity,
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


# -- room ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("more_bytes", "expected"), [(0, Room.MADE), (1, Room.BATCH_CLOSED)])
def test_a_batch_takes_records_up_to_the_very_limit(more_bytes: int, expected: Room) -> None:
    accumulator = accumulator_of(config_of())
    topic = accumulator.set_leaders("t", [(1, 0)])
    queue = accumulator.sticky_queue(topic, 0.0)
    assert accumulator.make_room(queue, 50, 0.0) is Room.MADE
    batch = queue.filling
    assert batch is not None
    queue.appender.append(0, None, bytes(20), ())
    left_bytes = topic.batch_limit_bytes() - batch.size_bytes
    appender = queue.appender
    assert accumulator.make_room(queue, left_bytes + more_bytes, 0.0) is expected
    is_closed = expected is Room.BATCH_CLOSED
    assert (queue.filling is None) == is_closed
    assert list(queue.waiting) == ([batch] if is_closed else [])
    assert (topic.sticky is None) == is_closed, "a record that does not fit goes elsewhere"
    if is_closed:
        assert appender.append(0, None, b"late", ()) == -1
        assert batch.reserved_bytes == batch.size_bytes
        assert accumulator.free_bytes == BUFFER_MEMORY - batch.size_bytes


def test_a_record_larger_than_a_batch_has_a_batch_for_itself() -> None:
    accumulator = accumulator_of(config_of(batch_size=100))
    queue = accumulator.set_leaders("t", [(1, 0)]).queues[0]
    assert accumulator.make_room(queue, 400, 0.0) is Room.MADE
    assert accumulator.free_bytes == BUFFER_MEMORY - 400 - BATCH_HEADER_SIZE
    assert queue.appender.append(0, None, bytes(380), ()) == 0
    assert accumulator.make_room(queue, 1, 0.0) is Room.BATCH_CLOSED


@pytest.mark.parametrize("record_bytes", [100, PLENTY_RESERVE_BYTES])
@pytest.mark.parametrize("missing_bytes", [0, 1])
def test_a_batch_begins_with_less_where_not_many_find_room(
    missing_bytes: int, record_bytes: int
) -> None:
    memory_bytes = PLENTY_BATCHES * PLENTY_RESERVE_BYTES - missing_bytes
    config = config_of(batch_size=1 << 18, buffer_memory=memory_bytes, max_request_size=1 << 18)
    accumulator = accumulator_of(config)
    queue = accumulator.set_leaders("t", [(1, 0)]).queues[0]
    assert accumulator.make_room(queue, record_bytes, 0.0) is Room.MADE
    first_bytes = RESERVE_BYTES if missing_bytes else PLENTY_RESERVE_BYTES
    expected = max(first_bytes, record_bytes + BATCH_HEADER_SIZE)
    assert accumulator.free_bytes == memory_bytes - expected


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("forced", [False, True])
def test_without_memory_only_what_was_just_given_back_is_taken(forced: bool, is_open: bool) -> None:
    accumulator = accumulator_of(config_of(buffer_memory=1_000))
    queue = accumulator.set_leaders("t", [(1, 0)]).queues[0]
    if is_open:
        assert accumulator.make_room(queue, 30, 0.0) is Room.MADE
        queue.appender.append(0, None, bytes(10), ())
        assert queue.filling is not None
        accumulator.free_bytes += queue.filling.reserved_bytes - queue.filling.size_bytes
        queue.filling.reserved_bytes = queue.filling.size_bytes
    held_bytes = 1_000 - accumulator.free_bytes
    assert accumulator.reserve(accumulator.free_bytes)
    assert not accumulator.is_full
    expected = Room.MADE if forced else Room.NO_MEMORY
    assert accumulator.make_room(queue, 50, 0.0, forced=forced) is expected
    assert accumulator.is_full is not forced
    needed = (held_bytes or BATCH_HEADER_SIZE) + 50
    assert accumulator.free_bytes == (held_bytes - needed if forced else 0)


@pytest.mark.parametrize("missing_bytes", [0, 1])
def test_a_batch_doubles_its_share_as_long_as_there_is_so_much(missing_bytes: int) -> None:
    """Otherwise it takes what the record needs."""
    config = config_of(
        batch_size=1 << 16, buffer_memory=10_000, max_request_size=1 << 16, compression_type="lz4"
    )
    accumulator = accumulator_of(config)
    queue = accumulator.set_leaders("t", [(1, 0)]).queues[0]
    assert accumulator.make_room(queue, 50, 0.0) is Room.MADE
    assert queue.filling is not None
    held_bytes = queue.filling.reserved_bytes
    assert held_bytes == RESERVE_BYTES
    queue.appender.append(0, None, bytes(4_000), ())
    accumulator.free_bytes = held_bytes - missing_bytes
    needed = queue.filling.size_bytes + 200
    assert accumulator.make_room(queue, 200, 0.0) is Room.MADE
    assert queue.filling.reserved_bytes == (needed if missing_bytes else 2 * held_bytes)
    assert accumulator.free_bytes == 2 * held_bytes - missing_bytes - queue.filling.reserved_bytes


def test_memory_is_reserved_to_the_last_byte() -> None:
    accumulator = accumulator_of(config_of(buffer_memory=10))
    assert not accumulator.reserve(11)
    assert accumulator.is_full
    for left in range(9, -1, -1):
        assert accumulator.reserve(1)
        assert accumulator.free_bytes == left
    assert not accumulator.reserve(1)


# -- going out -----------------------------------------------------------------------------------


def filled_queue(accumulator: Accumulator, partition: int, now_ms: float = 0.0) -> PartitionQueue:
    """The partition's queue, with a record in its batch."""
    queue = accumulator.topics["t"].queues[partition]
    if queue.appender.append(0, None, bytes(20), ()) < 0:
        assert accumulator.make_room(queue, 50, now_ms) is Room.MADE
        queue.appender.append(0, None, bytes(20), ())
    return queue


def test_which_leaders_are_due_and_when_to_look_again() -> None:
    accumulator = accumulator_of(config_of(linger_ms=5))
    accumulator.set_leaders("t", [(1, 0), (1, 0), (2, 0), (-1, 0)])
    queues = [filled_queue(accumulator, index, float(index)) for index in range(4)]
    assert [accumulator.due_ms(queue) for queue in queues] == [5.0, 6.0, 7.0, 8.0]
    ready = accumulator.ready(4.0)
    assert ready == ({1: queues[:2], 2: [queues[2]]}, set(), set(), 5.0)
    ready = accumulator.ready(5.0)
    assert ready == ({1: queues[:2], 2: [queues[2]]}, {1}, set(), 6.0)
    accumulator.drain(queues[:2], 1_000, 5.0)
    ready = accumulator.ready(6.0)
    assert ready == ({2: [queues[2]]}, set(), set(), 7.0), "one batch is on the wire at a time"
    ready = accumulator.ready(7.0)
    assert ready == ({2: [queues[2]]}, {2}, set(), 8.0)
    ready = accumulator.ready(8.0)
    assert (ready.due, ready.leaderless) == ({2}, {"t"})
    assert ready.next_ms == accumulator.expiry_ms() == DELIVERY_TIMEOUT_MS


@pytest.mark.parametrize("reason", ["hurry", "no memory", "full batch", "no linger"])
def test_what_makes_a_batch_go_out_before_it_has_lingered(reason: str) -> None:
    accumulator = accumulator_of(config_of(linger_ms=0 if reason == "no linger" else 5))
    accumulator.set_leaders("t", [(1, 0)])
    queue = filled_queue(accumulator, 0, 10.0)
    if reason == "hurry":
        accumulator.hurries = 1
    elif reason == "no memory":
        assert not accumulator.reserve(BUFFER_MEMORY)
    elif reason == "full batch":
        accumulator.close_batch(queue)
    assert accumulator.due_ms(queue) == 0.0
    (batch,) = accumulator.drain([queue], 1_000, 10.0)
    Results(accumulator).acknowledged(batch)
    assert accumulator.due_ms(queue) == NEVER
    assert not accumulator.is_full, "what was given back is room"


def test_a_batch_that_came_back_is_due_after_its_pause() -> None:
    accumulator = accumulator_of(config_of())
    accumulator.set_leaders("t", [(1, 0)])
    queue = filled_queue(accumulator, 0)
    (batch,) = accumulator.drain([queue], 1_000, 0.0)
    Results(accumulator).refused(batch, ErrorCode.NOT_ENOUGH_REPLICAS, None, 0.0)
    due_ms = batch.not_before_ms
    assert accumulator.ready(due_ms - 1) == ({1: [queue]}, set(), set(), due_ms)
    assert accumulator.drain([queue], 1_000, due_ms - 1) == []
    assert accumulator.ready(due_ms).due == {1}
    assert accumulator.drain([queue], 1_000, due_ms) == [batch]


@pytest.mark.parametrize("partition_count", [2, 3])
def test_batches_of_one_request_take_turns(partition_count: int) -> None:
    accumulator = accumulator_of(config_of(buffer_memory=1 << 20))
    accumulator.set_leaders("t", [(1, 0)] * partition_count)
    results = Results(accumulator)
    queues = accumulator.topics["t"].queues
    first: list[int] = []
    for _ in range(2 * partition_count):
        for index in range(partition_count):
            filled_queue(accumulator, index)
        (batch,) = accumulator.drain(queues, 1, 0.0)
        assert batch.is_on_wire, "one batch, however large"
        first.append(batch.partition)
        results.acknowledged(batch)
    all_of_them = list(range(partition_count))
    assert sorted(first[:partition_count]) == sorted(first[partition_count:]) == all_of_them


@pytest.mark.parametrize(("missing_bytes", "count"), [(0, 2), (1, 1)])
def test_a_request_is_filled_to_the_very_limit(missing_bytes: int, count: int) -> None:
    accumulator = accumulator_of(config_of())
    accumulator.set_leaders("t", [(1, 0)] * 2)
    queues = [filled_queue(accumulator, index) for index in range(2)]
    together = sum(queue.filling.size_bytes for queue in queues if queue.filling is not None)
    drained = accumulator.drain(queues, together - missing_bytes, 0.0)
    assert len(drained) == count


def test_a_batch_notes_where_it_went() -> None:
    accumulator = accumulator_of(config_of())
    accumulator.set_leaders("t", [(1, 7)], UUID(int=5))
    (batch,) = accumulator.drain([filled_queue(accumulator, 0)], 1_000, 0.0)
    assert (batch.sent_leader_epoch, batch.sent_topic_id) == (7, UUID(int=5))
    assert accumulator.has_in_flight
    Results(accumulator).acknowledged(batch)
    assert not accumulator.has_in_flight


@pytest.mark.parametrize(("codec", "expected"), [("lz4", 0.995), ("none", 1.0)])
def test_what_was_compressed_counts_for_the_next_batches(codec: str, expected: float) -> None:
    accumulator = accumulator_of(config_of(compression_type=codec))
    topic = accumulator.set_leaders("t", [(1, 0)])
    queue = topic.queues[0]
    assert accumulator.make_room(queue, 170, 0.0) is Room.MADE
    queue.appender.append(0, None, bytes(140), ())
    accumulator.drain([queue], 1_000, 0.0)
    assert topic.ratio == pytest.approx(expected)


def test_only_a_topic_without_batches_is_forgotten() -> None:
    accumulator = accumulator_of(config_of())
    accumulator.set_leaders("t", [(1, 0)] * 2)
    queue = filled_queue(accumulator, 1)
    accumulator.forget_topic("t")
    accumulator.forget_topic("another")
    assert set(accumulator.topics) == {"t"}
    (batch,) = accumulator.drain([queue], 1_000, 0.0)
    accumulator.forget_topic("t")
    assert set(accumulator.topics) == {"t"}
    Results(accumulator).acknowledged(batch)
    accumulator.forget_topic("t")
    assert not accumulator.topics


def test_a_node_is_slow_since_it_was_first_found_so() -> None:
    accumulator = accumulator_of(config_of())
    for now_ms in (5.0, 9.0):
        accumulator.node_ready(1, False, now_ms)
    assert accumulator.slow_since_ms == {1: 5.0}
    accumulator.node_ready(1, True, 10.0)
    accumulator.node_ready(2, True, 10.0)
    assert accumulator.slow_since_ms == {}


def test_the_sticky_partition_is_chosen_once() -> None:
    turns = iter((1, 0))
    accumulator = accumulator_of(config_of(), randrange=lambda count: next(turns))
    topic = accumulator.set_leaders("t", [(1, 0)] * 2)
    assert [accumulator.sticky_queue(topic, 0.0).partition for _ in range(3)] == [1, 1, 1]


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("is_known", [False, True])
def test_nothing_goes_out_without_a_producer_id_or_before_the_transaction_admits_it(
    is_known: bool, is_open: bool
) -> None:
    identity = Identity(transactional=True, is_known=is_known)
    identity.is_open = is_open
    accumulator = accumulator_of(config_of(), identity=identity)
    accumulator.set_leaders("t", [(1, 0)])
    queue = filled_queue(accumulator, 0)
    drained = accumulator.drain([queue], 1_000, 0.0)
    assert len(drained) == (is_known and is_open)
    assert (queue.filling is None) == bool(drained)
    assert all(batch.header is not None and batch.header.is_transactional for batch in drained)


@pytest.mark.parametrize("most", [1, 3, 5])
def test_batches_on_the_wire_have_a_limit(most: int) -> None:
    accumulator = accumulator_of(
        config_of(max_in_flight_requests_per_connection=most),
        identity=Identity(transactional=False),
    )
    accumulator.set_leaders("t", [(1, 0)])
    results = Results(accumulator)
    (batch,) = accumulator.drain([filled_queue(accumulator, 0)], 1_000, 0.0)
    results.acknowledged(batch, base_offset=0)
    for count in range(most + 1):
        queue = filled_queue(accumulator, 0)
        assert (accumulator.due_ms(queue) < NEVER) == (count < most)
        assert len(accumulator.drain([queue], 1_000, 0.0)) == (count < most)


def test_a_hole_needs_a_new_epoch_until_the_numbers_start_over() -> None:
    identity = Identity(transactional=True)
    accumulator = accumulator_of(config_of(), identity=identity)
    accumulator.set_leaders("t", [(1, 0)] * 2)
    results = Results(accumulator)
    assert not accumulator.needs_new_epoch
    (batch,) = accumulator.drain([filled_queue(accumulator, 1)], 1_000, 0.0)
    assert not accumulator.needs_new_epoch
    batch.attempt_count = accumulator.config.retries
    results.refused(batch, ErrorCode.NETWORK_EXCEPTION, None, 0.0)
    assert batch.is_done
    assert accumulator.needs_new_epoch
    queue = filled_queue(accumulator, 1)
    assert accumulator.due_ms(queue) == NEVER
    assert accumulator.drain([queue], 1_000, 0.0) == []
    identity.pair, identity.problem = ProducerIdAndEpoch(7, 1), None
    assert not accumulator.needs_new_epoch
    assert accumulator.due_ms(queue) < NEVER
    (batch,) = accumulator.drain([queue], 1_000, 0.0)
    assert (batch.pair, batch.base_sequence) == (identity.pair, 0)


def test_batches_of_an_earlier_epoch_end_before_those_of_the_next_go_out() -> None:
    identity = Identity(transactional=False)
    accumulator = accumulator_of(config_of(), identity=identity)
    accumulator.set_leaders("t", [(1, 0)])
    results = Results(accumulator)
    (batch,) = accumulator.drain([filled_queue(accumulator, 0)], 1_000, 0.0)
    results.acknowledged(batch, base_offset=0)
    (batch,) = accumulator.drain([filled_queue(accumulator, 0)], 1_000, 0.0)
    identity.pair = ProducerIdAndEpoch(7, 1)
    queue = filled_queue(accumulator, 0)
    assert accumulator.drain([queue], 1_000, 0.0) == []
    results.acknowledged(batch, base_offset=1)
    (batch,) = accumulator.drain([queue], 1_000, 0.0)
    assert (batch.pair, batch.base_sequence) == (identity.pair, 0)


def test_parts_of_a_split_expire_with_the_age_of_their_batch() -> None:
    accumulator = accumulator_of(config_of(batch_size=400))
    accumulator.set_leaders("t", [(1, 0)] * 2)
    for _ in range(4):
        queue = filled_queue(accumulator, 0, 10.0)
    filled_queue(accumulator, 1, 20.0)
    (batch,) = accumulator.drain([queue], 1_000, 30.0)
    results = Results(accumulator)
    results.refused(batch, ErrorCode.MESSAGE_TOO_LARGE, None, 30.0)
    assert accumulator.expiry_ms() == 10.0 + DELIVERY_TIMEOUT_MS
    while queue.outstanding:
        (part,) = accumulator.drain([queue], 1_000, 30.0)
        results.acknowledged(part)
    assert accumulator.expiry_ms() == 20.0 + DELIVERY_TIMEOUT_MS


def test_parts_that_are_split_again_leave_nothing_to_wait_for() -> None:
    accumulator = accumulator_of(config_of(batch_size=400))
    accumulator.set_leaders("t", [(1, 0)])
    for _ in range(6):
        queue = filled_queue(accumulator, 0, 10.0)
    results = Results(accumulator)
    for _ in range(2):
        (batch,) = accumulator.drain([queue], 1_000, 30.0)
        results.refused(batch, ErrorCode.MESSAGE_TOO_LARGE, None, 30.0)
    assert accumulator.expiry_ms() == 10.0 + DELIVERY_TIMEOUT_MS
    while queue.outstanding:
        (part,) = accumulator.drain([queue], 1_000, 30.0)
        results.acknowledged(part)
    assert accumulator.expiry_ms() == NEVER
    assert accumulator.free_bytes == BUFFER_MEMORY


def test_a_batch_made_elsewhere_comes_behind_the_records_before_it() -> None:
    made = ProducerBatch("t", 0, 0.0, RecordBuffer(1_000))
    assert made.buffer is not None
    made.buffer.append(1, None, b"value", ())
    made.close(Codec.NONE, None)
    assert made.encoded is not None
    assert made.header is not None
    accumulator = accumulator_of(config_of())
    accumulator.set_leaders("t", [(1, 0)])
    queue = filled_queue(accumulator, 0)
    filling = queue.filling
    batch = accumulator.append_encoded(queue, made.encoded, made.header, 7.0)
    assert list(queue.waiting) == [filling, batch]
    assert queue.filling is None
    assert batch is not None
    assert (batch.created_ms, batch.reserved_bytes) == (7.0, len(made.encoded))
    results = Results(accumulator)
    for expected in (filling, batch):
        assert accumulator.ready(8.0).by_leader == {1: [queue]}
        (sent,) = accumulator.drain([queue], 1_000, 8.0)
        assert sent is expected
        results.acknowledged(sent)
    assert accumulator.free_bytes == BUFFER_MEMORY
    assert queue.is_empty


def test_a_batch_made_elsewhere_has_its_turn_alone_too() -> None:
    made = ProducerBatch("t", 0, 0.0, RecordBuffer(1_000))
    assert made.buffer is not None
    made.buffer.append(1, None, bytes(150), ())
    made.close(Codec.NONE, None)
    assert made.encoded is not None
    assert made.header is not None
    accumulator = accumulator_of(config_of())
    topic = accumulator.set_leaders("t", [(1, 0)] * 2)
    queue = accumulator.sticky_queue(topic, 0.0)
    assert accumulator.append_encoded(queue, made.encoded, made.header, 7.0) is not None
    assert accumulator.ready(7.0).due == {1}
    assert topic.sticky is None, "it has filled a batch of the partition"


def test_small_batches_count_for_the_sticky_choice_too() -> None:
    accumulator = accumulator_of(config_of(linger_ms=0))
    topic = accumulator.set_leaders("t", [(1, 0)] * 2)
    queue = accumulator.sticky_queue(topic, 0.0)
    results = Results(accumulator)
    sent_bytes = 0
    while sent_bytes < 200:
        assert topic.sticky is queue
        (batch,) = accumulator.drain([filled_queue(accumulator, queue.partition)], 1_000, 0.0)
        sent_bytes += batch.size_bytes
        results.acknowledged(batch)
    assert topic.sticky is None


@pytest.mark.parametrize("paused_ms", [FORGOTTEN_MS, FORGOTTEN_MS + 1])
def test_a_partition_is_idle_since_its_last_batch_ended(paused_ms: float) -> None:
    """However often the sender looks; and a busy one is not idle, however late it is."""
    accumulator = accumulator_of(config_of(), identity=Identity(transactional=False))
    accumulator.set_leaders("t", [(1, 0)])
    queue = filled_queue(accumulator, 0, 2 * FORGOTTEN_MS)
    queue.known_to_log = 7
    accumulator.close_batch(queue)
    filled_queue(accumulator, 0, 2 * FORGOTTEN_MS)
    assert queue.known_to_log == 7
    results = Results(accumulator)
    for _ in range(2):
        (batch,) = accumulator.drain([queue], 1_000, 2 * FORGOTTEN_MS)
        results.acknowledged(batch)
    began_ms = 2 * FORGOTTEN_MS
    for now_ms in (began_ms, began_ms + paused_ms / 2, began_ms + paused_ms):
        accumulator.ready(now_ms)
        assert accumulator.active_queues() == []
    filled_queue(accumulator, 0, began_ms + paused_ms)
    assert queue.known_to_log == (7 if paused_ms == FORGOTTEN_MS else -1)


def test_a_batch_lingers_for_a_millisecond_too() -> None:
    accumulator = accumulator_of(config_of(linger_ms=1))
    accumulator.set_leaders("t", [(1, 0)])
    assert accumulator.due_ms(filled_queue(accumulator, 0, 10.0)) == 11.0


def test_without_numbers_one_batch_is_on_the_wire() -> None:
    accumulator = accumulator_of(config_of(linger_ms=0))
    accumulator.set_leaders("t", [(1, 0)])
    (batch,) = accumulator.drain([filled_queue(accumulator, 0)], 1_000, 0.0)
    queue = filled_queue(accumulator, 0)
    assert accumulator.due_ms(queue) == NEVER
    assert accumulator.drain([queue], 1_000, 0.0) == []
    Results(accumulator).acknowledged(batch)
    assert accumulator.due_ms(queue) == 0.0
    assert len(accumulator.drain([queue], 1_000, 0.0)) == 1
