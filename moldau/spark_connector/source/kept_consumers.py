"""Consumers that a worker's process keeps from task to task: connecting takes longer than reading.

Owns them: one per configuration, at most `MAX_KEPT`, closed when they have not been used for
`IDLE_S`, and when anything went wrong in a task. Must not read. Invariants: a consumer is lent to
one task at a time; a kept one is paused and fetches nothing.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final, TypeAlias
from uuid import UUID

from moldau.client import ConsumerConfig, KafkaError, OffsetAndMetadata
from moldau.client.sync import Consumer
from moldau.protocol.types import ZERO_UUID, TopicPartition

MAX_KEPT: Final = 4
IDLE_S: Final = 60.0
CLOSE_TIMEOUT_MS: Final = 1_000

Key: TypeAlias = tuple[tuple[str, str], ...]


class KeptConsumers:
    """The consumers of one process.

    Args:
        make: connects a new one.
        idle_s: how long one may lie unused.
    """

    def __init__(
        self, make: Callable[[Mapping[str, str]], Consumer], idle_s: float = IDLE_S
    ) -> None:
        self._make = make
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._kept: OrderedDict[Key, Consumer] = OrderedDict()
        self._timer: threading.Timer | None = None
        self._process_id = os.getpid()

    @property
    def kept_count(self) -> int:
        """How many lie unused now."""
        return len(self._kept)

    @contextmanager
    def lend(self, settings: Mapping[str, str]) -> Iterator[Consumer]:
        """A consumer with these settings, for one task; a new one where none is kept.

        What it is assigned to and where it stands is whatever its last task left.
        """
        key = tuple(sorted(settings.items()))
        consumer = self._take(key) or self._make(settings)
        try:
            yield consumer
        except GeneratorExit:  # the task's rows are not wanted any more: nothing is wrong with it
            self._give_back(key, consumer)
            raise
        except BaseException:
            _close(consumer)
            raise
        self._give_back(key, consumer)

    def close_all(self) -> None:
        """Close what lies unused."""
        with self._lock:
            self._stop_timer()
            consumers = list(self._kept.values())
            self._kept.clear()
        for consumer in consumers:
            _close(consumer)

    def _take(self, key: Key) -> Consumer | None:
        with self._lock:
            if self._process_id != os.getpid():
                # After a fork: these are the parent's, and so are their sockets.
                self._process_id = os.getpid()
                self._kept = OrderedDict()
                self._timer = None
            self._stop_timer()
            consumer = self._kept.pop(key, None)
            if self._kept:
                self._start_timer()
            return consumer

    def _give_back(self, key: Key, consumer: Consumer) -> None:
        surplus: list[Consumer] = []
        with self._lock:
            before = self._kept.pop(key, None)
            if before is not None:  # two tasks at once had one each
                surplus.append(before)
            self._kept[key] = consumer
            while len(self._kept) > MAX_KEPT:
                surplus.append(self._kept.popitem(last=False)[1])
            self._stop_timer()
            self._start_timer()
        for each in surplus:
            _close(each)

    def _start_timer(self) -> None:
        self._timer = threading.Timer(self._idle_s, self.close_all)
        self._timer.daemon = True
        self._timer.start()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _close(consumer: Consumer) -> None:
    # It holds nothing that is still needed: no group, no commits.
    with suppress(KafkaError, OSError):
        consumer.close(CLOSE_TIMEOUT_MS)


def point_to(
    consumer: Consumer, partition: TopicPartition, start_offset: int, topic_id: UUID
) -> None:
    """Have a lent consumer read this partition from there on.

    What it has fetched ahead in its last task is dropped, even if it stands there: the topic may
    have been deleted and created again since, and these would be records of the old one.

    Args:
        topic_id: of the topic that is to be read, whatever topic the consumer knows by its name;
            ZERO_UUID for the one that there is.
    """
    if consumer.assignment() != {partition}:
        consumer.assign([partition])
    known_id = None if topic_id == ZERO_UUID else topic_id
    consumer.seek(partition, OffsetAndMetadata(start_offset, topic_id=known_id))
    consumer.resume(partition)


def _connect(settings: Mapping[str, str]) -> Consumer:
    return Consumer(config=ConsumerConfig.from_properties(settings))


kept_consumers: Final = KeptConsumers(_connect)
"""Those of this process."""
