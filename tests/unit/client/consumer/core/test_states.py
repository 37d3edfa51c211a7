"""Subscription and partition states: which calls fit together, what a change keeps and drops."""

from __future__ import annotations

from collections.abc import Callable, Set
from uuid import UUID

import pytest

from moldau.client.consumer.core.faults import NotAssigned
from moldau.client.consumer.core.partition_records import (
    Chunk,
    FetchedFrame,
    FrameMemory,
    PartitionRecords,
    ReadOptions,
)
from moldau.client.consumer.core.partition_state import (
    EARLIEST,
    LATEST,
    NONE,
    FetchState,
    PartitionState,
)
from moldau.client.consumer.core.rebalance_steps import NEVER_MS, PollWatch
from moldau.client.consumer.core.subscription_state import RebalanceListener, SubscriptionState
from moldau.client.errors import InvalidSubscription
from moldau.client.records import OffsetAndMetadata, TopicPartition
from moldau.protocol.types import ZERO_UUID
from tests.unit.client.consumer.model_log import ModelLog

A, B, C = (TopicPartition("t", index) for index in range(3))


def subscription_of() -> SubscriptionState:
    memory = FrameMemory()
    return SubscriptionState(EARLIEST, lambda name: PartitionRecords(name, ReadOptions(), memory))


def filled(state: PartitionState, *, epoch: int = 3) -> ModelLog:
    log = ModelLog()
    log.append(4, epoch=epoch)
    data = log.fetch(0, 1 << 20).records
    assert state.records.append(Chunk(data, FetchedFrame(len(data))))
    return log


def test_kinds_of_subscription_exclude_each_other() -> None:
    subscription = subscription_of()
    subscription.subscribe(["t"], None)
    for call in (
        lambda: subscription.subscribe_pattern("t.*", None),
        lambda: subscription.assign([A]),
    ):
        with pytest.raises(InvalidSubscription, match="unsubscribe"):
            call()
    subscription.subscribe(["u"], None)
    assert subscription.subscription() == {"u"}
    subscription.unsubscribe()
    subscription.subscribe_pattern("t.*", None)
    assert (subscription.subscription(), subscription.is_automatic) == (set(), True)
    subscription.matched_topics = frozenset({"t1", "t2"})
    assert subscription.subscription() == {"t1", "t2"}
    with pytest.raises(InvalidSubscription):
        subscription.subscribe(["u"], None)
    subscription.unsubscribe()
    subscription.assign([A, A, B])
    assert not subscription.is_automatic
    assert subscription.assignment() == {A, B}
    with pytest.raises(InvalidSubscription):
        subscription.subscribe(["u"], None)


def test_every_change_is_a_new_version() -> None:
    subscription = subscription_of()
    versions = [subscription.subscription_version]
    for call in (
        lambda: subscription.subscribe(["t"], None),
        lambda: subscription.subscribe(["t", "u"], None),
        lambda: subscription.subscribe([], None),
        lambda: subscription.assign([A]),
        lambda: subscription.assign([]),
        subscription.unsubscribe,
    ):
        call()
        versions.append(subscription.subscription_version)
    assert versions == sorted(set(versions))


def test_what_stays_assigned_keeps_its_position_and_pause_and_the_rest_its_records_go() -> None:
    subscription = subscription_of()
    subscription.assign_from_group([A, B])
    kept, gone = subscription.state_of(A), subscription.state_of(B)
    for state in (kept, gone):
        state.seek(0)
        filled(state)
    kept.paused = True
    kept.pending_revocation = True
    run = gone.records.start_run(4)
    assert next(run).offset == 0
    subscription.assign_from_group([C, A])
    assert subscription.state_of(A) is kept
    assert (kept.paused, kept.pending_revocation, kept.records.is_empty) == (True, False, False)
    assert gone.records.is_empty
    assert not gone.may_hand_out
    assert list(run) == []
    assert subscription.state_of(C).state is FetchState.INITIALIZING
    with pytest.raises(NotAssigned, match="t-1 is not assigned"):
        subscription.state_of(B)


