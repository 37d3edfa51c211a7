"""What each of a fetcher's partitions waits for, and that idle ones cost nothing."""

from __future__ import annotations

from types import SimpleNamespace
from uuid import UUID

import pytest

from moldau.broker.replica.core.partition_core import ReplicaRole
from moldau.broker.replica.followed_partitions import (
    FollowedPartition,
    FollowedPartitions,
    FollowerStep,
)
from moldau.broker.replica.follower_session import FollowerAnswer
from moldau.protocol.messages.p01_fetch import (
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from moldau.protocol.types import TopicPartition
from tests.kit.counting import calls_of
from tests.kit.manual_clock import ManualClock

TOPIC_ID = UUID(int=5)


class FakeLog:
    """A log that is a number, and counts how often its position is asked for."""

    def __init__(self) -> None:
        self.log_end_offset = self.high_watermark = 0
        self.offline = False
        self.leader_epoch_cache = SimpleNamespace(latest_epoch=-1)
        self.asked_count = 0

    @property
    def log_start_offset(self) -> int:
        self.asked_count += 1
        return 0


class FakePartition:
    """A replica whose log is a number."""

    def __init__(self, index: int) -> None:
        self.topic_partition = TopicPartition("topic", index)
        self.topic_id = TOPIC_ID
        self.is_deleted = self.is_opening = False
        self.core = SimpleNamespace(role=ReplicaRole.FOLLOWER, leader_id=1, leader_epoch=0)
        self.log = FakeLog()


class FakeThrottle:
    """`exceeded`: the quota is used up; then no replica that lags is allowed."""

    def __init__(self) -> None:
        self.exceeded = False
        self.recorded: list[tuple[int, int]] = []
        self.asked_count = 0

    def allows(self, topic_partition: TopicPartition, in_sync: bool) -> bool:
        self.asked_count += 1
        return in_sync or not self.exceeded

    def record(self, topic_partition: TopicPartition, size_bytes: int) -> None:
        self.recorded.append((topic_partition.partition, size_bytes))

    def retry_ms(self) -> float:
        return 300.0


class Bench:
    def __init__(self, count: int, throttle: FakeThrottle | None = None) -> None:
        self.clock = ManualClock()
        self.work_count = 0
        self.fetched = FollowedPartitions(
            partition_max_bytes=1_048_576,
            backoff_ms=1_000,
            clock=self.clock,
            throttle=throttle,  # type: ignore[arg-type]
            on_work=self._on_work,
        )
        self.all = [FakePartition(index) for index in range(count)]
        for each in self.all:
            self.fetched.follow(each)  # type: ignore[arg-type]

    def _on_work(self) -> None:
        self.work_count += 1

    def asked(self) -> set[int]:
        """The partitions that the next request names."""
        request = self.fetched.session.build()
        return {each.partition for topic in request.topics for each in topic.partitions}

    def answer(
        self, *indexes: int, high_watermark: int = 0, size_bytes: int = 0,
        step: FollowerStep = FollowerStep.FETCH_ON,
    ) -> None:  # fmt: skip
        """The leader answers the request built last, with something about those partitions."""
        data = [
            PartitionData(partition_index=index, high_watermark=high_watermark) for index in indexes
        ]
        response = FetchResponse(
            session_id=9,
            responses=[FetchableTopicResponse(topic_id=TOPIC_ID, partitions=data)],
        )
        for each in self.fetched.session.take(response)[1]:
            followed = self.fetched.get(each.key)
            assert followed is not None
            if size_bytes:
                self.all[each.data.partition_index].log.log_end_offset += 1
            self.fetched.applied(followed, step, each, size_bytes)

    def followed(self, index: int) -> FollowedPartition:
        followed = self.fetched.get((TOPIC_ID, index))
        assert followed is not None
        return followed


def test_idle_partitions_cost_nothing() -> None:
    counts = {}
    for size in (10, 10_000):
        bench = Bench(size)
        bench.asked()
        bench.answer(*range(size), high_watermark=1)
        bench.asked()
        bench.answer()
        before = [each.log.asked_count for each in bench.all]

        def one_fetch(bench: Bench = bench) -> None:
            bench.answer(3, size_bytes=100, high_watermark=1)
            assert bench.asked() == {3}

        bench.asked()
        counts[size] = calls_of(one_fetch)
        after = [each.log.asked_count for each in bench.all]
        assert sum(after) - sum(before) == 1
    assert counts[10] == counts[10_000]


def test_put_off_partitions_come_back_together_after_their_time() -> None:
    bench = Bench(4)
    assert bench.asked() == {0, 1, 2, 3}
    bench.answer(0, 1, step=FollowerStep.BACK_OFF)
    assert bench.fetched.waiting_count == 2
    bench.clock.advance(500)
    assert bench.asked() == {2, 3}  # the leader's answer left them out
    bench.answer(2, step=FollowerStep.BACK_OFF)
    bench.answer()
    assert bench.clock.timer_count == 1
    bench.clock.advance(499)
    assert bench.fetched.waiting_count == 3
    work_count = bench.work_count
    bench.clock.advance(2)
    assert bench.work_count > work_count
    assert bench.fetched.waiting_count == 1
    bench.clock.advance(500)
    assert bench.fetched.waiting_count == 0
    assert bench.clock.timer_count == 0


@pytest.mark.parametrize(
    "step", [FollowerStep.BACK_OFF, FollowerStep.ASK_OFFSETS, FollowerStep.STOP]
)
def test_news_of_a_partition_end_whatever_it_waits_for(step: FollowerStep) -> None:
    bench = Bench(2)
    bench.asked()
    bench.answer(0, 1)
    bench.asked()
    bench.answer(1, step=step)
    assert bench.followed(1).has_failed == (step is FollowerStep.STOP)
    bench.asked()
    bench.answer()
    bench.fetched.follow(bench.all[1])  # type: ignore[arg-type]
    assert bench.asked() == {1}
    assert bench.fetched.waiting_count == bench.fetched.failed_count == 0


def test_a_log_that_fails_is_counted_and_not_fetched() -> None:
    bench = Bench(2)
    bench.asked()
    bench.answer(0, 1)
    bench.all[1].log.offline = True
    bench.fetched.look_again((TOPIC_ID, 1))
    assert bench.fetched.failed_count == 1
    assert len(bench.fetched.session) == 1
    bench.all[0].core.role = ReplicaRole.LEADER
    bench.all[0].log.offline = True
    bench.fetched.look_again((TOPIC_ID, 0))
    assert bench.fetched.failed_count == 1, "one that leads follows nobody, and has not failed"


def test_the_largest_lag_is_known_while_there_is_one() -> None:
    bench = Bench(3)
    assert bench.fetched.max_lag == 0
    bench.asked()
    bench.answer(0, 1, 2, high_watermark=40, size_bytes=10)
    assert bench.fetched.max_lag == 39
    bench.all[0].log.log_end_offset = bench.all[1].log.log_end_offset = 40
    bench.all[2].log.log_end_offset = 35
    bench.asked()
    bench.answer(0, 1, 2, high_watermark=40)
    assert bench.fetched.max_lag == 5
    bench.fetched.unfollow(bench.all[2])  # type: ignore[arg-type]
    assert bench.fetched.max_lag == 0


def test_a_used_up_quota_keeps_those_behind_out_until_there_is_some_again() -> None:
    throttle = FakeThrottle()
    bench = Bench(3, throttle)
    bench.asked()
    bench.answer(0, 1, 2, high_watermark=10, size_bytes=100)
    assert throttle.recorded == [(0, 100), (1, 100), (2, 100)]
    bench.asked()
    throttle.exceeded = True
    bench.all[2].log.log_end_offset = 9
    bench.answer(0, 2, high_watermark=10, size_bytes=100)
    # 2 has caught up; 1 had no answer, and would have brought more.
    assert bench.fetched.waiting_count == 2
    assert bench.asked() == {2}
    bench.answer(2, high_watermark=10)
    bench.clock.advance(301)
    assert bench.fetched.waiting_count == 2
    assert bench.clock.timer_count == 1
    throttle.exceeded = False
    bench.clock.advance(301)
    assert bench.fetched.waiting_count == 0
    assert bench.asked() == {0, 1}


def test_a_quota_of_nothing_does_not_spin() -> None:
    throttle = FakeThrottle()
    throttle.exceeded = True
    bench = Bench(100, throttle)
    assert bench.fetched.is_idle
    asked_count = throttle.asked_count
    bench.clock.advance(299)
    assert throttle.asked_count == asked_count
    bench.clock.advance(2)
    assert throttle.asked_count == asked_count + 100


def test_closed_ones_leave_no_timer() -> None:
    throttle = FakeThrottle()
    bench = Bench(3, throttle)
    bench.asked()
    bench.answer(0, step=FollowerStep.BACK_OFF)
    throttle.exceeded = True
    bench.fetched.follow(bench.all[1])  # type: ignore[arg-type]
    assert bench.clock.timer_count == 2
    bench.fetched.close()
    assert bench.clock.timer_count == 0
    assert len(bench.fetched) == 0


def test_an_answer_names_the_position_it_was_asked_from() -> None:
    bench = Bench(1)
    bench.asked()
    bench.all[0].log.log_end_offset = 7
    bench.fetched.follow(bench.all[0])  # type: ignore[arg-type]
    data = PartitionData(partition_index=0)
    response = FetchResponse(
        session_id=9, responses=[FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[data])]
    )
    (answer,) = bench.fetched.session.take(response)[1]
    assert isinstance(answer, FollowerAnswer)
    assert answer.requested.fetch_offset == 0
    assert bench.asked() == {0}
