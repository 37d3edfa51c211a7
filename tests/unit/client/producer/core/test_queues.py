"""Where records without a key go (KIP-480, KIP-794), and what is expected of compression."""

from __future__ import annotations

import random
from collections import Counter
from uuid import UUID

import pytest

from moldau.client.config.producer import ProducerConfig
from moldau.client.producer.core.accumulator import Accumulator, Room
from moldau.client.producer.core.batch import ProducerBatch
from moldau.client.producer.core.queues import (
    MAX_UNCOMPRESSED_BYTES,
    PartitionQueue,
    TopicQueues,
)
from moldau.client.producer.core.transaction_states import ProducerIdAndEpoch
from moldau.protocol.records import RecordBuffer
from tests.unit.client.producer.core.world import accumulator_of, config_of


def topic_of(leaders: list[int], **changes: object) -> TopicQueues:
    topic = TopicQueues("t", config_of(**changes))
    topic.set_leaders([(leader, 0) for leader in leaders])
    return topic


def spread(topic: TopicQueues, count: int = 3000, slow: dict[int, float] | None = None) -> Counter:
    dice = random.Random(794)
    return Counter(
        topic.choose_sticky(dice.randrange, slow or {}, 1_000.0).partition for _ in range(count)
    )


def test_all_partitions_alike_when_nothing_waits() -> None:
    counts = spread(topic_of([1, 2, 3]))
    assert all(900 < counts[partition] < 1100 for partition in range(3))


def test_partitions_without_a_leader_are_left_out_unless_none_has_one() -> None:
    assert set(spread(topic_of([1, -1, 3]))) == {0, 2}
    assert set(spread(topic_of([-1, -1]))) == {0, 1}


@pytest.mark.parametrize("adaptive", [True, False])
def test_the_longer_the_queue_the_less_likely(adaptive: bool) -> None:
    topic = topic_of([1, 2, 3], partitioner_adaptive_partitioning_enable=adaptive)
    for partition, waiting in ((0, 0), (1, 3), (2, 8)):
        for _ in range(waiting):
            topic.queues[partition].waiting.append(ProducerBatch("t", partition, 0.0, None))
    counts = spread(topic)
    if adaptive:
        # Weights 9, 6 and 1.
        assert 1550 < counts[0] < 1850
        assert 1000 < counts[1] < 1250
        assert 120 < counts[2] < 260
    else:
        assert all(900 < counts[partition] < 1100 for partition in range(3))


def test_nodes_that_take_nothing_are_avoided_after_a_while() -> None:
    topic = topic_of([1, 2], partitioner_availability_timeout_ms=500)
    assert set(spread(topic, slow={1: 900.0})) == {0, 1}
    assert set(spread(topic, slow={1: 500.0})) == {0, 1}
    assert set(spread(topic, slow={1: 499.0})) == {1}
    assert set(spread(topic, slow={1: 100.0, 2: 0.0})) == {0, 1}
    assert set(spread(topic_of([1, 2]), slow={1: 0.0})) == {0, 1}


def sticky_runs(accumulator: Accumulator, count: int, batch_bytes: int) -> list[int]:
    """Partitions of records without keys, one after the other."""
    topic = accumulator.set_leaders("t", [(1, 0), (1, 0), (1, 0)])
    partitions = []
    for number in range(count):
        queue = accumulator.sticky_queue(topic, 0.0)
        values = (number, None, bytes(batch_bytes), ())
        while queue.appender.append(*values) < 0:
            room = accumulator.make_room(queue, batch_bytes + 30, 0.0)
            assert room is not Room.NO_MEMORY
            if room is Room.BATCH_CLOSED:
                queue = accumulator.sticky_queue(topic, 0.0)
        partitions.append(queue.partition)
    return partitions


def test_the_choice_stays_until_a_batch_is_full() -> None:
    turns = iter([0, 1, 2] * 20)
    accumulator = accumulator_of(
        config_of(buffer_memory=1 << 20), randrange=lambda count: next(turns)
    )
    # Two records of 60 bytes and their headers fill a batch of 200.
    assert sticky_runs(accumulator, 8, 60) == [0, 0, 1, 1, 2, 2, 0, 0]


