"""All clients of one run: who writes what, who reads it, and how the run comes to its end.

Owns the topics' names, which clients there are, and the last reading. Must not: judge, or break
anything. Invariant: `finish` returns with every transaction decided, every group at the end of what
it consumes, and everything visible in the history, or says what is missing.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.kit.waiting import until
from tests.system.transactions.clients import (
    Client,
    Pipeline,
    RandomClient,
    Setting,
    TailReader,
)
from tests.system.transactions.consumers import OffsetReader, consumer_config
from tests.system.transactions.group_types import GroupTypes
from tests.system.transactions.history import History, Log, Seen
from tests.system.transactions.migrating_members import DIRECTIONS, MigratingMember
from tests.system.transactions.raw_sender import RawSender
from tests.system.transactions.senders import STUCK_S, ConfluentSender, Sender, decode

KEYS: Final = 5
PARTITION_COUNT: Final = 4
TOPICS: Final = tuple(f"key-{key}" for key in range(KEYS))
LOGS: Final = tuple(Log(topic, each) for topic in TOPICS for each in range(PARTITION_COUNT))


@dataclass(frozen=True, slots=True)
class Group:
    """What a group consumes, and how.

    Attributes:
        protocol: of the members that do not migrate; None: one consumer that is no member, with
            transaction version 2.
        assignors: those of the classic protocol that its members may have. Classic members that
            meet each other all have the first: cooperative and eager ones cannot rebalance
            together.
    """

    protocol: str | None
    topics: tuple[str, ...]
    assignors: tuple[str, ...] = ("cooperative-sticky",)

    @property
    def member_count(self) -> int:
        """How many clients it has; the last of several migrates."""
        return 1 if self.protocol is None else MEMBERS


MEMBERS: Final = 3
GROUPS: Final[dict[str, Group]] = {
    "classic": Group("classic", TOPICS[:2]),
    "consumer": Group("consumer", TOPICS[2:4], ("range", "roundrobin", "cooperative-sticky")),
    "eager": Group("classic", TOPICS[4:], ("range",)),
    "lonely": Group(None, TOPICS[4:]),
}
WATERMARK_S: Final = 20.0
#: Until every partition has an owner again. A client may get stuck in librdkafka as late as now,
#: for STUCK_S, and joins its group again afterwards.
OWNERS_S: Final = STUCK_S + 60.0
READ_S: Final = 0.5
LOOK_S: Final = 0.5
CONFLUENT_COUNT: Final = 3
RAW_COUNT: Final = 2
TAIL_OF_EVERYTHING: Final = "tail of everything"

WrapSender = Callable[[Sender], Sender]


def outputs_of(group: str) -> tuple[str, str]:
    """The two topics that a group's members write to."""
    return f"{group}-left", f"{group}-right"


def topics_with_counts(groups: Sequence[str] = tuple(GROUPS)) -> dict[str, int]:
    """Every topic of a run, with how many partitions it has."""
    outputs = {output: 1 for group in groups for output in outputs_of(group)}
    return {**dict.fromkeys(TOPICS, PARTITION_COUNT), **outputs}


def inputs_of(group: str) -> list[Log]:
    """What a group consumes."""
    return [log for log in LOGS if log.topic in GROUPS[group].topics]


class Watch:
    """Asks for a group's offsets every now and then, in its own thread."""

    def __init__(self, setting: Setting, group: str) -> None:
        self._setting = setting
        self._group = group
        self._stop = threading.Event()
        self._thread = threading.Thread(target=setting.run, args=(self._work,), name="watch")

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def finish(self) -> None:
        """End."""
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        reader = OffsetReader(self._setting.bootstrap, self._group, self._setting.history)
        try:
            while not self._stop.wait(LOOK_S):
                reader.read(inputs_of(self._group))
        finally:
            reader.close()


