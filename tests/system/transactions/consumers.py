"""Consumers of confluent-kafka that write down all they get, and where they were placed.

Owns one consumer's thread-less life and its part of the history. Must not: judge, or seek on its
own. Invariants: a record is handed on only after it is in the history; what was taken from a
partition that is then revoked is in the history too, but neither handed on nor a position, and
`lost` names it.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.kit.servers import connecting
from tests.system.transactions.history import History, Log, OffsetRead, Placed, Poll, Seen
from tests.system.transactions.senders import decode

ASK_S: Final = 10.0
#: A consumer that gets one of these has lost what it had read.
BROKEN_PROMISES: Final = frozenset(
    {KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION, KafkaError.OFFSET_OUT_OF_RANGE}
)
#: What a member of librdkafka 2.16 says when it was asked to wait for the end of a transaction that
#: holds its group's offset, and got more partitions before it asked again. Without this error it
#: begins where `auto.offset.reset` says.
NO_OFFSET: Final = "no previously committed offset"
#: What a classic member of librdkafka 2.16 waits in for ever, without heartbeats, when its
#: coordinator answers a question about offsets with NOT_COORDINATOR for the whole group, as Apache
#: Kafka does too from version 8 of OffsetFetch on, and a partition is revoked afterwards: it looks
#: in that answer for partitions, of which there are none.
UNASSIGNING: Final = ("wait-unassign-to-complete", "wait-incr-unassign-to-complete")
#: Longer than an answer that does come, and than a session.
STUCK_S: Final = 15.0
STATISTICS_MS: Final = 2_000
SESSION_TIMEOUT_MS: Final = 6_000
#: How long a member may think before its partitions go to others.
MAX_POLL_INTERVAL_MS: Final = 8_000

Taken = dict[Log, list[Seen]]


def consumer_config(bootstrap: str, group: str, *, is_committed_only: bool) -> dict[str, Any]:
    """A consumer that trusts no broker and commits nothing by itself."""
    return {
        **connecting(bootstrap),
        "group.id": group,
        "isolation.level": "read_committed" if is_committed_only else "read_uncommitted",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "check.crcs": True,
        "fetch.wait.max.ms": 100,
        "reconnect.backoff.max.ms": 500,
        "log_level": 0,
    }


def member_config(
    bootstrap: str,
    group: str,
    protocol: str,
    *,
    assignor: str = "cooperative-sticky",
    instance_id: str | None = None,
) -> dict[str, Any]:
    """A member of a group.

    Args:
        protocol: classic or consumer (KIP-848).
        assignor: of a classic member.
        instance_id: the member is static.
    """
    config = consumer_config(bootstrap, group, is_committed_only=True)
    config["group.protocol"] = protocol
    config["max.poll.interval.ms"] = MAX_POLL_INTERVAL_MS
    if instance_id is not None:
        config["group.instance.id"] = instance_id
    if protocol == "classic":
        config["statistics.interval.ms"] = STATISTICS_MS
        config["session.timeout.ms"] = SESSION_TIMEOUT_MS
        config["heartbeat.interval.ms"] = 1_000
        config["partition.assignment.strategy"] = assignor
    return config


class RecordingConsumer:
    """One consumer of any kind; for one thread.

    Args:
        told_committed_only: what the history records, if not the same as `config` has.
        make_consumer: confluent-kafka's own when None.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        name: str,
        history: History,
        *,
        told_committed_only: bool | None = None,
        make_consumer: Callable[[dict[str, Any]], Any] | None = None,
    ) -> None:
        is_committed_only = config["isolation.level"] == "read_committed"
        self.errors: Counter[str] = Counter()
        self.complaints: list[str] = []
        self.lost: set[Log] = set()
        #: What the group has given to this member and not taken back, as far as the member knows.
        self.owned: frozenset[Log] = frozenset()
        #: Whether the group has ever given it a partition.
        self.has_been_given = False
        #: In time.monotonic()'s seconds.
        self.polled_at = time.monotonic()
        #: Why this consumer can do nothing any more.
        self.fatal_error: str | None = None
        self.has_lost_its_place = False
        self._is_member = False
        #: Since when it gives up partitions, in time.monotonic()'s seconds.
        self._unassigning_since: float | None = None
        self.positions: dict[Log, int] = {}
        self._taken: Taken = {}
        self._not_noted: Taken = {}
        self._asked: tuple[int, int | None] = (0, None)
        given = dict(config)
        if "statistics.interval.ms" in given:
            given["stats_cb"] = self._note_state
        self.consumer = (make_consumer or Consumer)(given)
        self._history = history
        self.record = history.consumer(
            name,
            is_committed_only=(
                is_committed_only if told_committed_only is None else told_committed_only
            ),
        )

    @property
    def is_stuck(self) -> bool:
        """Whether it is no member any more and will never notice: see UNASSIGNING."""
        since = self._unassigning_since
        return since is not None and time.monotonic() > since + STUCK_S

    def _note_state(self, statistics: str) -> None:
        if json.loads(statistics).get("cgrp", {}).get("join_state") not in UNASSIGNING:
            self._unassigning_since = None
        elif self._unassigning_since is None:
            self._unassigning_since = time.monotonic()

    # -- where it is -----------------------------------------------------------------------------

    def assign(self, positions: Mapping[Log, int]) -> None:
        """From now on these, from there, and no others."""
        gone = dict.fromkeys(self.positions.keys() - positions.keys())
        self.positions = dict(positions)
        self._place({**gone, **positions})
        self.consumer.assign(
            [TopicPartition(*log, position) for log, position in positions.items()]
        )

    def seek(self, positions: Mapping[Log, int]) -> None:
        """Go on somewhere else, where it is still assigned."""
        for log, position in positions.items():
            try:
                self.consumer.seek(TopicPartition(*log, position))
            except KafkaException:
                continue  # it has just been revoked
            self._place({log: position})
            self.positions[log] = position

    def subscribe(self, topics: Sequence[str]) -> None:
        """Join the group, which has an offset of every partition: see NO_OFFSET."""
        self._is_member = True
        self.consumer.subscribe(
            list(topics), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
        )

    def _assigned(self, _: Consumer, partitions: Iterable[Any]) -> None:
        logs = {Log(each.topic, each.partition) for each in partitions}
        self.owned |= logs
        self.has_been_given = self.has_been_given or bool(logs)
        self._place(dict.fromkeys(logs), owns=True)

    def _revoked(self, _: Consumer, partitions: Iterable[Any]) -> None:
        # One poll may revoke a partition, assign it again and bring a record of the new assignment.
        logs = {Log(each.topic, each.partition) for each in partitions}
        self.lost |= logs
        self.owned -= logs
        self._note()
        for log in logs:
            self.positions.pop(log, None)
            self._taken.pop(log, None)
        self._place(dict.fromkeys(logs), owns=False)

    def _place(self, positions: Mapping[Log, int | None], owns: bool | None = None) -> None:
        self.record.steps.append(Placed(self._history.now(), dict(positions), owns))

    # -- what it gets ----------------------------------------------------------------------------

    def take(self, limit: int, timeout_s: float, transaction: int | None = None) -> Taken:
        """Up to so many records, each log's in order; empty when there are none in that time."""
        self.lost.clear()
        self._taken = {}
        count, end = 0, time.monotonic() + timeout_s
        self._asked = (self._history.now(), transaction)
        while count < limit and not self.lost:
            # What has come already is taken without waiting for more.
            message = self.consumer.poll(0 if count else max(0.0, end - time.monotonic()))
            self.polled_at = time.monotonic()
            if message is None:
                break
            if self._is_error(message.error()):
                if time.monotonic() >= end:
                    break
                continue
            log = Log(message.topic(), message.partition())
            seen = Seen(message.offset(), decode(message.value()))
            self._taken.setdefault(log, []).append(seen)
            self._not_noted.setdefault(log, []).append(seen)
            count += 1
        self._note()
        return self._taken

    def _note(self) -> None:
        """Write down what has come since the last time, as one answer."""
        seen, self._not_noted = self._not_noted, {}
        if seen:
            began, transaction = self._asked
            self.record.steps.append(Poll(began, self._history.now(), seen, transaction))
        for log, records in seen.items():
            self.positions[log] = records[-1].offset + 1

    def _is_error(self, error: Any) -> bool:
        if error is None:
            return False
        self.errors[error.name()] += 1
        # The error that a poll brings does not have librdkafka's mark of a fatal one, but its code.
        if error.fatal() or error.code() == KafkaError._FATAL:
            self.fatal_error = error.str()
        if self._is_member and NO_OFFSET in error.str():
            self.has_lost_its_place = True
        elif error.code() in BROKEN_PROMISES:
            self.complaints.append(f"{self.record.name}: {error}")
        return True

    def close(self) -> None:
        """Leave the group, if it is in one."""
        self.consumer.close()

    def kill(self) -> None:
        """Vanish without leaving the group; the consumer has to be mortal."""
        self.consumer.kill()


class OffsetReader:
    """Asks a coordinator for a group's committed offsets, and writes down the answers."""

    def __init__(self, bootstrap: str, group: str, history: History) -> None:
        self._group = group
        self._history = history
        self._consumer = Consumer(consumer_config(bootstrap, group, is_committed_only=True))

    def read(self, logs: Sequence[Log]) -> dict[Log, int | None] | None:
        """Each log's offset, None where there is none; None when no coordinator answered."""
        began = self._history.now()
        try:
            answers = self._consumer.committed(
                [TopicPartition(*log) for log in logs], timeout=ASK_S
            )
        except KafkaException:
            return None
        ended = self._history.now()
        found: dict[Log, int | None] = {}
        for answer in answers:
            if answer.error is None:
                log = Log(answer.topic, answer.partition)
                found[log] = answer.offset if answer.offset >= 0 else None
                self._history.offset_reads.append(
                    OffsetRead(self._group, log, found[log], began, ended)
                )
        return found if len(found) == len(logs) else None

    def close(self) -> None:
        """Let go of the connection."""
        self._consumer.close()
