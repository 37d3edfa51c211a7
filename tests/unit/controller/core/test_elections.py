"""Elections: asked for, periodic, swept up; and what eligible leader replicas make of them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from moldau.controller.apis import DECIDERS
from moldau.controller.core import elections
from moldau.metadata.image import ConfigResourceType
from moldau.metadata.steps import at_once
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p44_incremental_alter_configs as configs
from moldau.protocol.messages.p20_delete_topics import DeleteTopicsRequest
from moldau.protocol.messages.p43_elect_leaders import ElectLeadersRequest, TopicPartitions
from moldau.protocol.messages.p57_update_features import FeatureUpdateKey, UpdateFeaturesRequest
from moldau.protocol.messages.p64_unregister_broker import UnregisterBrokerRequest
from moldau.protocol.metadata_records import ClearElrRecord, PartitionChangeRecord
from tests.unit.metadata.builders import CoreDriver, registration

PREFERRED, UNCLEAN = 0, 1
INTERVAL_MS = 300_000


def make(*broker_ids: int, **options: Any) -> CoreDriver:
    driver = CoreDriver(**options)
    for broker_id in broker_ids:
        driver.join(broker_id)
    return driver


def elect(
    driver: CoreDriver, election_type: int, *partitions: tuple[str, int]
) -> dict[tuple[str, int], ErrorCode]:
    wanted = [TopicPartitions(topic=name, partitions=[index]) for name, index in partitions]
    request = ElectLeadersRequest(
        election_type=election_type, topic_partitions=wanted if partitions else None
    )
    response = driver.ask(request)
    assert response.error_code == 0
    return {
        (topic.topic, each.partition_id): ErrorCode.of(each.error_code)
        for topic in response.replica_election_results
        for each in topic.partition_result
    }


def configure(driver: CoreDriver, topic: str | None, key: str, value: str | None) -> ErrorCode:
    resource = configs.AlterConfigsResource(
        resource_type=ConfigResourceType.BROKER if topic is None else ConfigResourceType.TOPIC,
        resource_name=topic or "",
        configs=[
            configs.AlterableConfig(
                name=key, config_operation=1 if value is None else 0, value=value
            )
        ],
    )
    response = driver.ask(configs.IncrementalAlterConfigsRequest(resources=[resource]))
    return ErrorCode.of(response.responses[0].error_code)


def bounce(driver: CoreDriver, broker_id: int) -> None:
    """A broker is fenced and comes back, which takes its leaderships away."""
    driver.beat(broker_id, want_fence=True)
    driver.beat(broker_id)


def test_preferred_leaders_lead_again() -> None:
    driver = make(1, 2)
    driver.topic("t", [1, 2], [2, 1], [1, 2])
    bounce(driver, 1)
    assert [driver.partition(index=each).leader for each in range(3)] == [2, 2, 2]
    for index in (0, 1, 2):
        driver.alter_partition([2, 1], index=index)
    assert elect(driver, PREFERRED, ("t", 0), ("t", 1), ("t", 9), ("absent", 0)) == {
        ("t", 0): ErrorCode.NONE,
        ("t", 1): ErrorCode.ELECTION_NOT_NEEDED,
        ("t", 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("absent", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert (driver.partition().leader, driver.partition().isr) == (1, (2, 1))
    assert driver.partition().leader_epoch == 2
    # Everywhere: those that need nothing are not in the answer.
    assert elect(driver, PREFERRED) == {("t", 2): ErrorCode.NONE}
    assert elect(driver, PREFERRED) == {}
    assert not driver.appended


def test_a_preferred_leader_that_is_not_in_sync_is_not_elected() -> None:
    driver = make(1, 2)
    driver.topic("t", [1, 2])
    bounce(driver, 1)
    assert elect(driver, PREFERRED, ("t", 0)) == {
        ("t", 0): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    }
    assert elect(driver, PREFERRED) == {("t", 0): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
    assert not driver.appended


def test_an_unclean_election_is_made_when_asked_for() -> None:
    driver = make(1, 2, 3)
    driver.topic("t", [1, 2])
    assert elect(driver, UNCLEAN, ("t", 0)) == {("t", 0): ErrorCode.ELECTION_NOT_NEEDED}
    driver.beat(2, want_fence=True)
    driver.beat(1, want_fence=True)
    assert driver.partition().leader == -1
    assert elect(driver, UNCLEAN, ("t", 0)) == {("t", 0): ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}
    driver.beat(2)
    assert driver.partition().leader == -1, "nobody allowed it yet"
    assert elect(driver, UNCLEAN) == {("t", 0): ErrorCode.NONE}
    state = driver.partition()
    assert (state.leader, state.isr, state.leader_recovery_state) == (2, (2,), 1)
    assert (state.elr, state.last_known_elr) == ((), ())


def test_an_election_of_an_unknown_kind() -> None:
    driver = make(1)
    response = driver.ask(ElectLeadersRequest(election_type=7, topic_partitions=None))
    assert response.error_code == ErrorCode.INVALID_REQUEST


def test_a_named_partition_is_answered_once_however_often_it_is_named() -> None:
    driver = make(1, 2)
    driver.topic("t", [1, 2])
    bounce(driver, 1)
    driver.alter_partition([2, 1])
    wanted = [TopicPartitions(topic="t", partitions=[0, 0])]
    response = driver.ask(ElectLeadersRequest(topic_partitions=wanted))
    assert len(response.replica_election_results[0].partition_result) == 1
    assert len(driver.appended) == 1


@pytest.mark.parametrize(("count", "error"), [(3, ErrorCode.NONE), (4, ErrorCode.POLICY_VIOLATION)])
def test_named_elections_fit_one_batch_or_none_is_made(
    monkeypatch: pytest.MonkeyPatch, count: int, error: ErrorCode
) -> None:
    monkeypatch.setattr(elections, "MAX_RECORDS_PER_REQUEST", 3)
    driver = make(1, 2)
    driver.topic("t", *[[1, 2]] * count)
    bounce(driver, 1)
    for index in range(count):
        driver.alter_partition([2, 1], index=index)
    wanted = TopicPartitions(topic="t", partitions=list(range(count)))
    response = driver.ask(ElectLeadersRequest(election_type=PREFERRED, topic_partitions=[wanted]))
    assert response.error_code == error
    leader = 1 if error is ErrorCode.NONE else 2
    assert {driver.partition(index=each).leader for each in range(count)} == {leader}


def test_partitions_that_no_broker_can_lead_are_not_looked_at_all_the_time() -> None:
    driver = make(1, 2)
    driver.topic("t", [1])
    driver.beat(1, want_fence=True)
    driver.run_tasks()
    for _ in range(3):
        driver.beat(2)
        due_ms = driver.core.tasks.next_due_ms()
        assert due_ms is not None
        assert due_ms >= driver.now_ms + 1_000


@pytest.mark.parametrize("where", ["topic", "cluster", "static"])
def test_a_broker_that_returns_is_elected_uncleanly_where_the_configuration_allows(
    where: str,
) -> None:
    static = {"unclean_leader_election_enable": "true"} if where == "static" else {}
    driver = make(1, 2, **static)
    driver.topic("t", [1, 2])
    if where == "topic":
        configure(driver, "t", "unclean.leader.election.enable", "true")
    elif where == "cluster":
        configure(driver, None, "unclean.leader.election.enable", "true")
    driver.topic("careful", [1, 2], unclean_leader_election_enable="false")
    driver.beat(2, want_fence=True)
    driver.beat(1, want_fence=True)
    driver.beat(2)
    assert (driver.partition().leader, driver.partition().leader_recovery_state) == (2, 1)
    assert driver.partition("careful").leader == -1
    driver.beat(1)
    assert (driver.partition("careful").leader, driver.partition("careful").isr) == (1, (1,))


def test_partitions_without_a_leader_are_tried_periodically_once_it_is_allowed() -> None:
    driver = make(1, 2)
    driver.topic("t", [1, 2])
    driver.beat(2, want_fence=True)
    driver.beat(1, want_fence=True)
    driver.beat(2)
    configure(driver, "t", "unclean.leader.election.enable", "true")
    assert driver.partition().leader == -1
    driver.now_ms = INTERVAL_MS - 1
    assert driver.run_tasks() == 0
    driver.now_ms = INTERVAL_MS
    driver.run_tasks()
    assert (driver.partition().leader, driver.partition().leader_recovery_state) == (2, 1)


def test_preferred_leaders_are_restored_periodically() -> None:
    driver = make(1, 2, leader_imbalance_check_interval_seconds="7")
    driver.topic("t", [1, 2], [1, 2])
    bounce(driver, 1)
    driver.alter_partition([2, 1], index=0)
    driver.now_ms = 6_999.0
    assert driver.run_tasks() == 0
    driver.now_ms = 7_000.0
    assert driver.run_tasks() == 1
    assert [driver.partition(index=each).leader for each in (0, 1)] == [1, 2]
    assert driver.core.tasks.next_due_ms() == 14_000


def test_a_preferred_leader_in_sync_leads_again_after_a_larger_isr() -> None:
    driver = make(1, 2, 3)
    driver.topic("t", [1, 2, 3])
    bounce(driver, 1)
    bounce(driver, 2)
    assert driver.partition().leader == 3
    driver.alter_partition([3, 1])
    driver.now_ms = INTERVAL_MS
    assert driver.run_tasks() == 1
    assert (driver.partition().leader, driver.partition().isr) == (1, (3, 1))


def test_automatic_rebalancing_can_be_switched_off() -> None:
    driver = make(1, 2, auto_leader_rebalance_enable="false")
    driver.topic("t", [1, 2])
    bounce(driver, 1)
    driver.alter_partition([2, 1])
    driver.now_ms = 10 * INTERVAL_MS
    driver.run_tasks()
    assert driver.partition().leader == 2


def test_a_pass_moves_a_thousand_leaders_and_the_next_follows_soon() -> None:
    driver = make(1, 2)
    driver.topic("t", *[[1, 2]] * 1_500)
    bounce(driver, 1)
    topic_id = driver.image.topics.topics_by_name["t"].topic_id
    driver.append(
        [
            (PartitionChangeRecord(partition_id=index, topic_id=topic_id, isr=[2, 1]), 2)
            for index in range(1_500)
        ]
    )
    driver.now_ms = INTERVAL_MS
    records = driver.core.run_due_task(driver.now_ms)
    assert len(records) == 1_000
    driver.append(records)
    soon = driver.core.tasks.next_due_ms()
    assert soon is not None
    assert INTERVAL_MS <= soon <= INTERVAL_MS + 100
    assert driver.run_tasks() == 1
    assert not list(driver.core.state.index.without_preferred_leader())


def test_a_new_leader_finishes_what_a_log_left_half_done() -> None:
    """As after a controller that wrote a fencing before the partitions' changes, and died."""
    driver = make(1, 2, 3)
    topic_id = driver.topic("t", [1, 2], [2, 1], [3, 2])
    broker = driver.image.cluster.brokers[1]
    fenced = driver.core.cluster_control._change(broker, fenced=1)
    gone = PartitionChangeRecord(partition_id=2, topic_id=topic_id, leader=-1)
    driver.append([fenced, (gone, 2)])
    driver.commit()
    driver.core.deactivate()
    assert driver.partition().leader == 1
    driver.core.activate(2, [], monotonic_ms=driver.now_ms)
    driver.run_tasks()
    assert [driver.partition(index=each).leader for each in range(3)] == [2, 2, 3]
    assert [driver.partition(index=each).isr for each in range(3)] == [(2,), (2,), (3, 2)]


