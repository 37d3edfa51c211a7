"""Eight consumers come and go at random while records arrive: nothing twice, nothing lost."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.interop.confluent.clients import POLL_S, WAIT_S, consumer_config
from tests.interop.confluent.ownership import Checker, History
from tests.interop.topics import TopicMaker, fresh_name
from tests.kit.waiting import until

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
#: Of a classic member that leaves while the answer to its JoinGroup is on the way: it does not hear
#: of the new generation any more, and what it has read since it got the partition is read again.
#: When a heartbeat says so, it forgets its generation, and without one it counts as unknown.
TOO_LATE = (KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID)


class Member:
    """One consumer in its own thread, which records in a history all that happens to it."""

    def __init__(self, history: History, name: str, topic: str, config: dict[str, Any]) -> None:
        self._history = history
        self.name = name
        self._topic = topic
        self._starts: dict[int, int] = {}
        self._positions: dict[int, int] = {}
        self.uncommitted_count = 0
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
            self.failures.append(f"{self.name}: {failure!r}")
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
        self._history.add_offsets("read", self.name, [(partition, offset)])
        self._starts.setdefault(partition, offset)
        self._positions[partition] = offset + 1

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._history.add("assigned", self.name, [each.partition for each in partitions])
        consumer.incremental_assign(partitions)

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        gone = {each.partition: self._positions.pop(each.partition, None) for each in partitions}
        offsets = {partition: offset for partition, offset in gone.items() if offset is not None}
        starts = {partition: self._starts.pop(partition) for partition in offsets}
        if offsets and self._commit(consumer, offsets):
            self._history.add_offsets("committed", self.name, offsets.items())
        else:
            self.uncommitted_count += sum(offsets.values()) - sum(starts.values())
        self._history.add("revoked", self.name, gone)
        consumer.incremental_unassign(partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.failures.append(f"{self.name} was thrown out of the group")
        self._history.add("lost", self.name, [each.partition for each in partitions])
        consumer.incremental_unassign(partitions)

    def _commit(self, consumer: Consumer, offsets: dict[int, int]) -> bool:
        """False when it is too late for that."""
        wanted = [TopicPartition(self._topic, *where) for where in offsets.items()]

        def is_committed() -> bool:
            try:
                consumer.commit(offsets=wanted, asynchronous=False)
            except KafkaException as error:
                if error.args[0].code() in IN_BETWEEN:
                    return False
                raise
            return True

        try:
            return until(is_committed, what="a commit", deadline_s=WAIT_S)
        except KafkaException as error:
            if self._is_leaving.is_set() and error.args[0].code() in TOO_LATE:
                return False
            raise


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


class Group:
    """Members that come and go, and the records they are to read."""

    def __init__(
        self, bootstrap: str, topic: str, config: dict[str, Any], chance: random.Random
    ) -> None:
        self.history = History()
        self.writing = Writing(bootstrap, topic, chance)
        self.everybody: list[Member] = []
        self.read_again_count = 0
        self._present: list[Member] = []
        self._chance = chance
        self._make = lambda name: Member(self.history, name, topic, config)

    @property
    def failures(self) -> list[str]:
        """The failures of all members there ever were."""
        return [failure for member in self.everybody for failure in member.failures]

    def come_and_go(self) -> None:
        """Change the group so many times; about half of the changes do not wait for the last."""
        try:
            for _ in range(MEMBERS):
                self._join()
            self._wait(self._all_were_assigned, "everybody has something")
            for _ in range(CHANGES):
                self.writing.write(RECORDS_BETWEEN)
                self._wait_read(self.history.count("read") + self._chance.randrange(20))
                self._change()
                if self._chance.random() < 0.5:
                    self._wait(self._all_were_assigned, "everybody has something")
            self._wait_read(self._all_reads())
            self.read_again_count = self._all_reads() - sum(self.writing.ends.values())
        finally:
            for member in self._present:
                member.leave()

    def _change(self) -> None:
        count = len(self._present)
        if count == MEMBERS or (count > 2 and self._chance.random() < 0.5):
            self._present.pop(self._chance.randrange(count)).leave()
        else:
            self._join()

    def _join(self) -> None:
        member = self._make(f"member-{len(self.everybody)}")
        self.everybody.append(member)
        self._present.append(member)

    def _all_were_assigned(self) -> bool:
        found = {event.member for event in list(self.history.events) if event.kind == "assigned"}
        return found.issuperset(member.name for member in self._present)

    def _wait_read(self, count: int) -> None:
        wanted = min(count, self._all_reads())
        self._wait(lambda: self.history.count("read") >= wanted, f"{wanted} records are read")

    def _all_reads(self) -> int:
        """How many there will be of what is written now, with what could not be committed."""
        uncommitted_count = sum(member.uncommitted_count for member in self.everybody)
        return sum(self.writing.ends.values()) + uncommitted_count

    def _wait(self, is_reached: Callable[[], bool], what: str) -> None:
        until(lambda: is_reached() or bool(self.failures), what=what, deadline_s=2 * WAIT_S)
        assert self.failures == []


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
    members = Group(trio, topic, config, chance)
    members.come_and_go()
    assert members.failures == []
    history, ends = members.history, members.writing.ends
    assert Checker(ends).check(history.events) == []
    reads = sum(ends.values()) + members.read_again_count
    assert history.count("read") == reads, "each record once, but for what could not be committed"
    assert len({event.member for event in history.events if event.kind == "assigned"}) > MEMBERS
