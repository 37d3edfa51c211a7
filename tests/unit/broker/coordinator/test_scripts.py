"""Golden interaction scripts of the group and the transaction coordinator (`scripts/`).

Clients, the log and time are the script's; the state machines and the runtime around them are the
product's. `tests.kit.golden_scripts` says how scripts are read and written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from moldau.broker.coordinator.core.result import NO_PRODUCER, Producer
from moldau.broker.coordinator.transaction.core.state import (
    ProducerAnswer,
)
from moldau.broker.coordinator.transaction.core.transaction import TransactionStatus
from moldau.protocol.coordinator_records import CONSUMER_OFFSETS, TRANSACTION_STATE
from moldau.protocol.errors import ErrorCode
from tests.kit.golden_scripts import check_script
from tests.unit.broker.coordinator.group.consumer_harness import Consumer, ConsumerShard
from tests.unit.broker.coordinator.group.harness import Member, topic_id_of
from tests.unit.broker.coordinator.harness import MemoryPartition
from tests.unit.broker.coordinator.script_words import Script, partitions_of
from tests.unit.broker.coordinator.transaction.bench import Bench

SCRIPTS = Path(__file__).parent / "scripts"


class GroupScript(Script):
    """The group `team`: members of the classic protocol, and consumers of the new one."""

    def __init__(self) -> None:
        super().__init__(CONSUMER_OFFSETS)
        self.groups = ConsumerShard(is_committing_at_once=True)
        self.members: dict[str, Member] = {}
        self.consumers: dict[str, Consumer] = {}
        self.state = "Dead"

    @property
    def partition(self) -> MemoryPartition:
        return self.groups.broker.partition(0)

    def _changes(self) -> Iterator[str]:
        if not self.partition.leader_epoch >= 0:
            return
        before, self.state = self.state, self.groups.group_state()
        if self.state != before:
            yield f"the group: {before} -> {self.state}"

    # -- the classic protocol --------------------------------------------------------------------

    def join(self, name: str, instance: str | None = None, protocols: str = "range") -> None:
        """Ask to join, with the id that the coordinator has handed out, if there is one."""
        member = self.members.get(name)
        if member is None:
            offered = {each: b"topics of " + name.encode() for each in protocols.split(",")}
            member = self.groups.member(instance_id=instance, protocols=offered)
            self.members[name] = member
        self.ask(name, member.ask_to_join())
        self._learn(name, member)

    def _learn(self, name: str, member: Member) -> None:
        if member.joining.is_answered:
            answer = member.joining.answer
            if answer.member_id:
                member.member_id = answer.member_id
                self.names[answer.member_id] = name
            if answer.error_code == ErrorCode.NONE:
                member.generation = answer.generation_id

    def sync(self, name: str, **shares: str) -> None:
        """With options, as the leader: `b=events-1` is the share of b."""
        member = self.members[name]
        self._learn(name, member)
        assignments = {
            self.members[other].member_id: share.encode() for other, share in shares.items()
        }
        self.ask(name, member.sync(assignments))

    def beat(self, name: str, **changes: str) -> None:
        member = self.members[name]
        self._learn(name, member)
        generation = int(changes.get("generation", member.generation))
        self.ask(name, member.beat(generation=generation))

    def leave(self, name: str) -> None:
        self.ask(name, self.members[name].leave())

    # -- the new protocol ------------------------------------------------------------------------

    def consume(self, name: str, *topics: str, instance: str | None = None) -> None:
        """A consumer's first heartbeat."""
        consumer = self.groups.consumer(topics=topics, member_id=name, instance_id=instance)
        self.consumers[name] = consumer
        consumer.join()
        self.ask(name, consumer.last)

    def heartbeat(self, name: str, epoch: str | None = None) -> None:
        """What a consumer sends when its interval is over: what it has now, and its epoch."""
        consumer = self.consumers[name]
        changes = {} if epoch is None else {"member_epoch": int(epoch)}
        consumer.heartbeat(**changes)
        self.ask(name, consumer.last)

    def keep(self, name: str) -> None:
        """From now on the consumer keeps what it should give back, until `release`."""
        self.consumers[name].is_slow = True

    def release(self, name: str) -> None:
        consumer = self.consumers[name]
        consumer.is_slow = False
        consumer.release()

    def owned(self, name: str) -> list[str]:
        parts = [
            f"{topic}-{index}"
            for topic, indexes in sorted(self.consumers[name].owned.items())
            for index in sorted(indexes)
        ]
        return [f"{name} has {' '.join(parts) or 'nothing'}"]

    def quit(self, name: str) -> None:
        consumer = self.consumers[name]
        consumer.leave()
        self.ask(name, consumer.last)

    def away(self, name: str) -> None:
        """A static consumer leaves for a while."""
        consumer = self.consumers[name]
        consumer.leave(epoch=-2)
        self.ask(name, consumer.last)

    # -- offsets ---------------------------------------------------------------------------------

    def commit(self, *words: str, **offsets: str) -> None:
        """`commit a events-0=5`; without a name as a client outside of the group."""
        named = {tuple(partitions_of([each])[0]): int(to) for each, to in offsets.items()}
        if not words:
            self.ask("outside", self.groups.commit(named))
        elif words[0] in self.members:
            self.ask(words[0], self.members[words[0]].commit(named))
        else:
            consumer = self.consumers[words[0]]
            identity = {"member_id": consumer.member_id, "generation": consumer.epoch}
            self.ask(words[0], self.groups.commit(named, **identity))

    def commit_in_transaction(self, producer: str, **offsets: str) -> None:
        named = {tuple(partitions_of([each])[0]): int(to) for each, to in offsets.items()}
        caller = self.groups.commit_transactional(named, producer=tuple(_producer(producer)))
        self.ask(producer, caller)

    def end_transaction(self, producer: str, outcome: str) -> None:
        caller = self.groups.end_transaction(
            tuple(_producer(producer)), is_commit=outcome == "commit"
        )
        self.ask("marker", caller)

    def fetch(self, *partitions: str, stable: str = "no") -> None:
        wanted: dict[str, list[int]] = {}
        for topic, index in partitions_of([*partitions]):
            wanted.setdefault(topic, []).append(index)
        self.ask("outside", self.groups.fetch(wanted, require_stable=stable == "yes"))

    # -- what happens to the coordinator ---------------------------------------------------------

    def topic(self, name: str, partitions: str) -> None:
        self.groups.create_topic(name, int(partitions))
        self.names[str(topic_id_of(name))] = name

    def wait(self, elapsed_ms: str) -> None:
        self.groups.advance(int(elapsed_ms))
        for name, member in self.members.items():
            self._learn(name, member)

    def hold_commits(self) -> None:
        """The followers fall behind: what is appended is not committed before `replicate`."""
        self.partition.is_committing_at_once = False

    def replicate(self) -> None:
        self.partition.commit()

    def depose(self, keep: str | None = None) -> None:
        """Another broker leads; it has the log before `keep`."""
        self.groups.broker.depose(0, keep=None if keep is None else int(keep))

    def elect(self) -> None:
        self.groups.broker.elect(0)


