"""A partition that leads: what followers' fetches do to it, what it reports to the controller and
the operators.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from moldau.broker.replica.core.in_sync_set import IsrChange, PartitionState
from moldau.broker.replica.partition import Partition
from moldau.protocol.access_control import Operation
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p01_fetch import ReplicaState
from moldau.protocol.messages.p21_delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from moldau.protocol.metadata_records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    PartitionChangeRecord,
)
from moldau.server.authorizer import Authorizer
from tests.kit.waiting import until_async
from tests.unit.broker.harness import OTHER_BROKER_ID, DataPath, FakeRequest
from tests.unit.broker.messages import batch, fetch, fetched_values, only, produce

FOLLOWER_EPOCH = OTHER_BROKER_ID
"""The broker epoch under which the harness registers the other broker."""

FETCH_VERSION = 18


class Controller:
    """Collects the proposals; the test answers them."""

    def __init__(self) -> None:
        self.changes: list[tuple[Partition, IsrChange]] = []

    def take(self) -> tuple[Partition, IsrChange]:
        (proposed,) = self.changes
        self.changes.clear()
        return proposed

    def commit(self) -> IsrChange | None:
        partition, change = self.take()
        state = PartitionState(1, change.leader_epoch, change.partition_epoch + 1, (), change.isr)
        return partition.isr_change_answered(change, ErrorCode.NONE, state)


@pytest.fixture
def controller(broker: DataPath, monkeypatch: pytest.MonkeyPatch) -> Controller:
    controller = Controller()

    def submit(partition: Partition, change: IsrChange) -> None:
        controller.changes.append((partition, change))

    monkeypatch.setattr(broker.manager.replication.isr_changes, "submit", submit)
    return controller


class Follower:
    """Broker 2 fetching, with a session as brokers do."""

    def __init__(self, broker: DataPath, *, epoch: int = FOLLOWER_EPOCH, **fields: Any) -> None:
        self.broker = broker
        self.epoch = epoch
        self.fields = fields
        self.session_id = 0
        self.session_epoch = 0

    def send(self, partitions: dict[tuple[str, int], Any] | None = None) -> FakeRequest:
        request = fetch(
            partitions or {},
            api_version=FETCH_VERSION,
            session_id=self.session_id,
            session_epoch=self.session_epoch,
            **self.fields,
        )
        request.replica_state = ReplicaState(replica_id=OTHER_BROKER_ID, replica_epoch=self.epoch)
        self.session_epoch += 1
        return self.broker.send(request, FETCH_VERSION)

    def poll(self, partitions: dict[tuple[str, int], Any] | None = None) -> Any:
        request = self.send(partitions)
        assert request.is_answered
        self.session_id = request.response.session_id
        return request.response


def at(offset: int, log_start_offset: int = 0, leader_epoch: int = 0) -> dict[str, int]:
    return {
        "fetch_offset": offset,
        "log_start_offset": log_start_offset,
        "current_leader_epoch": leader_epoch,
        "last_fetched_epoch": 0 if offset else -1,
    }


def fence(broker: DataPath, *, is_fenced: bool = True) -> None:
    broker.replay(
        BrokerRegistrationChangeRecord(
            broker_id=OTHER_BROKER_ID, broker_epoch=FOLLOWER_EPOCH, fenced=1 if is_fenced else -1
        )
    )


# -- what a follower's fetch says -----------------------------------------------------------------


async def test_a_follower_catches_up_and_joins(
    broker: DataPath, controller: Controller, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "moldau.broker.replica")
    broker.create_topic("t", replicas=(1, 2), isr=(1,))
    await broker.ask(produce({("t", 0): batch(3)}), 12)
    follower = Follower(broker)
    found = only(follower.poll({("t", 0): at(0)}))
    assert len(fetched_values(found)) == 3
    assert controller.changes == []
    assert found.high_watermark == 3, "which the leader alone has committed"
    follower.poll({("t", 0): at(3)})
    partition, change = controller.take()
    assert (change.isr, dict(change.broker_epochs)) == ((1, 2), {1: 1, 2: FOLLOWER_EPOCH})
    controller.changes.append((partition, change))
    assert controller.commit() is None
    assert partition.core.isr == {1, 2}
    assert partition.context.isr_expands.count == 1
    assert "proposing ISR 1,2 instead of 1" in caplog.text
    assert "ISR grew from 1 to 1,2" in caplog.text


async def test_a_change_of_the_isr_counts_once_when_the_metadata_come_before_the_answer(
    broker: DataPath, controller: Controller
) -> None:
    broker.create_topic("t", replicas=(1, 2), isr=(1,))
    await broker.ask(produce({("t", 0): batch(3)}), 12)
    Follower(broker).poll({("t", 0): at(3)})
    partition, change = controller.take()
    broker.replay(PartitionChangeRecord(partition_id=0, topic_id=partition.topic_id, isr=[1, 2]))
    context = partition.context
    assert partition.core.isr == {1, 2}
    assert (context.isr_expands.count, context.isr_shrinks.count) == (1, 0)
    controller.changes.append((partition, change))
    controller.commit()
    assert partition.core.isr == {1, 2}
    assert (context.isr_expands.count, context.isr_shrinks.count) == (1, 0)


async def test_the_high_watermark_is_answered_to_the_fetch_that_moves_it(broker: DataPath) -> None:
    broker.create_topic("t", replicas=(1, 2), isr=(1, 2))
    waiting = broker.send(produce({("t", 0): batch(3)}), 12)
    follower = Follower(broker)
    assert only(follower.poll({("t", 0): at(0)})).high_watermark == 0
    assert only(follower.poll({("t", 0): at(3)})).high_watermark == 3
    assert only(waiting.response).error_code == 0


async def test_looking_again_proves_nothing_about_the_follower(broker: DataPath) -> None:
    """A fetch that waits is read again when the log grows, and when its time is up."""
    broker.create_topic("t", replicas=(1, 2), isr=(1, 2))
    follower = Follower(broker, max_wait_ms=5_000, min_bytes=1_000_000)
    request = follower.send({("t", 0): at(0)})
    progress = broker.partition("t").core.followers[OTHER_BROKER_ID]
    caught_up_ms = progress.caught_up_ms
    broker.clock.advance(2_000)
    await broker.ask(produce({("t", 0): batch(1)}, acks=1), 12)
    broker.clock.advance(4_000)
    assert request.is_answered
    assert progress.caught_up_ms == caught_up_ms


async def test_what_a_follower_has_counts_though_its_turn_has_not_come(broker: DataPath) -> None:
    """One partition takes all the bytes of a response; the others' followers are heard."""
    broker.create_topic("t", 3, replicas=(1, 2), isr=(1, 2))
    waiting = [broker.send(produce({("t", n): batch(2)}), 12) for n in range(3)]
    follower = Follower(broker, max_bytes=1)
    follower.poll({("t", n): at(0) for n in range(3)})
    for n in range(3):
        await broker.ask(produce({("t", n): batch(1)}, acks=1), 12)
    response = follower.poll({("t", n): at(2) for n in range(3)})
    assert [request.is_answered for request in waiting] == [True] * 3
    with_records = [each for topic in response.responses for each in topic.partitions
                    if each.records]  # fmt: skip
    assert len(with_records) == 1, "the limit holds all the same"