def test_consumed_positions_are_those_after_what_was_handed_out() -> None:
    subscription = subscription_of()
    subscription.assign([A, B, C])
    state = subscription.state_of(A)
    state.seek(0)
    filled(state)
    subscription.state_of(B).request_reset(LATEST)
    assert subscription.all_consumed() == {A: OffsetAndMetadata(0)}
    run = state.records.start_run(3)
    next(run)
    next(run)
    assert subscription.all_consumed() == {A: OffsetAndMetadata(2, "", 3)}


def test_a_new_leader_epoch_has_the_position_validated_and_fetched_again() -> None:
    subscription = subscription_of()
    subscription.assign([A])
    state = subscription.state_of(A)
    state.leader_seen(1, 3)
    state.seek(0)
    filled(state)
    state.records.take(2)
    generation = state.generation
    state.leader_seen(1, 3)
    state.leader_seen(9, 2)  # an older epoch: old news
    assert (state.leader_id, state.generation) == (1, generation)
    state.leader_seen(2, 4)
    assert state.state is FetchState.VALIDATING
    assert state.generation > generation
    assert state.records.is_empty
    assert (state.records.position, state.records.fetch_offset) == (2, 2)
    state.validated(generation)
    assert state.state is FetchState.VALIDATING, "an answer of before says nothing"
    state.validated(state.generation)
    assert state.state is FetchState.FETCHING


def test_a_validation_by_a_leader_that_has_been_replaced_says_nothing() -> None:
    subscription = subscription_of()
    subscription.assign([A])
    state = subscription.state_of(A)
    state.leader_seen(1, 3)
    state.seek(7, 3)
    asked = state.generation
    state.leader_seen(2, 4)
    state.validated(asked)
    assert state.state is FetchState.VALIDATING
    state.validated(state.generation)
    assert state.state is FetchState.FETCHING


def test_another_topic_of_the_same_name_has_nothing_of_the_former() -> None:
    subscription = subscription_of()
    subscription.assign([A])
    state = subscription.state_of(A)
    assert not state.topic_seen(UUID(int=1)), "the first id that is told"
    state.leader_seen(1, 3)
    state.seek(0)
    filled(state)
    generation = state.generation
    assert not state.topic_seen(UUID(int=1))
    assert not state.topic_seen(UUID(int=0)), "an old broker tells none"
    assert state.generation == generation
    assert state.topic_seen(UUID(int=2))
    assert state.state is FetchState.INITIALIZING
    assert state.records.is_empty
    assert state.generation > generation
    assert subscription.all_consumed() == {}
    state.leader_seen(1, 0)
    assert (state.leader_id, state.leader_epoch) == (1, 0)


def test_without_a_known_epoch_there_is_nothing_to_validate() -> None:
    subscription = subscription_of()
    subscription.assign([A])
    state = subscription.state_of(A)
    state.leader_seen(1, 3)
    state.seek(7)
    filled(state)
    state.leader_seen(2, 4)
    assert (state.state, state.leader_epoch) == (FetchState.FETCHING, 4)
    assert not state.records.is_empty
    state.seek(7, 3)
    assert state.state is FetchState.VALIDATING


def test_a_seek_wins_over_a_reset_that_is_under_way() -> None:
    subscription = subscription_of()
    subscription.assign([A])
    state = subscription.state_of(A)
    state.request_reset(EARLIEST)
    state.seek(5)
    assert not state.position_reset(EARLIEST, 0, 1)
    assert state.records.position == 5
    state.request_reset(LATEST)
    assert not state.position_reset(EARLIEST, 0, 1)
    assert state.position_reset(LATEST, 9, 1)
    assert (state.records.position, state.records.position_epoch) == (9, 1)


