"""A storm of requests that wait: each is answered, once, and nothing of it stays behind."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from tests.kit.dice import drawn_seed
from tests.kit.waiting import until_async
from tests.unit.broker.harness import OTHER_BROKER_ID, DataPath, FakeConnection, FakeRequest
from tests.unit.broker.messages import batch, fetch, produce

STEPS = 400
LONGEST_WAIT_MS = 3_000

#: Where a produce is done at once, after its follower, after a recompression, after a flush.
TOPICS: dict[str, dict[str, Any]] = {
    "once": {},
    "both": {"replicas": (1, 2), "isr": (1, 2)},
    "lz4": {"compression_type": "lz4"},
    "flush": {"flush_messages": "1"},
    "all": {
        "replicas": (1, 2),
        "isr": (1, 2),
        "compression_type": "gzip",
        "flush_messages": "1",
    },
}


class Storm:
    """Does one random thing after the other to a broker."""

    def __init__(self, broker: DataPath, chance: random.Random) -> None:
        self._broker = broker
        self._chance = chance
        self._leads = dict.fromkeys(TOPICS, True)
        self._exists = dict.fromkeys(TOPICS, True)
        self._sessions: dict[FakeConnection, tuple[FakeRequest, int]] = {}
        self.connections = [FakeConnection() for _ in range(4)]
        self.requests: list[FakeRequest] = []
        self.waited_count = 0
        for topic, options in TOPICS.items():
            broker.create_topic(topic, **options)

    async def step(self) -> None:
        happenings = {
            self._produce: 30,
            self._fetch: 15,
            self._fetch_in_session: 15,
            self._follower_fetches: 15,
            self._time_passes: 15,
            self._leader_changes: 3,
            self._topic_goes_or_comes: 2,
            self._connection_is_lost: 3,
        }
        (happening,) = self._chance.choices(list(happenings), list(happenings.values()))
        happening()
        if self._chance.random() < 0.3:
            await asyncio.sleep(0)

    def _send(self, message: Any, connection: FakeConnection | None = None) -> FakeRequest:
        connection = connection or self._chance.choice(self.connections)
        request = self._broker.send(message, 12, connection)
        self.requests.append(request)
        self.waited_count += not request.is_answered
        return request

    def _some(self) -> list[tuple[str, int]]:
        names = self._chance.sample(sorted(TOPICS), self._chance.randint(1, 3))
        return [(name, 0) for name in names]

    def _produce(self) -> None:
        records = {key: batch(self._chance.randint(1, 3)) for key in self._some()}
        acks = self._chance.choice([-1, -1, -1, 1, 0])
        self._send(produce(records, acks=acks, timeout_ms=self._chance.choice([0, 50, 1_000])))

    def _offset(self, key: tuple[str, int]) -> int:
        partition = self._broker.manager.get(*key)
        return 0 if partition is None or partition.log is None else partition.log.log_end_offset

    def _fetch(self) -> None:
        asked: dict[tuple[str, int], Any] = {key: self._offset(key) for key in self._some()}
        self._send(fetch(asked, **self._patience()))

    def _patience(self) -> dict[str, int]:
        chance = self._chance
        return {
            "max_wait_ms": chance.choice([0, 20, 500, LONGEST_WAIT_MS]),
            "min_bytes": chance.choice([0, 1, 1, 300, 10_000]),
        }

    def _fetch_in_session(self) -> None:
        connection = self._chance.choice(self.connections)
        session_id, epoch = 0, 0
        if connection in self._sessions:
            last, epoch = self._sessions[connection]
            if last.is_answered and last.response is not None and not last.response.error_code:
                session_id, epoch = last.response.session_id, epoch + 1
            else:
                epoch = 0
        asked: dict[tuple[str, int], Any] = {key: self._offset(key) for key in self._some()}
        message = fetch(asked, session_id=session_id, session_epoch=epoch, **self._patience())
        self._sessions[connection] = self._send(message, connection), epoch

    def _follower_fetches(self) -> None:
        asked: dict[tuple[str, int], Any] = {
            (name, 0): self._offset((name, 0)) for name in ("both", "all")
        }
        self._send(fetch(asked, replica_id=OTHER_BROKER_ID, **self._patience()))

    def _time_passes(self) -> None:
        self._broker.clock.advance(self._chance.choice([1, 5, 30, 400]))

    def _leader_changes(self) -> None:
        topic = self._chance.choice(["both", "all"])
        if self._exists[topic]:
            self._leads[topic] = not self._leads[topic]
            leader = 1 if self._leads[topic] else OTHER_BROKER_ID
            self._broker.change_partition(topic, leader=leader)

    def _topic_goes_or_comes(self) -> None:
        topic = self._chance.choice(sorted(TOPICS))
        if self._exists[topic]:
            self._broker.delete_topic(topic)
        else:
            self._broker.create_topic(topic, **TOPICS[topic])
            self._leads[topic] = True
        self._exists[topic] = not self._exists[topic]

    def _connection_is_lost(self) -> None:
        index = self._chance.randrange(len(self.connections))
        self.connections[index].close("the test says so")
        self.connections[index] = FakeConnection()


@pytest.mark.parametrize("round_number", range(4))
async def test_every_request_ends_and_leaves_nothing(broker: DataPath, round_number: int) -> None:
    seed = drawn_seed() + round_number
    storm = Storm(broker, random.Random(seed))
    timer_count = len(broker.timers)
    for _ in range(STEPS):
        await storm.step()

    def all_ended() -> bool:
        # What is left waits for threads: a recompression, a flush, and what waits once more then.
        broker.clock.advance(LONGEST_WAIT_MS)
        return all(request.is_answered for request in storm.requests)

    await until_async(all_ended)
    assert storm.waited_count > 0
    manager = broker.manager
    assert manager.fetch_purgatory.size() == manager.produce_purgatory.size() == 0
    assert len(broker.timers) <= timer_count
    assert manager._ready == []
    connections = {request.connection for request in storm.requests}
    assert not any(value for each in connections for value in each.state.values())
    broker.drop_sessions()
    for partition in manager.partitions():
        assert partition.produce_waits == {}
        assert partition.fetch_watchers == {}