async def test_a_consumer_does_not_wake_for_what_is_not_committed(
    broker: DataPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("t", replicas=(1, 2), isr=(1, 2))
    broker.send(fetch({("t", 0): 0}, max_wait_ms=5_000), 12)
    woken = []
    real = broker.manager.fetch_changed
    monkeypatch.setattr(
        broker.manager, "fetch_changed", lambda ready: (woken.append(ready), real(ready))
    )
    await broker.ask(produce({("t", 0): batch(1)}, acks=1), 12)
    assert woken == []
    broker.follower_has("t", 2, 1)
    assert len(woken) == 1


async def test_a_follower_is_not_looked_at_for_a_commit_alone(
    broker: DataPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the records, and learns of the high watermark with whatever comes next."""
    broker.create_topic("t", replicas=(1, 2, 3), isr=(1, 2, 3))
    broker.send(produce({("t", 0): batch(1)}), 12)
    follower = Follower(broker, max_wait_ms=5_000)
    follower.poll({("t", 0): at(0)})
    request = follower.send({("t", 0): at(1)})
    woken = []
    real = broker.manager.fetch_changed
    monkeypatch.setattr(
        broker.manager, "fetch_changed", lambda ready: (woken.append(ready), real(ready))
    )
    broker.follower_has("t", 3, 1)
    assert broker.partition("t").core.high_watermark == 1
    assert woken == []
    await broker.ask(produce({("t", 0): batch(1)}, acks=1), 12)
    await until_async(lambda: request.is_answered)
    assert only(request.response).high_watermark == 1


async def test_the_appends_of_one_turn_reach_a_follower_in_one_answer(broker: DataPath) -> None:
    broker.create_topic("t", 2, replicas=(1, 2), isr=(1, 2))
    follower = Follower(broker)
    follower.poll({("t", 0): at(0), ("t", 1): at(0)})
    follower.fields["max_wait_ms"] = 5_000
    request = follower.send()
    for index in (0, 1, 0):
        broker.send(produce({("t", index): batch(1)}), 12)
    await until_async(lambda: request.is_answered)
    (topic,) = request.response.responses
    found = {each.partition_index: len(fetched_values(each)) for each in topic.partitions}
    assert found == {0: 2, 1: 1}


async def test_news_of_commits_go_to_followers_that_consumers_read_from(tmp_path: Path) -> None:
    selector = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
    cases: list[tuple[dict[str, str], bool]] = [
        ({}, False),
        ({"replica_selector_class": selector}, True),
    ]
    for options, is_told in cases:
        async with DataPath(tmp_path / str(is_told), **options) as broker:
            broker.create_topic("t", replicas=(1, 2, 3), isr=(1, 2, 3))
            follower = Follower(broker, max_wait_ms=5_000)
            broker.send(produce({("t", 0): batch(1)}), 12)
            assert len(fetched_values(only(follower.poll({("t", 0): at(0)})))) == 1
            request = follower.send({("t", 0): at(1)})
            assert not request.is_answered
            broker.follower_has("t", 3, 1)
            broker.manager.complete_ready()
            assert request.is_answered is is_told
            if is_told:
                assert only(request.response).high_watermark == 1


@pytest.mark.parametrize(
    ("epoch", "error"),
    [
        (FOLLOWER_EPOCH + 5, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (FOLLOWER_EPOCH + 6, ErrorCode.NONE),
    ],
)
async def test_an_earlier_life_of_the_follower_is_refused(
    broker: DataPath, epoch: int, error: ErrorCode
) -> None:
    broker.create_topic("t", replicas=(1, 2), isr=(1, 2))
    Follower(broker, epoch=FOLLOWER_EPOCH + 6).poll({("t", 0): at(0)})
    found = only(Follower(broker, epoch=epoch).poll({("t", 0): at(0)}))
    assert found.error_code == error


async def test_only_registered_followers_are_remembered(broker: DataPath) -> None:
    broker.create_topic("t", replicas=(1, 2), isr=(1,))
    last_fetch_ms = broker.manager.replication.context.last_fetch_ms
    broker.send(fetch({("t", 0): 0}, replica_id=77), 12)
    Follower(broker, epoch=FOLLOWER_EPOCH - 1).poll({("t", 0): at(0)})
    assert last_fetch_ms == {}, "neither a stranger nor an earlier life"
    Follower(broker).poll({("t", 0): at(0)})
    assert last_fetch_ms == {OTHER_BROKER_ID: broker.clock.monotonic_ms()}


async def test_a_follower_needs_no_leave_to_read_single_topics(tmp_path: Path) -> None:
    class ClusterActionsOnly(Authorizer):
        def authorize(self, principal: str, host: str, operation: Operation, *rest: Any) -> bool:
            return operation is Operation.CLUSTER_ACTION

    async with DataPath(tmp_path, authorizer=ClusterActionsOnly()) as broker:
        broker.create_topic("t", replicas=(1, 2), isr=(1, 2))
        assert only(Follower(broker).poll({("t", 0): at(0)})).error_code == 0


async def test_what_is_no_node_reads_nothing_as_a_follower(tmp_path: Path) -> None:
    """Apache Kafka refuses each partition, whatever the sender may read as a client."""

    class Reader(Authorizer):
        def authorize(self, principal: str, host: str, operation: Operation, *rest: Any) -> bool:
            return operation is not Operation.CLUSTER_ACTION

    async with DataPath(tmp_path, authorizer=Reader()) as broker:
        broker.create_topic("t", replicas=(1, 2), isr=(1, 2))
        refused = only(Follower(broker).poll({("t", 0): at(0)}))
        assert refused.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert refused.high_watermark == -1
        assert broker.manager.replication.context.last_fetch_ms == {}


# -- leaving and coming back ----------------------------------------------------------------------


async def test_a_silent_follower_leaves_and_what_waited_is_committed(
    broker: DataPath, controller: Controller, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "moldau.broker.replica")
    broker.create_topic("t", replicas=(1, 2), isr=(1, 2))
    partition = broker.partition("t")
    Follower(broker).poll({("t", 0): at(0)})
    request = broker.send(produce({("t", 0): batch(3)}, timeout_ms=600_000), 12)
    broker.clock.advance(29_000)
    partition.check_isr()
    assert controller.changes == []
    broker.clock.advance(1_001)
    partition.check_isr()
    assert not request.is_answered
    assert controller.commit() is None
    assert partition.context.isr_shrinks.count == 1
    assert "out of sync: 2 (3 records behind, not caught up for 30001 ms)" in caplog.text
    assert "ISR shrank from 1,2 to 1" in caplog.text
    broker.change_partition("t", isr=[1])
    assert only(request.response).error_code == 0


@pytest.mark.parametrize("level", ["topic", "cluster"])
@pytest.mark.parametrize("is_one_change", [True, False])
async def test_a_minimum_raised_before_a_shrink_holds_for_what_waits(
    broker: DataPath, controller: Controller, level: str, is_one_change: bool
) -> None:
    """The controller has the new minimum and keeps 2 eligible; its answer to the shrink overtakes
    the metadata, which bring both at once or one after the other."""
    broker.create_topic("t", replicas=(1, 2), isr=(1, 2))
    Follower(broker).poll({("t", 0): at(0)})
    waiting = broker.send(produce({("t", 0): batch(3)}, timeout_ms=600_000), 12)
    broker.clock.advance(30_001)
    partition = broker.partition("t")
    partition.check_isr()
    controller.commit()
    assert partition.core.isr == {1}
    late = broker.send(produce({("t", 0): batch(1)}, timeout_ms=600_000), 12)
    partition.check_isr()
    raised = ConfigRecord(
        resource_type=2 if level == "topic" else 4,
        resource_name="t" if level == "topic" else "",
        name="min.insync.replicas",
        value="2",
    )
    shrunk = PartitionChangeRecord(
        partition_id=0, topic_id=partition.topic_id, isr=[1], eligible_leader_replicas=[2]
    )
    if is_one_change:
        broker.replay(raised, shrunk)
    else:
        broker.replay(raised)
        broker.replay(shrunk)
    assert partition.core.high_watermark == 0
    assert not waiting.is_answered
    assert not late.is_answered
    refused = await broker.ask(produce({("t", 0): batch(1)}), 12)
    assert only(refused).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    Follower(broker).poll({("t", 0): at(4)})
    controller.commit()
    assert [only(each.response).error_code for each in (waiting, late)] == [0, 0]


async def test_a_fenced_follower_is_not_waited_for(
    broker: DataPath, controller: Controller
) -> None:
    broker.create_topic("t", replicas=(1, 2), isr=(1,))
    Follower(broker).poll({("t", 0): at(0)})
    partition, change = controller.take()
    same = partition.isr_change_answered(change, ErrorCode.INELIGIBLE_REPLICA, None)
    assert same is not None
    request = broker.send(produce({("t", 0): batch(3)}, timeout_ms=600_000), 12)
    fence(broker)
    assert not request.is_answered, "a late copy of the proposal may let it in"
    fence(broker, is_fenced=False)
    state = PartitionState(1, 0, same.partition_epoch + 1, (), same.isr)
    assert partition.isr_change_answered(same, ErrorCode.NONE, state) is None
    assert not request.is_answered, "it was level a moment ago and may join yet"
    fence(broker)
    assert only(request.response).error_code == 0


async def test_a_follower_that_the_controller_took_out_is_asked_where_it_is(
    broker: DataPath, controller: Controller
) -> None:
    """A session says nothing of partitions in which nothing happens, and a log that failed may have
    begun again since.
    """
    broker.create_topic("t", replicas=(1, 2), isr=(1, 2))
    follower = Follower(broker)
    follower.poll({("t", 0): at(0)})
    broker.change_partition("t", isr=[1])
    assert controller.changes == [], "what it had may be lost"
    assert only(follower.poll()).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert controller.changes == []
    assert only(follower.poll({("t", 0): at(0)})).error_code == ErrorCode.NONE
    _, change = controller.take()
    assert change.isr == (1, 2)


async def test_a_refused_proposal_is_counted_and_reported(
    broker: DataPath, controller: Controller, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "moldau.broker.replica")
    broker.create_topic("t", replicas=(1, 2), isr=(1,))
    Follower(broker).poll({("t", 0): at(0)})
    partition, change = controller.take()
    assert partition.isr_change_answered(change, ErrorCode.NETWORK_EXCEPTION, None) is change
    same = partition.isr_change_answered(change, ErrorCode.INELIGIBLE_REPLICA, None)
    assert same is not None
    assert same.isr == (1,)
    assert partition.isr_change_answered(same, ErrorCode.INELIGIBLE_REPLICA, None) is None
    assert partition.context.failed_isr_updates.count == 2
    assert "refused ISR 1,2 (INELIGIBLE_REPLICA); it stays 1" in caplog.text


async def test_what_is_due_next_follows_the_answer(
    broker: DataPath, controller: Controller
) -> None:
    broker.create_topic("t", replicas=(1, 2, 3), isr=(1, 3))
    Follower(broker).poll({("t", 0): at(0)})
    partition, change = controller.take()
    assert change.isr == (1, 3, 2)
    broker.clock.advance(30_001)
    await broker.ask(produce({("t", 0): batch(1)}, acks=1), 12)
    partition.check_isr()
    assert controller.changes == [], "not while one is under way"
    state = PartitionState(1, 0, change.partition_epoch + 1, (), change.isr)
    following = partition.isr_change_answered(change, ErrorCode.NONE, state)
    assert following is not None
    assert following.isr == (1,)


async def test_a_leader_without_a_usable_log_proposes_nothing(
    broker: DataPath, controller: Controller
) -> None:
    broker.create_topic("t", replicas=(1, 2), isr=(1, 2))
    broker.log("t").take_offline("the test says so")
    broker.clock.advance(60_000)
    broker.partition("t").check_isr()
    assert controller.changes == []


def unclean_elections_told(caplog: pytest.LogCaptureFixture) -> int:
    told = [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
    assert all("UNCLEAN LEADER ELECTION" in each for each in told)
    caplog.clear()
    return len(told)


async def test_an_unclean_leader_says_so_loudly(
    broker: DataPath, controller: Controller, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("t", leader=OTHER_BROKER_ID, replicas=(1, 2), isr=(2,))
    broker.change_partition("t", leader=1, isr=[1], leader_recovery_state=1)
    # Perhaps it has all: what an earlier leader acknowledged, this one does not know.
    assert "log ends at 0 (high watermark known here: 0), and what earlier" in caplog.text
    assert "acknowledged from there on, if anything, is LOST" in caplog.text
    assert unclean_elections_told(caplog) == 1
    _, change = controller.take()
    assert (change.isr, change.leader_recovery_state) == ((1,), 0)


async def test_an_unclean_election_is_reported_once(
    broker: DataPath, caplog: pytest.LogCaptureFixture
) -> None:
    """The leader's answer to it may be late: until then each of its epochs says RECOVERING."""
    broker.create_topic("t", leader=OTHER_BROKER_ID, replicas=(1, 2), isr=(2,))
    broker.change_partition("t", leader=1, isr=[1], leader_recovery_state=1)
    assert unclean_elections_told(caplog) == 1
    broker.change_partition("t", leader=1, isr=[1])
    broker.change_partition("t", leader=-1)
    broker.change_partition("t", leader=1, isr=[1])
    assert unclean_elections_told(caplog) == 0
    for came_between in ({"leader": 1, "leader_recovery_state": 0}, {"leader": OTHER_BROKER_ID}):
        broker.change_partition("t", isr=[1, 2], **came_between)
        assert unclean_elections_told(caplog) == 0
        broker.change_partition("t", leader=1, isr=[1], leader_recovery_state=1)
        assert unclean_elections_told(caplog) == 1


async def test_reassigning_shows(broker: DataPath) -> None:
    broker.create_topic("t", replicas=(1, 2), isr=(1, 2))
    assert not broker.partition("t").is_reassigning
    broker.change_partition("t", replicas=[1, 2, 3], adding_replicas=[3])
    assert broker.partition("t").is_reassigning
    assert [each.replica_id for each in broker.partition("t").replica_figures()] == [1, 2, 3]


# -- DeleteRecords --------------------------------------------------------------------------------


def delete(broker: DataPath, offset: int, timeout_ms: int = 5_000) -> FakeRequest:
    asked = DeleteRecordsTopic(
        name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=offset)]
    )
    return broker.send(DeleteRecordsRequest(topics=[asked], timeout_ms=timeout_ms), 2)