def test_a_sweep_leaves_the_loop_to_others_between_its_turns() -> None:
    driver = make(1, 2, max_changes_per_step=2, unclean_leader_election_enable="true")
    topic_id = driver.topic("t", *[[1, 2]] * 5)
    gone = [
        (PartitionChangeRecord(partition_id=index, topic_id=topic_id, leader=-1), 2)
        for index in range(5)
    ]
    driver.append(gone)
    driver.commit()
    driver.core.deactivate()
    driver.core.activate(2, [], monotonic_ms=driver.now_ms)
    sizes = []
    for _ in range(3):
        due_ms = driver.core.tasks.next_due_ms()
        assert due_ms is not None
        assert due_ms <= driver.now_ms
        driver.append(driver.core.run_due_task(driver.now_ms))
        sizes.append(len(driver.appended))
        due_ms = driver.core.tasks.next_due_ms()
        assert due_ms is not None
        assert due_ms > driver.now_ms
        driver.now_ms += elections.NEXT_TURN_DELAY_MS
    assert sizes == [2, 2, 1]
    assert due_ms == INTERVAL_MS, "the sweep has ended"
    assert {driver.partition(index=index).leader for index in range(5)} == {1}


def test_a_sweep_passes_over_what_has_been_deleted_and_brokers_that_are_back() -> None:
    driver = make(1, 2, max_changes_per_step=1)
    for name in ("t", "u"):
        topic_id = driver.topic(name, [1, 2])
        gone = PartitionChangeRecord(partition_id=0, topic_id=topic_id, leader=-1)
        driver.append([(gone, 2)])
    driver.topic("v", [2, 1])
    broker = driver.image.cluster.brokers[2]
    driver.append([driver.core.cluster_control._change(broker, fenced=1)])
    driver.commit()
    driver.core.deactivate()
    driver.core.activate(2, [], monotonic_ms=driver.now_ms)
    driver.beat(2)
    driver.ask(DeleteTopicsRequest(topic_names=["t"]))
    driver.run_tasks()
    assert [driver.partition(name).leader for name in ("u", "v")] == [1, 2]
    assert driver.partition("v").isr == (2, 1)