def limit_after(ratios: list[float], config: ProducerConfig) -> int:
    topic = TopicQueues("t", config)
    for ratio in ratios:
        topic.compressed(1000, int(1000 * ratio))
    return topic.batch_limit_bytes()


def test_batches_hold_more_when_they_compress_well() -> None:
    packed = config_of(compression_type="lz4", batch_size=1000, buffer_memory=1 << 20)
    assert limit_after([], packed) == int(1000 / 1.05)
    assert limit_after([0.5] * 40, packed) == pytest.approx(1000 / (0.8 * 1.05), rel=0.01)
    assert limit_after([0.5] * 400, packed) == pytest.approx(1000 / (0.5 * 1.05), rel=0.01)
    # One bad batch counts at once, and none that is too large is trusted again.
    assert limit_after([*[0.5] * 400, 0.9], packed) == pytest.approx(1000 / (0.9 * 1.05), rel=0.01)
    topic = TopicQueues("t", packed)
    topic.compressed(1000, 500)
    topic.too_large()
    assert topic.batch_limit_bytes() == int(1000 / 1.05)
    plain = config_of(batch_size=500)
    assert limit_after([0.5] * 400, plain) == 500


def test_a_topic_created_again_with_fewer_partitions_keeps_queues_until_they_are_empty() -> None:
    topic = topic_of([1, 1, 1])
    topic.queues[2].waiting.append(ProducerBatch("t", 2, 0.0, None))
    topic.set_leaders([(1, 0)])
    assert [queue.leader_id for queue in topic.queues] == [1, -1, -1]
    topic.queues[2].waiting.clear()
    topic.set_leaders([(1, 0)])
    assert len(topic.queues) == 1


@pytest.mark.parametrize(("confirmed", "has_hole"), [(1, True), (2, False)])
def test_what_is_in_the_log_up_to_the_last_number_has_no_hole(
    confirmed: int, has_hole: bool
) -> None:
    """A log takes batches in order: the last one there proves that none before it is missing."""
    queue = topic_of([1]).queues[0]
    queue.adopt(ProducerIdAndEpoch(7, 0))
    batches = []
    for _ in range(3):
        batch = ProducerBatch("t", 0, 0.0, None)
        batch.record_count = 1
        queue.waiting.append(batch)
        batches.append(queue.take_waiting())
        queue.number(batch)
    queue.give_up(batches[0])
    assert queue.has_hole
    queue.confirm(batches[confirmed])
    assert queue.has_hole is has_hole


# -- compression -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "uncompressed", "compressed", "after"),
    [
        (1.0, 1_000, 500, 0.995),
        (0.502, 1_000, 500, 0.5),
        (0.5, 1_000, 500, 0.5),
        (0.5, 1_000, 510, 0.55),
        (0.5, 1_000, 700, 0.7),
        (0.012, 1_000, 1, 0.01),
        (0.01, 0, 0, 0.01),
        (0.5, 0, 1, 1.0),
    ],
)
def test_the_ratio_follows_what_batches_were_compressed_to(
    before: float, uncompressed: int, compressed: int, after: float
) -> None:
    topic = TopicQueues("t", config_of(compression_type="lz4"))
    topic.ratio = before
    topic.compressed(uncompressed, compressed)
    assert topic.ratio == pytest.approx(after)


@pytest.mark.parametrize(("before", "after"), [(0.3, 1.0), (1.0, 1.0), (1.4, 1.4)])
def test_after_a_batch_that_was_too_large_compression_is_not_counted_on(
    before: float, after: float
) -> None:
    topic = TopicQueues("t", config_of(compression_type="lz4"))
    topic.ratio = before
    topic.too_large()
    assert topic.ratio == after