def outcome(request: FakeRequest) -> tuple[ErrorCode, int]:
    (result,) = request.response.topics[0].partitions
    return ErrorCode.of(result.error_code), result.low_watermark


async def replicated(broker: DataPath) -> Follower:
    """A topic with five records that the follower has, too."""
    broker.create_topic("t", replicas=(1, 2), isr=(1, 2))
    await broker.ask(produce({("t", 0): batch(5)}, acks=1), 12)
    follower = Follower(broker)
    follower.poll({("t", 0): at(0)})
    follower.poll({("t", 0): at(5)})
    return follower


async def test_delete_records_waits_for_the_follower(broker: DataPath) -> None:
    follower = await replicated(broker)
    request = delete(broker, 3)
    assert not request.is_answered
    assert request.is_body_released
    assert only(follower.poll()).log_start_offset == 3, "which hears of it"
    follower.poll({("t", 0): at(5, log_start_offset=2)})
    assert not request.is_answered
    follower.poll({("t", 0): at(5, log_start_offset=3)})
    assert outcome(request) == (ErrorCode.NONE, 3)
    assert broker.partition("t").low_watermark_waits == {}
    assert broker.manager.delete_records_purgatory.size() == 0


async def test_delete_records_times_out(broker: DataPath) -> None:
    await replicated(broker)
    request = delete(broker, 3, timeout_ms=500)
    broker.clock.advance(600)
    assert outcome(request) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    assert broker.log("t").log_start_offset == 3
    assert broker.partition("t").low_watermark_waits == {}
    assert outcome(delete(broker, 3, timeout_ms=0)) == (ErrorCode.REQUEST_TIMED_OUT, -1)


