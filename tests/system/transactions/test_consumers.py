"""What the workload makes of partitions that are revoked while it takes records, and of errors."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError

from tests.system.transactions import consumers
from tests.system.transactions.clients import Pipeline
from tests.system.transactions.consumers import RecordingConsumer, member_config
from tests.system.transactions.history import History, Log, Outcome, Placed, Poll, Transaction
from tests.system.transactions.senders import Broken, MustAbort

LEFT = Log("left", 0)
RIGHT = Log("right", 0)


class Message:
    """A record as confluent-kafka hands it out."""

    def __init__(self, log: Log, offset: int) -> None:
        self._log, self._offset = log, offset

    def error(self) -> Any:
        return None

    def topic(self) -> str:
        return self._log.topic

    def partition(self) -> int:
        return self._log.partition

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes:
        return b"process/1/%d" % self._offset


class ScriptedConsumer:
    """Does what the test says at each poll: call back, then bring a record."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.say_state = config["stats_cb"]
        self.script: list[Callable[[], Message | None]] = []
        self.calls: dict[str, Callable[..., None]] = {}
        self.sought: list[tuple[str, int]] = []

    def subscribe(self, _topics: list[str], **calls: Callable[..., None]) -> None:
        self.calls = calls

    def poll(self, _timeout: float) -> Message | None:
        return self.script.pop(0)() if self.script else None

    def seek(self, place: Any) -> None:
        self.sought.append((place.topic, place.offset))

    def change(self, log: Log, then: Message | None) -> Message | None:
        """Revoke a partition and assign it again."""
        place = consumers.TopicPartition(*log)
        self.calls["on_revoke"](self, [place])
        self.calls["on_assign"](self, [place])
        return then


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> RecordingConsumer:
    monkeypatch.setattr(consumers, "Consumer", ScriptedConsumer)
    made = RecordingConsumer(member_config("127.0.0.1:1", "group", "classic"), "one", History())
    made.subscribe(["left", "right"])
    return made


def script_of(reader: RecordingConsumer) -> ScriptedConsumer:
    found: Any = reader.consumer
    assert isinstance(found, ScriptedConsumer)
    return found


def test_what_was_taken_before_a_revocation_is_only_history(reader: RecordingConsumer) -> None:
    scripted = script_of(reader)
    scripted.script = [
        lambda: Message(LEFT, 5),
        lambda: Message(RIGHT, 7),
        lambda: scripted.change(LEFT, None),
    ]
    taken = reader.take(10, 0.0)
    assert {log: [each.offset for each in seen] for log, seen in taken.items()} == {RIGHT: [7]}
    assert reader.lost == {LEFT}
    assert reader.positions == {RIGHT: 8}
    first, revoked, assigned = reader.record.steps
    assert isinstance(first, Poll)
    assert set(first.records) == {LEFT, RIGHT}
    assert isinstance(revoked, Placed)
    assert isinstance(assigned, Placed)


def test_a_record_of_the_new_assignment_comes_after_it(reader: RecordingConsumer) -> None:
    scripted = script_of(reader)
    scripted.script = [
        lambda: Message(LEFT, 5),
        lambda: scripted.change(LEFT, Message(LEFT, 3)),
    ]
    taken = reader.take(10, 0.0)
    assert [each.offset for each in taken[LEFT]] == [3]
    assert reader.positions == {LEFT: 4}
    assert [type(step) for step in reader.record.steps] == [Poll, Placed, Placed, Poll]


def test_a_member_never_goes_back_behind_its_new_assignment(reader: RecordingConsumer) -> None:
    """Others have gone on: its old place would take their records once more."""
    setting: Any = None
    pipeline = Pipeline.__new__(Pipeline)
    pipeline.group, pipeline._reader, pipeline.dice = "group", reader, random.Random(1)
    scripted = script_of(reader)
    reader.positions[LEFT] = 1778
    scripted.script = [lambda: scripted.change(LEFT, Message(LEFT, 1791))]
    transaction = Transaction(1, "one.1", "one", began=1, outcome=Outcome.ABORTED)
    with pytest.raises(MustAbort):
        pipeline.fill(transaction, setting)
    pipeline.aborted(transaction)
    assert scripted.sought == [("left", 1791)]


class Trouble(Message):
    """An error in place of a record."""

    def __init__(self, text: str, code: int = KafkaError._AUTO_OFFSET_RESET) -> None:
        super().__init__(LEFT, -1)
        self._error = KafkaError(code, text)

    def error(self) -> Any:
        return self._error


def test_a_member_that_lost_its_place_is_done_for(reader: RecordingConsumer) -> None:
    """Its library's fault, which must not become a record that is processed twice."""
    setting: Any = None
    pipeline = Pipeline.__new__(Pipeline)
    pipeline.group, pipeline._reader, pipeline.dice = "group", reader, random.Random(1)
    script_of(reader).script = [
        lambda: Message(RIGHT, 7),
        lambda: Trouble("no previously committed offset available: Local: No offset stored"),
    ]
    with pytest.raises(Broken):
        pipeline.fill(Transaction(1, "one.1", "one", began=1), setting)
    assert reader.complaints == []


def test_an_offset_out_of_range_is_a_broken_promise(reader: RecordingConsumer) -> None:
    script_of(reader).script = [lambda: Trouble("requested offset not available on the broker")]
    reader.take(10, 0.0)
    assert not reader.has_lost_its_place
    assert len(reader.complaints) == 1


def test_a_member_with_a_fatal_error_does_not_go_on(reader: RecordingConsumer) -> None:
    """As a poll brings it: with the code of fatal errors, and without their mark."""
    setting: Any = None
    pipeline = Pipeline.__new__(Pipeline)
    pipeline.group, pipeline._reader, pipeline.dice = "group", reader, random.Random(1)
    trouble = Trouble("the instance ID is still used by another member", KafkaError._FATAL)
    assert not trouble.error().fatal()
    script_of(reader).script = [lambda: trouble]
    with pytest.raises(Broken, match="instance ID"):
        pipeline.fill(Transaction(1, "one.1", "one", began=1), setting)


@pytest.mark.parametrize("state", ["wait-incr-unassign-to-complete", "steady"])
def test_a_member_that_waits_for_ever_to_give_up_partitions_is_done_for(
    reader: RecordingConsumer, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """A classic member of librdkafka that has missed an answer about offsets."""
    setting: Any = None
    pipeline = Pipeline.__new__(Pipeline)
    pipeline.group, pipeline._reader, pipeline.dice = "group", reader, random.Random(1)
    said = json.dumps({"cgrp": {"join_state": "wait-incr-unassign-to-complete"}})
    now_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    script_of(reader).say_state(said)
    assert not pipeline.fill(Transaction(1, "one.1", "one", began=1), setting)
    now_s += consumers.STUCK_S + 1
    script_of(reader).say_state(json.dumps({"cgrp": {"join_state": state}}))
    if state == "steady":
        assert not pipeline.fill(Transaction(2, "one.1", "one", began=1), setting)
        return
    with pytest.raises(Broken, match="for ever"):
        pipeline.fill(Transaction(2, "one.1", "one", began=1), setting)
