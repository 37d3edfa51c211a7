"""Subscription and partition states: which calls fit together, what a change keeps and drops."""

from __future__ import annotations

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
from moldau.client.consumer.core.subscription_state import SubscriptionState
from moldau.client.errors import InvalidSubscription
from moldau.client.records import OffsetAndMetadata, TopicPartition
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