def test_whether_a_reset_is_allowed() -> None:
    assert subscription_of().may_reset
    memory = FrameMemory()
    never: SubscriptionState = SubscriptionState(
        NONE, lambda name: PartitionRecords(name, ReadOptions(), memory)
    )
    assert not never.may_reset


def test_nothing_is_handed_out_before_the_listener_has_been_called() -> None:
    subscription = subscription_of()
    subscription.assign_from_group([A])
    state = subscription.state_of(A)
    state.seek(0)
    subscription.mark_assigned_pending_listener([A], True)
    assert not state.may_hand_out
    subscription.mark_assigned_pending_listener([A], False)
    assert state.may_hand_out
    subscription.mark_pending_revocation([A, B])
    assert not state.may_hand_out


# -- one partition -----------------------------------------------------------------------------


def state_of(*, assigned_topic_id: UUID = ZERO_UUID) -> tuple[PartitionState, list[FetchState]]:
    """A partition, and in which states it was found to have something to find out."""
    heard: list[FetchState] = []
    records = PartitionRecords(A, ReadOptions(), FrameMemory())
    state = PartitionState(records, lambda: None, assigned_topic_id=assigned_topic_id)
    state.on_unsettled = lambda: heard.append(state.state)
    return state, heard


@pytest.mark.parametrize("state_", FetchState)
@pytest.mark.parametrize("held_back", ["", "paused", "pending_revocation", "pending_listener"])
@pytest.mark.parametrize("is_other", [False, True])
def test_when_records_are_handed_out(state_: FetchState, held_back: str, is_other: bool) -> None:
    state, _ = state_of(assigned_topic_id=UUID(int=1))
    state.state = state_
    if held_back:
        setattr(state, held_back, True)
    if is_other:
        state.topic_id = UUID(int=2)
    assert state.is_of_another_topic == is_other
    is_fetching = state_ is FetchState.FETCHING
    assert state.may_hand_out == (is_fetching and not held_back and not is_other)
    assert state.has_position == (is_fetching or state_ is FetchState.VALIDATING)


def test_a_new_partition_has_something_to_find_out() -> None:
    heard: list[str] = []
    records = PartitionRecords(A, ReadOptions(), FrameMemory())
    state = PartitionState(records, lambda: heard.append("x"), assigned_topic_id=UUID(int=4))
    assert heard == ["x"]
    assert (state.topic_partition, state.topic_id) == (A, UUID(int=4))
    assert (state.state, state.has_position) == (FetchState.INITIALIZING, False)
    assert (state.leader_id, state.leader_epoch, state.preferred_node_id) == (-1, -1, -1)
    assert (state.high_watermark, state.last_stable_offset, state.log_start_offset) == (-1, -1, -1)
    assert not state.is_of_another_topic


def test_a_name_without_an_id_is_of_no_other_topic() -> None:
    state, _ = state_of()
    state.topic_id = UUID(int=3)
    assert not state.is_of_another_topic


def known(state: PartitionState) -> tuple[object, ...]:
    """What is known of the leader and its log."""
    return (
        state.leader_id,
        state.leader_epoch,
        state.preferred_node_id,
        state.high_watermark,
        state.last_stable_offset,
        state.log_start_offset,
    )


UNKNOWN = (-1, -1, -1, -1, -1, -1)


def led(state: PartitionState) -> None:
    state.leader_seen(1, 3)
    state.prefer(4, 900.0)
    assert state.preferred_until_ms == 900.0
    state.high_watermark, state.last_stable_offset, state.log_start_offset = 12, 11, 10
    state.retry_at_ms = 77.0


