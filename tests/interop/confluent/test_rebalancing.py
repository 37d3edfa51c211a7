"""Eight consumers come and go at random while records arrive: nothing twice, nothing lost."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from moldau.testing import wait_until
from tests.interop.confluent.clients import POLL_S, WAIT_S, consumer_config
from tests.interop.confluent.ownership import Checker, History
from tests.interop.topics import TopicMaker, fresh_name

PARTITIONS = 12
MEMBERS = 8
CHANGES = 16
RECORDS_BETWEEN = 40
CONFIGS = {
    "cooperative-sticky": {"partition.assignment.strategy": "cooperative-sticky"},
    "consumer": {"group.protocol": "consumer"},
}
#: The group moved on before it heard of the commit; asked again in the same callback.
IN_BETWEEN = (KafkaError.REBALANCE_IN_PROGRESS, KafkaError.STALE_MEMBER_EPOCH)


class Member:
    """One consumer in a thread of its own, which tells a history all that happens to it."""

    def __init__(self, history: History, name: str, topic: str, config: dict[str, Any]) -> None:
        self._history = history
        self._name = name
        self._topic = topic
        self._positions: dict[int, int] = {}
        self._is_leaving = threading.Event()
        self.failures: list[str] = []
        self._consumer = Consumer(config)
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    def leave(self) -> None:
        """Commit, leave the group, and wait for that."""
        self._is_leaving.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._consumer.subscribe(
                [self._topic],
                on_assign=self._on_assign,
                on_revoke=self._on_revoke,
                on_lost=self._on_lost,
            )
            while not self._is_leaving.is_set():
                self._read()
        except BaseException as failure:
            self.failures.append(f"{self._name}: {failure!r}")
            raise
        finally:
            self._consumer.close()

    def _read(self) -> None:
        message = self._consumer.poll(POLL_S)
        if message is None:
            return
        assert message.error() is None, message.error()
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        self._history.add_offsets("read", self._name, [(partition, offset)])
        self._positions[partition] = offset + 1

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._history.add("assigned", self._name, [each.partition for each in partitions])
        consumer.incremental_assign(partitions)

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        gone = {each.partition: self._positions.pop(each.partition, None) for each in partitions}
        offsets = {partition: offset for partition, offset in gone.items() if offset is not None}
        if offsets:
            self._commit(consumer, offsets)
            self._history.add_offsets("committed", self._name, offsets.items())
        self._history.add("revoked", self._name, gone)
        consumer.incremental_unassign(partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.failures.append(f"{self._name} was thrown out of the group")
        self._history.add("lost", self._name, [each.partition for each in partitions])
        consumer.incremental_unassign(partitions)

    def _commit(self, consumer: Consumer, offsets: dict[int, int]) -> None:
        wanted = [TopicPartition(self._topic, *where) for where in offsets.items()]

        def is_committed() -> bool:
            try:
                consumer.commit(offsets=wanted, asynchronous=False)
            except KafkaException as error:
                if error.args[0].code() in IN_BETWEEN:
                    return False
                raise
            return True

        wait_until(is_committed, what="a commit", deadline_s=WAIT_S)


class Writing:
    """Records to partitions at random, acknowledged before anything else happens."""

    def __init__(self, bootstrap: str, topic: str, chance: random.Random) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "linger.ms": 0})
        self._topic = topic
        self._chance = chance
        self.ends = dict.fromkeys(range(PARTITIONS), 0)

    def write(self, count: int) -> None:
        for _ in range(count):
            partition = self._chance.randrange(PARTITIONS)
            self._producer.produce(self._topic, b"v", partition=partition)
            self.ends[partition] += 1
        assert self._producer.flush(WAIT_S) == 0


def come_and_go(
    join: Callable[[str], Member], chance: random.Random, writing: Writing, history: History
) -> list[Member]:
    """Change the group so many times, without waiting for it to settle; all members there were."""
    everybody = [join(f"member-{number}") for number in range(MEMBERS)]
    present = list(everybody)
    try:
        for _ in range(CHANGES):
            writing.write(RECORDS_BETWEEN)
            read = history.count("read")
            wanted = min(sum(writing.ends.values()), read + chance.randrange(RECORDS_BETWEEN))
            wait_until(
                lambda: history.count("read") >= wanted or any(each.failures for each in everybody),  # noqa: B023
                what="records are read on",
                deadline_s=2 * WAIT_S,
            )
            if len(present) > 2 and (len(present) == MEMBERS or chance.random() < 0.5):
                present.pop(chance.randrange(len(present))).leave()
            else:
                present.append(join(f"member-{len(everybody)}"))
                everybody.append(present[-1])
        total = sum(writing.ends.values())
        wait_until(
            lambda: history.count("read") >= total or any(each.failures for each in everybody),
            what="all records are read",
            deadline_s=2 * WAIT_S,
        )
    finally:
        for member in present:
            member.leave()
    return everybody


@pytest.mark.timeout(600)
@pytest.mark.parametrize("protocol", CONFIGS)
def test_eight_consumers_come_and_go(trio: str, trio_topics: TopicMaker, protocol: str) -> None:
    """No partition is owned twice, and every record is read once, over all generations."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    topic = trio_topics.create(partitions=PARTITIONS)
    group = fresh_name("churn")
    config = consumer_config(trio, group, **CONFIGS[protocol])
    history = History()
    writing = Writing(trio, topic, chance)
    members = come_and_go(
        lambda name: Member(history, name, topic, config), chance, writing, history
    )
    assert [failure for member in members for failure in member.failures] == []
    assert Checker(writing.ends).check(history.events) == []
    assert history.count("read") == sum(writing.ends.values()), "each record once"
    assert history.count("assigned") > 2 * PARTITIONS
