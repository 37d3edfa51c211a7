"""Moving partitions: Apache Kafka's tools on our brokers, and `moldau topics` on Apache Kafka's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moldau.testing import Cluster
from tests.interop.conftest import ONE_REPLICA
from tests.interop.java.kafka_pair import kafka_pair
from tests.interop.java.tools import MAIN_CLASSES, JavaTools
from tests.kit.waiting import until
from tests.system.processes import Ended, Writer, read_all, run_cli

pytestmark = [pytest.mark.interop, pytest.mark.java, pytest.mark.timeout(300)]

MAIN_CLASSES.setdefault(
    "kafka-reassign-partitions",
    "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
)
RECORD_COUNT = 500


@pytest.fixture(scope="module")
def ours() -> Iterator[Cluster]:
    with Cluster(brokers=3, config=ONE_REPLICA) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def theirs(java: JavaTools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with kafka_pair(java, tmp_path_factory.mktemp("kafka")) as bootstrap:
        yield bootstrap


def moldau(bootstrap: str, *arguments: object) -> Ended:
    ended = run_cli("topics", *arguments, environ={"MOLDAU_BOOTSTRAP_SERVER": bootstrap})
    assert "Traceback" not in ended.errors, ended.errors
    return ended


def ok(bootstrap: str, *arguments: object) -> str:
    ended = moldau(bootstrap, *arguments)
    assert (ended.status, ended.errors) == (0, "")
    return ended.output


def row(bootstrap: str, name: str) -> dict[str, Any]:
    [document] = json.loads(ok(bootstrap, "describe", name, "--json"))
    [found] = document["partitions"]
    return dict(found)


def fill(bootstrap: str, name: str) -> None:
    writer = Writer(bootstrap, name, acks="all")
    writer.send(RECORD_COUNT, size_bytes=1000)
    writer.flush()
    assert not writer.refused


def moves(path: Path, name: str, replicas: list[int]) -> Path:
    entry = {
        "topic": name,
        "partition": 0,
        "replicas": replicas,
        "log_dirs": ["any"] * len(replicas),
    }
    path.write_text(json.dumps({"version": 1, "partitions": [entry]}))
    return path


def test_kafkas_tool_moves_partitions_of_our_brokers(
    java: JavaTools, ours: Cluster, tmp_path: Path
) -> None:
    server = ("--bootstrap-server", ours.bootstrap_server)
    topic = ("--topic", "moved")
    java.check(
        "kafka-topics", *server, *topic, "--create", "--partitions", 1, "--replication-factor", 1
    )
    until(lambda: row(ours.bootstrap_server, "moved")["leader"] > 0, what="a leader")
    fill(ours.bootstrap_server, "moved")
    [before] = row(ours.bootstrap_server, "moved")["replicas"]
    after = [each for each in (1, 2, 3) if each != before]
    topics = tmp_path / "topics.json"
    topics.write_text('{"version":1,"topics":[{"topic":"moved"}]}')
    tool = ("kafka-reassign-partitions", *server)
    generated = java.check(
        *tool, "--generate", "--topics-to-move-json-file", topics, "--broker-list", after[0]
    )
    current, proposed = (json.loads(line) for line in generated.lines if line.startswith("{"))
    assert [each["replicas"] for each in current["partitions"]] == [[before]]
    assert [each["replicas"] for each in proposed["partitions"]] == [[after[0]]]
    plan = ("--reassignment-json-file", moves(tmp_path / "plan.json", "moved", after))
    said = java.check(*tool, *plan, "--execute", "--throttle", 50_000_000).output
    assert "Successfully started partition reassignment for moved-0" in said

    def verified() -> str:
        return java.check(*tool, *plan, "--verify").output

    until(lambda: "moved-0 is completed" in verified(), what="the move is complete")
    assert "Clearing" in verified(), "its throttles"
    where = ",".join(map(str, after))
    described = java.check("kafka-topics", *server, *topic, "--describe").output
    assert re.search(rf"Partition: 0\s+Leader: {after[0]}\s+Replicas: {where}\s", described)
    assert "throttled" not in described
    assert len(read_all(ours.bootstrap_server, "moved")) == RECORD_COUNT
    assert "No partition reassignments found" in java.check(*tool, "--list").output
    filters = ("--under-replicated-partitions", "--under-min-isr-partitions")
    for option in filters:
        assert "moved" not in java.check("kafka-topics", *server, "--describe", option).output


def test_kafkas_tool_cancels_and_is_refused_as_by_kafka(
    java: JavaTools, ours: Cluster, tmp_path: Path
) -> None:
    server = ours.bootstrap_server
    ok(server, "create", "stuck")
    until(lambda: row(server, "stuck")["leader"] > 0, what="a leader")
    [stays] = row(server, "stuck")["replicas"]
    tool = ("kafka-reassign-partitions", "--bootstrap-server", server)
    unknown = moves(tmp_path / "unknown.json", "stuck", [stays, 9])
    refused = java.run(*tool, "--reassignment-json-file", unknown, "--execute")
    assert refused.status == 1
    assert "Unknown broker id 9" in refused.output + refused.errors
    plan = moves(tmp_path / "plan.json", "stuck", [stays])
    cancelled = java.check(*tool, "--reassignment-json-file", plan, "--cancel").output
    assert "None of the specified partition reassignments are active" in cancelled


def test_our_command_moves_partitions_of_kafkas_brokers(theirs: str, tmp_path: Path) -> None:
    ok(theirs, "create", "moved", "--partitions", 1, "--replication-factor", 1)
    until(lambda: row(theirs, "moved")["leader"] > 0, what="a leader")
    fill(theirs, "moved")
    before = row(theirs, "moved")
    assert (before["low_watermark"], before["high_watermark"]) == (0, RECORD_COUNT)
    assert before["log_end_offset"] == RECORD_COUNT
    [stays] = before["replicas"]
    comes = 3 - stays
    plan = tmp_path / "plan.json"
    shown = ok(theirs, "reassign", "plan", "moved", "--replication-factor", 2, "--output", plan)
    assert "1 partitions change, 1 replicas are copied, 4" in shown, "some 490 KiB"
    said = ok(
        theirs, "reassign", "execute", "--from-json", plan, "--throttle", 50_000_000,
        "--wait", "--interval", 0.2,
    ).splitlines()  # fmt: skip
    assert said[-2] == f"moved-0 is on {stays},{comes}"
    assert said[-1] == "throttles are taken from broker 1, broker 2, topic moved"
    after = row(theirs, "moved")
    assert (after["replicas"], sorted(after["isr"])) == ([stays, comes], [1, 2])
    ends = {each["broker_id"]: each["log_end_offset"] for each in after["replica_logs"]}
    assert ends == {stays: RECORD_COUNT, comes: RECORD_COUNT}, "a follower tells its own log end"
    ok(theirs, "reassign", "execute", "moved:0", "--replicas", comes, "--wait")
    assert len(read_all(theirs, "moved")) == RECORD_COUNT
    assert ok(theirs, "elect-leaders", "moved") == "moved-0 needed no election\n"


def test_our_command_is_refused_by_kafka_in_one_line(theirs: str) -> None:
    ok(theirs, "create", "still", "--partitions", 2)
    for arguments, said in (
        (("execute", "still:0", "--replicas", "1,9"), "there is no broker 9; there are 1, 2"),
        (("execute", "still:5", "--replicas", "1"), "there is no partition 5 of still"),
        (("execute", "nowhere", "--replicas", "1"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (("cancel", "still"), "none of these partitions is being moved"),
    ):
        ended = moldau(theirs, "reassign", *arguments)
        assert (ended.status, ended.output) == (1, "")
        assert said in ended.complaint
    assert ok(theirs, "reassign", "list") == "no partition is being moved\n"
    for option in ("under-replicated", "unavailable", "under-min-isr"):
        assert ok(theirs, "describe", "still", f"--{option}-partitions") == ""
    assert "still" in ok(theirs, "describe", "still", "--at-min-isr-partitions")