class Workload:
    """Use as a context; `finish` before the verdict.

    Args:
        has_version_2: there are clients that speak transaction version 2.
        groups: which of GROUPS there are.
        faulty: makes a client faulty by its name (see `faulty_clients.py`).
    """

    def __init__(
        self,
        setting: Setting,
        *,
        has_version_2: bool,
        groups: Sequence[str] = tuple(GROUPS),
        random_count: int = CONFLUENT_COUNT,
        faulty: Mapping[str, WrapSender] | None = None,
        extra: Sequence[TailReader] = (),
    ) -> None:
        self.setting = setting
        self._faulty = dict(faulty or {})
        self.groups = [name for name in groups if has_version_2 or GROUPS[name].protocol]
        for group in self.groups:
            setting.history.final.pipelines[group] = outputs_of(group)
        raw_count = RAW_COUNT if has_version_2 else 0
        self.writers: list[Client] = [
            RandomClient(setting, name, partial(self._confluent, name))
            for name in (f"random-{number}" for number in range(1, random_count + 1))
        ]
        self.writers += [
            RandomClient(setting, name, partial(self._raw, name))
            for name in (f"raw-{number}" for number in range(1, raw_count + 1))
        ]
        self.pipelines = [each for group in self.groups for each in self._members(group)]
        self.readers = [
            TailReader(setting, "tail of committed", is_committed_only=True),
            TailReader(setting, TAIL_OF_EVERYTHING, is_committed_only=False),
            *extra,
        ]
        self.types = GroupTypes(setting, self.groups)
        self.watches = [*(Watch(setting, group) for group in self.groups), self.types]
        #: How long it took after the faults until every partition had an owner.
        self.owned_after_s: float | None = None
        self._is_started = False

    # -- who takes part -------------------------------------------------------------------------

    def _confluent(self, name: str, transactional_id: str, process: str) -> Sender:
        setting = self.setting
        made = ConfluentSender(setting.bootstrap, transactional_id, process, setting.history)
        return self._faulty[name](made) if name in self._faulty else made

    def _raw(self, name: str, transactional_id: str, process: str) -> Sender:
        setting = self.setting
        dice = random.Random(f"{setting.seed}-{process}")
        made = RawSender(setting.bootstrap, transactional_id, process, setting.history, dice)
        return self._faulty[name](made) if name in self._faulty else made

    def _members(self, group: str) -> list[Pipeline]:
        described = GROUPS[group]
        make = self._raw if described.protocol is None else self._confluent
        names = [f"{group}-{each + 1}" for each in range(described.member_count)]
        options: dict[str, Any] = {
            "group": group,
            "protocol": described.protocol,
            "inputs": inputs_of(group),
            "outputs": outputs_of(group),
            "stands": partial(self._offsets, group),
        }
        assignors = described.assignors
        members = [
            Pipeline(self.setting, name, partial(make, name), assignor=assignors[0], **options)
            for name in names[: MEMBERS - 1]
        ]
        members += [
            MigratingMember(self.setting, name, partial(make, name), assignors=assignors, **options)
            for name in names[MEMBERS - 1 :]
        ]
        return members

    def _offsets(self, group: str) -> dict[Log, int | None] | None:
        reader = OffsetReader(self.setting.bootstrap, group, self.setting.history)
        try:
            return reader.read(inputs_of(group))
        finally:
            reader.close()

    # -- from begin to end -----------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._is_started = True
        self.setting.run(self._place_groups)
        for each in (*self.writers, *self.pipelines, *self.readers, *self.watches):
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.setting.stop.set()
        for client in (*self.writers, *self.pipelines, *self.readers):
            client.join()
        for watch in self.watches:
            watch.finish()

    def _place_groups(self) -> None:
        """Every group begins at the beginning, by its own offset: a member that reads
        that there is none got a wrong answer.
        """
        for group in self.groups:
            config = consumer_config(self.setting.bootstrap, group, is_committed_only=True)
            offsets = [TopicPartition(*log, 0) for log in inputs_of(group)]
            consumer = Consumer(config)
            try:
                until(
                    partial(_is_committed, consumer, offsets), what=f"the first offsets of {group}"
                )
            finally:
                consumer.close()

    @property
    def committed_count(self) -> int:
        """Transactions that were committed so far."""
        return sum(client.committed_count for client in (*self.writers, *self.pipelines))

    @property
    def migrations(self) -> Counter[str]:
        """Members that have changed their protocol, and groups that have, each by direction; and
        how the members' lives were and ended.
        """
        found = Counter(dict.fromkeys(DIRECTIONS, 0))
        for member in self.pipelines:
            if isinstance(member, MigratingMember):
                found.update(member.migrations)
        found.update({f"groups {way}": count for way, count in self.types.changes.items()})
        return found

    @property
    def complaints(self) -> list[str]:
        """The errors that no client may ever get, and who has died of what."""
        everybody = (*self.writers, *self.pipelines, *self.readers)
        return [text for client in everybody for text in client.complaints]

    def settle(self, deadline_s: float) -> list[str]:
        """Let the writers end, the groups get to their ends, and all else end; then read
        everything. Returns what did not come about.
        """
        missing: list[str] = []
        self.setting.is_calm.set()
        begin = time.monotonic()
        missing += self._wait_owned(begin + min(OWNERS_S, deadline_s))
        if not missing:
            self.owned_after_s = time.monotonic() - begin
        for writer in self.writers:
            writer.stop.set()
        for writer in self.writers:
            writer.join()
        run = self.setting.run
        end = time.monotonic() + deadline_s
        undecided = run(self._wait_decided, LOGS, end)
        missing += undecided or run(self._wait_consumed, end)
        for pipeline in self.pipelines:
            pipeline.stop.set()
        for pipeline in self.pipelines:
            pipeline.join()
        # One of them may have been stuck in its client for longer than all the rest took.
        end = max(end, time.monotonic() + WATERMARK_S)
        everything = [Log(t, p) for t, count in self._topics().items() for p in range(count)]
        missing += run(self._wait_decided, everything, end)
        self.setting.stop.set()
        missing += run(self._read_everything, everything, max(end, time.monotonic() + WATERMARK_S))
        for group in self.groups:
            try:
                until(
                    lambda group=group: run(self._offsets, group) is not None,  # type: ignore[misc]
                    what=f"a coordinator says where {group} stands",
                    deadline_s=WATERMARK_S,
                )
            except TimeoutError as error:
                missing.append(str(error))
        return missing

    def _topics(self) -> dict[str, int]:
        return topics_with_counts(self.groups)

    def _wait_owned(self, end: float) -> list[str]:
        """Wait until each partition of each group has one owner, and every member owns some."""
        waiting = [group for group in self.groups if GROUPS[group].protocol is not None]
        text = ""
        while waiting and time.monotonic() < end and not self.complaints:
            owned = {
                member.name: member.owned
                for member in self.pipelines
                if member.group == waiting[-1]
            }
            counts = Counter(log for logs in owned.values() for log in logs)
            if all(owned.values()) and counts == Counter(inputs_of(waiting[-1])):
                waiting.pop()
                continue
            told = (f"{name} has {', '.join(map(str, sorted(own)))}" for name, own in owned.items())
            text = f"{waiting[-1]}: {'; '.join(told)}"
            threading.Event().wait(LOOK_S)
        return [f"no owners: {text}, {len(waiting)} groups left"] if waiting else []

    def _wait_decided(self, logs: Sequence[Log], end: float) -> list[str]:
        """Wait until the last stable offset of each is its high watermark."""
        readers = [_consumer(self.setting.bootstrap, each) for each in (True, False)]
        waiting = list(logs)
        text = ""
        while waiting and time.monotonic() < end:
            try:
                stable, high = (_end(each, waiting[-1]) for each in readers)
            except KafkaException as error:
                text = str(error)
                continue
            if stable == high:
                waiting.pop()
                continue
            text = f"{waiting[-1]}: last stable offset {stable}, high watermark {high}"
            threading.Event().wait(LOOK_S)
        for reader in readers:
            reader.close()
        return [f"undecided: {text}, {len(waiting)} logs left"] if waiting else []

    def _wait_consumed(self, end: float) -> list[str]:
        """Wait until every group's offsets are behind every visible record."""
        history = self.setting.history
        visible, complaint = read_visible(self.setting.bootstrap, LOGS, end)
        if complaint:
            return [complaint]
        for group in self.groups:
            reader = OffsetReader(self.setting.bootstrap, group, history)
            try:
                while True:
                    inputs = inputs_of(group)
                    offsets = reader.read(inputs) or {}
                    behind = [
                        f"{log} at {offsets.get(log)}"
                        for log in inputs
                        if visible[log][0] and (offsets.get(log) or 0) <= visible[log][0][-1].offset
                    ]
                    if not behind:
                        break
                    if time.monotonic() >= end:
                        return [f"group {group} does not get on: {', '.join(behind)}"]
                    threading.Event().wait(LOOK_S)
            finally:
                reader.close()
        return []

    def _read_everything(self, logs: Sequence[Log], end: float) -> list[str]:
        found, complaint = read_visible(self.setting.bootstrap, logs, end)
        final = self.setting.history.final
        for log, (records, end_offset) in found.items():
            final.records[log] = records
            if end_offset is not None:
                final.ends[log] = end_offset
        return [complaint] if complaint else []