def test_electing_everywhere_passes_over_what_has_changed_between_its_steps() -> None:
    driver = make(1, 2, max_changes_per_step=1)
    for name in ("a", "b", "c", "d"):
        driver.topic(name, [1, 2])
    bounce(driver, 1)
    for name in ("a", "b", "c", "d"):
        driver.alter_partition([2, 1], name)
    request = ElectLeadersRequest(election_type=PREFERRED, topic_partitions=None)
    decide = DECIDERS[ApiKey(request.API_KEY)]
    result = at_once(driver.core.handle(request, decide, driver.asked()))
    driver.append(result.records)
    driver.ask(DeleteTopicsRequest(topic_names=["b"]))
    elect(driver, PREFERRED, ("c", 0))
    steps = 1
    while result.resume is not None:
        result = driver.core.resume(request, result, driver.asked())
        driver.append(result.records)
        steps += 1
    answers = result.response.replica_election_results  # type: ignore[attr-defined]
    assert {each.topic: each.partition_result[0].error_code for each in answers} == {"a": 0, "d": 0}
    assert steps == 5, "four partitions, and then there are none"
    assert {driver.partition(name).leader for name in ("a", "c", "d")} == {1}


# -- eligible leader replicas (KIP-966) ----------------------------------------------------------


def test_who_leaves_a_small_isr_stays_eligible_and_leads_again_cleanly() -> None:
    driver = make(1, 2, 3)
    driver.topic("t", [1, 2, 3], min_insync_replicas="2")
    driver.beat(3, want_fence=True)
    assert (driver.partition().isr, driver.partition().elr) == ((1, 2), ())
    driver.beat(2, want_fence=True)
    assert (driver.partition().isr, driver.partition().elr) == ((1,), (2,))
    driver.beat(1, want_fence=True)
    state = driver.partition()
    assert (state.leader, state.isr, set(state.elr)) == (-1, (), {1, 2})
    assert state.last_known_elr == (1,)
    driver.beat(3)
    assert driver.partition().leader == -1, "3 left before the last commits"
    driver.beat(2)
    state = driver.partition()
    assert (state.leader, state.isr, state.elr) == (2, (2,), (1,))
    assert (state.leader_recovery_state, state.last_known_elr) == (0, ())
    driver.beat(1)
    driver.alter_partition([2, 1])
    assert (driver.partition().isr, driver.partition().elr) == ((2, 1), ())


