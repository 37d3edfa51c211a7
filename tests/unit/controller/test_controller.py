"""The controller's driver on a log whose commits are made by hand: answers, failover, sessions,
snapshots.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest

from moldau.controller.apis import DECIDERS
from moldau.controller.controller import (
    LATE_SESSION_CHECK_MS,
    MAX_RETRY_MS,
    MAX_WAITING_REQUESTS,
    Controller,
    RequestFailed,
    SnapshotPolicy,
)
from moldau.controller.core.controller_core import ControllerCore
from moldau.controller.core.state import ControllerSettings
from moldau.metadata.features import feature_records, initial_feature_levels
from moldau.metadata.log import CommittedBatch, LoadedSnapshot, MetadataLogListener
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p19_create_topics import CreatableTopic, CreateTopicsRequest
from moldau.protocol.messages.p57_update_features import FeatureUpdateKey, UpdateFeaturesRequest
from moldau.protocol.messages.p62_broker_registration import BrokerRegistrationResponse
from moldau.protocol.messages.p63_broker_heartbeat import BrokerHeartbeatRequest
from moldau.protocol.messages.p64_unregister_broker import UnregisterBrokerRequest
from moldau.protocol.metadata_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    NoOpRecord,
    TopicRecord,
)
from moldau.protocol.schema import Message
from tests.kit.manual_clock import ManualClock
from tests.unit.controller.harness import answers_of
from tests.unit.metadata.builders import CLUSTER_ID, node_config, registration


@dataclass
class HandLog:
    """A metadata log that commits when asked to."""

    epoch: int = 1
    end_offset: int = 0
    appended: list[CommittedBatch] = field(default_factory=list)
    committed_count: int = 0
    listener: MetadataLogListener | None = None
    refusal: ErrorCode = ErrorCode.NONE
    refused_count: int = 0
    snapshots: list[tuple[int, int, list[Message]]] = field(default_factory=list)
    snapshot_error: OSError | None = None
    voter_ids: list[int] = field(default_factory=list)
    steps_down_count: int = 0

    @property
    def log_end_offset(self) -> int:
        return self.end_offset

    def step_down(self) -> None:
        self.steps_down_count += 1

    def add_listener(self, listener: MetadataLogListener) -> None:
        self.listener = listener

    def append(
        self,
        records: Sequence[tuple[Message, int]],
        *,
        leader_epoch: int,
        values: Sequence[bytes] | None = None,
    ) -> tuple[ErrorCode, int]:
        assert values is None or len(values) == len(records)
        if self.refusal is not ErrorCode.NONE:
            self.refused_count += 1
            return self.refusal, -1
        if leader_epoch != self.epoch:
            return ErrorCode.NOT_CONTROLLER, -1
        self.add(*(record for record, _version in records))
        return ErrorCode.NONE, self.end_offset - 1

    def add(self, *records: Message) -> None:
        count = max(len(records), 1)
        first = self.end_offset
        self.end_offset += count
        self.appended.append(
            CommittedBatch(first, self.end_offset - 1, self.epoch, 5, 100 * count, tuple(records))
        )

    def commit(self, count: int = 1_000_000) -> None:
        for batch in self.appended[self.committed_count :][:count]:
            self.committed_count += 1
            assert self.listener is not None
            self.listener.handle_commit(batch)

    def forget_uncommitted(self) -> None:
        del self.appended[self.committed_count :]
        self.end_offset = self.appended[-1].last_offset + 1 if self.appended else 0

    async def write_snapshot(
        self,
        *,
        end_offset: int,
        leader_epoch: int,
        last_contained_log_time_ms: int,
        records: Iterator[tuple[Message, int]],
    ) -> None:
        if self.snapshot_error is not None:
            raise self.snapshot_error
        assert last_contained_log_time_ms == 5
        written = [record for record, _version in records]
        await asyncio.sleep(0)
        self.snapshots.append((end_offset, leader_epoch, written))


@dataclass
class Bench:
    """A controller on a hand-driven log and clock."""

    controller: Controller
    core: ControllerCore
    log: HandLog
    clock: ManualClock
    asked: list[asyncio.Future[Message]] = field(default_factory=list)

    def lead(self, epoch: int = 1) -> None:
        self.log.epoch = epoch
        self.controller.handle_leader_change(1, epoch)

    def submit(self, request: Message, timeout_ms: float = 1_000) -> None:
        self.asked.append(
            self.controller.ask(request, DECIDERS[ApiKey(request.API_KEY)], timeout_ms=timeout_ms)
        )

    @property
    def answers(self) -> list[Any]:
        return answers_of(self.asked)


@pytest.fixture
async def bench() -> Bench:
    return make_bench()


def make_bench(max_bytes: int = 10**9, interval_ms: int = 0) -> Bench:
    core = ControllerCore(ControllerSettings(node_config(), CLUSTER_ID), random.Random(3))
    log, clock = HandLog(), ManualClock()
    controller = Controller(
        core,
        log,
        clock,
        node_id=1,
        bootstrap_records=feature_records(initial_feature_levels()),
        snapshot_policy=SnapshotPolicy(max_bytes=max_bytes, interval_ms=interval_ms),
    )
    controller.start()
    return Bench(controller, core, log, clock)


def topics(*names: str) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=[CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
    )


async def test_a_standby_refuses(bench: Bench) -> None:
    bench.submit(topics("a"))
    with pytest.raises(RequestFailed) as caught:
        await bench.controller.ask(topics("a"), DECIDERS[ApiKey.CREATE_TOPICS], timeout_ms=5)
    assert bench.answers == [ErrorCode.NOT_CONTROLLER] == [caught.value.error]
    assert not bench.log.appended


async def test_the_first_leader_writes_the_bootstrap_records(bench: Bench) -> None:
    bench.lead()
    (batch,) = bench.log.appended
    assert type(batch.records[0]) is BeginTransactionRecord
    assert bench.controller.committed_image.features.metadata_level == 7
    bench.log.commit()
    assert bench.controller.committed_image.features.metadata_level == 30
    # A later leader finds them and writes nothing.
    bench.controller.handle_leader_change(-1, 1)
    bench.lead(2)
    assert len(bench.log.appended) == 1


async def test_a_new_feature_level_has_to_be_supported_by_all_present_voters(bench: Bench) -> None:
    bench.lead()
    bench.log.commit()
    update = UpdateFeaturesRequest(
        feature_updates=[FeatureUpdateKey(feature="group.version", max_version_level=0)]
    )
    update.feature_updates[0].upgrade_type = 2
    bench.log.voter_ids = [1, 7]
    bench.submit(update)
    assert "controller 7" in bench.answers[0].error_message
    bench.log.voter_ids = []
    bench.submit(update)
    assert bench.answers == bench.answers[:1], "it waits for its commit"


async def test_an_answer_waits_for_its_commit_and_for_what_it_has_seen(bench: Bench) -> None:
    bench.lead()
    bench.log.commit()
    bench.submit(registration(1))
    bench.submit(registration(1, rack="x", cluster_id="other"))
    bench.submit(topics("a"))
    assert bench.answers == [], "the refusals saw uncommitted state: they wait too"
    bench.log.commit(1)
    assert [type(answer) for answer in bench.answers[:1]] == [BrokerRegistrationResponse]
    assert bench.answers[1].error_code == ErrorCode.INCONSISTENT_CLUSTER_ID
    assert bench.answers[2].topics[0].error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert bench.controller.waiting_count == 0


async def test_a_deposed_leader_forgets_what_was_not_committed(bench: Bench) -> None:
    bench.lead()
    bench.log.commit()
    bench.submit(registration(1))
    bench.log.commit()
    digest = bench.controller.committed_image.digest()
    bench.submit(registration(2, log_dirs=[registration(2).log_dirs[0]]))
    assert 2 in bench.core.state.image.cluster.brokers
    bench.controller.handle_leader_change(7, 2)
    assert bench.answers[-1] is ErrorCode.NOT_CONTROLLER
    assert bench.core.state.image.digest() == digest
    assert not bench.controller.active_since.is_set()
    # The new leader's batches are applied, then this node leads again.
    bench.log.forget_uncommitted()
    bench.log.epoch = 2
    bench.log.add()
    bench.log.add(TopicRecord(name="t"))
    bench.log.commit()
    assert "t" in bench.core.state.image.topics.topics_by_name
    bench.lead(3)
    bench.submit(topics("t"))
    bench.log.commit()
    last: Any = bench.answers[-1]
    assert last.topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS


async def test_a_new_leader_aborts_the_transaction_a_deposed_one_left_open(bench: Bench) -> None:
    bench.lead()
    bench.log.commit()
    bench.controller.handle_leader_change(7, 2)
    bench.log.epoch = 2
    bench.log.add(BeginTransactionRecord(name="x"), TopicRecord(name="half"))
    bench.log.commit()
    bench.lead(3)
    assert [type(record) for record in bench.log.appended[-1].records] == [AbortTransactionRecord]
    bench.log.commit()
    assert not bench.controller.committed_image.topics.topics_by_name


async def test_a_commit_that_does_not_come(bench: Bench) -> None:
    bench.lead()
    bench.log.commit()
    bench.submit(registration(1), timeout_ms=50)
    bench.clock.advance(49)
    assert bench.answers == []
    bench.clock.advance(1)
    assert bench.answers == [ErrorCode.REQUEST_TIMED_OUT]
    bench.log.commit()
    assert bench.answers == [ErrorCode.REQUEST_TIMED_OUT], "answered once"
    assert 1 in bench.controller.committed_image.cluster.brokers, "it happened all the same"
    assert bench.controller.waiting_count == 0


async def test_too_many_waiting_requests_are_turned_away(bench: Bench) -> None:
    bench.lead()
    bench.log.commit()
    bench.submit(registration(1))
    for _ in range(MAX_WAITING_REQUESTS + 5):
        bench.submit(topics("a"))
    assert bench.answers == [ErrorCode.REQUEST_TIMED_OUT] * 6
    bench.log.commit()
    assert len(bench.answers) == MAX_WAITING_REQUESTS + 6


async def test_a_log_that_refuses_leaves_the_state_alone(bench: Bench) -> None:
    bench.lead()
    bench.log.commit()
    bench.log.refusal = ErrorCode.KAFKA_STORAGE_ERROR
    digest = bench.core.state.image.digest()
    bench.submit(registration(1))
    assert bench.answers == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert bench.core.state.image.digest() == digest


async def test_a_controller_that_cannot_write_its_first_records_resigns(bench: Bench) -> None:
    bench.log.refusal = ErrorCode.KAFKA_STORAGE_ERROR
    bench.lead()
    assert not bench.controller.is_active
    assert bench.log.steps_down_count == 1


def beat(bench: Bench, broker_id: int, *, want_shut_down: bool = False) -> None:
    bench.submit(
        BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=bench.core.state.broker(broker_id).broker_epoch,  # type: ignore[union-attr]
            current_metadata_offset=bench.log.end_offset,
            want_shut_down=want_shut_down,
        )
    )


def fenced_brokers(bench: Bench) -> set[int]:
    return {each for each in (1, 2) if bench.core.state.broker(each).fenced}  # type: ignore[union-attr]


def lead_two_brokers(bench: Bench) -> None:
    bench.lead()
    for broker_id in (1, 2):
        bench.submit(registration(broker_id))
        beat(bench, broker_id)


async def test_sessions_run_out_by_the_clock(bench: Bench) -> None:
    lead_two_brokers(bench)
    for _ in range(5):
        bench.clock.advance(2_000)
        beat(bench, 2)
    assert fenced_brokers(bench) == {1}
    bench.clock.advance(20_000)
    assert fenced_brokers(bench) == {1, 2}


async def test_after_a_standstill_heartbeats_are_read_before_brokers_are_fenced(
    bench: Bench,
) -> None:
    lead_two_brokers(bench)
    bench.clock.stand_still(60_000)
    bench.clock.advance(1)
    assert fenced_brokers(bench) == set()
    beat(bench, 2)
    bench.clock.advance(LATE_SESSION_CHECK_MS)
    assert fenced_brokers(bench) == {1}


@pytest.mark.parametrize("leaves", ["stops", "is removed"])
async def test_a_broker_that_the_log_did_not_let_go_is_fenced_when_its_session_ends(
    bench: Bench, leaves: str
) -> None:
    lead_two_brokers(bench)
    bench.log.commit()
    bench.log.refusal = ErrorCode.KAFKA_STORAGE_ERROR
    if leaves == "stops":
        beat(bench, 2, want_shut_down=True)
    else:
        bench.submit(UnregisterBrokerRequest(broker_id=2))
    assert bench.answers[-1:] == [ErrorCode.KAFKA_STORAGE_ERROR]
    bench.log.refusal = ErrorCode.NONE
    # It may be alive: no other process takes its place.
    bench.submit(registration(2, incarnation_id=UUID(int=0x77)))
    assert bench.answers[-1].error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    for _ in range(5):
        bench.clock.advance(2_000)
        beat(bench, 1)
    assert fenced_brokers(bench) == {2}


REFUSAL_MS = 60_000
MAX_TRIES = 12
"""The tries in that time, with pauses from one second to ten."""


async def test_a_fencing_that_the_log_refuses_is_tried_less_and_less_often(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "moldau.controller")
    lead_two_brokers(bench)
    bench.log.refusal = ErrorCode.KAFKA_STORAGE_ERROR
    bench.clock.advance(REFUSAL_MS)
    assert 1 < bench.log.refused_count <= MAX_TRIES
    said = [each for each in caplog.messages if "fenc" in each]
    assert said == ["the metadata log did not take a fencing: KAFKA_STORAGE_ERROR"]
    bench.log.refusal = ErrorCode.NONE
    bench.clock.advance(MAX_RETRY_MS)
    assert fenced_brokers(bench) == {1, 2}
    assert caplog.messages.count("the metadata log takes changes again") == 1


async def test_an_election_that_the_log_refuses_is_held_later(bench: Bench) -> None:
    lead_two_brokers(bench)
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=2)
    bench.submit(CreateTopicsRequest(topics=[topic]))
    bench.log.commit()
    (created,) = bench.core.state.image.topics.topics_by_id.values()
    leader_id = created.partitions[0].leader
    # The leader before this one has fenced the broker and moved none of its partitions.
    bench.controller.handle_leader_change(2, 2)
    epoch = bench.core.state.broker(leader_id).broker_epoch  # type: ignore[union-attr]
    bench.log.add(BrokerRegistrationChangeRecord(broker_id=leader_id, broker_epoch=epoch, fenced=1))
    bench.log.commit()
    bench.lead(3)
    bench.log.refusal = ErrorCode.KAFKA_STORAGE_ERROR
    bench.clock.advance(5_000)
    assert 1 < bench.log.refused_count <= MAX_TRIES
    bench.log.refusal = ErrorCode.NONE
    beat(bench, 3 - leader_id)
    bench.clock.advance(MAX_RETRY_MS / 2)
    (moved,) = bench.core.state.image.topics.topics_by_id.values()
    assert moved.partitions[0].leader == 3 - leader_id


async def test_a_check_of_sessions_that_is_late_again_waits_no_more(bench: Bench) -> None:
    lead_two_brokers(bench)
    for _ in range(2):
        assert not fenced_brokers(bench)
        bench.clock.stand_still(60_000)
        bench.clock.advance(1)
    assert fenced_brokers(bench)


async def test_snapshots_come_by_size_and_hold_the_committed_image() -> None:
    bench = make_bench(max_bytes=1_500)
    bench.lead()
    bench.log.commit()
    for broker_id in range(1, 10):
        bench.submit(registration(broker_id))
    assert not bench.log.snapshots
    while bench.log.committed_count < len(bench.log.appended):
        bench.log.commit(1)
        for _ in range(5):
            await asyncio.sleep(0)
    assert bench.log.snapshots
    end_offset, leader_epoch, records = bench.log.snapshots[0]
    assert leader_epoch == 1
    boundaries = {batch.last_offset + 1 for batch in bench.log.appended}
    assert end_offset in boundaries
    assert 0 < len(records) < len(list(bench.controller.committed_image.write()))
    await bench.controller.close()


async def test_snapshots_come_by_time_when_there_is_something_new() -> None:
    bench = make_bench(interval_ms=60_000)
    bench.lead()
    bench.log.commit()
    for _ in range(3):
        bench.clock.advance(61_000)
        for _ in range(5):
            await asyncio.sleep(0)
    assert len(bench.log.snapshots) == 1
    await bench.controller.close()


async def test_a_snapshot_that_fails_is_tried_again_later() -> None:
    bench = make_bench(max_bytes=100)
    bench.log.snapshot_error = OSError(28, "no space left on device")
    bench.lead()
    bench.log.commit()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not bench.log.snapshots
    bench.log.snapshot_error = None
    bench.clock.advance(61_000)
    bench.log.add(NoOpRecord())
    bench.controller.handle_leader_change(-1, 1)
    bench.log.commit()
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(bench.log.snapshots) == 1
    await bench.controller.close()


async def test_a_snapshot_is_loaded_before_the_log(bench: Bench) -> None:
    records = tuple(record for record, _ in feature_records(initial_feature_levels()))
    bench.controller.handle_snapshot(LoadedSnapshot(100, 4, 9, 1_000, (*records, TopicRecord())))
    image = bench.controller.committed_image
    assert image.provenance.last_contained_offset == 99
    assert image.features.metadata_level == 30
    bench.log.end_offset = 100
    bench.lead(5)
    assert not bench.log.appended
    bench.submit(registration(1))
    bench.log.commit()
    assert bench.answers[0].broker_epoch == 100


async def test_closing_answers_every_waiting_request(bench: Bench) -> None:
    bench.lead()
    bench.submit(registration(1))
    await bench.controller.close()
    assert bench.answers == [ErrorCode.NOT_CONTROLLER]
    bench.submit(registration(1))
    assert bench.answers == [ErrorCode.NOT_CONTROLLER] * 2
    assert bench.clock.timer_count == 0
