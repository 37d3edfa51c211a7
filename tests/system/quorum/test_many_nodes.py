"""Three controllers and three brokers as real processes: kill, pause, stop, come back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moldau.cli.metadata_files import read_metadata
from moldau.runtime.filesystem import OsFilesystem
from moldau.testing import Cluster
from tests.kit.waiting import until
from tests.system.processes import Writer, read_all
from tests.system.quorum.conftest import (
    CONFIG,
    create_topic,
    described,
    fenced,
    quorum,
    wait_for_another_leader,
    wait_for_topics,
    wait_until_caught_up,
)


def test_one_controller_leads_and_all_brokers_serve(many: Cluster):
    assert many.broker_ids == [1, 2, 3]
    assert many.controller_ids == [101, 102, 103]
    told = quorum(many)
    assert told.leader_id == many.active_controller_id()
    assert sorted(voter.replica_id for voter in told.voters) == [101, 102, 103]
    until(
        lambda: sorted(each.replica_id for each in quorum(many).observers) == [1, 2, 3],
        what="the brokers follow the metadata log",
    )
    assert sorted(broker.node_id for broker in described(many).brokers) == [1, 2, 3]
    assert fenced(many) == set()


def test_data_goes_to_every_broker(many: Cluster):
    create_topic(many, "spread", 6)
    for partition in range(6):
        assert read_all(many.bootstrap_server, "spread", partition=partition) == []
    writer = Writer(many.bootstrap_server, "spread")
    writer.send(100)
    writer.flush()
    assert writer.refused == []
    assert len(read_all(many.bootstrap_server, "spread")) == 100


@pytest.mark.parametrize("how", ["kill", "stop", "pause"])
def test_another_controller_takes_over(many: Cluster, how: str):
    create_topic(many, "before")
    old_id, old_epoch = many.active_controller_id(), quorum(many).leader_epoch
    getattr(many, how)(old_id)
    new_id = wait_for_another_leader(many, old_id)
    assert quorum(many).leader_epoch > old_epoch
    create_topic(many, "after")
    assert wait_for_topics(many, "after", "before") == ["after", "before"]
    if how == "pause":
        many.resume(old_id)
    else:
        many.restart(old_id)
    wait_until_caught_up(many, old_id)
    told = quorum(many)
    assert told.leader_id == new_id
    create_topic(many, "with-all-of-them")
    assert fenced(many) == set()


def test_without_a_majority_nothing_is_decided_until_one_is_back(many: Cluster):
    leader_id = many.active_controller_id()
    others = [node_id for node_id in many.controller_ids if node_id != leader_id]
    for node_id in others:
        many.kill(node_id)
    many.restart(others[0])
    wait_until_caught_up(many, others[0])
    create_topic(many, "decided")
    many.restart(others[1])
    wait_until_caught_up(many, others[1])
    assert wait_for_topics(many, "decided") == ["decided"]


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_a_silent_broker_is_fenced_and_let_in_again(many: Cluster, how: str):
    getattr(many, how)(3)
    until(lambda: fenced(many) == {3}, what="broker 3 is fenced")
    create_topic(many, "elsewhere")
    if how == "kill":
        many.restart(3)
    else:
        many.resume(3)
    until(lambda: fenced(many) == set(), what="broker 3 is back")
    assert wait_for_topics(many, "elsewhere") == ["elsewhere"]


def test_a_whole_cluster_comes_back_on_its_directories(tmp_path: Path):
    with Cluster(brokers=3, controllers=3, config=CONFIG, directory=tmp_path) as cluster:
        addresses = (cluster.bootstrap_server, cluster.bootstrap_controllers)
        cluster_id = described(cluster).cluster_id
        create_topic(cluster, "kept")
    with Cluster(brokers=3, controllers=3, config=CONFIG, directory=tmp_path) as cluster:
        assert (cluster.bootstrap_server, cluster.bootstrap_controllers) == addresses
        assert described(cluster).cluster_id == cluster_id
        assert wait_for_topics(cluster, "kept") == ["kept"]
        for node_id in cluster.node_ids:
            wait_until_caught_up(cluster, node_id)
        for node_id in (*cluster.broker_ids, *cluster.controller_ids):
            assert cluster.stop(node_id) == 0
        images = {
            node_id: read_metadata(OsFilesystem(), str(cluster.data_directory(node_id)))
            for node_id in cluster.controller_ids
        }
    names = [json.dumps(sorted(each.image.topics.topics_by_name)) for each in images.values()]
    assert names == ['["kept"]'] * 3
    assert {each.identity.cluster_id for each in images.values() if each.identity} == {cluster_id}
    assert all(each.damage == [] for each in images.values())