def test_an_unclean_start_ends_eligibility() -> None:
    driver = make(1, 2)
    driver.topic("t", [1, 2], min_insync_replicas="2")
    driver.beat(1, want_fence=True)
    driver.beat(2, want_fence=True)
    assert set(driver.partition().elr) == {1, 2}
    epoch = driver.broker_epoch(2)
    driver.now_ms += 9_000
    fresh = registration(2, incarnation_id=UUID(int=0x77), previous_broker_epoch=epoch - 1)
    assert driver.ask(fresh).error_code == 0
    assert driver.partition().elr == (1,)
    driver.beat(2)
    assert driver.partition().leader == -1, "it may lack what it had not flushed"
    driver.beat(1)
    assert driver.partition().leader == 1


def test_an_unregistered_broker_starts_uncleanly() -> None:
    driver = make(1, 2)
    driver.topic("t", [1, 2], min_insync_replicas="2")
    driver.beat(1, want_fence=True)
    assert driver.partition().elr == (1,)
    driver.ask(UnregisterBrokerRequest(broker_id=1))
    assert driver.partition().elr == ()
    driver.join(1, incarnation_id=UUID(int=0x77))
    assert (driver.partition().isr, driver.partition().elr) == ((2,), ())


def test_a_lower_minimum_ends_eligibility() -> None:
    driver = make(1, 2)
    driver.topic("t", [1, 2], min_insync_replicas="2")
    driver.beat(1, want_fence=True)
    assert driver.partition().elr == (1,)
    assert configure(driver, "t", "min.insync.replicas", "1") is ErrorCode.NONE
    assert [type(record) for record in driver.appended][1:] == [ClearElrRecord]
    assert driver.partition().elr == ()
    driver.beat(2, want_fence=True)
    driver.beat(1)
    assert driver.partition().leader == -1, "2 may have committed alone"