@pytest.mark.parametrize(
    ("changes", "ratio", "limit_bytes"),
    [
        ({"batch_size": 100, "max_request_size": 600}, 1.0, 100),
        ({"batch_size": 800, "max_request_size": 600}, 1.0, 600),
        ({"batch_size": 105, "compression_type": "lz4"}, 1.0, 100),
        ({"batch_size": 105, "compression_type": "lz4"}, 0.25, 400),
        ({"batch_size": 105, "compression_type": "lz4", "buffer_memory": 300}, 0.25, 300),
        (
            {"batch_size": 1 << 20, "compression_type": "lz4", "buffer_memory": 1 << 30},
            0.01,
            MAX_UNCOMPRESSED_BYTES,
        ),
    ],
)
def test_how_much_a_batch_may_hold(
    changes: dict[str, object], ratio: float, limit_bytes: int
) -> None:
    topic = TopicQueues("t", config_of(**changes))
    topic.ratio = ratio
    assert topic.batch_limit_bytes() == pytest.approx(limit_bytes, abs=1)


# -- the sticky choice -------------------------------------------------------------------------


@pytest.mark.parametrize(("last_bytes", "is_due"), [(99, False), (100, True)])
def test_after_a_batch_of_bytes_another_partition_is_due(last_bytes: int, is_due: bool) -> None:
    topic = topic_of([1, 1])
    for _ in range(2):
        chosen = topic.choose_sticky(lambda count: 0, {}, 0.0)
        other = topic.queues[1 - chosen.partition]
        topic.count(other, 1_000)
        topic.filled(other)
        topic.count(chosen, 100)
        assert topic.sticky is chosen
        topic.count(chosen, last_bytes)
        assert (topic.sticky is None) == is_due


def test_bytes_count_as_they_were_compressed() -> None:
    topic = topic_of([1, 1], compression_type="lz4")
    topic.ratio = 0.5
    chosen = topic.choose_sticky(lambda count: 0, {}, 0.0)
    topic.count(chosen, 399)
    assert topic.sticky is chosen
    topic.count(chosen, 1)
    assert topic.sticky is None


def test_the_sticky_partition_stays_as_long_as_the_topic_has_it() -> None:
    topic = topic_of([1, 1])
    chosen = topic.choose_sticky(lambda count: 1, {}, 0.0)
    assert chosen.partition == 1
    topic.set_leaders([(2, 1), (2, 1), (2, 1)])
    assert topic.sticky is chosen
    assert [(queue.partition, queue.leader_epoch) for queue in topic.queues] == [
        (0, 1),
        (1, 1),
        (2, 1),
    ]
    topic.set_leaders([(2, 1)])
    assert topic.sticky is None


def test_a_single_partition_is_chosen_whatever_waits_there() -> None:
    topic = topic_of([1])
    topic.queues[0].waiting.append(ProducerBatch("t", 0, 0.0, None))
    asked: list[int] = []

    def first(count: int) -> int:
        asked.append(count)
        return 0

    assert topic.choose_sticky(first, {}, 0.0) is topic.queues[0]
    assert asked == [1]


def test_the_weights_of_two_queues() -> None:
    """The longer queue has one share, and the other one as many more as it is shorter."""
    topic = topic_of([1, 1])
    topic.queues[0].waiting.append(ProducerBatch("t", 0, 0.0, None))
    chosen = []
    for dice in range(3):
        chosen.append(topic.choose_sticky(lambda count, dice=dice: dice % count, {}, 0.0).partition)
    assert chosen == [0, 1, 1]


# -- order and numbers -------------------------------------------------------------------------


def numbered(count: int, *, known: bool = True) -> tuple[PartitionQueue, list[ProducerBatch]]:
    """A queue with batches of two records each on the wire."""
    queue = topic_of([1]).queues[0]
    queue.adopt(ProducerIdAndEpoch(7, 0))
    if known:
        queue.known_to_log = 7
    batches = []
    for _ in range(count):
        batch = ProducerBatch("t", 0, 0.0, None)
        batch.record_count = 2
        queue.waiting.append(batch)
        batches.append(queue.take_waiting())
        queue.number(batch)
        batch.is_on_wire = True
    return queue, batches


