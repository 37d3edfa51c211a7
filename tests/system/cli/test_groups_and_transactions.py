"""`moldau groups`, `moldau transactions` and their loads against a running node."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from tests.interop.raw.hanging import PRODUCER_ID, VERIFICATION, begin_behind_the_coordinator
from tests.system.cli.conftest import FAILED, WRONG_USAGE, Cli

RECORD_COUNT = 40
JOIN_DEADLINE_S = 30.0


@pytest.fixture
def topic(cli: Cli) -> Iterator[str]:
    """Two partitions with records."""
    name = f"grouped-{uuid.uuid4().hex[:12]}"
    cli.ok("topics", "create", name, "--partitions", 2)
    cli.ok("bench", "produce", name, "--records", RECORD_COUNT, "--record-bytes", 10)
    yield name
    cli.ok("topics", "delete", name, "--yes")


def test_groups_are_chosen_by_words_that_there_are(cli: Cli):
    def refused(*options: str) -> str:
        return cli.refused("groups", "list", *options, status=WRONG_USAGE)

    line = refused("--state", "Empyt")
    assert "--state 'Empyt' is none of Empty, Stable, " in line
    assert line.endswith("; did you mean Empty?")
    line = refused("--type", "foo")
    assert line == "moldau: --type 'foo' is none of classic, consumer, share, streams"
    assert cli.json("groups", "list", "--state", "dead,NotReady", "--type", "CONSUMER") == []


def test_a_group_and_its_offsets(cli: Cli, topic: str, tmp_path: Path):
    group = f"group-{uuid.uuid4().hex[:12]}"
    in_group = ("groups", "reset-offsets", group, "--topic", topic)
    assert "GROUP_ID_NOT_FOUND" in cli.refused("groups", "describe", group)
    cli.ok(*in_group, "--to-offset", 5, "--execute")
    [described] = cli.json("groups", "describe", group)
    assert (described["state"], described["lag"]) == ("Empty", RECORD_COUNT - 2 * 5)
    assert group in [each["group_id"] for each in cli.json("groups", "list", "--state", "Empty")]

    consumer = Consumer(
        {
            "bootstrap.servers": cli.bootstrap,
            "group.id": group,
            "group.protocol": "consumer",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.subscribe([topic])
        deadline = time.monotonic() + JOIN_DEADLINE_S
        while len(consumer.assignment()) < 2 and time.monotonic() < deadline:
            consumer.poll(0.1)
        [described] = cli.json("groups", "describe", group)
        [member] = described["members"]
        assert member["assignment"] == {topic: [0, 1]}
        assert {each["member_id"] for each in described["offsets"]} == {member["member_id"]}
        assert (
            "while nobody is in the group" in cli.end(*in_group, "--to-latest", "--execute").errors
        )
        assert "NON_EMPTY_GROUP" in cli.refused("groups", "delete", group, "--yes")
        assert (
            "GROUP_SUBSCRIBED_TO_TOPIC"
            in cli.end("groups", "delete-offsets", group, "--topic", topic, "--yes").errors
        )
    finally:
        consumer.close()

    saved = tmp_path / "offsets.csv"
    saved.write_text(
        cli.ok("groups", "reset-offsets", group, "--all-topics", "--to-current", "--export")
    )
    cli.ok(*in_group, "--to-latest", "--execute")
    assert cli.json("groups", "describe", group)[0]["lag"] == 0
    cli.ok("groups", "reset-offsets", group, "--from-file", saved, "--execute")
    cli.ok("groups", "delete-offsets", group, "--topic", f"{topic}:1", "--yes")
    [described] = cli.json("groups", "describe", group)
    assert [(each["partition"], each["current_offset"]) for each in described["offsets"]] == [
        (0, 5)
    ]
    assert cli.ok("groups", "delete", group, "--yes") == f"deleted {group}\n"


def test_a_transaction_that_hangs(cli: Cli, topic: str):
    """Only the partition knows of it, as if its coordinator had forgotten it."""
    search = ("transactions", "find-hanging", "--topic", topic, "--max-transaction-timeout", 0)
    assert cli.ok(*search) == "no transaction hangs on 2 partitions\n"
    cli.ok("configs", "alter", "brokers", 1, "--set", f"{VERIFICATION}=false")
    try:
        asyncio.run(begin_behind_the_coordinator(cli.bootstrap, topic))
    finally:
        cli.ok("configs", "alter", "brokers", 1, "--delete", VERIFICATION)
    [hanging] = cli.json(*search)
    assert (hanging["partition"], hanging["producer_id"]) == (1, PRODUCER_ID)
    begin = hanging["start_offset"]
    abort = ("transactions", "abort", f"{topic}:1", "--start-offset", begin)
    assert f"from offset {begin} on (at most " in cli.refused(*abort, status=WRONG_USAGE)
    cli.ok(*abort, "--yes")
    assert cli.json(*search) == []
    [producer] = [
        each
        for each in cli.json("transactions", "describe-producers", f"{topic}:1")
        if each["producer_id"] == PRODUCER_ID
    ]
    assert producer["current_transaction_start_offset"] is None


@pytest.mark.parametrize("version", [1, 2])
def test_the_transactions_load(cli: Cli, version: int):
    document = cli.json(
        *("bench", "transactions", "--partitions", 1, "--partitions", 3, "--producers", 2),
        *("--seconds", 0.2, "--warm-up-seconds", 0, "--transaction-version", version),
    )
    assert document["transaction_version"] == version
    for figures, count in zip(document["figures"], (1, 3), strict=True):
        assert figures["partitions"] == count
        assert figures["commits"] > 0
        assert 0 < figures["commit_p50_ms"] <= figures["latency_p50_ms"]
    states = {each["state"] for each in cli.json("transactions", "list", "--pattern", "bench-.*")}
    assert states <= {"CompleteCommit", "PrepareCommit"}


def test_what_is_not_there(cli: Cli):
    nobody = f"nobody-{uuid.uuid4().hex[:12]}"
    ended = cli.end("transactions", "describe", nobody)
    assert (ended.status, "TRANSACTIONAL_ID_NOT_FOUND" in ended.errors) == (FAILED, True)
    assert "no open transaction" in cli.refused(
        *("transactions", "abort", "__transaction_state:0", "--start-offset", 0, "--internal")
    )