async def test_delete_records_does_not_wait_for_the_dead(broker: DataPath) -> None:
    await replicated(broker)
    request = delete(broker, -1)
    fence(broker)
    broker.partition("t").check_isr()
    assert outcome(request) == (ErrorCode.NONE, 5)


async def test_leadership_lost_while_records_are_deleted(broker: DataPath) -> None:
    await replicated(broker)
    request = delete(broker, 3)
    broker.change_partition("t", leader=OTHER_BROKER_ID)
    assert outcome(request) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


async def test_who_deleted_records_and_left(broker: DataPath) -> None:
    follower = await replicated(broker)
    request = delete(broker, 3)
    broker.connection.close("the test says so")
    assert request.response is None
    assert broker.partition("t").low_watermark_waits == {}
    follower.poll({("t", 0): at(5, log_start_offset=3)})


async def test_shutdown_answers_who_waits_for_a_deletion(broker: DataPath) -> None:
    await replicated(broker)
    request = delete(broker, 3)
    await broker.manager.close()
    assert outcome(request)[0] is ErrorCode.REQUEST_TIMED_OUT


# -- sessions -------------------------------------------------------------------------------------


async def test_a_followers_session_takes_the_place_of_a_consumers(broker: DataPath) -> None:
    broker.sessions.max_sessions = 2
    broker.create_topic("t", 3, replicas=(1, 2), isr=(1, 2))
    everything = {("t", n): 0 for n in range(3)}
    consumers = [
        (await broker.ask(fetch(everything, session_epoch=0), 12)).session_id for _ in range(2)
    ]
    assert 0 not in consumers
    followers = [Follower(broker) for _ in range(3)]
    for follower in followers:
        follower.poll({("t", 0): at(0)})
    assert [follower.session_id > 0 for follower in followers] == [True, True, False]
    late = await broker.ask(fetch(everything, session_epoch=0), 12)
    assert late.session_id == 0
    broker.clock.advance(120_001)
    for follower in followers[:2]:
        follower.poll()
    late = await broker.ask(fetch(everything, session_epoch=0), 12)
    assert late.session_id == 0, "however old a follower's session is, while it is used"