@pytest.mark.parametrize(
    ("epoch", "after", "heard"),
    [
        (-1, FetchState.FETCHING, []),
        (0, FetchState.VALIDATING, [FetchState.VALIDATING]),
        (3, FetchState.VALIDATING, [FetchState.VALIDATING]),
    ],
)
def test_a_seek_begins_at_its_offset(
    epoch: int, after: FetchState, heard: list[FetchState]
) -> None:
    state, unsettled = state_of()
    led(state)
    state.request_reset(LATEST)
    unsettled.clear()
    generation = state.generation
    state.retry_at_ms = 77.0
    state.seek(8, epoch)
    assert (state.state, unsettled) == (after, heard)
    assert (state.records.position, state.records.fetch_offset) == (8, 8)
    assert state.records.position_epoch == epoch
    assert (state.reset, state.retry_at_ms) == (None, 0.0)
    assert state.generation > generation
    assert known(state) == (1, 3, 4, 12, 11, 10)


@pytest.mark.parametrize(
    ("topic_id", "is_forgotten"), [(ZERO_UUID, False), (UUID(int=1), False), (UUID(int=2), True)]
)
def test_a_seek_into_another_topic_forgets_the_leader(topic_id: UUID, is_forgotten: bool) -> None:
    state, _ = state_of()
    state.topic_seen(UUID(int=1))
    led(state)
    state.seek(8, -1, topic_id)
    assert state.topic_id == (topic_id if is_forgotten else UUID(int=1))
    assert known(state) == (UNKNOWN if is_forgotten else (1, 3, 4, 12, 11, 10))


def test_a_reset_is_looked_up_by_its_strategy() -> None:
    state, heard = state_of()
    led(state)
    state.seek(3)
    filled(state)
    generation = state.generation
    state.retry_at_ms = 77.0
    state.request_reset(LATEST)
    assert (state.state, heard) == (FetchState.RESETTING, [FetchState.RESETTING])
    assert (state.reset, state.retry_at_ms) == (LATEST, 0.0)
    assert state.generation > generation
    assert state.records.is_empty
    assert not state.has_position
    generation = state.generation
    assert state.position_reset(LATEST, 5, 2)
    assert state.generation > generation
    assert (state.state, state.reset) == (FetchState.FETCHING, None)
    assert (state.records.position, state.records.position_epoch) == (5, 2)
    assert heard == [FetchState.RESETTING]
    assert not state.position_reset(LATEST, 9, 2), "it was taken once"
    assert state.records.position == 5


@pytest.mark.parametrize(
    ("leader", "is_news", "is_validated"),
    [
        ((1, 3), False, False),
        ((9, 2), False, False),
        ((2, 3), True, False),
        ((1, 4), True, True),
        ((2, 4), True, True),
        ((-1, 3), True, False),
    ],
)
@pytest.mark.parametrize("has_epoch", [False, True])
def test_which_leaders_are_news(
    leader: tuple[int, int], is_news: bool, is_validated: bool, has_epoch: bool
) -> None:
    state, heard = state_of()
    state.leader_seen(1, 3)
    state.seek(5, 2 if has_epoch else -1)
    state.validated(state.generation)
    assert state.state is FetchState.FETCHING
    heard.clear()
    generation, state.retry_at_ms = state.generation, 77.0
    state.leader_seen(*leader)
    assert (state.leader_id, state.leader_epoch) == (leader if is_news else (1, 3))
    assert state.retry_at_ms == (0.0 if is_news else 77.0)
    validates = is_validated and has_epoch
    assert state.state is (FetchState.VALIDATING if validates else FetchState.FETCHING)
    assert (state.generation > generation) == validates
    assert heard == ([FetchState.VALIDATING] if validates else [])


@pytest.mark.parametrize("before", [FetchState.INITIALIZING, FetchState.RESETTING])
def test_without_a_position_a_leader_validates_nothing(before: FetchState) -> None:
    state, _ = state_of()
    state.leader_seen(1, 3)
    if before is FetchState.RESETTING:
        state.records.restart(5, 2)
        state.request_reset(EARLIEST)
    state.leader_seen(1, 4)
    assert (state.state, state.leader_epoch) == (before, 4)


def test_the_first_leader_that_is_seen_validates_nothing() -> None:
    state, _ = state_of()
    state.seek(5, 2)
    state.validated(state.generation)
    state.leader_seen(1, 3)
    assert (state.state, state.leader_epoch) == (FetchState.FETCHING, 3)


