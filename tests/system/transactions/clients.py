"""Clients that run random transactions, or consume, transform and produce, while brokers suffer.

Owns their lives: a life is one producer, which ends in order, or is dropped in the middle of a
transaction, or lives on as a zombie beside its successor. Must not: judge, or look into a broker.
Invariants: a transaction is recorded as aborted unless its commit was asked for; every draw comes
from the client's own dice.
"""

from __future__ import annotations

import random
import struct
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.system.replication.load import Runner, here
from tests.system.transactions.consumers import (
    MAX_POLL_INTERVAL_MS,
    RecordingConsumer,
    Taken,
    consumer_config,
    member_config,
)
from tests.system.transactions.history import (
    NEVER,
    History,
    Log,
    OffsetCommit,
    Outcome,
    Send,
    Transaction,
)
from tests.system.transactions.senders import Broken, MustAbort, Sender

#: (transactional id, process) -> a producer that is not open yet.
MakeSender = Callable[[str, str], Sender]

SEND_SHARE: Final = 0.65
ABORT_SHARE: Final = 0.12
PLACE_SHARE: Final = 0.05
ZOMBIE_SHARE: Final = 0.25
DROP_SHARE: Final = 0.35
DAWDLE_SHARE: Final = 0.004
POLL_S: Final = 0.3
TAKE_LIMIT: Final = 30
RETRY_PAUSE_S: Final = 0.5
METADATA: Final = struct.Struct("=7si")
"""How librdkafka's group metadata begin: version, generation. Names that end with a zero follow."""


@dataclass(slots=True)
class Setting:
    """What all clients of one run share.

    `pause_s`: the longest time between transactions. `abort_share`: how many are aborted on
    purpose, of 1. `is_calm`: no life ends by a draw any more.
    """

    history: History
    bootstrap: str
    logs: Sequence[Log]
    seed: int
    run: Runner = here
    pause_s: float = 0.2
    abort_share: float = ABORT_SHARE
    stop: threading.Event = field(default_factory=threading.Event)
    is_calm: threading.Event = field(default_factory=threading.Event)


class Client(ABC):
    """One thread with one transactional id. `life_span`: how many transactions a producer makes."""

    life_span = (5, 40)

    def __init__(self, setting: Setting, name: str, make_sender: MakeSender) -> None:
        self.name = name
        self.complaints: list[str] = []
        self.notes: Counter[str] = Counter()
        self.committed_count = 0
        self.setting = setting
        self.history = setting.history
        self.dice = random.Random(f"{setting.seed}-{name}")
        self.stop = threading.Event()
        self._make_sender = make_sender
        self._life = 0
        self._thread = threading.Thread(target=setting.run, args=(self._guarded,), name=name)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def join(self) -> None:
        """Return when it has come to its end; it must have been asked to."""
        self._thread.join()

    @abstractmethod
    def fill(self, transaction: Transaction, sender: Sender) -> bool:
        """Put something into a transaction; False when there is nothing to commit."""

    def live(self) -> None:
        """Something around one life of the producer."""
        self._one_life()

    def aborted(self, transaction: Transaction) -> None:  # noqa: B027 - most do not care
        """The transaction came to nothing, or its outcome is unknown."""

    # -- lives -----------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether the client is to end."""
        return self.stop.is_set() or self.setting.stop.is_set()

    def _guarded(self) -> None:
        try:
            while not self.is_over:
                self.live()
        except Exception as error:  # noqa: BLE001 - a client that dies unseen proves nothing
            self.complaints.append(f"{self.name}: {type(error).__name__}: {error}")

    def _one_life(self) -> None:
        process = self._next_process()
        sender = self._make_sender(self.name, process)
        try:
            sender.open()
            left = self.dice.randint(*self.life_span)
            while left > 0 or self.setting.is_calm.is_set():
                if self.is_over:
                    return
                left -= 1
                self._transact(process, sender)
                self.setting.stop.wait(self.dice.uniform(0, self.setting.pause_s))
            if self.dice.random() < DROP_SHARE:
                self._leave_open(process, sender)
        except Broken as error:
            self.notes[str(error)[:80]] += 1
            self.setting.stop.wait(RETRY_PAUSE_S)
        finally:
            sender.close()

    def _next_process(self) -> str:
        self._life += 1
        return f"{self.name}.{self._life}"

    def _leave_open(self, process: str, sender: Sender) -> None:
        """Die in a transaction; now and then only after another producer has taken the id."""
        transaction = self.history.transaction(process, self.name)
        try:
            sender.begin()
            self.send(transaction, sender, self.dice.choice(self.setting.logs))
            if self.dice.random() < ZOMBIE_SHARE:
                self._haunt(transaction, sender)
        except MustAbort as error:
            transaction.note = str(error)
        finally:
            transaction.ended = self.history.now()

    def _haunt(self, transaction: Transaction, sender: Sender) -> None:
        """The old owner goes on after a new one has begun."""
        successor = self._make_sender(self.name, self._next_process())
        try:
            successor.open()
            self.send(transaction, sender, self.dice.choice(self.setting.logs))
            self._commit(transaction, sender)
            self.committed_count += 1
        except Broken as error:
            transaction.note = f"zombie: {error}"
            raise
        finally:
            successor.close()

    # -- transactions ----------------------------------------------------------------------------

    def _transact(self, process: str, sender: Sender) -> None:
        transaction = self.history.transaction(process, self.name)
        begin = time.monotonic()
        try:
            sender.begin()
            is_filled = self.fill(transaction, sender)
            if not is_filled or self.dice.random() < self.setting.abort_share:
                raise MustAbort("on purpose")
            self._commit(transaction, sender)
            self.committed_count += 1
        except MustAbort as error:
            transaction.note = str(error)
            self.notes[str(error)[:80]] += 1
            sender.abort()  # the outcome is unknown when this breaks, and a commit was asked for
            transaction.outcome = Outcome.ABORTED
        except Broken as error:
            transaction.note = str(error)
            raise
        finally:
            transaction.ended = self.history.now()
            if transaction.outcome is not Outcome.COMMITTED:
                transaction.note += f" (after {time.monotonic() - begin:.1f} s)"
                self.aborted(transaction)

    def _commit(self, transaction: Transaction, sender: Sender) -> None:
        if transaction.commit_began == NEVER:
            transaction.commit_began = self.history.now()
        transaction.outcome = Outcome.UNKNOWN
        sender.commit()
        transaction.outcome = Outcome.COMMITTED

    def send(
        self,
        transaction: Transaction,
        sender: Sender,
        log: Log,
        source: tuple[Log, int] | None = None,
    ) -> None:
        """One record of a value that no other producer sends."""
        value = self.history.value_of(transaction)
        send = Send(log, value, self.history.now(), source=source)
        transaction.sends.append(send)
        sender.send(send)


