"""Fetches by rack (KIP-392), from followers, and of throttled replicas (KIP-73)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from moldau.config.node_config import RACK_AWARE_REPLICA_SELECTOR
from moldau.protocol.errors import ErrorCode
from moldau.protocol.metadata_records import FenceBrokerRecord, RegisterBrokerRecord
from moldau.protocol.metadata_records.nodes import Endpoint
from tests.unit.broker.harness import OTHER_BROKER_ID, DataPath
from tests.unit.broker.messages import batch, fetch, produce

THIRD_BROKER_ID = 3
RACKS = {1: "west", 2: "east", 3: "east"}
FOLLOWER_ASKS = 14
CONSUMER_ASKS = 12
PATIENCE = {"max_wait_ms": 60_000, "min_bytes": 1_000_000}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[DataPath]:
    """Leads t-0 with five committed records; 2 and 3 are in sync and in another rack."""
    async with DataPath(tmp_path, replica_selector_class=RACK_AWARE_REPLICA_SELECTOR) as data_path:
        await prepare(data_path)
        yield data_path


async def prepare(broker: DataPath) -> None:
    register(broker, RACKS)
    broker.create_topic("t", replicas=(1, 2, 3))
    written = broker.send(produce({("t", 0): batch(5)}), 12)
    for replica_id in (2, 3):
        broker.follower_has("t", replica_id, 5)
    broker.manager.complete_ready()
    assert written.response.responses[0].partition_responses[0].error_code == ErrorCode.NONE


def register(broker: DataPath, racks: dict[int, str], listener_name: str = "PLAINTEXT") -> None:
    broker.replay(
        *(
            RegisterBrokerRecord(
                broker_id=broker_id,
                broker_epoch=broker_id,
                end_points=[Endpoint(name=listener_name, host=f"host-{broker_id}", port=1)],
                rack=rack,
                fenced=False,
            )
            for broker_id, rack in racks.items()
        )
    )


def only(response: Any) -> Any:
    ((found,),) = (topic.partitions for topic in response.responses)
    return found


def ask_at_once(
    broker: DataPath, offset: int = 0, rack: str = "east", api_version: int = CONSUMER_ASKS
) -> Any:
    """A consumer's fetch that would wait if it were not answered at once."""
    sent = broker.send(fetch({("t", 0): offset}, rack_id=rack, **PATIENCE), api_version)
    assert sent.is_answered
    return only(sent.response)


def is_left_waiting(broker: DataPath, offset: int = 0, rack: str = "east") -> bool:
    """Whether the leader serves the consumer itself, as soon as there is enough."""
    sent = broker.send(fetch({("t", 0): offset}, rack_id=rack, **PATIENCE), CONSUMER_ASKS)
    return not sent.is_answered


# -- the leader ------------------------------------------------------------------------------------


async def test_a_consumer_is_sent_to_its_rack_at_once_without_records(broker: DataPath) -> None:
    for offset in (0, 3, 5):
        found = ask_at_once(broker, offset)
        assert found.error_code == ErrorCode.NONE
        assert found.preferred_read_replica == THIRD_BROKER_ID
        assert not found.records
        assert (found.high_watermark, found.log_start_offset) == (5, 0)


async def test_version_11_is_the_first_that_is_sent_anywhere(broker: DataPath) -> None:
    assert ask_at_once(broker, api_version=11).preferred_read_replica == THIRD_BROKER_ID
    older = await broker.ask(fetch({("t", 0): 0}), 10)
    assert only(older).records


@pytest.mark.parametrize("rack", ["", "west", "north"])
async def test_a_client_without_a_nearer_replica_reads_from_the_leader(
    broker: DataPath, rack: str
) -> None:
    assert is_left_waiting(broker, rack=rack)
    found = only(await broker.ask(fetch({("t", 0): 0}, rack_id=rack), CONSUMER_ASKS))
    assert found.preferred_read_replica == -1
    assert found.records


async def test_the_replica_must_have_the_offset(broker: DataPath) -> None:
    broker.send(produce({("t", 0): batch(2)}, acks=1), 12)
    broker.follower_has("t", 2, 7)
    assert ask_at_once(broker, 7).preferred_read_replica == OTHER_BROKER_ID
    assert ask_at_once(broker, 5).preferred_read_replica == OTHER_BROKER_ID, "it has more"
    broker.follower_has("t", 3, 7)
    assert ask_at_once(broker, 7).preferred_read_replica == THIRD_BROKER_ID


async def test_only_replicas_in_sync_and_reachable_count(broker: DataPath) -> None:
    broker.change_partition("t", isr=[1, 2])
    assert ask_at_once(broker).preferred_read_replica == OTHER_BROKER_ID
    broker.replay(FenceBrokerRecord(id=2, epoch=2))
    assert is_left_waiting(broker)
    broker.change_partition("t", isr=[1, 2, 3])
    assert is_left_waiting(broker), "not known yet where it stands"
    broker.follower_has("t", 3, 5)
    assert ask_at_once(broker).preferred_read_replica == THIRD_BROKER_ID
    register(broker, {3: "east"}, listener_name="ELSEWHERE")
    assert is_left_waiting(broker)


async def test_a_session_says_it_again_until_the_consumer_goes(broker: DataPath) -> None:
    first = await broker.ask(
        fetch({("t", 0): 5}, rack_id="east", session_epoch=0, **PATIENCE), CONSUMER_ASKS
    )
    assert first.session_id
    for session_epoch in (1, 2):
        again = broker.send(
            fetch(
                {},
                rack_id="east",
                session_id=first.session_id,
                session_epoch=session_epoch,
                **PATIENCE,
            ),
            CONSUMER_ASKS,
        )
        assert again.is_answered
        assert only(again.response).preferred_read_replica == THIRD_BROKER_ID


