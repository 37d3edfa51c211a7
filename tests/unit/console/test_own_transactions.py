"""Rows of transactions: what coordinators say, what hangs, which are wanted; and the commands."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.client import (
    Broker,
    ProducerState,
    TopicPartition,
    TransactionDescription,
    TransactionListing,
)
from moldau.console.own.transactions import (
    abort_command,
    describe,
    hanging_rows,
    is_wanted,
    row_of,
    terminate_command,
)
from moldau.hanging_transactions import OpenTransaction
from tests.unit.console.command_lines import parsed

NOW_MS = 1_000_000
A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def described(state: str, started_ms: int | None = 400_000) -> TransactionDescription:
    coordinator = Broker(2, "h", 9, None)
    return TransactionDescription(
        "x", coordinator, 7, 3, state, 60, started_ms, frozenset([A1, A0])
    )


def row(state: str, started_ms: int | None = 400_000) -> dict[str, Any]:
    made = row_of(TransactionListing("x", 7, "Ongoing", 2))
    describe(made, described(state, started_ms), NOW_MS)
    return made


def test_a_row_has_what_its_coordinator_says() -> None:
    assert row("Ongoing") == {
        "transactional_id": "x",
        "producer_id": 7,
        "producer_epoch": 3,
        "state": "Ongoing",
        "coordinator": 2,
        "timeout_ms": 60,
        "start_time_ms": 400_000,
        "age_ms": 600_000,
        "partitions": [
            {"topic": "a", "partition": 0, "start_offset": None},
            {"topic": "a", "partition": 1, "start_offset": None},
        ],
        "is_hanging": False,
    }


@pytest.mark.parametrize("state", ["CompleteCommit", "CompleteAbort", "Empty", "Dead"])
def test_what_is_not_open_has_no_age(state: str) -> None:
    made = row(state)
    assert (made["state"], made["start_time_ms"], made["age_ms"]) == (state, None, None)


def test_a_clock_that_is_behind_gives_no_negative_age() -> None:
    assert row("Ongoing", NOW_MS + 5)["age_ms"] == 0


def test_what_a_producer_has_left_open_is_one_row() -> None:
    hanging = [
        OpenTransaction(A1, ProducerState(7, 1, 0, 300_000, 0, 20)),
        OpenTransaction(A0, ProducerState(7, 0, 0, 200_000, 0, 10)),
        OpenTransaction(A0, ProducerState(8, 0, 0, 900_000, 0, 30)),
    ]
    first, second = hanging_rows(hanging, NOW_MS)
    assert (first["producer_id"], first["age_ms"], first["is_hanging"]) == (7, 800_000, True)
    assert [(each["partition"], each["start_offset"]) for each in first["partitions"]] == [
        (0, 10),
        (1, 20),
    ]
    assert (second["producer_id"], second["age_ms"]) == (8, 100_000)


@pytest.mark.parametrize(
    ("state", "least_ms", "is_in"),
    [
        (None, None, True),
        (None, 0, True),
        ("Ongoing", None, True),
        ("Empty", None, False),
        (None, 600_000, True),
        (None, 600_001, False),
    ],
)
def test_which_rows_are_wanted(state: str | None, least_ms: int | None, is_in: bool) -> None:
    assert is_wanted(row("Ongoing"), state, least_ms) is is_in


def test_what_has_ended_is_not_old() -> None:
    assert is_wanted(row("CompleteCommit"), None, 0)
    assert not is_wanted(row("CompleteCommit"), None, 1)


def test_an_abort_on_a_partition_as_a_command() -> None:
    assert parsed(abort_command(A1, 5)) == (
        "transactions abort",
        {"partition": "a:1", "start_offset": 5},
    )
    internal = parsed(abort_command(TopicPartition("__consumer_offsets", 3), 0)).given
    assert internal == {"partition": "__consumer_offsets:3", "start_offset": 0, "internal": True}


@pytest.mark.parametrize("name", ["plain", "-x", "a b", "it's"])
def test_an_abort_of_an_id_as_a_command(name: str) -> None:
    given = {"transactional_ids": (name,)}
    assert parsed(terminate_command(name)) == ("transactions force-terminate", given)
