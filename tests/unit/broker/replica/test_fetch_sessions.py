"""Fetch sessions (KIP-227): epochs, eviction, what an incremental response mentions."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from moldau.broker.replica.delayed_fetch import DelayedFetch
from moldau.broker.replica.fetch_sessions import MAX_SESSION_EPOCH, MIN_EVICTION_MS
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p21_delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tests.kit.dice import drawn_seed
from tests.unit.broker.harness import BROKER_ID, OTHER_BROKER_ID, DataPath
from tests.unit.broker.messages import batch, fetch, fetched_values, produce

Key = tuple[str, int]


class Consumer:
    """A client that keeps a session, as the Java client does."""

    def __init__(self, broker: DataPath, api_version: int = 12, **fields: Any) -> None:
        self.broker = broker
        self.api_version = api_version
        self.fields = fields
        self.session_id = 0
        self.session_epoch = 0

    def request(
        self, partitions: dict[Key, Any], forget: dict[str, list[int]] | None = None
    ) -> Any:
        return fetch(
            partitions,
            api_version=self.api_version,
            forget=forget,
            session_id=self.session_id,
            session_epoch=self.session_epoch,
            **self.fields,
        )

    async def poll(
        self, partitions: dict[Key, Any] | None = None, forget: dict[str, list[int]] | None = None
    ) -> dict[Key, Any]:
        """One fetch; the partitions of the response."""
        request = self.request(partitions or {}, forget)
        response = await self.broker.ask(request, self.api_version)
        assert response.error_code == 0, ErrorCode.of(response.error_code)
        self.session_id = response.session_id
        self.session_epoch += 1
        return mentioned(response)

    async def error(self, session_id: int, session_epoch: int) -> ErrorCode:
        request = fetch(
            {}, api_version=self.api_version, session_id=session_id, session_epoch=session_epoch
        )
        response = await self.broker.ask(request, self.api_version)
        assert response.responses == []
        return ErrorCode.of(response.error_code)


def mentioned(response: Any) -> dict[Key, Any]:
    return {
        (topic.topic or topic.topic_id.bytes[15:].decode(), each.partition_index): each
        for topic in response.responses
        for each in topic.partitions
    }


async def put(broker: DataPath, *keys: Key) -> None:
    for key in keys:
        await broker.ask(produce({key: batch(1, value=b"%s-%d" % (key[0].encode(), key[1]))}), 12)


@pytest.mark.parametrize("api_version", [7, 12, 13, 18])
async def test_only_news_is_mentioned(broker: DataPath, api_version: int) -> None:
    broker.create_topic("t", 3)
    consumer = Consumer(broker, api_version)
    first = await consumer.poll({("t", index): 0 for index in range(3)})
    assert sorted(first) == [("t", 0), ("t", 1), ("t", 2)]
    assert consumer.session_id > 0
    assert await consumer.poll() == {}
    await put(broker, ("t", 1))
    second = await consumer.poll()
    assert list(second) == [("t", 1)]
    assert fetched_values(second["t", 1]) == [b"t-1"]
    assert list(await consumer.poll()) == [("t", 1)], "sent again: the client did not move on"
    assert await consumer.poll({("t", 1): 1}) == {}


async def test_partitions_are_added_and_forgotten(broker: DataPath) -> None:
    broker.create_topic("t", 3)
    await put(broker, ("t", 0), ("t", 1), ("t", 2))
    consumer = Consumer(broker)
    await consumer.poll({("t", 0): 0})
    assert list(await consumer.poll({("t", 0): 1, ("t", 2): 0})) == [("t", 2)]
    assert list(await consumer.poll({("t", 1): 0}, forget={"t": [0, 2]})) == [("t", 1)]
    await put(broker, ("t", 0), ("t", 2))
    assert list(await consumer.poll({("t", 1): 1})) == []
    assert broker.partition("t", 0).fetch_watchers == {}


async def test_a_session_without_partitions_ends(broker: DataPath) -> None:
    broker.create_topic("t")
    consumer = Consumer(broker)
    await consumer.poll({("t", 0): 0})
    session_id = consumer.session_id
    assert await consumer.poll(forget={"t": [0]}) == {}
    assert consumer.session_id == 0
    assert len(broker.sessions) == 0
    assert await consumer.error(session_id, 2) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_session_errors(broker: DataPath) -> None:
    broker.create_topic("t")
    consumer = Consumer(broker)
    assert await consumer.error(99, 1) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    await consumer.poll({("t", 0): 0})
    session_id = consumer.session_id
    for session_epoch in (2, 5, -2):
        error = await consumer.error(session_id, session_epoch)
        assert error is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    by_id = Consumer(broker, 13)
    assert await by_id.error(session_id, 1) is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert await consumer.error(session_id, 1) is ErrorCode.NONE
    assert await consumer.error(session_id, 1) is ErrorCode.INVALID_FETCH_SESSION_EPOCH


@pytest.mark.parametrize("session_epoch", [0, -1])
async def test_a_full_fetch_ends_the_session_it_names(broker: DataPath, session_epoch: int) -> None:
    broker.create_topic("t")
    consumer = Consumer(broker)
    await consumer.poll({("t", 0): 0})
    old = consumer.session_id
    request = fetch({("t", 0): 0}, session_id=old, session_epoch=session_epoch)
    response = await broker.ask(request, 12)
    assert len(response.responses) == 1
    assert (response.session_id != 0) == (session_epoch == 0)
    assert await consumer.error(old, 1) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(broker.partition("t").fetch_watchers) == (session_epoch == 0)


async def test_epochs_start_over_at_1(broker: DataPath) -> None:
    broker.create_topic("t")
    consumer = Consumer(broker)
    await consumer.poll({("t", 0): 0})
    (session,) = broker.sessions._sessions.values()
    session.session_epoch = consumer.session_epoch = MAX_SESSION_EPOCH
    await consumer.poll()
    assert session.session_epoch == 1


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[DataPath]:
    async with DataPath(tmp_path, max_sessions=2) as data_path:
        data_path.create_topic("t", 5)
        yield data_path


async def test_a_full_cache_refuses_while_sessions_are_fresh(small: DataPath) -> None:
    consumers = [Consumer(small) for _ in range(3)]
    for consumer in consumers:
        await consumer.poll({("t", 0): 0})
    assert [consumer.session_id > 0 for consumer in consumers] == [True, True, False]
    assert len(small.sessions) == 2


async def test_a_stale_session_is_evicted_first(small: DataPath) -> None:
    stale, used, new = (Consumer(small) for _ in range(3))
    await stale.poll({("t", 0): 0, ("t", 1): 0})
    await used.poll({("t", 0): 0})
    small.clock.advance(MIN_EVICTION_MS)
    await used.poll()
    small.clock.advance(1)
    await new.poll({("t", 0): 0})
    assert new.session_id > 0
    assert await stale.error(stale.session_id, 1) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert await used.poll() == {}
    assert small.sessions.evicted_count == 1
    assert len(small.partition("t", 1).fetch_watchers) == 0


async def test_a_larger_session_takes_the_place_of_an_old_smaller_one(small: DataPath) -> None:
    little, large = Consumer(small), Consumer(small)
    await little.poll({("t", 0): 0})
    await large.poll({("t", n): 0 for n in range(4)})
    small.clock.advance(MIN_EVICTION_MS + 1)
    await little.poll()
    await large.poll()
    same, larger = Consumer(small), Consumer(small)
    await same.poll({("t", 1): 0})
    assert same.session_id == 0
    await larger.poll({("t", 1): 0, ("t", 2): 0})
    assert larger.session_id > 0
    assert await little.error(little.session_id, 2) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.fixture
async def narrow(tmp_path: Path) -> AsyncIterator[DataPath]:
    """All sessions hold six partitions."""
    async with DataPath(tmp_path, max_session_partitions=6) as data_path:
        data_path.create_topic("t", 9)
        yield data_path


async def polled_as(broker: DataPath, principal: str, count: int) -> Consumer:
    """A consumer of the first partitions."""
    broker.connection.principal = principal
    consumer = Consumer(broker)
    assert len(await consumer.poll({("t", index): 0 for index in range(count)})) == count
    return consumer


async def test_sessions_hold_so_many_partitions(narrow: DataPath) -> None:
    first = await polled_as(narrow, "User:a", 4)
    second = await polled_as(narrow, "User:a", 3)
    third = await polled_as(narrow, "User:a", 2)
    assert [each.session_id > 0 for each in (first, second, third)] == [True, False, True]
    assert narrow.sessions.partition_count == 6
    # Partitions that join a session count too; those that it has, and that leave, do not.
    assert await first.poll({("t", 0): 0, ("t", 1): 0}) == {}
    assert list(await third.poll({("t", 5): 0}, forget={"t": [0]})) == [("t", 5)]
    assert narrow.sessions.partition_count == 6
    request = third.request({("t", 6): 0})
    refused = await narrow.ask(request, third.api_version)
    assert refused.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert narrow.sessions.partition_count == 4
    assert await first.poll() == {}


async def test_a_principal_that_fills_the_sessions_leaves_others_their_share(
    narrow: DataPath,
) -> None:
    greedy = [await polled_as(narrow, "User:greedy", 2) for _ in range(4)]
    assert [each.session_id > 0 for each in greedy] == [True, True, True, False]
    good = await polled_as(narrow, "User:good", 3)
    assert good.session_id > 0
    assert narrow.sessions.partition_count == 5
    assert (await polled_as(narrow, "User:good", 2)).session_id == 0, "more than an equal share"
    for consumer, error in zip(greedy, (1, 1, 0), strict=False):
        expected = ErrorCode.FETCH_SESSION_ID_NOT_FOUND if error else ErrorCode.NONE
        assert await consumer.error(consumer.session_id, 1) is expected


async def test_a_stale_session_gives_its_partitions_back(narrow: DataPath) -> None:
    stale = await polled_as(narrow, "User:a", 6)
    narrow.clock.advance(MIN_EVICTION_MS + 1)
    assert (await polled_as(narrow, "User:a", 5)).session_id > 0
    assert await stale.error(stale.session_id, 1) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert narrow.sessions.partition_count == 5
    narrow.drop_sessions()
    assert (narrow.sessions.partition_count, narrow.sessions._holdings) == (0, {})


async def test_names_that_no_topic_can_have_are_not_kept(broker: DataPath) -> None:
    consumer = Consumer(broker)
    assert list(await consumer.poll({("x" * 249, 0): 0})) == [("x" * 249, 0)]
    assert consumer.session_id > 0
    refused = await broker.ask(consumer.request({("x" * 250, 0): 0}), consumer.api_version)
    assert refused.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    other = Consumer(broker)
    assert list(await other.poll({("x" * 250, 0): 0})) == [("x" * 250, 0)]
    assert other.session_id == 0
    assert len(broker.sessions) == 0


async def test_slots_are_shared_by_principals(small: DataPath) -> None:
    greedy = [await polled_as(small, "User:greedy", 1) for _ in range(3)]
    assert [each.session_id > 0 for each in greedy] == [True, True, False]
    good = [await polled_as(small, "User:good", 1) for _ in range(2)]
    assert [each.session_id > 0 for each in good] == [True, False]
    gone, stays = greedy[:2]
    assert await gone.error(gone.session_id, 1) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert await stays.poll() == {}


async def test_no_slots_no_sessions(tmp_path: Path) -> None:
    async with DataPath(tmp_path, max_sessions=0) as broker:
        broker.create_topic("t")
        consumer = Consumer(broker)
        assert list(await consumer.poll({("t", 0): 0})) == [("t", 0)]
        assert consumer.session_id == 0


async def test_errors_are_repeated_until_they_end(broker: DataPath) -> None:
    broker.create_topic("t")
    consumer = Consumer(broker)
    first = await consumer.poll({("t", 0): 0, ("u", 0): 0})
    assert first["u", 0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert list(await consumer.poll()) == [("u", 0)]
    broker.create_topic("u")
    found = await consumer.poll()
    assert found["u", 0].error_code == 0
    assert await consumer.poll() == {}


async def test_what_is_said_with_a_diverging_epoch_is_said_again(broker: DataPath) -> None:
    """A follower cuts its log and takes nothing else from such an answer (simulation, 1240039)."""
    broker.create_topic("t", leader_epoch=2)
    await put(broker, ("t", 0))
    follower = Consumer(broker)
    beyond = await follower.poll({("t", 0): {"fetch_offset": 3, "last_fetched_epoch": 2}})
    assert beyond["t", 0].diverging_epoch.end_offset == 1
    agreeing = await follower.poll({("t", 0): {"fetch_offset": 1, "last_fetched_epoch": 2}})
    assert agreeing["t", 0].high_watermark == 1
    assert await follower.poll() == {}


async def test_what_was_said_in_another_leader_epoch_is_said_again(broker: DataPath) -> None:
    """A follower ignores answers of the epoch before (simulation of transactions, 800249)."""
    broker.create_topic("t", leader_epoch=2)
    await put(broker, ("t", 0))
    follower = Consumer(broker)
    asked = {"fetch_offset": 1, "last_fetched_epoch": 2, "current_leader_epoch": 2}
    told = await follower.poll({("t", 0): asked})
    assert told["t", 0].high_watermark == 1
    assert await follower.poll({("t", 0): asked}) == {}, "the same again"
    broker.change_partition("t", leader=BROKER_ID)  # the same in another epoch
    told = await follower.poll({("t", 0): {**asked, "current_leader_epoch": 3}})
    assert (told["t", 0].high_watermark, told["t", 0].log_start_offset) == (1, 0)
    assert await follower.poll() == {}


async def test_a_recreated_topic_id_is_unknown(broker: DataPath) -> None:
    broker.create_topic("t")
    consumer = Consumer(broker, 13)
    await consumer.poll({("t", 0): 0})
    broker.delete_topic("t")
    (found,) = (await consumer.poll()).values()
    assert found.error_code == ErrorCode.UNKNOWN_TOPIC_ID


async def test_lost_leadership_is_news(broker: DataPath) -> None:
    broker.create_topic("t", replicas=(1, 2), isr=(1,))
    consumer = Consumer(broker)
    asked = {"fetch_offset": 0, "current_leader_epoch": 0}
    await consumer.poll({("t", 0): asked})
    broker.change_partition("t", leader=OTHER_BROKER_ID)
    found = await consumer.poll()
    assert found["t", 0].error_code == ErrorCode.FENCED_LEADER_EPOCH


async def test_an_incremental_fetch_waits(broker: DataPath) -> None:
    broker.create_topic("t", 100)
    consumer = Consumer(broker)
    await consumer.poll({("t", n): 0 for n in range(100)})
    consumer.fields["max_wait_ms"] = 500
    request = broker.send(consumer.request({}), 12)
    assert not request.is_answered
    await put(broker, ("t", 42))
    assert list(mentioned(request.response)) == [("t", 42)]
    (session,) = broker.sessions._sessions.values()
    assert session.waiting == []


async def test_idle_partitions_are_not_looked_at(
    broker: DataPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("t", 100)
    consumer = Consumer(broker)
    await consumer.poll({("t", n): 0 for n in range(100)})
    await consumer.poll()
    looked_at = []
    real = DelayedFetch._read

    def counted(self: DelayedFetch, fetched: Any, *rest: Any, **named: Any) -> Any:
        looked_at.append(fetched.partition_index)
        return real(self, fetched, *rest, **named)

    monkeypatch.setattr(DelayedFetch, "_read", counted)
    await consumer.poll()
    assert looked_at == []
    await put(broker, ("t", 7))
    await consumer.poll()
    assert looked_at == [7]


async def test_no_partition_starves(broker: DataPath) -> None:
    broker.create_topic("t", 4)
    for n in range(4):
        await put(broker, *[("t", n)] * 5)
    consumer = Consumer(broker, max_bytes=1)
    positions = {("t", n): 0 for n in range(4)}
    seen: dict[Key, int] = dict.fromkeys(positions, 0)
    found = await consumer.poll(dict(positions))
    for _ in range(19):
        moved: dict[Key, Any] = {}
        for key, each in found.items():
            count = len(fetched_values(each))
            seen[key] += count
            positions[key] += count
            if count:
                moved[key] = positions[key]
        assert max(seen.values()) - min(seen.values()) <= 1
        found = await consumer.poll(moved)
    assert sum(seen.values()) >= 19


async def test_two_fetches_wait_on_one_session(broker: DataPath) -> None:
    broker.create_topic("t")
    consumer = Consumer(broker)
    await consumer.poll({("t", 0): 0})
    consumer.fields["max_wait_ms"] = 500
    first = broker.send(consumer.request({}), 12)
    consumer.session_epoch += 1
    second = broker.send(consumer.request({}), 12)
    await put(broker, ("t", 0))
    assert list(mentioned(first.response)) == [("t", 0)]
    assert list(mentioned(second.response)) == [("t", 0)]


async def test_an_evicted_session_answers_its_waiting_fetch(broker: DataPath) -> None:
    broker.create_topic("t")
    consumer = Consumer(broker)
    await consumer.poll({("t", 0): 0})
    consumer.fields["max_wait_ms"] = 500
    request = broker.send(consumer.request({}), 12)
    broker.drop_sessions()
    broker.clock.advance(600)
    assert request.response.responses == []


@pytest.mark.parametrize("round_number", range(6))
async def test_a_session_answers_all_that_full_fetches_would(
    broker: DataPath, round_number: int
) -> None:
    """Whatever happens, the client's picture after an incremental fetch is the whole truth."""
    seed = drawn_seed(4711) + round_number
    chance = random.Random(seed)
    keys = [(topic, index) for topic in "tuv" for index in range(4)]
    for topic in "tuv":
        broker.create_topic(topic, 4)
    consumer = Consumer(broker, chance.choice([7, 12, 13, 18]))
    positions: dict[Key, int] = {}
    picture: dict[Key, tuple[int, int, int]] = {}
    for _ in range(120):
        for _ in range(chance.randrange(4)):
            await _something_happens(broker, chance, keys)
        asked: dict[Key, Any] = {}
        forget: dict[str, list[int]] = {}
        for key in keys:
            if key not in positions and chance.random() < 0.2:
                asked[key] = positions[key] = broker.log(*key).log_start_offset
            elif key in positions and chance.random() < 0.05 and consumer.session_epoch:
                del positions[key]
                picture.pop(key, None)
                forget.setdefault(key[0], []).append(key[1])
            elif key in picture and picture[key][0] == ErrorCode.OFFSET_OUT_OF_RANGE:
                asked[key] = positions[key] = broker.log(*key).log_start_offset
            elif key in picture and picture[key][1] > positions[key] and chance.random() < 0.7:
                asked[key] = positions[key] = picture[key][1]
        if not positions:
            continue
        for key, found in (await consumer.poll(asked, forget)).items():
            assert key in positions
            assert found.error_code or found.high_watermark >= positions[key]
            picture[key] = (found.error_code, found.high_watermark, found.log_start_offset)
        if consumer.session_id == 0:
            consumer.session_epoch = 0
            positions.clear()
            picture.clear()
            continue
        for key, position in positions.items():
            log = broker.log(*key)
            if position < log.log_start_offset:
                assert picture[key][0] == ErrorCode.OFFSET_OUT_OF_RANGE
            else:
                assert picture[key] == (0, log.high_watermark, log.log_start_offset), key


