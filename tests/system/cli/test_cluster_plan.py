"""`moldau topics diff` and `apply` against a node that has an authorizer."""

from __future__ import annotations

import json
import os
import pty
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from moldau.testing import Cluster
from tests.system.cli.conftest import FAILED, WRONG_USAGE, Cli

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
DIFFERENT = 1
WHOLE = """
topics:
  orders:
    partitions: 3
    replication-factor: 1
    configs: {retention.ms: 86400000, cleanup.policy: [compact, delete]}
  payments: {}
brokers:
  default: {log.retention.ms: 604800000}
acls:
  User:alice:
    - {allow: [Read, describe_configs], topic: [orders, payments]}
    - {allow: Read, group: billing-, pattern: prefixed}
    - {deny: All, cluster: true, host: 10.0.0.7}
quotas:
  - {user: alice, client-id: "", producer_byte_rate: 1048576, request_percentage: 12.5}
"""

Write = Callable[[str], Path]


@pytest.fixture(scope="module")
def cli() -> Iterator[Cli]:
    config = {"authorizer.class.name": AUTHORIZER, "super.users": "User:ANONYMOUS;User:root"}
    with Cluster(config=config) as running:
        yield Cli(running.bootstrap_server)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(text: str) -> Path:
        path = tmp_path / "cluster.yaml"
        path.write_text(text)
        return path

    return written


def test_a_file_is_applied_once_and_is_nothing_to_change_then(cli: Cli, write: Write):
    path = write(WHOLE)
    differs = cli.end("topics", "diff", path)
    assert (differs.status, differs.errors) == (DIFFERENT, "")
    plan = differs.output.splitlines()
    assert plan[:5] == [
        "+ topic orders",
        "    + partitions: 3",
        "    + replication-factor: 1",
        "    + cleanup.policy: compact,delete",
        "    + retention.ms: 86400000",
    ]
    assert "+ acl User:alice allow Read on Group billing- and all that begin so" in plan
    assert "+ acl User:alice deny All on Cluster kafka-cluster from 10.0.0.7" in plan
    assert "+ quotas user alice client-id (default)" in plan
    assert plan[-1] == "9 to add, 1 to change"
    assert cli.json("topics", "list", "--names") == []
    refused = cli.end("topics", "apply", path)
    assert (refused.status, refused.output) == (WRONG_USAGE, differs.output)
    assert refused.errors == (
        "moldau: this would make these changes: 9 to add, 1 to change; "
        "give --yes if that is what you want\n"
    )
    applied = cli.ok("topics", "apply", path, "--yes")
    assert applied == f"{differs.output}applied\n"
    assert cli.ok("topics", "diff", path) == "nothing to change\n"
    assert cli.ok("topics", "apply", path, "--yes") == "nothing to change\n"
    assert cli.json("topics", "diff", path) == []
    [orders] = cli.json("topics", "describe", "orders")
    assert orders["partition_count"] == 3
    assert orders["configs"] == {"cleanup.policy": "compact,delete", "retention.ms": "86400000"}
    assert len(cli.json("acls", "list")) == 6
    [quotas] = cli.json("quotas", "describe")
    assert quotas["quotas"] == {"producer_byte_rate": 1048576, "request_percentage": 12.5}