def test_numbers_go_on_where_the_last_batch_ended() -> None:
    queue, batches = numbered(3)
    assert [(batch.base_sequence, batch.ordinal) for batch in batches] == [(0, 0), (2, 1), (4, 2)]
    assert (queue.next_sequence, queue.next_ordinal) == (6, 3)
    assert queue.batch_count == 0
    assert not queue.is_empty


def test_the_last_number_is_used_again_when_its_batch_is_in_no_log() -> None:
    queue, batches = numbered(2)
    queue.give_up(batches[1])
    assert (queue.next_sequence, queue.has_hole) == (2, False)
    assert not batches[1].is_numbered
    queue.give_up(batches[0])
    assert (queue.next_sequence, queue.has_hole, queue.is_empty) == (0, False, True)


@pytest.mark.parametrize(("place", "may_be_written"), [(0, False), (1, True)])
def test_a_number_that_is_left_out_is_a_hole(place: int, may_be_written: bool) -> None:
    queue, batches = numbered(2)
    batches[place].may_be_written = may_be_written
    queue.give_up(batches[place])
    assert queue.has_hole
    assert queue.next_sequence == 4
    assert not queue.wants_new_pair(), "what is on the wire may still show that it was written"
    assert not queue.may_start_another(max_outstanding=5)
    queue.give_up(batches[1 - place])
    assert queue.wants_new_pair()
    queue.adopt(ProducerIdAndEpoch(7, 1))
    assert (queue.next_sequence, queue.next_ordinal, queue.confirmed_sequence) == (0, 0, 0)
    assert not queue.wants_new_pair()
    assert queue.may_start_another(max_outstanding=1)


def test_another_epoch_has_confirmed_nothing() -> None:
    queue, (batch,) = numbered(1)
    queue.confirm(batch)
    assert queue.confirmed_sequence == 2
    queue.adopt(ProducerIdAndEpoch(7, 1))
    assert queue.confirmed_sequence == 0


def test_batches_of_another_epoch_leave_no_hole_and_prove_nothing() -> None:
    queue, batches = numbered(2, known=False)
    queue.pair = ProducerIdAndEpoch(8, 0)
    queue.give_up(batches[0])
    assert not queue.has_hole
    queue.confirm(batches[1])
    assert (queue.confirmed_sequence, queue.known_to_log) == (0, -1)


def test_an_acknowledgement_out_of_order_does_not_move_the_confirmed_end_back() -> None:
    queue, batches = numbered(3)
    queue.confirm(batches[2])
    assert queue.confirmed_sequence == 6
    queue.confirm(batches[0])
    assert queue.confirmed_sequence == 6


@pytest.mark.parametrize(
    ("on_wire", "is_done", "is_broken", "leader_epoch", "sent_epoch", "due_ms"),
    [
        (True, False, False, 0, 0, None),
        (False, True, False, 0, 0, None),
        (False, False, True, 0, 0, None),
        (False, False, False, 4, 4, 50.0),
        (False, False, False, 4, 3, 0.0),
        (False, False, False, 4, 0, 0.0),
        (False, False, False, 4, -1, 50.0),
        (False, False, False, -1, 0, 50.0),
    ],
)
def test_when_the_oldest_batch_is_sent_again(
    on_wire: bool,
    is_done: bool,
    is_broken: bool,
    leader_epoch: int,
    sent_epoch: int,
    due_ms: float | None,
) -> None:
    """A leader that came after the one that refused it has not been asked yet (KIP-951)."""
    queue, (batch, _) = numbered(2)
    batch.is_on_wire, batch.is_done = on_wire, is_done
    batch.not_before_ms, batch.sent_leader_epoch = 50.0, sent_epoch
    queue.is_broken, queue.leader_epoch = is_broken, leader_epoch
    assert queue.retry_due_ms() == due_ms
    assert queue.is_retrying() is not on_wire


