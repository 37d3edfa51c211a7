"""`moldau topics describe`, `reassign` and `elect-leaders` on three brokers that replicate."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import pytest

from moldau.client import Admin, UnknownTopicOrPartition
from moldau.client.sync import Admin as BlockingAdmin
from moldau.testing import Cluster
from tests.kit.waiting import until
from tests.system.cli.conftest import WRONG_USAGE, Cli, heard, table
from tests.system.processes import Writer, read_all

#: Silence is noticed sooner than by default, so that the tests need not wait for it.
QUICK = {
    "default.replication.factor": "1",
    "broker.session.timeout.ms": "6000",
    "broker.heartbeat.interval.ms": "500",
    "min.insync.replicas": "1",
    "auto.leader.rebalance.enable": "false",
}
END_S = 30


@pytest.fixture(scope="module")
def trio() -> Iterator[Cluster]:
    """Every test leaves its brokers running."""
    with Cluster(brokers=3, config=QUICK) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def moldau(trio: Cluster) -> Cli:
    return Cli(trio.bootstrap_server)


@pytest.fixture
def name(trio: Cluster) -> Iterator[str]:
    """The name of a topic that is gone after the test, with the moves it began."""
    topic = f"topic-{uuid.uuid4().hex[:12]}"
    yield topic

    async def delete() -> None:
        async with Admin(trio.bootstrap_server) as admin:
            with suppress(UnknownTopicOrPartition):
                await admin.delete_topics([topic])

    asyncio.run(delete())


@pytest.fixture(scope="module")
def quiet(moldau: Cli) -> str:
    """A topic that nothing happens to."""
    moldau.ok("topics", "create", "quiet")
    return "quiet"


def rows(moldau: Cli, name: str, *options: str) -> list[dict[str, Any]]:
    """The partitions that `describe` shows of one topic."""
    documents = moldau.json("topics", "describe", name, *options)
    return documents[0]["partitions"] if documents else []


def create(moldau: Cli, name: str, *options: object) -> None:
    moldau.ok("topics", "create", name, *options)
    until(lambda: all(row["leader"] >= 0 for row in rows(moldau, name)), what=f"leaders of {name}")


def fill(trio: Cluster, name: str, count: int, size_bytes: int = 1000) -> None:
    """Write to partition 0, acknowledged by all."""
    writer = Writer(trio.bootstrap_server, name, acks="all")
    writer.send(count, size_bytes=size_bytes)
    writer.flush()
    assert not writer.refused


def throttles(moldau: Cli, kind: str, name: object) -> dict[str, str]:
    """What is set on one broker or topic about throttles."""
    entries = moldau.json("configs", "describe", kind, str(name))
    return {each["name"]: each["value"] for each in entries if "throttled" in each["name"]}


def moving(name: str, partition: int, replicas: list[int]) -> dict[str, Any]:
    return {"topic": name, "partition": partition, "replicas": replicas}


def test_where_every_replica_is(moldau: Cli, trio: Cluster, name: str):
    create(moldau, name, "--replication-factor", 3, "--config", "min.insync.replicas=2")
    fill(trio, name, 100)
    until(
        lambda: all(each["behind"] == 0 for each in rows(moldau, name)[0]["replica_logs"]),
        what="all replicas have everything",
    )
    [row] = rows(moldau, name)
    assert sorted(row["isr"]) == sorted(row["replicas"]) == [1, 2, 3]
    assert (row["out_of_sync_replicas"], row["offline_replicas"]) == ([], [])
    ends = (row["low_watermark"], row["high_watermark"], row["log_end_offset"])
    assert ends == (0, 100, 100)
    assert [each["log_end_offset"] for each in row["replica_logs"]] == [100] * 3
    header, shown = table(moldau.ok("topics", "describe", name))[1:]
    assert header[-3:] == ["low", "high", "end"], "columns that say nothing are left out"
    assert shown[-3:] == ["0", "100", "100"]
    for option in ("under-replicated", "unavailable", "under-min-isr", "at-min-isr"):
        assert moldau.json("topics", "describe", name, f"--{option}-partitions") == []
    [document] = moldau.json("topics", "describe", name, "--topics-with-overrides")
    assert document["min_insync_replicas"] == 2


def test_a_broker_that_is_down_is_seen(moldau: Cli, trio: Cluster, name: str):
    create(moldau, name, "--replication-factor", 2, "--config", "min.insync.replicas=2")
    fill(trio, name, 10)
    lost = rows(moldau, name)[0]["replicas"][1]
    assert rows(moldau, name, "--at-min-isr-partitions")
    trio.kill(lost)
    try:
        until(
            lambda: rows(moldau, name, "--under-replicated-partitions"),
            what=f"broker {lost} has left the in-sync replicas",
        )
        [row] = rows(moldau, name, "--under-min-isr-partitions")
        assert row["out_of_sync_replicas"] == row["offline_replicas"] == [lost]
        assert row["eligible_leader_replicas"] == [lost], "it has everything that was acknowledged"
        own = {each["broker_id"]: each for each in row["replica_logs"]}
        assert (own[lost]["log_end_offset"], own[lost]["behind"]) == (None, None)
        assert own[row["leader"]]["behind"] == 0
        assert (row["high_watermark"], row["log_end_offset"]) == (10, 10)
        assert rows(moldau, name, "--at-min-isr-partitions") == []
        trio.stop(row["leader"])
        try:
            until(lambda: rows(moldau, name, "--unavailable-partitions"), what="there is no leader")
            [row] = rows(moldau, name)
            assert (row["leader"], row["high_watermark"], row["log_end_offset"]) == (-1, None, None)
        finally:
            trio.restart(next(each for each in row["replicas"] if each != lost))
    finally:
        trio.restart(lost)
    until(lambda: rows(moldau, name, "--under-replicated-partitions") == [], what="all are in sync")


def test_topics_by_pattern(moldau: Cli, name: str):
    create(moldau, name)
    create(moldau, f"{name}.more")
    try:
        pattern = f"{name}.+"
        assert [each["name"] for each in moldau.json("topics", "describe", pattern)] == [
            f"{name}.more"
        ]
        both = moldau.json("topics", "describe", f"{name}|{name}.more", "--exclude-internal")
        assert [each["name"] for each in both] == [name, f"{name}.more"]
        assert "no topic's name matches" in moldau.refused("topics", "describe", "nothing.+")
        said = moldau.refused("topics", "describe", "(", status=WRONG_USAGE)
        assert "neither a topic's name nor a regular expression" in said
        two = ("--unavailable-partitions", "--at-min-isr-partitions")
        said = moldau.refused("topics", "describe", *two, status=WRONG_USAGE)
        assert "exclude each other" in said
    finally:
        moldau.ok("topics", "delete", f"{name}.more", "--yes")


WATCH = ("topics", "describe", "--watch", "--interval", "0.2")


def interrupted(process: subprocess.Popen[str]) -> None:
    """Ctrl-C: an orderly end."""
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=END_S)
    assert (process.returncode, errors) == (0, "")


def test_watching_prints_changes_as_lines(moldau: Cli, trio: Cluster, name: str):
    """A process, for the signal."""
    create(moldau, name, "--replication-factor", 3)
    process = moldau.start(*WATCH, name)
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert f" {name}-0 leader " in first
        assert " out-of-sync - " in first
        fill(trio, name, 7)
        while " high 7 end 7 behind -" not in (told := process.stdout.readline()):
            assert f" {name}-0 leader " in told, "the command has ended"
        interrupted(process)
    finally:
        process.kill()
        process.wait()


def test_watching_on_a_terminal_leaves_it_usable(moldau: Cli, name: str):
    """A process, for the signal."""
    create(moldau, name)
    ours, theirs = pty.openpty()
    process = moldau.start(*WATCH, name, stdout=theirs)
    os.close(theirs)
    drawn = b""

    def read() -> bool:
        nonlocal drawn
        try:
            drawn += os.read(ours, 1 << 16)
        except OSError:  # its other end is closed
            return False
        return True

    try:
        while drawn.count(name.encode()) < 2:
            assert read(), drawn
        assert b"\x1b[?25l" in drawn, "the cursor is hidden while the table is drawn"
        process.send_signal(signal.SIGINT)
        while read():
            pass
        _, errors = process.communicate(timeout=END_S)
        assert (process.returncode, errors) == (0, "")
        assert drawn.rindex(b"\x1b[?25h") > drawn.rindex(b"\x1b[?25l"), "and shown again"
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_topic_that_goes_while_it_is_watched(moldau: Cli, name: str, options: tuple[str, ...]):
    create(moldau, name)
    with BlockingAdmin(moldau.bootstrap) as admin:

        def delete(shown: TextIO) -> list[str]:
            lines = [shown.readline() for _ in range(2 if options else 1)]
            admin.delete_topics([name])
            return [*lines, *shown]

        with heard(delete) as (output, told):
            ended = moldau.end(*WATCH, name, *options, stdout=output)
    assert ended.status == 1
    assert "UNKNOWN_TOPIC_OR_PARTITION" in ended.complaint
    for line in told.result():
        assert name in line
        if options:
            [document] = json.loads(line)
            assert document["name"] == name


def test_a_partition_with_records_moves_there_and_back(
    moldau: Cli, trio: Cluster, name: str, tmp_path: Path
):
    create(moldau, name)
    fill(trio, name, 1_000)
    before = rows(moldau, name)[0]["replicas"]
    after = [each for each in (1, 2, 3) if each not in before]
    plan, rollback = tmp_path / "plan.json", tmp_path / "back.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [moving(name, 0, after)]}))
    shown = table(moldau.ok("topics", "reassign", "plan", "--from-json", plan))
    assert shown[1][:4] == [name, "0", str(before[0]), ",".join(map(str, after))]
    assert " ".join(shown[-1]).startswith("1 partitions change, 2 replicas are copied, 1.9 MiB")
    said = moldau.ok(
        "topics", "reassign", "execute", "--from-json", plan, "--rollback", rollback,
        "--throttle", 100_000_000, "--wait", "--interval", 0.1,
    ).splitlines()  # fmt: skip
    where = ",".join(map(str, after))
    assert said[0] == f"{name}-0 moves to {where}"
    assert said[-2] == f"{name}-0 is on {where}"
    assert said[-1] == f"throttles are taken from broker 1, broker 2, broker 3, topic {name}"
    assert len(read_all(trio.bootstrap_server, name)) == 1_000
    [row] = rows(moldau, name)
    assert (row["replicas"], sorted(row["isr"])) == (after, after)
    assert throttles(moldau, "topics", name) == {}
    moldau.ok("topics", "reassign", "execute", "--from-json", rollback, "--wait")
    assert rows(moldau, name)[0]["replicas"] == before
    assert len(read_all(trio.bootstrap_server, name)) == 1_000
    verified = moldau.json("topics", "reassign", "verify", "--from-json", rollback)
    assert [each["state"] for each in verified] == ["complete"]
    late = moldau.end("topics", "reassign", "verify", "--from-json", plan)
    assert (late.status, late.output) == (1, f"{name}-0 is on {before[0]}, not on {where}\n")
    assert late.complaint == "moldau: 1 of 1 partitions are not where they should be"


def interrupted_while_waiting(moldau: Cli, name: str) -> None:
    """Ctrl-C ends the waiting and says that the move goes on. A process, for the signal."""
    process = moldau.start("topics", "reassign", "verify", name, "--wait")
    try:
        assert process.stdout is not None
        assert name in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=END_S)
        assert process.returncode == 130
        assert errors.startswith("moldau: interrupted; moves that have begun go on")
        assert len(errors.splitlines()) == 1
    finally:
        process.kill()
        process.wait()


def test_a_move_that_cannot_end_is_shown_and_cancelled(moldau: Cli, trio: Cluster, name: str):
    """The broker that it goes to is down."""
    create(moldau, name)
    [stays] = rows(moldau, name)[0]["replicas"]
    down = 1 if stays == 3 else 3
    trio.stop(down)
    try:
        until(
            lambda: (
                "fenced" in [each["state"] for each in moldau.json("brokers", "list")["brokers"]]
            ),
            what="the broker is fenced",
        )
        execute = ("topics", "reassign", "execute", f"{name}:0", "--replicas", f"{stays},{down}")
        begun = moldau.end(*execute, "--throttle", 1_000_000)
        assert (begun.status, begun.output) == (0, f"{name}-0 moves to {stays},{down}\n")
        assert begun.errors == f"moldau: not throttled, since they are down: {down}\n"
        assert throttles(moldau, "brokers", stays) == {
            "leader.replication.throttled.rate": "1000000",
            "follower.replication.throttled.rate": "1000000",
        }
        assert throttles(moldau, "topics", name) == {
            "leader.replication.throttled.replicas": f"0:{stays}",
            "follower.replication.throttled.replicas": f"0:{down}",
        }
        [move] = moldau.json("topics", "reassign", "list")
        assert (move["adding_replicas"], move["removing_replicas"]) == ([down], [])
        [progress] = move["progress"]
        assert (progress["in_sync"], progress["behind_records"]) == (False, None)
        assert "0 B" not in moldau.ok("topics", "reassign", "list", name)
        [row] = rows(moldau, name)
        assert row["adding_replicas"] == [down]
        assert rows(moldau, name, "--under-replicated-partitions") == [], "not promised yet"
        late = moldau.end("topics", "reassign", "verify", name, "--wait", "--wait-timeout-ms", 500)
        assert late.status == 1
        assert late.output.endswith(f"{name}-0 is being moved\n")
        assert throttles(moldau, "topics", name), "it is still needed"
        interrupted_while_waiting(moldau, name)
        again = moldau.refused(*execute[:-1], f"{stays}")
        assert f"1 partitions are being moved already ({name}-0)" in again
        assert moldau.ok("topics", "reassign", "cancel", name) == (
            f"{name}-0 stays on {stays}\nthrottles are taken from broker {stays}, topic {name}\n"
        )
        assert throttles(moldau, "brokers", stays) == {}
        assert rows(moldau, name)[0]["replicas"] == [stays]
        assert moldau.ok("topics", "reassign", "list") == "no partition is being moved\n"
        nothing = moldau.refused("topics", "reassign", "cancel", name)
        assert nothing == "moldau: none of these partitions is being moved"
        assert moldau.refused("topics", "reassign", "cancel", "--all").endswith("is being moved")
    finally:
        trio.restart(down)


def test_a_throttled_move_is_followed_and_let_go(moldau: Cli, trio: Cluster, name: str):
    create(moldau, name)
    fill(trio, name, 5_000)
    [before] = rows(moldau, name)[0]["replicas"]
    after = before % 3 + 1
    execute = ("topics", "reassign", "execute", name, "--replicas", after)
    assert moldau.ok(*execute, "--throttle", 10_000) == f"{name}-0 moves to {after}\n"
    assert throttles(moldau, "brokers", after)["follower.replication.throttled.rate"] == "10000"
    [move] = moldau.json("topics", "reassign", "list")
    assert (move["adding_replicas"], move["removing_replicas"]) == ([after], [before])
    [progress] = move["progress"]
    assert progress["leader_log_end_offset"] == 5_000
    assert progress["behind_records"] > 0
    assert progress["missing_bytes"] > 0
    late = moldau.end("topics", "reassign", "verify", name, "--wait", "--wait-timeout-ms", 500)
    assert late.status == 1
    assert f" {name}-0 replica {after}: " in late.output
    assert late.output.endswith(f"{name}-0 is being moved\n")
    [row] = rows(moldau, name)
    assert (row["leader"], row["isr"]) == (before, [before])
    said = moldau.ok(*execute, "--throttle", 100_000_000, "--wait", "--interval", 0.2).splitlines()
    assert said[0] == "all partitions are where they should be, or on the way"
    assert said[-2] == f"{name}-0 is on {after}"
    assert said[-1].startswith("throttles are taken from broker ")
    assert throttles(moldau, "brokers", after) == throttles(moldau, "topics", name) == {}
    assert len(read_all(trio.bootstrap_server, name)) == 5_000


def test_a_throttled_move_is_cancelled(moldau: Cli, trio: Cluster, name: str):
    create(moldau, name)
    fill(trio, name, 5_000)
    [before] = rows(moldau, name)[0]["replicas"]
    after = before % 3 + 1
    moldau.ok("topics", "reassign", "execute", name, "--replicas", after, "--throttle", 10_000)
    said = moldau.ok("topics", "reassign", "cancel", name).splitlines()
    assert said[0] == f"{name}-0 stays on {before}"
    assert said[1].startswith("throttles are taken from broker ")
    assert rows(moldau, name)[0]["replicas"] == [before]
    assert len(read_all(trio.bootstrap_server, name)) == 5_000


def test_a_broker_is_emptied_by_a_plan(moldau: Cli, trio: Cluster, name: str, tmp_path: Path):
    create(moldau, name, "--partitions", 6, "--replication-factor", 2)
    plan = tmp_path / "plan.json"
    printed = moldau.json(
        "topics", "reassign", "plan", name, "--without", 2, "--output", plan
    )  # fmt: skip
    assert json.loads(plan.read_text()) == printed
    assert all(sorted(each["replicas"]) == [1, 3] for each in printed["partitions"])
    moldau.ok("topics", "reassign", "execute", name, "--without", 2, "--wait")
    assert {tuple(sorted(row["replicas"])) for row in rows(moldau, name)} == {(1, 3)}
    leaders = [row["replicas"][0] for row in rows(moldau, name)]
    assert sorted(leaders) == [1, 1, 1, 3, 3, 3]
    again = moldau.ok("topics", "reassign", "plan", name, "--without", 2)
    assert again == "all partitions are where they should be\n"
    fewer = ("--replication-factor", 1, "--without", 2)
    strict = "--disallow-replication-factor-change"
    refused = moldau.end("topics", "reassign", "execute", name, *fewer, strict)
    assert (refused.status, refused.output) == (1, "")
    assert "6 of 6 could not be moved: " in refused.complaint
    assert "INVALID_REPLICATION_FACTOR" in refused.complaint
    moldau.ok("topics", "reassign", "execute", name, *fewer, "--wait")
    assert {len(row["replicas"]) for row in rows(moldau, name)} == {1}


def test_a_broker_whose_replicas_have_no_other_place_is_not_emptied(moldau: Cli, name: str):
    create(moldau, name, "--replication-factor", 3)
    assert "needs 3 brokers and 2 may be used" in moldau.refused("brokers", "empty", 2)
    assert moldau.refused("brokers", "empty", 9) == (
        "moldau: there is no broker 9; there are 1, 2, 3"
    )


def test_preferred_leaders_come_back(moldau: Cli, trio: Cluster, name: str):
    create(moldau, name, "--replication-factor", 3)
    [row] = rows(moldau, name)
    preferred, *others = row["replicas"]
    moldau.ok(
        "topics", "reassign", "execute", name, "--replicas", f"{others[0]},{others[1]},{preferred}",
        "--wait",
    )  # fmt: skip
    assert rows(moldau, name)[0]["leader"] == preferred, "an order alone moves no leader"
    assert moldau.ok("topics", "elect-leaders", name) == f"{name}-0 elected\n"
    until(lambda: rows(moldau, name)[0]["leader"] == others[0], what="the preferred leads")
    assert moldau.ok("topics", "elect-leaders", f"{name}:0") == f"{name}-0 needed no election\n"
    said = moldau.refused(
        "topics", "elect-leaders", name, "--election", "unclean", status=WRONG_USAGE
    )
    assert "lacks acknowledged records" in said
    told = moldau.ok("topics", "elect-leaders", name, "--election", "unclean", "--yes")
    assert told == f"{name}-0 needed no election\n"


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (
            ["execute", "{name}:0", "--replicas", "1,9"],
            1,
            "there is no broker 9; there are 1, 2, 3",
        ),
        (
            ["execute", "{name}:7", "--replicas", "1"],
            1,
            "there is no partition 7 of {name}; it has",
        ),
        (["execute", "nowhere", "--replicas", "1"], 1, "UNKNOWN_TOPIC_OR_PARTITION"),
        (["plan", "{name}", "--replication-factor", "4"], 1, "needs 4 brokers and 3 may be used"),
        (["plan", "{name}", "--brokers", "8"], 1, "there is no broker 8"),
        (["plan", "{name}", "--racks", "a"], 1, "no broker is in rack 'a'; racks are none"),
        (["execute", "{name}", "--replicas", "1,1"], 2, "names a broker twice"),
        (["execute", "{name}", "--replicas", "1,b"], 2, "is not a list of broker ids"),
        (["execute", "{name}", "--replicas", "1", "--throttle", "0"], 2, "--throttle 0: nothing"),
        (["execute", "{name}", "--replicas", "1", "--throttle", "-5"], 2, "--throttle -5: nothing"),
        (["execute", "{name}", "--replicas", "1", "--without", "2"], 2, "exclude each other"),
        (["execute", "--brokers", "1"], 2, "say what to move"),
        (["execute", "--from-json", "/dev/null"], 2, "not JSON of the form"),
        (["verify", "{name}:x"], 2, "is not TOPIC or TOPIC:PARTITION"),
        (["cancel"], 2, "say which"),
        (["cancel", "{name}:0"], 1, "none of these partitions is being moved"),
        (["cancel", "{name}:0", "--all"], 2, "say which"),
    ],
)
def test_moves_that_are_not_begun(
    moldau: Cli, quiet: str, arguments: list[str], status: int, said: str
):
    given = [each.format(name=quiet) for each in arguments]
    line = moldau.refused("topics", "reassign", *given, status=status)
    assert said.format(name=quiet) in line


def test_a_move_that_is_refused_leaves_no_throttle(moldau: Cli, quiet: str):
    execute = ("topics", "reassign", "execute", quiet, "--throttle", "1000")
    moldau.refused(*execute, "--replicas", "1,9")
    assert throttles(moldau, "topics", quiet) == {}