def test_what_is_named_is_named_in_whole_and_other_things_stay(cli: Cli, write: Write):
    cli.ok("topics", "apply", write(WHOLE), "--yes")
    cli.ok("topics", "create", "other", "--config", "retention.ms=5")
    cli.ok("acls", "create", "--allow", "bob", "--operation", "read", "--topic", "orders")
    path = write(
        """
        topics:
          orders: {partitions: 5, configs: {retention.ms: 1000}}
        brokers: {default: {log.retention.ms: }}
        acls:
          User:alice: [{allow: Read, topic: orders}]
        quotas: [{user: alice, client-id: "", producer_byte_rate: 2097152}]
        """
    )
    steps = json.loads(cli.end("topics", "diff", path, "--json").output)
    assert [(each["change"], each["kind"]) for each in steps] == [
        *[("change", "topic")] * 2,
        ("change", "broker"),
        *[("remove", "acl")] * 5,
        ("change", "quotas"),
    ]
    assert steps[0]["details"] == [{"name": "partitions", "before": "3", "after": "5"}]
    plan = cli.ok("topics", "apply", path, "--yes").splitlines()
    assert plan[:4] == [
        "~ topic orders",
        "    ~ partitions: 3 -> 5",
        "    - cleanup.policy: compact,delete",
        "    ~ retention.ms: 86400000 -> 1000",
    ]
    assert plan[-2:] == ["3 to change, 5 to remove", "applied"]
    assert "    ~ producer_byte_rate: 1048576 -> 2097152" in plan
    assert "    - request_percentage: 12.5" in plan
    assert cli.ok("topics", "diff", path) == "nothing to change\n"
    [orders] = cli.json("topics", "describe", "orders")
    assert (orders["partition_count"], orders["configs"]) == (5, {"retention.ms": "1000"})
    assert cli.json("topics", "list", "--names") == ["orders", "other", "payments"]
    assert {each["principal"] for each in cli.json("acls", "list")} == {"User:alice", "User:bob"}


def test_topics_go_by_name_alone(cli: Cli, write: Write):
    cli.ok("topics", "create", "going", "--partitions", 2)
    path = write("topics: {staying: {}}")
    cli.ok("topics", "apply", path, "--yes")
    for name, words in (
        ("staying", "cluster.yaml has this topic"),
        ("__consumer_offsets", "an internal topic"),
        ("gonig", "did you mean going?"),
    ):
        assert words in cli.refused("topics", "apply", path, "--prune", name, "--yes")
    plan = cli.ok("topics", "apply", path, "--prune", "going", "--yes")
    assert plan.splitlines() == [
        "- topic going",
        "    - contents: 2 partitions, about 0 records, 0 B",
        "1 to remove",
        "applied",
    ]
    assert "going" not in cli.json("topics", "list", "--names")
    assert cli.ok("topics", "apply", path, "--prune", "going", "--yes") == "nothing to change\n"


def test_all_is_checked_before_the_first_change(cli: Cli, write: Write):
    cli.ok("topics", "create", "three", "--partitions", 3)
    path = write(
        """
        topics:
          fresh: {partitions: 1}
          wide: {replication-factor: 9}
          wrong: {configs: {retention.m: 1}}
          three:
            partitions: 2
            replication-factor: 2
            configs: {retention.ms: soon}
        """
    )
    for command in (("diff", path), ("apply", path, "--yes")):
        ended = cli.end("topics", *command)
        assert ended.status == (FAILED if command[0] == "apply" else 2)
        assert ended.output == ""
        lines = ended.errors.splitlines()
        assert len(lines) == 5, lines
        assert lines[0].endswith(
            "cluster.yaml:7: topics.three.partitions: 2, and there are 3; partitions can only grow"
        )
        assert "reassign execute three --replication-factor 2" in lines[1]
        assert "wide" in lines[2]
        assert "retention.m" in lines[3]
        assert "soon" in lines[4]
    assert "fresh" not in cli.json("topics", "list", "--names")


@pytest.mark.parametrize(("answer", "status"), [("y", 0), ("n", FAILED)])
def test_a_terminal_is_asked(cli: Cli, write: Write, answer: str, status: int):
    path = write(f"topics: {{asked-{answer}: {{}}}}")
    ours, theirs = pty.openpty()
    try:
        os.write(ours, f"{answer}\n".encode())
        ended = cli.end("topics", "apply", path, stdin=theirs, stderr=theirs)
        told = os.read(ours, 4_096).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert ended.status == status
    assert "1 to add" in ended.output
    assert "moldau: make these changes: 1 to add? [y/N]" in told
    assert (f"asked-{answer}" in cli.json("topics", "list", "--names")) == (status == 0)


def test_no_answer_is_trouble(write: Write):
    cli = Cli("localhost:1")
    line = cli.refused("topics", "diff", write("topics: {a: {}}"), "--timeout-ms", 300, status=2)
    assert "localhost:1" in line