@pytest.mark.parametrize(
    ("known", "outstanding", "most", "may_start"),
    [
        (True, 0, 1, True),
        (True, 1, 1, False),
        (True, 1, 2, True),
        (True, 4, 5, True),
        (True, 5, 6, False),
        (False, 0, 5, True),
        (False, 1, 5, False),
        (False, 1, 2, False),
        (False, 1, 1, False),
    ],
)
def test_how_many_batches_may_be_on_the_wire(
    known: bool, outstanding: int, most: int, may_start: bool
) -> None:
    """Two at a time need a log that knows the producer, and it remembers five."""
    queue, _ = numbered(outstanding, known=known)
    assert queue.may_start_another(max_outstanding=most) == may_start


def test_a_batch_that_is_not_acknowledged_holds_up_those_that_a_log_would_forget_it_for() -> None:
    queue, batches = numbered(5)
    for batch in batches[1:]:
        queue.confirm(batch)
    assert queue.outstanding == batches[:1]
    assert not queue.may_start_another(max_outstanding=5)
    queue.confirm(batches[0])
    assert queue.may_start_another(max_outstanding=5)


def test_nothing_new_starts_beside_a_batch_that_is_to_be_sent_again() -> None:
    queue, batches = numbered(2)
    batches[1].is_on_wire = False
    assert not queue.may_start_another(max_outstanding=5)
    batches[1].is_on_wire = True
    assert queue.may_start_another(max_outstanding=5)
    queue.is_broken = True
    assert not queue.may_start_another(max_outstanding=5)
    assert queue.wants_new_pair()


def test_broken_numbers_start_over_once_all_batches_are_back() -> None:
    queue, batches = numbered(3)
    for batch in batches:
        batch.may_be_written = True
    following = ProducerIdAndEpoch(7, 1)
    assert not queue.may_renumber(following)
    queue.sequence_refused()
    assert not any(batch.may_be_written for batch in batches)
    for batch in batches:
        assert not queue.may_renumber(following)
        batch.is_on_wire = False
    assert queue.may_renumber(following)
    assert not queue.may_renumber(queue.pair)
    queue.renumber(following)
    assert queue.outstanding == batches
    assert [(batch.pair, batch.base_sequence) for batch in batches] == [
        (following, 0),
        (following, 2),
        (following, 4),
    ]
    assert not queue.is_broken


def test_the_parts_of_a_batch_take_its_place_and_count() -> None:
    queue, batches = numbered(3)
    parts = [ProducerBatch("t", 0, 0.0, None) for _ in range(3)]
    queue.replace_outstanding(batches[1], parts)
    assert queue.outstanding == [batches[0], *parts, batches[2]]
    assert [batch.ordinal for batch in queue.outstanding] == [0, 1, 2, 3, 4]
    assert queue.next_ordinal == 5


def test_another_topic_of_the_name_does_not_know_the_producer() -> None:
    queue, _ = numbered(1)
    queue.topic_seen(queue.topic_id)
    assert queue.known_to_log == 7
    queue.topic_seen(UUID(int=3))
    assert (queue.topic_id, queue.known_to_log) == (UUID(int=3), -1)


def test_a_queue_counts_the_batch_that_takes_records() -> None:
    queue = topic_of([1]).queues[0]
    assert (queue.is_empty, queue.batch_count) == (True, 0)
    assert queue.appender.append(0, None, b"x", ()) == -1
    buffer = RecordBuffer(1_000)
    batch = ProducerBatch("t", 0, 0.0, buffer)
    queue.open(batch, buffer)
    assert (queue.is_empty, queue.batch_count) == (False, 1)
    assert queue.appender.append(0, None, b"x", ()) == 0
    assert queue.take_waiting() is batch, "it is closed for that"
    assert queue.appender.append(0, None, b"x", ()) == -1
    assert (queue.is_empty, queue.batch_count, queue.outstanding) == (False, 0, [batch])


def test_the_first_node_leads_as_any_other() -> None:
    topic = topic_of([0, -1], partitioner_availability_timeout_ms=1)
    assert set(spread(topic, 20)) == {0}
    assert set(spread(topic_of([0, 1], partitioner_availability_timeout_ms=1), 20, {0: 998.0})) == {
        1
    }
