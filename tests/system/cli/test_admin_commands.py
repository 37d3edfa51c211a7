"""`moldau topics`, `configs` and `brokers` against a running node."""

from __future__ import annotations

import uuid

import pytest

from moldau.testing import Cluster
from tests.kit.waiting import until
from tests.system.cli.conftest import WRONG_USAGE, Cli, table


@pytest.fixture
def name() -> str:
    return f"topic-{uuid.uuid4().hex[:12]}"


def test_a_topic_from_creation_to_deletion(cli: Cli, name: str):
    created = cli.ok("topics", "create", name, "--partitions", 2, "--config", "retention.ms=60000")
    assert created == f"created {name}\n"
    assert name in cli.ok("topics", "list").splitlines()
    [described] = cli.json("topics", "describe", name)
    assert described["configs"] == {"retention.ms": "60000"}
    assert [row["partition"] for row in described["partitions"]] == [0, 1]
    assert {row["leader"] for row in described["partitions"]} == {1}
    cli.ok("topics", "alter", name, "--partitions", 3, "--delete-config", "retention.ms")
    shown = table(cli.ok("topics", "describe", name))
    assert shown[0][0] == name
    assert shown[1][:3] == ["partition", "leader", "epoch"]
    assert [row[0] for row in shown[2:]] == ["0", "1", "2"]
    assert cli.json("topics", "describe", name)[0]["configs"] == {}
    asked = cli.refused("topics", "delete", name, status=WRONG_USAGE)
    assert f"this would delete topic {name} (" in asked
    assert "0 records, 0 B); give --yes" in asked
    assert cli.ok("topics", "delete", name, "--yes") == f"deleted {name}\n"
    assert name not in cli.json("topics", "list")
    assert "UNKNOWN_TOPIC_OR_PARTITION" in cli.refused("topics", "describe", name)


def test_creating_an_existing_topic_and_deleting_a_missing_one_are_refused(cli: Cli, name: str):
    assert cli.ok("topics", "create", name, "--validate-only") == f"{name} could be created\n"
    assert f"there is no topic {name!r}" in cli.refused("topics", "delete", name)
    assert cli.ok("topics", "delete", name, "--if-exists") == f"{name} does not exist\n"
    cli.ok("topics", "create", name)
    assert "TOPIC_ALREADY_EXISTS" in cli.refused("topics", "create", name)
    assert cli.ok("topics", "create", name, "--if-not-exists") == f"{name} exists\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["create", "no spaces"], "INVALID_TOPIC_EXCEPTION"),
        (["create", "x", "--partitions", "0"], "INVALID_PARTITIONS"),
        (["create", "x", "--replication-factor", "3"], "INVALID_REPLICATION_FACTOR"),
        (["create", "x", "--config", "retention.ms=soon"], "retention.ms"),
        (["create", "x", "--config", "cleanup.policy=shred"], "INVALID_CONFIG"),
    ],
)
def test_what_the_controller_refuses(cli: Cli, arguments: list[str], said: str):
    assert said in cli.refused("topics", *arguments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["topics", "create", "x", "--config", "retention.ms"], "is not KEY=VALUE"),
        (["topics", "create", "x", "--partitions", "many"], "--partitions"),
        (["topics", "alter", "x"], "nothing to change"),
        (["topics", "list", "--colour"], "--colour"),
        (["topics", "drop", "x"], "No such command"),
        (["topics", "describe", "x", "--timeout-ms", "0"], "--timeout-ms"),
        (["configs", "describe", "planets", "1"], "planets"),
        (["configs", "alter", "topics", "x"], "nothing to change"),
        (["brokers", "describe", "first"], "broker_id"),
        (["brokers", "describe"], "broker_id"),
    ],
)
def test_wrong_usage_is_one_line_that_names_the_way_to_help(
    cli: Cli, arguments: list[str], said: str
):
    assert said.lower() in cli.refused(*arguments, status=WRONG_USAGE).lower()


def test_configuration_of_a_topic(cli: Cli, name: str):
    cli.ok("topics", "create", name)
    cli.ok("configs", "alter", "topics", name, "--set", "max.message.bytes=2000")
    shown = {entry["name"]: entry for entry in cli.json("configs", "describe", "topics", name)}
    assert shown["max.message.bytes"]["value"] == "2000"
    assert shown["max.message.bytes"]["source"] == "DYNAMIC_TOPIC_CONFIG"
    assert ["max.message.bytes", "2000", "DYNAMIC_TOPIC_CONFIG"] in table(
        cli.ok("configs", "describe", "topics", name)
    )
    everything = cli.json("configs", "describe", "topics", name, "--all", "--documentation")
    assert len(everything) > 20
    assert all(entry["documentation"] for entry in everything)
    checked = cli.ok(
        "configs", "alter", "topics", name, "--delete", "max.message.bytes", "--validate-only"
    )
    assert checked == "valid\n"
    cli.ok("configs", "alter", "topics", name, "--delete", "max.message.bytes")
    left = cli.json("configs", "describe", "topics", name)
    assert "max.message.bytes" not in [entry["name"] for entry in left]
    refused = cli.refused("configs", "alter", "topics", name, "--set", "max.message.bytes=-7")
    assert "max.message.bytes" in refused
    assert "INVALID_CONFIG" in refused