def _is_committed(consumer: Consumer, offsets: list[TopicPartition]) -> bool:
    try:
        answers = consumer.commit(offsets=offsets, asynchronous=False)
    except KafkaException:
        return False  # no broker coordinates yet
    return all(each.error is None for each in answers)


def _consumer(bootstrap: str, is_committed_only: bool) -> Consumer:
    return Consumer(consumer_config(bootstrap, "unused", is_committed_only=is_committed_only))


def _end(consumer: Consumer, log: Log) -> int:
    """The high watermark, or the last stable offset for a reader of committed ones."""
    where = TopicPartition(*log)
    _, end = consumer.get_watermark_offsets(where, timeout=WATERMARK_S, cached=False)
    return int(end)


def read_visible(
    bootstrap: str, logs: Sequence[Log], end: float
) -> tuple[dict[Log, tuple[list[Seen], int | None]], str]:
    """What read_committed gets of each log, and up to which offset, None if not to its end; with
    what is missing, empty when nothing is. `end`: when to give up, in time.monotonic()'s seconds.
    """
    config: dict[str, Any] = consumer_config(bootstrap, "unused", is_committed_only=True)
    config["enable.partition.eof"] = True
    consumer = Consumer(config)
    records: dict[Log, list[Seen]] = {log: [] for log in logs}
    ends: dict[Log, int] = {}
    waiting: set[Log] = set(logs)
    complaint = ""
    try:
        consumer.assign([TopicPartition(*log, 0) for log in logs])
        while waiting and not complaint:
            for message in consumer.consume(500, READ_S):
                log = Log(message.topic(), message.partition())
                error = message.error()
                if error is None:
                    records[log].append(Seen(message.offset(), decode(message.value())))
                elif error.code() == KafkaError._PARTITION_EOF:
                    waiting.discard(log)
                    ends[log] = message.offset()
            if waiting and time.monotonic() >= end:
                complaint = f"cannot be read to the end: {', '.join(map(str, sorted(waiting)))}"
    finally:
        consumer.close()
    return {log: (records[log], ends.get(log)) for log in logs}, complaint


def new_setting(bootstrap: str, seed: int, **options: Any) -> Setting:
    """A setting with an empty history, over all LOGS."""
    return Setting(History(), bootstrap, LOGS, seed, **options)