def _producer(word: str) -> Producer:
    producer_id, _, producer_epoch = word.partition(":")
    return Producer(int(producer_id), int(producer_epoch))


def _pair(producer: Producer) -> str:
    return f"{producer.producer_id}:{producer.producer_epoch}"


class TransactionScript(Script):
    """Transactional ids; markers are written when the script says so."""

    def __init__(self) -> None:
        super().__init__(TRANSACTION_STATE)
        self.bench = Bench()
        self.sent_count = 0

    @property
    def partition(self) -> MemoryPartition:
        return self.bench.log

    def answer_line(self, answer: Any) -> str:
        match answer:
            case ProducerAnswer():
                pair = "" if answer.producer == NO_PRODUCER else f" {_pair(answer.producer)}"
                return f"{answer.error.name}{pair}"
            case dict():
                return " ".join(
                    f"{topic}-{index} {error.name}" for (topic, index), error in answer.items()
                )
        return super().answer_line(answer)

    def record_line(self, key: Any, value: Any) -> str:
        if value is None:
            return f"{key.transactional_id} deleted"
        parts = [
            key.transactional_id,
            TransactionStatus(value.transaction_status).words,
            f"{value.producer_id}:{value.producer_epoch}",
            *(
                f"{topic.topic}-{index}"
                for topic in value.transaction_partitions or ()
                for index in topic.partition_ids
            ),
        ]
        return " ".join(parts)

    def _changes(self) -> Iterator[str]:
        for command in self.bench.commands[self.sent_count :]:
            outcome = "COMMIT" if command.is_commit else "ABORT"
            to = " ".join(f"{topic}-{index}" for topic, index in sorted(command.remaining))
            yield f"sends {outcome} of {_pair(command.transaction.producer)} to {to}"
        self.sent_count = len(self.bench.commands)

    def version(self, version: str) -> None:
        """The finalized `transaction.version`."""
        self.bench.version = int(version)

    def init(self, name: str, producer: str | None = None, timeout: str = "60000") -> None:
        """InitProducerId, of a new instance or (`producer=`) of one that goes on."""
        options = {} if producer is None else {"expected": _producer(producer)}
        self.ask(name, self.bench.init(name, int(timeout), **options))

    def add(self, name: str, *partitions: str, producer: str, client: str = "2") -> None:
        found = partitions_of([*partitions])
        self.ask(name, self.bench.add(name, _producer(producer), found, int(client)))

    def verify(self, name: str, *partitions: str, producer: str) -> None:
        self.ask(name, self.bench.verify(name, _producer(producer), partitions_of([*partitions])))

    def end(self, name: str, outcome: str, producer: str, client: str = "2") -> None:
        is_commit = outcome == "commit"
        caller = self.bench.end(
            name, _producer(producer), is_commit=is_commit, client_version=int(client)
        )
        self.ask(name, caller)

    def written(self, *partitions: str) -> None:
        """The leaders of these partitions have the markers sent last."""
        self.bench.marker_written(self.bench.commands[-1], partitions_of([*partitions]))

    def status(self, name: str) -> list[str]:
        transaction = self.bench.transaction(name)
        status: TransactionStatus = transaction.status
        return [f"{name} is {status.words}, {_pair(transaction.producer)}"]

    def wait(self, elapsed_ms: str) -> None:
        self.bench.advance(int(elapsed_ms))

    def hold_commits(self) -> None:
        """The followers fall behind: what is appended is not committed before `replicate`."""
        self.partition.is_committing_at_once = False

    def replicate(self) -> None:
        self.bench.commit()

    def depose(self, keep: str | None = None) -> None:
        self.bench.broker.depose(keep=None if keep is None else int(keep))

    def elect(self) -> None:
        self.bench.broker.elect()


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.txt")), ids=lambda path: path.stem)
def test_script(path: Path) -> None:
    makes: dict[str, Callable[[], Script]] = {
        "group": GroupScript,
        "transaction": TransactionScript,
    }
    check_script(path, makes[path.stem.partition("_")[0]]().execute)


def test_there_are_scripts_of_both_coordinators() -> None:
    kinds = [path.stem.partition("_")[0] for path in SCRIPTS.glob("*.txt")]
    assert (kinds.count("group") >= 5, kinds.count("transaction") >= 4) == (True, True)