def test_a_key_that_there_is_not_cannot_be_deleted(cli: Cli, name: str):
    cli.ok("topics", "create", name)

    def delete(entity_type: str, entity: str, key: str) -> str:
        return cli.refused("configs", "alter", entity_type, entity, "--delete", key)

    unknown = "no such key, and it is not set"
    assert delete("topics", name, "retention.mss") == (
        f"moldau: --delete retention.mss: {unknown}; did you mean retention.ms?"
    )
    assert delete("brokers", "1", "nosuch") == f"moldau: --delete nosuch: {unknown}"
    assert "did you mean log.retention.ms" in delete("brokers", "", "log.retention.mss")
    cli.ok("configs", "alter", "brokers", "", "--delete", "log.retention.ms")
    cli.ok("configs", "alter", "topics", name, "--delete", "retention.ms")


def test_list_values_are_added_to_and_taken_from(cli: Cli, name: str):
    """Any list will do: the broker-wide one is shared, so a topic's is used."""
    cli.ok("topics", "create", name)
    key = "leader.replication.throttled.replicas"
    cli.ok("configs", "alter", "topics", name, "--append", f"{key}=0:1")
    cli.ok("configs", "alter", "topics", name, "--append", f"{key}=1:1")

    def value() -> str:
        entries = cli.json("configs", "describe", "topics", name)
        return next(entry["value"] for entry in entries if entry["name"] == key)

    assert value() == "0:1,1:1"
    cli.ok("configs", "alter", "topics", name, "--subtract", f"{key}=0:1")
    assert value() == "1:1"


def test_configuration_of_brokers(cli: Cli):
    cli.ok("configs", "alter", "brokers", "1", "--set", "log.retention.ms=7200000")
    shown = {entry["name"]: entry for entry in cli.json("configs", "describe", "brokers", "1")}
    assert shown["log.retention.ms"]["source"] == "DYNAMIC_BROKER_CONFIG"
    cli.ok("configs", "alter", "brokers", "", "--set", "max.connections.per.ip=1000")
    defaults = {entry["name"]: entry for entry in cli.json("configs", "describe", "brokers", "")}
    assert defaults["max.connections.per.ip"]["value"] == "1000"
    cli.ok("configs", "alter", "brokers", "1", "--delete", "log.retention.ms")
    cli.ok("configs", "alter", "brokers", "", "--delete", "max.connections.per.ip")
    assert "node.id" in cli.refused("configs", "alter", "brokers", "1", "--set", "node.id=2")


def test_log_levels_change_while_the_node_runs(cli: Cli, cluster: Cluster, name: str):
    def levels() -> dict[str, str]:
        entries = cli.json("configs", "describe", "broker-loggers", "1")
        return {entry["name"]: entry["value"] for entry in entries}

    before = levels()
    assert before["moldau"] == "INFO"
    cli.ok("configs", "alter", "broker-loggers", "1", "--set", "moldau.storage=ERROR")
    assert levels()["moldau.storage"] == "ERROR"
    cli.ok("topics", "create", name)
    cli.ok("produce", name, given=b"the log is made\n")
    cli.ok("configs", "alter", "broker-loggers", "1", "--delete", "moldau.storage")
    cli.ok("topics", "create", f"{name}-again")
    until(lambda: f"{name}-again-0" in cluster.node().log_tail(), what="storage says INFO")
    assert f"{name}-0" not in cluster.node().log_tail()
    assert "QUIET" in cli.refused(
        "configs", "alter", "broker-loggers", "1", "--set", "moldau=QUIET"
    )
    assert "kafka.log" in cli.refused(
        "configs", "alter", "broker-loggers", "1", "--set", "kafka.log=INFO"
    )


def test_brokers(cli: Cli, cluster: Cluster):
    listed = cli.json("brokers", "list")
    [broker] = listed["brokers"]
    assert broker == {
        "broker_id": 1,
        "address": cluster.bootstrap_server,
        "rack": None,
        "state": "serving",
    }
    output = cli.ok("brokers", "list")
    assert output.startswith(f"cluster {listed['cluster_id']}\n")
    assert table(output)[-1] == ["1", cluster.bootstrap_server, "serving"]
    described = cli.json("brokers", "describe", 1)
    [directory] = described["log_directories"]
    assert directory["directory"] == str(cluster.data_directory())
    assert directory["total_bytes"] >= directory["usable_bytes"] > 0
    assert described["features"]["metadata.version"]["finalized"] > 0
    assert str(cluster.data_directory()) in cli.ok("brokers", "describe", 1)
    assert cli.refused("brokers", "describe", 7) == "moldau: there is no broker 7; there are 1"