def test_another_topic_leaves_nothing_to_wait_for() -> None:
    state, heard = state_of()
    state.topic_seen(UUID(int=1))
    led(state)
    state.request_reset(LATEST)
    heard.clear()
    state.retry_at_ms = 77.0
    assert state.topic_seen(UUID(int=2))
    assert (state.topic_id, state.reset, state.retry_at_ms) == (UUID(int=2), None, 0.0)
    assert known(state) == UNKNOWN
    assert (state.state, heard) == (FetchState.INITIALIZING, [FetchState.INITIALIZING])


def test_a_position_is_validated_once() -> None:
    state, _ = state_of()
    state.seek(5, 2)
    state.request_reset(LATEST)
    state.validated(state.generation)
    assert state.state is FetchState.RESETTING


def test_a_replica_is_preferred_until_it_is_not() -> None:
    state, _ = state_of()
    state.prefer(4, 900.0)
    assert (state.preferred_node_id, state.preferred_until_ms) == (4, 900.0)
    state.prefer_leader()
    assert state.preferred_node_id == -1


# -- the subscription --------------------------------------------------------------------------


SUBSCRIBING: dict[str, Callable[[SubscriptionState], None]] = {
    "topics": lambda subscription: subscription.subscribe(["t"], None),
    "pattern": lambda subscription: subscription.subscribe_pattern("t.*", None),
    "by hand": lambda subscription: subscription.assign([A]),
}


@pytest.mark.parametrize("second", SUBSCRIBING)
@pytest.mark.parametrize("first", SUBSCRIBING)
def test_one_kind_of_subscription_at_a_time(first: str, second: str) -> None:
    subscription = subscription_of()
    assert not subscription.is_subscribed
    SUBSCRIBING[first](subscription)
    assert subscription.is_subscribed
    assert subscription.is_automatic == (first != "by hand")
    version = subscription.subscription_version
    if first == second:
        SUBSCRIBING[second](subscription)
        assert subscription.subscription_version == version + 1
    else:
        with pytest.raises(InvalidSubscription, match="one of them at a time"):
            SUBSCRIBING[second](subscription)
        assert subscription.subscription_version == version
    subscription.unsubscribe()
    assert not subscription.is_subscribed
    assert not subscription.is_automatic
    SUBSCRIBING[second](subscription)


@pytest.mark.parametrize("how", ["unsubscribe", "no topics", "no partitions"])
def test_the_end_of_a_subscription_leaves_nothing_of_it(how: str) -> None:
    changes: list[int] = []
    subscription = subscription_of()
    listener = RebalanceListener()
    if how == "no partitions":
        subscription.assign([A])
    elif how == "no topics":
        subscription.subscribe(["t"], listener)
        assert subscription.listener is listener
        subscription.assign_from_group([A])
    else:
        subscription.subscribe_pattern("t.*", listener)
        assert subscription.listener is listener
        subscription.matched_topics = frozenset({"t1"})
        subscription.assign_from_group([A])
    subscription.on_change = lambda: changes.append(1)
    version = subscription.subscription_version
    {
        "unsubscribe": subscription.unsubscribe,
        "no topics": lambda: subscription.subscribe([], None),
        "no partitions": lambda: subscription.assign([]),
    }[how]()
    assert subscription.subscription_version == version + 1
    assert (subscription.topics, subscription.pattern) == (frozenset(), None)
    assert subscription.matched_topics == frozenset()
    assert subscription.listener is None
    assert subscription.subscription() == set()
    assert subscription.assignment() == set()
    assert changes == [1]


def test_what_is_lost_is_revoked_for_a_listener_that_knows_no_difference() -> None:
    heard: list[Set[TopicPartition]] = []

    class Plain(RebalanceListener):
        def on_partitions_revoked(self, partitions: Set[TopicPartition]) -> None:
            heard.append(partitions)

    Plain().on_partitions_lost({A})
    assert heard == [{A}]
    assert RebalanceListener().on_partitions_assigned({A}) is None


