"""The readers that are consumers alone, each for its own process.

Owns their loops. Must not judge. Invariant: each record that the client has handed out is reported,
in order, with the id of the topic that the client names.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random
from typing import Any, Final

from moldau.client import (
    Consumer,
    ConsumerRecord,
    KafkaError,
    LogTruncated,
    NoOffsetForPartition,
    OffsetAndMetadata,
    TopicPartition,
    sync,
)
from moldau.client.consumer.core.faults import PositionOutOfRange
from tests.system.topics.account import LossReport, Read
from tests.system.topics.events import MEMBER, Teller, member_name

SETTINGS: Final[dict[str, Any]] = {
    "default_api_timeout_ms": 5_000,
    "request_timeout_ms": 4_000,
    "metadata_max_age_ms": 2_000,
    "fetch_max_wait_ms": 200,
    "reconnect_backoff_max_ms": 500,
}
GROUP_SETTINGS: Final[dict[str, Any]] = {
    "auto_offset_reset": "earliest",
    "auto_commit_interval_ms": 300,
}
LOOK_S: Final = 0.5
"""How often it is looked whether a topic has more partitions."""
LOOK_MS: Final = 2_000
POLL_MS: Final = 200
MEMBERS: Final = 3
"""The members of a group, at once."""
MEMBER_S: Final = (4.0, 15.0)
"""How long a member of a group lives before the next one goes on from what it has committed."""

Positions = Mapping[TopicPartition, OffsetAndMetadata]
Polled = Mapping[TopicPartition, list[ConsumerRecord]]


class Stop:
    """Whether the soak is over: the end of standard input."""

    def __init__(self) -> None:
        self._event = threading.Event()
        threading.Thread(target=self._wait, daemon=True).start()

    def __bool__(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> None:
        """So long, or until the soak is over."""
        self._event.wait(seconds)

    def _wait(self) -> None:
        sys.stdin.buffer.read()
        self._event.set()


def reads_of(polled: Polled, positions: Positions) -> Iterable[Read]:
    """What a poll has handed out; the ids are those of the positions behind it."""
    for name, records in polled.items():
        position = positions.get(name)
        topic_id = None if position is None else position.topic_id
        for each in records:
            yield Read(name.topic, name.partition, each.offset, topic_id, int(each.value))


class Assigned:
    """The partitions that a reader without a group has found so far: none is given up."""

    def __init__(self, topics: list[str]) -> None:
        self._topics = topics
        self.partitions: list[TopicPartition] = []
        self._due_s = 0.0

    def is_due(self) -> bool:
        """Whether it is time to look."""
        now_s = time.monotonic()
        if now_s < self._due_s:
            return False
        self._due_s = now_s + LOOK_S
        return True

    def found(self, topic: str, numbers: Iterable[int]) -> list[TopicPartition]:
        """Partitions of a topic; which of them are new."""
        new = [TopicPartition(topic, number) for number in numbers]
        new = [each for each in new if each not in self.partitions]
        self.partitions += new
        return new

    async def look(self, consumer: Consumer) -> None:
        """Assign what has come."""
        for topic in self._topics if self.is_due() else ():
            with suppress(KafkaError):
                if self.found(topic, await consumer.partitions_for(topic, timeout_ms=LOOK_MS)):
                    consumer.assign(self.partitions)


async def assigned(teller: Teller, bootstrap: str, topics: list[str]) -> None:
    """asyncio, without a group, read_committed."""
    stop, found = Stop(), Assigned(topics)
    async with Consumer(
        bootstrap, auto_offset_reset="earliest", isolation_level="read_committed", **SETTINGS
    ) as consumer:
        while not stop:
            await found.look(consumer)
            if found.partitions:
                polled = await consumer.getmany(timeout_ms=POLL_MS)
                teller.polled("assigned", reads_of(polled, consumer.positions()))


def blocking(teller: Teller, bootstrap: str, topics: list[str]) -> None:
    """Blocking, without a group, read_uncommitted; `auto.offset.reset=none`: losses are errors."""
    stop, found = Stop(), Assigned(topics)
    with sync.Consumer(bootstrap, auto_offset_reset="none", **SETTINGS) as consumer:
        while not stop:
            for topic in topics if found.is_due() else ():
                with suppress(KafkaError):
                    new = found.found(topic, consumer.partitions_for(topic, timeout_ms=LOOK_MS))
                    if new:
                        consumer.assign(found.partitions)
                        consumer.seek_to_beginning(*new)
            if not found.partitions:
                continue
            try:
                polled = consumer.getmany(timeout_ms=POLL_MS)
            except NoOffsetForPartition as error:
                lost = sorted(error.partitions)
            except PositionOutOfRange as error:
                teller.note("blocking", repr(error))
                lost = sorted(error.positions)
            except LogTruncated as error:
                teller.note("blocking", repr(error))
                lost = [error.topic_partition]
            else:
                teller.polled("blocking", reads_of(polled, consumer.positions()))
                continue
            for each in lost:
                teller.loss("blocking", LossReport(each.topic, each.partition))
            with suppress(KafkaError):
                consumer.seek_to_beginning(*lost)


async def classic_group(teller: Teller, bootstrap: str, topics: list[str]) -> None:
    """asyncio, some members of a group of the classic protocol, read_uncommitted."""
    stop, numbers = Stop(), itertools.count()

    async def members() -> None:
        """One after the other."""
        dice = Random()
        while not stop:
            name = member_of("classic-group", next(numbers))
            end = time.monotonic() + dice.uniform(*MEMBER_S)
            async with Consumer(
                bootstrap,
                group_id="classic",
                session_timeout_ms=6_000,
                heartbeat_interval_ms=500,
                **GROUP_SETTINGS,
                **SETTINGS,
            ) as consumer:
                consumer.subscribe(topics)
                while not stop and time.monotonic() < end:
                    polled = await consumer.getmany(timeout_ms=POLL_MS)
                    teller.polled(name, reads_of(polled, consumer.positions()))

    async with asyncio.TaskGroup() as group:
        for _ in range(MEMBERS):
            group.create_task(members())


def consumer_group(teller: Teller, bootstrap: str, topics: list[str]) -> None:
    """Blocking, some members of a group of KIP-848, each in a thread, read_committed."""
    stop, numbers = Stop(), itertools.count()

    def members() -> None:
        """One after the other."""
        dice = Random()
        while not stop:
            name = member_of("consumer-group", next(numbers))
            end = time.monotonic() + dice.uniform(*MEMBER_S)
            with sync.Consumer(
                bootstrap,
                group_id="consumer",
                group_protocol="consumer",
                isolation_level="read_committed",
                **GROUP_SETTINGS,
                **SETTINGS,
            ) as consumer:
                consumer.subscribe(topics)
                while not stop and time.monotonic() < end:
                    polled = consumer.getmany(timeout_ms=POLL_MS)
                    teller.polled(name, reads_of(polled, consumer.positions()))

    with ThreadPoolExecutor(MEMBERS) as pool:
        for member in [pool.submit(members) for _ in range(MEMBERS)]:
            member.result()


def member_of(reader: str, number: int) -> str:
    """The name of a member; what its client says from here on is said in this name."""
    name = f"{reader}{MEMBER}{number}"
    member_name.set(name)
    return name