def test_a_sweep_after_a_half_written_fencing_keeps_eligibility() -> None:
    driver = make(1, 2)
    driver.topic("t", [1, 2], min_insync_replicas="2")
    broker = driver.image.cluster.brokers[1]
    driver.append([driver.core.cluster_control._change(broker, fenced=1)])
    driver.commit()
    driver.core.deactivate()
    driver.core.activate(2, [], monotonic_ms=driver.now_ms)
    driver.run_tasks()
    state = driver.partition()
    assert (state.leader, state.isr, state.elr) == (2, (2,), (1,))


def test_the_last_known_leader_is_forgotten_when_any_broker_leads() -> None:
    driver = make(0, 1)
    for name, broker_id in (("t", 0), ("u", 1)):
        driver.topic(name, [broker_id])
        driver.beat(broker_id, want_fence=True)
        assert driver.partition(name).last_known_elr == (broker_id,)
        driver.beat(broker_id)
        state = driver.partition(name)
        assert (state.leader, state.last_known_elr) == (broker_id, ())


@pytest.mark.parametrize(("release", "leader_epoch"), [("3.5-IV2", 1), ("3.6-IV0", 0)])
def test_a_smaller_isr_begins_a_leader_epoch_below_the_level_that_keeps_it(
    release: str, leader_epoch: int
) -> None:
    driver = make(1, 2, release=release)
    driver.topic("t", [1, 2])
    answer = driver.alter_partition([1])
    assert driver.partition().isr == (1,)
    assert driver.partition().leader_epoch == leader_epoch
    assert answer.error_code == (ErrorCode.NEW_LEADER_ELECTED if leader_epoch else ErrorCode.NONE)
    driver.alter_partition([1, 2])
    assert driver.partition().leader_epoch == leader_epoch, "a larger one never does"


def test_the_start_of_the_last_replica_in_sync_elects_no_other() -> None:
    """Without eligible leader replicas; it leads as soon as it has caught up."""
    driver = make(1, 2, release="3.9")
    driver.topic("t", [1, 2])
    driver.beat(2, want_fence=True)
    driver.beat(1, want_fence=True)
    driver.beat(2)
    configure(driver, "t", "unclean.leader.election.enable", "true")
    driver.now_ms += 9_000
    driver.beat(2)
    fresh = registration(1, incarnation_id=UUID(int=0x77))
    assert driver.ask(fresh).error_code == 0
    assert (driver.partition().leader, driver.partition().isr) == (-1, (1,))
    driver.beat(1)
    state = driver.partition()
    assert (state.leader, state.isr, state.leader_recovery_state) == (1, (1,), 0)


def test_a_cluster_wide_minimum_ends_eligibility_everywhere() -> None:
    driver = make(1, 2)
    assert configure(driver, None, "min.insync.replicas", "2") is ErrorCode.NONE
    driver.topic("t", [1, 2])
    driver.topic("u", [2, 1])
    driver.beat(1, want_fence=True)
    assert [driver.partition(name).elr for name in ("t", "u")] == [(1,), (1,)]
    assert configure(driver, None, "min.insync.replicas", "1") is ErrorCode.NONE
    assert [driver.partition(name).elr for name in ("t", "u")] == [(), ()]


