"""Where records without a key go (KIP-480, KIP-794), and what is expected of compression."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from moldau.client.config.producer import ProducerConfig
from moldau.client.producer.core.accumulator import Accumulator, Room
from moldau.client.producer.core.batch import ProducerBatch
from moldau.client.producer.core.queues import TopicQueues
from moldau.client.producer.core.transaction_states import ProducerIdAndEpoch
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
