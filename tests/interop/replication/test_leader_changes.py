"""Unmodified clients with their defaults while leadership moves in each of the four ways: they keep
producing, go on reading from assigned partitions, and nothing acknowledged is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.java.tools import missing
from tests.interop.replication.clients import (
    AioKafkaWork,
    ConfluentWork,
    KafkaPythonWork,
    Work,
    duplicates,
)
from tests.interop.replication.java_work import JavaWork
from tests.interop.replication.three_brokers import ThreeBrokers
from tests.kit import judging

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(900),
]

ASSIGNMENT = [[1, 2, 3], [2, 3, 1]]


@pytest.fixture(scope="module")
def brokers() -> Iterator[ThreeBrokers]:
    with ThreeBrokers() as running:
        yield running


def check(brokers: ThreeBrokers, work: Work) -> None:
    """What was acknowledged is in the log, where the client's report says; the reader saw the
    log.
    """
    assert not work.failures, work.failures
    for partition, acknowledged in work.acknowledged.items():
        assert len(acknowledged) == work.handed[partition], "all were acknowledged in the end"
    final = ConfluentWork(brokers.bootstrap, work.topic, len(work.partitions), is_writing=False)
    ends = {each: max(offsets.values()) + 1 for each, offsets in work.acknowledged.items()}
    with final:
        final.wait_read(ends)
        work.wait_read(ends)
    with judging():
        for partition, end in ends.items():
            check_log(work, partition, final.read[partition], end)


def check_log(work: Work, partition: int, log: list[tuple[int, int]], end: int) -> None:
    """What was acknowledged is where its report says, and was read once and in order."""
    assert [offset for offset, _ in log] == list(range(len(log))), "no offset is missing"
    numbers = dict(log)
    lost = {
        number: offset
        for number, offset in work.acknowledged[partition].items()
        if numbers.get(offset) != number
    }
    assert not lost, f"acknowledged, and not where it should be: {lost}"
    assert work.read[partition][:end] == log[:end], "the reader missed or repeated something"
    if work.is_idempotent:
        written = [number for _, number in log]
        assert not duplicates(written)
        assert written == sorted(written)


def go_through_everything(brokers: ThreeBrokers, work: Work) -> None:
    """Each way of moving the leadership of partition 0, with progress while and after it moved."""
    moves: list[tuple[str, Callable[[str, Callable[[], None]], None]]] = [
        ("kill -9 of its leader", brokers.kill_leader),
        ("a preferred election", brokers.elect_preferred),
        ("the controlled shutdown of its leader", brokers.shut_leader_down),
        ("a reassignment away from its leader", brokers.reassign),
    ]
    with work:
        work.wait_progress("at all")
        for what, move in moves:
            move(work.topic, lambda what=what: work.wait_progress(f"during {what}"))  # type: ignore[misc]
            work.wait_progress(f"after {what}")
        work.finish_writing()
        check(brokers, work)


@pytest.mark.parametrize("kind", [ConfluentWork, KafkaPythonWork, AioKafkaWork])
def test_python_clients_go_on(brokers: ThreeBrokers, kind: type[Work]) -> None:
    topic = f"changes-{kind.name}"
    brokers.create(topic, ASSIGNMENT)
    go_through_everything(brokers, kind(brokers.bootstrap, topic, len(ASSIGNMENT)))


@pytest.mark.java
def test_the_java_client_goes_on(brokers: ThreeBrokers, tmp_path: Path) -> None:
    if missing():
        pytest.skip(missing())
    topic = "changes-java"
    brokers.create(topic, ASSIGNMENT)
    work = JavaWork(brokers.bootstrap, topic, len(ASSIGNMENT), log_path=tmp_path / "java.log")
    go_through_everything(brokers, work)