def test_while_no_replica_is_in_sync_a_new_minimum_strands_no_partition() -> None:
    driver = make(1, 2)
    for broker_id in (3, 4):
        driver.join(broker_id)
    driver.topic("t", [1, 2], [2, 1], [3, 4], min_insync_replicas="2")
    driver.beat(1, want_fence=True)
    driver.alter_partition([2], index=1)
    driver.beat(2, want_fence=True)
    assert set(driver.partition().elr) == {1, 2}
    in_sync = driver.partition(index=2)
    assert configure(driver, "t", "min.insync.replicas", "1") is ErrorCode.NONE
    assert set(driver.partition().elr) == {1, 2}
    assert driver.partition(index=2) == in_sync, "nothing is eligible there"
    assert configure(driver, "t", "retention.ms", "5") is ErrorCode.NONE
    assert set(driver.partition().elr) == {1, 2}
    driver.beat(1)
    assert (driver.partition().leader, driver.partition().isr) == (1, (1,))
    assert driver.partition().elr == (), "1 may commit alone from now on"


def set_eligible_leaders(driver: CoreDriver, level: int) -> None:
    """Turn the feature on or off."""
    key = FeatureUpdateKey(
        feature="eligible.leader.replicas.version",
        max_version_level=level,
        upgrade_type=1 if level else 2,
    )
    assert driver.ask(UpdateFeaturesRequest(feature_updates=[key])).error_code == 0


def test_who_was_eligible_before_the_feature_was_off_is_not_when_it_is_on_again() -> None:
    """The one replica in sync may have committed alone since."""
    driver = make(1, 2, 3, 4)
    driver.topic("t", [1, 2], [3, 4], min_insync_replicas="2")
    driver.beat(1, want_fence=True)
    for broker_id in (3, 4):
        driver.beat(broker_id, want_fence=True)
    set_eligible_leaders(driver, 0)
    assert configure(driver, "t", "min.insync.replicas", "1") is ErrorCode.NONE
    assert [driver.partition(index=each).elr for each in (0, 1)] == [(1,), (3, 4)]
    set_eligible_leaders(driver, 1)
    assert driver.partition().elr == ()
    assert driver.partition(index=1).elr == (3, 4), "nothing is in sync, and nothing is committed"
    driver.beat(2, want_fence=True)
    driver.beat(1)
    assert (driver.partition().leader, driver.partition().isr) == (-1, ())
    driver.beat(2)
    assert (driver.partition().leader, driver.partition().leader_recovery_state) == (2, 0)


def test_who_was_eligible_before_the_feature_was_off_does_not_lead_while_it_is_off() -> None:
    """The one replica in sync may have committed alone since; it stays in the ISR."""
    driver = make(1, 2, 3, 4)
    driver.topic("t", [1, 2], [3, 4], min_insync_replicas="2")
    driver.beat(1, want_fence=True)
    for broker_id in (3, 4):
        driver.beat(broker_id, want_fence=True)
    set_eligible_leaders(driver, 0)
    driver.beat(1)
    driver.beat(2, want_fence=True)
    state = driver.partition()
    assert (state.leader, state.isr, state.elr) == (-1, (2,), ())
    driver.beat(3)
    state = driver.partition(index=1)
    assert (state.leader, state.isr, state.elr) == (3, (3,), ()), "nothing was in sync"


def test_turning_the_feature_on_forgets_only_what_there_is() -> None:
    driver = make(1, 2)
    driver.topic("t", [1, 2])
    set_eligible_leaders(driver, 0)
    before = driver.partition()
    set_eligible_leaders(driver, 1)
    assert not any(isinstance(record, ClearElrRecord) for record in driver.appended)
    assert driver.partition() == before


@pytest.mark.parametrize(
    ("name", "value"), [("1", "2"), ("1", None), ("", None)], ids=["own", "own gone", "none"]
)
def test_the_minimum_stays_one_for_the_whole_cluster(name: str, value: str | None) -> None:
    driver = make(1)
    resource = configs.AlterConfigsResource(
        resource_type=ConfigResourceType.BROKER,
        resource_name=name,
        configs=[
            configs.AlterableConfig(
                name="min.insync.replicas", config_operation=1 if value is None else 0, value=value
            )
        ],
    )
    request = configs.IncrementalAlterConfigsRequest(resources=[resource])
    expected = ErrorCode.NONE if (name, value) == ("1", None) else ErrorCode.INVALID_CONFIG
    assert driver.ask(request).responses[0].error_code == expected
    assert not driver.appended
    set_eligible_leaders(driver, 0)
    assert driver.ask(request).responses[0].error_code == ErrorCode.NONE