async def test_an_old_leader_epoch_is_refused_first(broker: DataPath) -> None:
    broker.change_partition("t", leader=1)
    sent = fetch({("t", 0): {"fetch_offset": 0, "current_leader_epoch": 0}}, rack_id="east")
    found = only(await broker.ask(sent, CONSUMER_ASKS))
    assert found.error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert found.preferred_read_replica == -1


async def test_without_a_selector_racks_mean_nothing(tmp_path: Path) -> None:
    async with DataPath(tmp_path) as broker:
        await prepare(broker)
        found = only(await broker.ask(fetch({("t", 0): 0}, rack_id="east"), CONSUMER_ASKS))
        assert found.preferred_read_replica == -1
        assert found.records


# -- the follower ----------------------------------------------------------------------------------


async def test_a_follower_serves_consumers_up_to_its_high_watermark(broker: DataPath) -> None:
    """Beyond its end an offset is out of range, as Kafka answers: the consumer asks the leader."""
    broker.send(produce({("t", 0): batch(2)}, acks=1), 12)
    broker.change_partition("t", leader=OTHER_BROKER_ID)
    partition = broker.partition("t")
    assert (partition.core.high_watermark, broker.log("t").log_end_offset) == (5, 7)
    found = only(await broker.ask(fetch({("t", 0): 0}, rack_id="west"), CONSUMER_ASKS))
    assert found.error_code == ErrorCode.NONE
    assert found.records
    assert found.preferred_read_replica == -1
    assert found.high_watermark == 5
    for offset in (5, 6, 7):
        beyond = only(await broker.ask(fetch({("t", 0): offset}, rack_id="west"), CONSUMER_ASKS))
        assert beyond.error_code == ErrorCode.NONE
        assert not beyond.records
    beyond = only(await broker.ask(fetch({("t", 0): 8}, rack_id="west"), CONSUMER_ASKS))
    assert beyond.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    older = only(await broker.ask(fetch({("t", 0): 0}), 10))
    assert older.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize(
    ("offset", "error"),
    [
        (-1, ErrorCode.OFFSET_OUT_OF_RANGE),
        (5, ErrorCode.NONE),
        (6, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
async def test_who_may_lead_no_more_does_not_know_what_lies_beyond(
    broker: DataPath, offset: int, error: ErrorCode
) -> None:
    broker.is_confirmed = False
    found = only(await broker.ask(fetch({("t", 0): offset}), CONSUMER_ASKS))
    assert found.error_code == error
    broker.is_confirmed = True
    beyond = only(await broker.ask(fetch({("t", 0): 6}), CONSUMER_ASKS))
    assert beyond.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


# -- throttled replicas ----------------------------------------------------------------------------


def throttle(broker: DataPath, rate: int, replicas: str = "0:1") -> None:
    broker.manager.replication.throttles.leader.set_limit(rate)
    broker.configure("t", "leader.replication.throttled.replicas", replicas)


def follower_fetches(broker: DataPath, offset: int = 0, replica_id: int = 3) -> Any:
    """A follower's fetch, after its patience."""
    sent = broker.send(
        fetch(
            {("t", 0): offset},
            api_version=FOLLOWER_ASKS,
            replica_id=replica_id,
            max_wait_ms=500,
            min_bytes=1,
        ),
        FOLLOWER_ASKS,
    )
    waited = not sent.is_answered
    broker.clock.advance(510.0)
    assert sent.is_answered
    return waited, only(sent.response)


async def test_a_replica_out_of_sync_waits_while_the_quota_is_exceeded(broker: DataPath) -> None:
    throttle(broker, 50)
    broker.change_partition("t", isr=[1, 2])
    waited, first = follower_fetches(broker)
    assert not waited
    assert len(first.records) > 100, "more than the quota of a window"
    waited, second = follower_fetches(broker)
    assert waited
    assert second.error_code == ErrorCode.NONE
    assert second.high_watermark == 5
    assert not second.records
    broker.clock.advance(11_000.0)
    waited, third = follower_fetches(broker)
    assert not waited
    assert third.records


async def test_a_replica_in_sync_never_waits_but_counts(broker: DataPath) -> None:
    throttle(broker, 50)
    for _ in range(3):
        waited, found = follower_fetches(broker, replica_id=2)
        assert not waited
        assert found.records
    broker.change_partition("t", isr=[1, 2])
    waited, found = follower_fetches(broker)
    assert waited
    assert not found.records


async def test_what_is_not_throttled_does_not_wait_or_count(broker: DataPath) -> None:
    throttle(broker, 0, replicas="0:2,1:1")
    broker.change_partition("t", isr=[1, 2])
    waited, found = follower_fetches(broker)
    assert not waited
    assert found.records
    consumed = only(await broker.ask(fetch({("t", 0): 0}), CONSUMER_ASKS))
    assert consumed.records


async def test_consumers_are_no_replicas(broker: DataPath) -> None:
    throttle(broker, 0, replicas="*")
    assert only(await broker.ask(fetch({("t", 0): 0}), CONSUMER_ASKS)).records


async def test_a_rate_of_zero_stands_still(broker: DataPath) -> None:
    throttle(broker, 0, replicas="*")
    broker.change_partition("t", isr=[1, 2])
    for _ in range(3):
        waited, found = follower_fetches(broker)
        assert waited
        assert not found.records
        broker.clock.advance(60_000.0)
    broker.manager.replication.throttles.leader.set_limit(1_000_000)
    assert follower_fetches(broker)[1].records