class RandomClient(Client):
    """Transactions of one to four sends and polls, over all logs; its consumer is in no group."""

    def __init__(self, setting: Setting, name: str, make_sender: MakeSender) -> None:
        super().__init__(setting, name, make_sender)
        self._reader: RecordingConsumer | None = None

    def live(self) -> None:
        config = consumer_config(self.setting.bootstrap, "unused", is_committed_only=True)
        if self._reader is None:
            self._reader = RecordingConsumer(config, f"{self.name}'s consumer", self.history)
            self._place(self._reader)
        self._one_life()

    def _guarded(self) -> None:
        super()._guarded()
        if self._reader is not None:
            self.complaints += self._reader.complaints
            self._reader.close()

    def fill(self, transaction: Transaction, sender: Sender) -> bool:
        assert self._reader is not None, "it lives"
        for _ in range(self.dice.randint(1, 4)):
            if self.dice.random() < SEND_SHARE:
                self.send(transaction, sender, self.dice.choice(self.setting.logs))
            else:
                if self.dice.random() < PLACE_SHARE:
                    self._place(self._reader)
                self._reader.take(TAKE_LIMIT, POLL_S, transaction.number)
        return True

    def _place(self, reader: RecordingConsumer) -> None:
        """Some logs, from where it was or, now and then, from the beginning."""
        chosen = self.dice.sample(
            list(self.setting.logs), self.dice.randint(1, len(self.setting.logs))
        )
        known = reader.positions if self.dice.random() < 0.9 else {}
        reader.assign({log: known.get(log, 0) for log in chosen})


