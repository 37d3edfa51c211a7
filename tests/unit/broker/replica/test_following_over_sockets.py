"""Followers of a real broker's production handlers, over loopback."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from moldau.broker.replica.core.in_sync_set import PartitionState
from moldau.broker.replica.verification_guards import NOT_REQUIRED
from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import Codec
from moldau.server.server import Server
from moldau.storage.append import AppendResult, RecordBatches
from moldau.storage.log_config import LogConfig
from moldau.storage.segment import LogSegment
from tests.kit.waiting import until_async
from tests.unit.broker.harness import BROKER_ID, OTHER_BROKER_ID, DataPath
from tests.unit.broker.messages import batch, produce
from tests.unit.broker.replica.replicas import Followers, bytes_of, serving

pytestmark = pytest.mark.real

REPLICAS = (BROKER_ID, OTHER_BROKER_ID)


@pytest.fixture
async def leader(tmp_path: Path) -> AsyncIterator[DataPath]:
    async with DataPath(tmp_path / "leader") as data_path:
        yield data_path


@pytest.fixture
async def server(leader: DataPath) -> AsyncIterator[Server]:
    async with serving(leader) as listening:
        yield listening


@pytest.fixture
async def followers(tmp_path: Path) -> AsyncIterator[Followers]:
    async with Followers(tmp_path / "follower") as made:
        yield made


def port_of(server: Server) -> int:
    return server.port("PLAINTEXT")


def append(leader: DataPath, topic: str, records: Any, index: int = 0) -> AppendResult:
    result: AppendResult = leader.partition(topic, index).append(
        RecordBatches.read(records), 1, guard=NOT_REQUIRED
    )
    assert result.error is ErrorCode.NONE, result
    leader.manager.complete_ready()
    return result


def lead(leader: DataPath, topic: str, partition_count: int = 1, **options: Any) -> None:
    leader.create_topic(topic, partition_count, replicas=REPLICAS, isr=REPLICAS, **options)


def elect_again(leader: DataPath, topic: str, leader_epoch: int) -> None:
    """Broker 1 leads in a newer epoch."""
    core = leader.partition(topic).core
    leader.partition(topic).apply_state(
        PartitionState(BROKER_ID, leader_epoch, core.partition_epoch + 1, REPLICAS, REPLICAS)
    )
    leader.manager.complete_ready()


async def level(leader: DataPath, followers: Followers, topic: str, index: int = 0) -> None:
    """Wait until the follower has every byte and knows that it is committed."""
    ours, theirs = followers.log(topic, index), leader.log(topic, index)
    await until_async(lambda: ours.log_end_offset == theirs.log_end_offset == theirs.high_watermark)

    def is_committed() -> bool:
        # News of the high watermark alone end no fetch: its time has to pass.
        leader.clock.advance(500)
        return ours.high_watermark == theirs.high_watermark

    await until_async(is_committed)
    assert bytes_of(ours) == bytes_of(theirs)


async def test_every_kind_of_batch_arrives_byte_for_byte(
    leader: DataPath, server: Server, followers: Followers
) -> None:
    lead(leader, "topic")
    for codec in Codec:
        append(leader, "topic", batch(20, codec=codec))
    for sequence in range(0, 30, 3):
        append(
            leader,
            "topic",
            batch(3, producer_id=9, producer_epoch=2, base_sequence=sequence),
        )
    append(
        leader, "topic", batch(2, producer_id=4, producer_epoch=0, base_sequence=0,
                               is_transactional=True),
    )  # fmt: skip
    followers.follow("topic", port=port_of(server))
    await level(leader, followers, "topic")
    append(leader, "topic", batch(1))
    await level(leader, followers, "topic")
    ours, theirs = followers.log("topic"), leader.log("topic")
    assert ours.producer_state.producers.keys() == {4, 9}
    for producer_id, producer in theirs.producer_state.producers.items():
        mine = ours.producer_state.producers[producer_id]
        assert mine.last_sequence == producer.last_sequence
        assert mine.current_txn_first_offset == producer.current_txn_first_offset
        assert list(mine.batches) == list(producer.batches)
    assert ours.last_stable_offset == theirs.last_stable_offset
    assert ours.leader_epoch_cache.entries == theirs.leader_epoch_cache.entries
    assert followers.metric("ReplicationBytesInPerSec") == ours.size_bytes
    assert followers.metric("MaxLag") == 0


async def test_the_next_fetch_acknowledges_what_acks_all_waits_for(
    leader: DataPath, server: Server, followers: Followers
) -> None:
    lead(leader, "topic", min_insync_replicas="2")
    followers.follow("topic", port=port_of(server))
    for count in range(1, 6):
        request = leader.send(produce({("topic", 0): batch(2)}, acks=-1), 12)
        await until_async(lambda request=request: request.is_answered)  # type: ignore[misc]
        answered = request.response.responses[0].partition_responses[0]
        assert answered.error_code == ErrorCode.NONE
        assert followers.log("topic").log_end_offset == 2 * count
    assert leader.log("topic").high_watermark == 10


async def test_many_partitions_are_fetched_over_one_connection(
    leader: DataPath, server: Server, followers: Followers
) -> None:
    lead(leader, "one", 20)
    lead(leader, "two", 20)
    for topic in ("one", "two"):
        for index in range(20):
            append(leader, topic, batch(index + 1), index)
            followers.follow(topic, index, port=port_of(server))
    for topic in ("one", "two"):
        for index in range(20):
            await level(leader, followers, topic, index)
    assert server.connections.created_count == 1
    (fetcher,) = followers.fetchers.fetchers
    assert fetcher.partitions.session.is_open
    assert followers.applied_count > 0


async def test_partitions_are_spread_over_the_fetchers_and_move_when_there_are_more(
    leader: DataPath, server: Server, tmp_path: Path
) -> None:
    lead(leader, "topic", 12)
    async with Followers(tmp_path / "follower", num_fetchers=2) as followers:
        for index in range(12):
            followers.follow("topic", index, port=port_of(server))
        assert [len(f.partitions) for f in followers.fetchers.fetchers] == [6, 6]
        followers.fetchers.resize(3)
        assert sorted(len(f.partitions) for f in followers.fetchers.fetchers) == [4, 4, 4]
        for index in range(12):
            append(leader, "topic", batch(3), index)
            await level(leader, followers, "topic", index)
        followers.fetchers.resize(1)
        await until_async(lambda: len(followers.fetchers.fetchers) == 1)
        append(leader, "topic", batch(3), 11)
        await level(leader, followers, "topic", 11)


async def test_a_big_lag_is_caught_up_in_bounded_answers(
    leader: DataPath, server: Server, tmp_path: Path
) -> None:
    lead(leader, "topic", 3)
    for number in range(40):
        for index in range(3):
            append(leader, "topic", batch(10, value=b"%d" % (number % 10) * 10_000), index)
    async with Followers(
        tmp_path / "follower", response_max_bytes=1_000_000, partition_max_bytes=300_000
    ) as followers:
        followers.follow("topic", 0, port=port_of(server))
        for index in (1, 2):
            followers.partition("topic", index, config=LogConfig(segment_bytes=250_000))
            followers.follow("topic", index, port=port_of(server))
        for index in range(3):
            await level(leader, followers, "topic", index)
        assert followers.metric("RequestsPerSec", brokerId="1") > 12
        assert len(followers.log("topic", 1).segments) > 10


async def test_a_batch_over_every_limit_still_arrives(
    leader: DataPath, server: Server, tmp_path: Path
) -> None:
    lead(leader, "topic", max_message_bytes="10000000")
    async with Followers(
        tmp_path / "follower", response_max_bytes=1_000, partition_max_bytes=100
    ) as followers:
        config = LogConfig(segment_bytes=2_000, max_message_bytes=500)
        followers.partition("topic", config=config)
        append(leader, "topic", batch(1))
        append(leader, "topic", batch(1, value=b"x" * 3_000_000))
        append(leader, "topic", batch(1))
        followers.follow("topic", port=port_of(server))
        await level(leader, followers, "topic")


async def test_a_leader_that_comes_back_elsewhere_is_followed_there(
    leader: DataPath, followers: Followers
) -> None:
    lead(leader, "topic")
    async with serving(leader) as first:
        followers.follow("topic", port=port_of(first))
        append(leader, "topic", batch(3))
        await level(leader, followers, "topic")
        old_port = port_of(first)
    append(leader, "topic", batch(3))
    leader.drop_sessions()
    async with serving(leader) as second:
        assert port_of(second) != old_port
        followers.follow("topic", port=port_of(second))
        await level(leader, followers, "topic")


async def test_a_lost_connection_is_made_again_without_waiting(
    leader: DataPath, server: Server, followers: Followers
) -> None:
    lead(leader, "topic")
    followers.follow("topic", port=port_of(server))
    append(leader, "topic", batch(3))
    await level(leader, followers, "topic")
    for connection in list(server.connections):
        connection.close("the test")
    append(leader, "topic", batch(3))
    await level(leader, followers, "topic")  # the clock of the back-off stands still
    assert server.connections.created_count == 2


async def test_a_leader_that_is_down_is_tried_again_after_the_back_off(
    leader: DataPath, followers: Followers
) -> None:
    lead(leader, "topic")
    append(leader, "topic", batch(3))
    async with serving(leader) as first:
        port = port_of(first)
    followers.follow("topic", port=port)
    (fetcher,) = followers.fetchers.fetchers
    await until_async(lambda: followers.clock.timer_count > 0 and bool(fetcher._problem))
    async with serving(leader, port):
        followers.clock.advance(1_001)
        await level(leader, followers, "topic")


async def test_a_session_that_the_leader_lost_is_founded_again_at_once(
    leader: DataPath, server: Server, followers: Followers
) -> None:
    lead(leader, "topic")
    followers.follow("topic", port=port_of(server))
    append(leader, "topic", batch(1))
    await level(leader, followers, "topic")
    (fetcher,) = followers.fetchers.fetchers
    first = fetcher.partitions.session.session_id
    leader.drop_sessions()
    leader.clock.advance(1_000)  # the fetch that waits is answered
    append(leader, "topic", batch(1))
    await level(leader, followers, "topic")
    await until_async(lambda: fetcher.partitions.session.session_id not in (0, first))


async def test_a_leader_without_sessions_is_followed_all_the_same(
    tmp_path: Path, followers: Followers
) -> None:
    async with DataPath(tmp_path / "leader", max_sessions=0) as leader, serving(leader) as server:
        lead(leader, "topic", 3)
        for index in range(3):
            followers.follow("topic", index, port=port_of(server))
        for index in range(3):
            append(leader, "topic", batch(2), index)
        for index in range(3):
            await level(leader, followers, "topic", index)
        (fetcher,) = followers.fetchers.fetchers
        assert not fetcher.partitions.session.is_open


async def test_one_partition_that_the_leader_does_not_have_holds_up_no_other(
    leader: DataPath, server: Server, followers: Followers
) -> None:
    lead(leader, "here")
    followers.follow("later", port=port_of(server))
    followers.follow("here", port=port_of(server))
    (fetcher,) = followers.fetchers.fetchers
    await until_async(lambda: fetcher.partitions.waiting_count == 1)
    append(leader, "here", batch(5))
    await level(leader, followers, "here")
    lead(leader, "later")
    append(leader, "later", batch(5))
    followers.clock.advance(1_001)
    append(leader, "here", batch(1))  # ends the fetch that waits
    await level(leader, followers, "later")


async def test_a_newer_epoch_at_the_leader_stops_until_we_hear_of_it(
    leader: DataPath, server: Server, followers: Followers
) -> None:
    lead(leader, "topic", leader_epoch=5)
    append(leader, "topic", batch(2))
    followers.follow("topic", port=port_of(server), leader_epoch=4)
    (fetcher,) = followers.fetchers.fetchers
    await until_async(lambda: fetcher.partitions.failed_count == 1)
    assert followers.metric("FailedPartitionsCount") == 1
    assert fetcher.partitions.waiting_count == 0
    followers.follow("topic", port=port_of(server), leader_epoch=5)
    await level(leader, followers, "topic")
    assert followers.metric("FailedPartitionsCount") == 0


async def test_records_that_the_leader_does_not_have_are_cut_and_replaced(
    leader: DataPath, server: Server, followers: Followers, caplog: pytest.LogCaptureFixture
) -> None:
    lead(leader, "topic")
    append(leader, "topic", batch(10))
    followers.follow("topic", port=port_of(server))
    await level(leader, followers, "topic")
    # The follower led epoch 1 and wrote; no replica had that when broker 1 was elected again.
    followers.fetchers.unfollow(followers.partition("topic"))
    followers.become("topic", leader_epoch=1, leader=OTHER_BROKER_ID)
    followers.partition("topic").append(RecordBatches.read(batch(7, value=b"foreign")), 1)
    assert followers.log("topic").log_end_offset == 17
    elect_again(leader, "topic", 2)
    append(leader, "topic", batch(4))
    with caplog.at_level(logging.INFO, "moldau.broker.replica"):
        followers.follow("topic", port=port_of(server), leader_epoch=2)
        await level(leader, followers, "topic")
    assert "cut from 17 back to 10" in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert followers.log("topic").leader_epoch_cache.entries == [(0, 0), (2, 10)]


async def test_a_cut_below_the_high_watermark_is_said_loudly(
    leader: DataPath, server: Server, followers: Followers, caplog: pytest.LogCaptureFixture
) -> None:
    lead(leader, "topic")
    append(leader, "topic", batch(3))
    ours = followers.partition("topic")
    followers.become("topic", leader_epoch=0, leader=OTHER_BROKER_ID)
    ours.append(RecordBatches.read(batch(3)), 1)
    ours.append(RecordBatches.read(batch(6)), 1)
    assert ours.log is not None
    ours.log.update_high_watermark(9)
    elect_again(leader, "topic", 2)
    followers.follow("topic", port=port_of(server), leader_epoch=2)
    await until_async(lambda: followers.log("topic").log_end_offset == 3)
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "from 9 back to 3" in errors[0].getMessage()
    assert "high watermark 9" in errors[0].getMessage()
    assert ours.core.high_watermark <= 3


async def test_an_epoch_that_was_led_without_records_is_no_obstacle(
    leader: DataPath, server: Server, followers: Followers
) -> None:
    lead(leader, "topic")
    append(leader, "topic", batch(3))
    followers.follow("topic", port=port_of(server))
    await level(leader, followers, "topic")
    followers.fetchers.unfollow(followers.partition("topic"))
    followers.become("topic", leader_epoch=1, leader=OTHER_BROKER_ID)
    elect_again(leader, "topic", 2)
    append(leader, "topic", batch(3))
    followers.follow("topic", port=port_of(server), leader_epoch=2)
    await level(leader, followers, "topic")


async def test_a_follower_below_the_leaders_start_begins_again_there(
    leader: DataPath, server: Server, followers: Followers
) -> None:
    lead(leader, "topic", segment_bytes="1048576")
    for _ in range(3):
        append(leader, "topic", batch(5))
    # The log has two records, from long ago.
    followers.become("topic", leader_epoch=0, leader=OTHER_BROKER_ID)
    followers.partition("topic").append(RecordBatches.read(batch(2)), 1)
    theirs = leader.log("topic")
    theirs.update_high_watermark(15)
    assert theirs.delete_records(10) == (ErrorCode.NONE, 10)
    elect_again(leader, "topic", 1)
    followers.follow("topic", port=port_of(server), leader_epoch=1)
    ours = followers.log("topic")
    await until_async(lambda: ours.log_end_offset == 15)
    assert ours.log_start_offset == 10


async def test_the_start_of_the_log_follows_the_leader(
    leader: DataPath, server: Server, followers: Followers
) -> None:
    lead(leader, "topic")
    followers.partition("topic", config=LogConfig(segment_bytes=600))
    followers.follow("topic", port=port_of(server))
    for _ in range(10):
        append(leader, "topic", batch(5))
    await level(leader, followers, "topic")
    ours, theirs = followers.log("topic"), leader.log("topic")
    segment_count = len(ours.segments)
    assert theirs.delete_records(33)[0] is ErrorCode.NONE
    leader.manager.log_start_offset_moved(leader.partition("topic"))
    append(leader, "topic", batch(1))
    await until_async(lambda: ours.log_start_offset == 33)
    assert len(ours.segments) < segment_count


async def test_a_full_disk_is_said_once_and_followed_on_when_there_is_room(
    leader: DataPath,
    server: Server,
    followers: Followers,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lead(leader, "topic")
    followers.follow("topic", port=port_of(server))
    append(leader, "topic", batch(1))
    await level(leader, followers, "topic")
    ours = followers.log("topic")
    refused_count = 0
    take = LogSegment.append

    def full(segment: LogSegment, *arguments: Any) -> None:
        nonlocal refused_count
        if segment in ours.segments:
            refused_count += 1
            raise OSError(errno.ENOSPC, "no space left on device")
        take(segment, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(LogSegment, "append", full)
        append(leader, "topic", batch(1))

        def is_tried_again() -> bool:
            followers.clock.advance(1_001)
            return refused_count >= 4

        await until_async(is_tried_again)
    assert not ours.offline
    assert ours.log_end_offset == 1

    def is_level() -> bool:
        followers.clock.advance(1_001)
        return ours.log_end_offset == 2

    await until_async(is_level)
    await level(leader, followers, "topic")
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len([line for line in said if "no room" in line and "again" in line]) == 1
    assert len([line for line in said if "no room to append" in line]) == 1


async def test_a_log_that_fails_stops_following_and_nothing_else_does(
    leader: DataPath, server: Server, followers: Followers
) -> None:
    lead(leader, "bad")
    lead(leader, "good")
    for topic in ("bad", "good"):
        followers.follow(topic, port=port_of(server))
        append(leader, topic, batch(1))
        await level(leader, followers, topic)
    followers.log("bad").take_offline("the test")
    append(leader, "bad", batch(1))
    (fetcher,) = followers.fetchers.fetchers
    await until_async(lambda: fetcher.partitions.failed_count == 1)
    append(leader, "good", batch(1))
    await level(leader, followers, "good")
    assert followers.metric("FailedPartitionsCount") == 1


async def test_flush_messages_holds_the_acknowledgement_back(
    leader: DataPath, server: Server, followers: Followers
) -> None:
    lead(leader, "topic", min_insync_replicas="2")
    followers.partition("topic", config=LogConfig(flush_messages=1))
    followers.follow("topic", port=port_of(server))
    for _ in range(5):
        request = leader.send(produce({("topic", 0): batch(2)}, acks=-1), 12)
        await until_async(lambda request=request: request.is_answered)  # type: ignore[misc]
        ours = followers.log("topic")
        assert ours.recovery_point == ours.log_end_offset == leader.log("topic").high_watermark


async def test_unfollowed_partitions_leave_the_leaders_session(
    leader: DataPath, server: Server, followers: Followers
) -> None:
    lead(leader, "topic", 2)
    for index in range(2):
        followers.follow("topic", index, port=port_of(server))
        append(leader, "topic", batch(1), index)
    for index in range(2):
        await level(leader, followers, "topic", index)
    followers.fetchers.unfollow(followers.partition("topic", 1))
    append(leader, "topic", batch(1), 0)
    append(leader, "topic", batch(1), 1)
    await until_async(lambda: leader.sessions.partition_count == 1)
    assert followers.log("topic", 1).log_end_offset == 1
    followers.fetchers.unfollow(followers.partition("topic", 0))
    await until_async(lambda: not followers.fetchers.fetchers and not followers.fetchers._tasks)
    await asyncio.wait_for(followers.fetchers.close(), 10)