def test_a_fresh_subscription_has_nothing_to_find_out() -> None:
    subscription = subscription_of()
    assert not subscription.is_unsettled
    subscription.assign([A])
    assert subscription.is_unsettled


def test_another_pattern_matches_nothing_yet() -> None:
    subscription = subscription_of()
    subscription.subscribe_pattern("t.*", None)
    subscription.matched_topics = frozenset({"t1"})
    subscription.subscribe_pattern("u.*", None)
    assert subscription.pattern == "u.*"
    assert subscription.subscription() == set()


def test_every_change_of_what_may_be_fetched_is_heard_of() -> None:
    subscription = subscription_of()
    changes: list[int] = []
    subscription.on_change = lambda: changes.append(len(changes))
    subscription.assign_from_group([A, B])
    subscription.mark_pending_revocation([A, C])
    subscription.mark_assigned_pending_listener([A, C], True)
    assert len(changes) == 3
    state = subscription.state_of(A)
    assert (state.pending_revocation, state.pending_listener) == (True, True)
    other = subscription.state_of(B)
    assert (other.pending_revocation, other.pending_listener) == (False, False)
    subscription.assign_from_group([A])
    assert len(changes) == 4
    assert not state.pending_revocation


def test_a_served_partition_is_fetched_last() -> None:
    subscription = subscription_of()
    subscription.assign([A, B, C])
    subscription.moved_back(A)
    subscription.moved_back(TopicPartition("another", 0))
    assert [state.topic_partition for state in subscription.states()] == [B, C, A]
    assert subscription.get(A) is subscription.state_of(A)
    assert subscription.get(TopicPartition("another", 0)) is None


def test_the_coordinators_topics_come_with_the_assignment() -> None:
    subscription = subscription_of()
    subscription.assign_from_group([A, B], {A: UUID(int=1)})
    assert subscription.state_of(A).assigned_topic_id == UUID(int=1)
    assert subscription.state_of(B).assigned_topic_id == ZERO_UUID
    assert subscription.is_unsettled


def test_what_is_consumed_names_its_topic_and_leaves_another_one_out() -> None:
    subscription = subscription_of()
    subscription.assign_from_group([A, B, C], {B: UUID(int=2)})
    for name, topic_id in ((A, ZERO_UUID), (B, UUID(int=2)), (C, UUID(int=3))):
        subscription.state_of(name).seek(4, 0, topic_id)
    consumed = {
        A: OffsetAndMetadata(4, "", 0, None),
        B: OffsetAndMetadata(4, "", 0, UUID(int=2)),
        C: OffsetAndMetadata(4, "", 0, UUID(int=3)),
    }
    assert subscription.all_consumed() == consumed
    assert [each.topic_id for each in subscription.all_consumed().values()] == [
        None,
        UUID(int=2),
        UUID(int=3),
    ]
    subscription.state_of(B).topic_seen(UUID(int=9))
    subscription.state_of(B).seek(1)
    del consumed[B]
    assert subscription.all_consumed() == consumed


# -- polls -------------------------------------------------------------------------------------


def test_the_interval_runs_between_polls() -> None:
    watch = PollWatch(1_000.0, 50.0)
    assert (watch.deadline_ms, watch.ask_at_ms) == (1_050.0, 550.0)
    watch.begin(100.0)
    watch.begin(200.0)
    assert watch.deadline_ms == watch.ask_at_ms == NEVER_MS
    watch.end(300.0)
    assert watch.deadline_ms == watch.ask_at_ms == NEVER_MS, "another poll is under way"
    watch.end(400.0)
    assert (watch.deadline_ms, watch.ask_at_ms) == (1_400.0, 900.0)
    watch.note(500.0)
    assert (watch.deadline_ms, watch.ask_at_ms) == (1_500.0, 1_000.0)
