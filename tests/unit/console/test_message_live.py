"""What a live tail shows of the records that come, and what it counts."""

from __future__ import annotations

import json
from typing import Any
from unittest import mock

from moldau.client import ConsumerRecord, TimestampType, TopicPartition
from moldau.console.clients import Clients
from moldau.console.own.message_forms import record_form
from moldau.console.own.message_live import Tail
from moldau.console.own.message_query import UNCOMMITTED, Asked, wanted
from moldau.console.reading import Budget, resumed

ONE, TWO = TopicPartition("t", 0), TopicPartition("t", 1)


def tail_of(rate: int = 10, where: str | None = None) -> Tail:
    asked = Asked(
        mock.Mock(spec=Clients),
        "t",
        {0: ONE, 1: TWO},
        UNCOMMITTED,
        wanted({"where": where, "grep": None, "key": None}),
        lambda record: record_form(record, ("auto", "auto"), 100),
    )
    return Tail(asked, rate, Budget(None, None, None, 100.0), {ONE: 0, TWO: 0})


def records(partition: TopicPartition, first: int, count: int) -> Any:
    return {
        partition: [
            ConsumerRecord(
                "t",
                partition.partition,
                number,
                1,
                TimestampType.CREATE_TIME,
                None,
                b'{"id": %d}' % number,
            )
            for number in range(first, first + count)
        ]
    }


def parsed(parts: Any) -> list[tuple[str, str, Any]]:
    """Id, name and data of each event."""
    found = []
    for event in b"".join(parts).decode().split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in event.split("\n"))
        found.append((fields["id"], fields["event"], json.loads(fields["data"])))
    return found


def test_records_beyond_the_rate_are_counted() -> None:
    tail = tail_of(rate=3)
    events = parsed(tail.events(records(ONE, 0, 5), 100.5))
    assert [(name, data["offset"]) for _, name, data in events] == [
        ("record", 0),
        ("record", 1),
        ("record", 2),
    ]
    [(_, name, progress)] = parsed(tail.events({}, 101.0))
    assert name == "progress"
    assert progress == {
        "read": {"records": 5, "bytes": 45, "seconds": 1.0},
        "dropped": 2,
        "rate_s": 5.0,
    }
    events = parsed(tail.events(records(ONE, 5, 4), 101.2))
    assert [data["offset"] for _, _, data in events] == [5, 6, 7]
    [(_, _, progress)] = parsed(tail.events({}, 102.0))
    assert (progress["dropped"], progress["rate_s"]) == (3, 4.0)


def test_ids_go_on_behind_each_record() -> None:
    tail = tail_of(rate=2)
    events = parsed(tail.events(records(ONE, 7, 2) | records(TWO, 4, 2), 100.0))
    assert [resumed(each, [ONE, TWO]) for each, _, _ in events] == [
        {ONE: 8, TWO: 0},
        {ONE: 9, TWO: 0},
    ]
    [(last_id, _, _)] = parsed(tail.events({}, 101.0))
    assert resumed(last_id, [ONE, TWO]) == {ONE: 9, TWO: 6}


def test_records_that_are_not_wanted_are_read_and_not_counted_as_dropped() -> None:
    tail = tail_of(rate=1, where="value.id == 3")
    events = parsed(tail.events(records(ONE, 0, 5), 101.0))
    assert [name for _, name, _ in events] == ["record", "progress"]
    assert events[0][2]["offset"] == 3
    assert events[1][2]["dropped"] == 0
    assert events[1][2]["read"]["records"] == 5


def test_progress_comes_once_in_a_second() -> None:
    tail = tail_of()
    assert tail.wait_s(100.25) == 0.75
    assert parsed(tail.events({}, 100.9)) == []
    assert len(parsed(tail.events({}, 101.1))) == 1
    assert parsed(tail.events({}, 101.2)) == []
    assert tail.wait_s(103.0) == 0.0


def test_much_is_written_in_parts() -> None:
    tail = tail_of(rate=5_000)
    parts = [*tail.events(records(ONE, 0, 2_000), 100.0)]
    assert len(parts) > 3
    assert max(map(len, parts)) < 70_000
    assert len(parsed(parts)) == 2_000