class Member:
    """A group's member, for those who commit in its name.

    Put out, librdkafka may have neither a member id nor a generation until the application polls
    again. What is committed in such a name nothing fences: in Apache Kafka neither (KIP-447).
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    def consumer_group_metadata(self) -> Any:
        """Raises: MustAbort: it is no member any more"""
        metadata = self._consumer.consumer_group_metadata()
        generation, rest = METADATA.unpack_from(metadata)[1], bytes(metadata)[METADATA.size :]
        _group, member_id, *_ = rest.split(b"\0")
        if generation < 0 and not member_id:
            raise MustAbort("the consumer is no member any more")
        return metadata


class Pipeline(Client):
    """A member of a group: takes records, sends one for each to every output, commits offsets.

    Args:
        protocol: classic or consumer; None: it assigns itself all inputs, and no others may be in
            its group.
        assignor: of a classic member.
        outputs: topics with as many partitions as `partition_count`.
    """

    life_span = (20, 120)

    def __init__(
        self,
        setting: Setting,
        name: str,
        make_sender: MakeSender,
        *,
        group: str,
        protocol: str | None,
        assignor: str = "cooperative-sticky",
        inputs: Sequence[Log],
        outputs: Sequence[str],
        partition_count: int = 1,
        stands: Callable[[], Mapping[Log, int | None] | None] | None = None,
    ) -> None:
        super().__init__(setting, name, make_sender)
        self.group = group
        self._protocol = protocol
        self._assignor = assignor
        self._inputs = list(inputs)
        self._outputs = list(outputs)
        self._partition_count = partition_count
        self._stands = stands
        self._reader: RecordingConsumer | None = None

    @property
    def owned(self) -> frozenset[Log]:
        """What the group has given to it, as long as it polls often enough to keep that."""
        reader = self._reader
        if reader is None or time.monotonic() > reader.polled_at + MAX_POLL_INTERVAL_MS / 1000:
            return frozenset()
        return reader.owned

    def config(self) -> dict[str, Any]:
        """Its consumer's configuration, in its next life."""
        bootstrap = self.setting.bootstrap
        if self._protocol is None:
            return consumer_config(bootstrap, self.group, is_committed_only=True)
        return member_config(bootstrap, self.group, self._protocol, assignor=self._assignor)

    def reader(self, name: str) -> RecordingConsumer:
        """A consumer for its next life."""
        return RecordingConsumer(self.config(), name, self.history)

    def end(self, reader: RecordingConsumer) -> None:
        """The consumer's life is over."""
        reader.close()

    def live(self) -> None:
        """A life of the producer is one of the consumer, too."""
        name = f"{self.name}.{self._life + 1}"
        self._reader = self.reader(name)
        try:
            if self._protocol is not None:
                self._reader.subscribe(sorted({log.topic for log in self._inputs}))
                self._one_life()
            elif self._assign_itself():
                self._one_life()
        finally:
            self.complaints += self._reader.complaints
            self.notes.update({f"told {each}": n for each, n in self._reader.errors.items()})
            self.end(self._reader)
            self._reader = None

    def _assign_itself(self) -> bool:
        assert self._stands is not None, "who is in no group asks where it stands"
        found = self._stands()
        if found is None:
            self.setting.stop.wait(RETRY_PAUSE_S)
            return False
        assert self._reader is not None
        self._reader.assign({log: position or 0 for log, position in found.items()})
        return True

    def fill(self, transaction: Transaction, sender: Sender) -> bool:
        reader = self._reader
        assert reader is not None, "it lives"
        before = dict(reader.positions)
        taken = reader.take(TAKE_LIMIT, POLL_S, transaction.number)
        for log in reader.lost:  # and perhaps assigned again, by the group's offset
            before.pop(log, None)
        self._note_commits(transaction, taken, before)
        if reader.fatal_error is not None:
            raise Broken(f"consumer: {reader.fatal_error}")
        if reader.is_stuck:
            raise Broken("librdkafka waits for ever to give up partitions")
        if reader.has_lost_its_place:
            raise Broken("librdkafka has lost its place")
        if reader.lost:
            raise MustAbort("partitions were revoked")
        if not taken:
            return False
        for log, records in taken.items():
            for record in records:
                for output in self._outputs:
                    target = Log(output, record.offset % self._partition_count)
                    self.send(transaction, sender, target, (log, record.offset))
        is_slow = self._protocol is not None and self.dice.random() < DAWDLE_SHARE
        if is_slow and not self.setting.is_calm.is_set():
            self.notes["dawdled"] += 1
            self.setting.stop.wait(MAX_POLL_INTERVAL_MS * 1.5 / 1000)
        transaction.offsets_began = self.history.now()
        member: Any = reader.consumer if self._protocol is None else Member(reader.consumer)
        sender.send_offsets(transaction.commits, member)
        transaction.offsets_ended = self.history.now()
        return True

    def _note_commits(
        self, transaction: Transaction, taken: Taken, before: Mapping[Log, int]
    ) -> None:
        for log, records in taken.items():
            first = before.get(log, records[0].offset)
            next_offset = records[-1].offset + 1
            transaction.commits.append(OffsetCommit(self.group, log, first, next_offset))

    def aborted(self, transaction: Transaction) -> None:
        """What was taken is to be taken again."""
        if self._reader is not None and transaction.outcome is Outcome.ABORTED:
            self._reader.seek({each.log: each.first or 0 for each in transaction.commits})


class TailReader:
    """A consumer in no group that reads all logs on and on, in its own thread.

    Args:
        told_committed_only: what the history records; the truth when None.
    """

    def __init__(
        self,
        setting: Setting,
        name: str,
        *,
        is_committed_only: bool,
        told_committed_only: bool | None = None,
    ) -> None:
        self._told_committed_only = told_committed_only
        self.complaints: list[str] = []
        self.setting = setting
        config = consumer_config(setting.bootstrap, "unused", is_committed_only=is_committed_only)
        self._config, self._name = config, name
        self._thread = threading.Thread(target=setting.run, args=(self._work,), name=name)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def join(self) -> None:
        """Return when it has come to its end; it must have been asked to."""
        self._thread.join()

    def _work(self) -> None:
        reader = RecordingConsumer(
            self._config,
            self._name,
            self.setting.history,
            told_committed_only=self._told_committed_only,
        )
        try:
            reader.assign(dict.fromkeys(self.setting.logs, 0))
            while not self.setting.stop.is_set():
                reader.take(TAKE_LIMIT * 10, POLL_S)
        finally:
            self.complaints += reader.complaints
            reader.close()