async def _something_happens(broker: DataPath, chance: random.Random, keys: list[Key]) -> None:
    key = chance.choice(keys)
    if chance.random() < 0.8:
        await put(broker, key)
        return
    log = broker.log(*key)
    offset = chance.randint(log.log_start_offset, log.high_watermark)
    partition = DeleteRecordsPartition(partition_index=key[1], offset=offset)
    topic = DeleteRecordsTopic(name=key[0], partitions=[partition])
    await broker.ask(DeleteRecordsRequest(topics=[topic], timeout_ms=100), 2)


async def test_gauges(broker: DataPath) -> None:
    broker.create_topic("t", 3)
    broker.sessions.register_gauges(broker.registry)
    await Consumer(broker).poll({("t", n): 0 for n in range(3)})
    values = {
        metric.name.partition("name=")[2]: metric.instrument.value
        for metric in broker.registry.collect()
        if "FetchSessionCache" in metric.name
    }
    assert values == {
        "NumIncrementalFetchSessions": 1,
        "NumIncrementalFetchPartitionsCached": 3,
        "IncrementalFetchSessionEvictions": 0,
    }


async def test_a_late_fetch_of_a_given_up_connection_does_not_keep_a_follower_out(
    broker: DataPath,
) -> None:
    """The follower says where it is when that changes; who overhears it must ask again."""
    broker.create_topic("f", 1, replicas=(1, OTHER_BROKER_ID))
    await broker.ask(produce({("f", 0): batch(2)}, acks=1), 9)
    progress = broker.partition("f").core.followers[OTHER_BROKER_ID]
    living = Consumer(broker, replica_id=OTHER_BROKER_ID)
    await living.poll({("f", 0): 0})
    await living.poll({("f", 0): 2})
    assert progress.log_end_offset == 2
    given_up = Consumer(broker, replica_id=OTHER_BROKER_ID)
    await given_up.poll({("f", 0): 0})
    assert progress.log_end_offset == 0
    await living.poll()
    assert progress.log_end_offset == 2
    # Not for ever by turns: without news no session repeats itself.
    await living.poll()
    assert progress.log_end_offset == 2
