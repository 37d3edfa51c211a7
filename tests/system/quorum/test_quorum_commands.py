"""`moldau quorum` and its kin against real controllers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moldau.local.layout import PortHolder
from moldau.local.node_process import NodeProcess
from moldau.testing import Cluster
from tests.kit.waiting import until
from tests.system.processes import Ended, run_cli
from tests.system.quorum.conftest import (
    create_topic,
    fenced,
    quorum,
    wait_for_topics,
    wait_until_caught_up,
)


def done(cluster: Cluster, *arguments: object, by_controllers: bool = False) -> Ended:
    where = (
        ("--bootstrap-controller", cluster.bootstrap_controllers)
        if by_controllers
        else ("-b", cluster.bootstrap_server)
    )
    ended = run_cli(*arguments, *where)
    assert "Traceback" not in ended.errors, ended.errors
    return ended


def ok(cluster: Cluster, *arguments: object, by_controllers: bool = False) -> str:
    ended = done(cluster, *arguments, by_controllers=by_controllers)
    assert (ended.status, ended.errors) == (0, "")
    return ended.output


@pytest.mark.parametrize("by_controllers", [False, True])
def test_status_replication_and_features(standing: Cluster, by_controllers: bool):
    document = json.loads(ok(standing, "quorum", "status", "--json", by_controllers=by_controllers))
    assert document["leader_id"] == standing.active_controller_id()
    assert sorted(voter["id"] for voter in document["current_voters"]) == standing.controller_ids
    endpoints = [voter["endpoints"] for voter in document["current_voters"]]
    addresses = standing.bootstrap_controllers.split(",")
    assert sorted(each for [each] in endpoints) == sorted(f"CONTROLLER://{a}" for a in addresses)
    text = ok(standing, "quorum", "status", by_controllers=by_controllers)
    assert text.startswith(f"ClusterId:              {document['cluster_id']}\n")
    rows = json.loads(
        ok(standing, "quorum", "replication", "--json", by_controllers=by_controllers)
    )
    assert [row["status"] for row in rows][:3] == ["Leader", "Follower", "Follower"]
    features = json.loads(
        ok(standing, "features", "describe", "--json", by_controllers=by_controllers)
    )
    levels = {row["feature"]: row["finalized_version_level"] for row in features["features"]}
    assert levels["metadata.version"] == 30
    assert levels["transaction.version"] == 2


def test_the_leader_is_transferred(standing: Cluster):
    for by_controllers in (False, True):
        told = quorum(standing)
        wanted = next(v.replica_id for v in told.voters if v.replica_id != told.leader_id)
        said = ok(standing, "quorum", "transfer-leader", wanted, by_controllers=by_controllers)
        assert said.startswith(f"controller {wanted} leads in epoch ")
        assert standing.active_controller_id() == wanted
    refused = done(standing, "quorum", "transfer-leader", 1)
    assert refused.status == 1
    assert "node 1 is no voter" in refused.complaint
    create_topic(standing, "after-the-transfer")


def test_a_controller_joins_and_another_leaves(many: Cluster, tmp_path: Path):
    ports = PortHolder("127.0.0.1")
    [port] = ports.take()
    config = tmp_path / "server.properties"
    config.write_text(
        "process.roles=controller\nnode.id=104\ncontroller.listener.names=CONTROLLER\n"
        f"listeners=CONTROLLER://127.0.0.1:{port}\nlog.dirs={tmp_path / 'data'}\n"
        f"controller.quorum.bootstrap.servers={many.bootstrap_controllers}\n"
    )
    cluster_id = json.loads(ok(many, "quorum", "status", "--json"))["cluster_id"]
    formatted = run_cli("storage", "format", "-c", config, "-t", cluster_id, "-N")
    assert formatted.status == 0, formatted.errors
    node = NodeProcess(config, tmp_path / "log")
    node.start()
    try:
        node.wait_ready()
        wait_until_caught_up(many, 104)
        assert "added controller 104" in ok(many, "quorum", "add-controller", "-c", config)
        again = done(many, "quorum", "add-controller", "-c", config)
        assert "DUPLICATE_VOTER" in again.complaint
        assert "removed controller 101" in ok(many, "quorum", "remove-controller", "-i", 101)
        until(
            lambda: sorted(v.replica_id for v in quorum(many).voters) == [102, 103, 104],
            what="the new voters",
        )
        many.stop(101)
        create_topic(many, "decided-by-the-new-voters")
        wait_for_topics(many, "decided-by-the-new-voters")
    finally:
        node.kill()
        ports.close()


def test_a_stopped_broker_is_unregistered(many: Cluster):
    assert many.stop(3) == 0
    until(lambda: fenced(many) == {3}, what="broker 3 has left")
    ok(many, "brokers", "unregister", 3)
    brokers = json.loads(ok(many, "brokers", "list", "--json"))["brokers"]
    assert [row["broker_id"] for row in brokers] == [1, 2]
    unknown = done(many, "brokers", "unregister", 9)
    assert unknown.complaint == "moldau: there is no broker 9; there are 1, 2"


def test_leaders_are_elected_and_moves_are_listed(standing: Cluster):
    create_topic(standing, "moved", 2)
    assert ok(standing, "topics", "reassign", "list") == "no partition is being moved\n"
    told = ok(standing, "topics", "elect-leaders", "moved")
    assert told == "moved-0 needed no election\nmoved-1 needed no election\n"
    refused = done(standing, "topics", "reassign", "execute", "moved:0", "--replicas", "9")
    assert refused.status == 1
    assert refused.complaint == "moldau: there is no broker 9; there are 1, 2, 3"


def test_feature_levels_go_up_only_as_far_as_all_support(standing: Cluster):
    refused = done(standing, "features", "upgrade", "-f", "metadata.version=31")
    assert refused.status == 1
    dry = ok(standing, "features", "downgrade", "-f", "group.version=0", "--dry-run")
    assert dry == "group.version can be downgraded to 0\n"
