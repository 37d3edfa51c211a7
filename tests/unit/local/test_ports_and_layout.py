"""Ports that stay free for nodes that are down, and where the nodes of a cluster live."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from moldau.config import NodeConfig
from moldau.local.layout import (
    ClusterLayout,
    NodeSpec,
    NoFreePort,
    PortHolder,
    candidates,
    counting_from,
    ephemeral_range,
)
from moldau.local.secure_files import LayoutError
from moldau.raft import VoterSet
from moldau.raft.snapshot_files import BOOTSTRAP_SNAPSHOT, read_snapshot_file, snapshot_path
from moldau.runtime.filesystem import OsFilesystem
from moldau.storage.meta_properties import MetaProperties, read_meta_properties

HOST = "127.0.0.1"


def lay_out(directory: Path, controllers: int, brokers: int, **others: object) -> ClusterLayout:
    return ClusterLayout.plan(
        directory,
        controllers=controllers,
        brokers=brokers,
        host=HOST,
        broker_port=counting_from(9092),
        controller_port=counting_from(9192),
        **others,  # type: ignore[arg-type]
    )


@pytest.mark.real
def test_only_the_node_can_listen_on_a_held_port():
    holder = PortHolder(HOST)
    [port] = holder.take()
    with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
        stranger.bind((HOST, port))
    for _ in range(2):  # started, killed, started
        with socket.create_server((HOST, port)) as node:
            with socket.create_connection((HOST, port)) as client, node.accept()[0] as accepted:
                assert accepted.getpeername() == client.getsockname()
            other = PortHolder(HOST)
            with pytest.raises(NoFreePort, match=f"{HOST}:{port} is in use"):
                other.hold(port)
    with socket.socket() as client:
        assert client.connect_ex((HOST, port)) != 0, "nobody listens while the node is down"
    holder.close()
    again = PortHolder(HOST)
    again.hold(port)
    again.close()


@pytest.mark.real
def test_held_ports_are_distinct_and_outside_of_the_ephemeral_range():
    low, high = ephemeral_range()
    holder, other = PortHolder(HOST), PortHolder(HOST)
    ports = [*holder.take(20), *other.take(20)]
    assert len(set(ports)) == 40
    if len(candidates((low, high))) < 60_000:
        assert not [port for port in ports if low <= port <= high]
    holder.close()
    other.close()


@pytest.mark.parametrize(
    ("ephemeral", "first", "last"),
    [
        ((32_768, 60_999), 10_000, 32_767),
        ((1_024, 40_000), 40_001, 65_535),
        ((1_024, 65_535), 10_000, 65_535),
        ((49_152, 65_535), 10_000, 49_151),
    ],
)
def test_where_ports_are_chosen(ephemeral: tuple[int, int], first: int, last: int):
    choice = candidates(ephemeral)
    assert (choice[0], choice[-1]) == (first, last)


def test_an_unreadable_range_falls_back_to_the_usual_one(tmp_path: Path):
    (tmp_path / "odd").write_text("nonsense")
    assert ephemeral_range(tmp_path / "odd") == ephemeral_range(tmp_path / "none") == (49152, 65535)


def test_every_node_of_a_cluster_gets_its_own_configuration(tmp_path: Path):
    layout = lay_out(tmp_path, 3, 2, config={"num.partitions": "7"})
    layout.write_configs()
    assert layout.bootstrap_server == "127.0.0.1:9092,127.0.0.1:9093"
    assert layout.bootstrap_controllers == "127.0.0.1:9192,127.0.0.1:9193,127.0.0.1:9194"
    configs = {node.node_id: NodeConfig.load(str(node.config_path)) for node in layout.nodes}
    assert list(configs) == [1, 2, 101, 102, 103]
    for node_id, config in configs.items():
        assert config.warnings == ()
        assert config.node_id == node_id
        assert config.is_controller is (node_id > 100)
        assert config.is_broker is (node_id < 100)
        assert config["num.partitions"] == 7
        addresses = ",".join(str(address) for address in config.controller_addresses)
        assert addresses == layout.bootstrap_controllers
    assert configs[102].listeners[0].port == 9193
    assert [node.name for node in layout.nodes][1:3] == ["broker 2", "controller 101"]
    assert ClusterLayout.found(tmp_path) == lay_out(tmp_path, 3, 2)


@pytest.mark.parametrize(
    ("brokers", "factor", "min_isr"), [(1, 1, 1), (2, 2, 1), (3, 3, 2), (5, 3, 2)]
)
def test_internal_topics_fit_the_number_of_brokers(
    tmp_path: Path, brokers: int, factor: int, min_isr: int
):
    layout = lay_out(tmp_path, 1, brokers)
    layout.write_configs()
    config = NodeConfig.load(str(layout.brokers[0].config_path))
    assert config["offsets.topic.replication.factor"] == factor
    assert config["transaction.state.log.replication.factor"] == factor
    assert config["transaction.state.log.min.isr"] == min_isr


def test_all_nodes_are_formatted_with_one_cluster_id_and_one_voter_set(tmp_path: Path):
    layout = lay_out(tmp_path, 3, 2)
    layout.write_configs()
    cluster_id = layout.format()
    identities: dict[int, MetaProperties | None] = {}
    voter_sets: list[VoterSet] = []
    for node in layout.nodes:
        data = node.data_directory
        identities[node.node_id] = read_meta_properties(OsFilesystem(), str(data))
        path = snapshot_path(str(data / "__cluster_metadata-0"), BOOTSTRAP_SNAPSHOT)
        voter_sets.append(read_snapshot_file(OsFilesystem(), path, BOOTSTRAP_SNAPSHOT)[1])
    assert all(each == voter_sets[0] for each in voter_sets)
    assert voter_sets[0].kraft_version == 1
    for voter in voter_sets[0].voters:
        identity = identities[voter.voter_id]
        assert identity is not None
        assert identity.directory_id == voter.directory_id
    for node_id, identity in identities.items():
        assert identity is not None
        assert (identity.cluster_id, identity.node_id) == (cluster_id, node_id)
    with pytest.raises(LayoutError, match=r"^broker 1: already formatted"):
        layout.format(cluster_id=cluster_id)


def test_one_of_each_may_be_a_single_node(tmp_path: Path):
    combined = lay_out(tmp_path, 1, 1, combined=True)
    assert [(node.node_id, node.roles) for node in combined.nodes] == [(1, "broker,controller")]
    assert combined.brokers == combined.controllers == combined.nodes
    apart = lay_out(tmp_path, 1, 1)
    assert [(node.node_id, node.roles) for node in apart.nodes] == [
        (1, "broker"),
        (101, "controller"),
    ]
    assert len(lay_out(tmp_path, 3, 1, combined=True).nodes) == 4


@pytest.mark.parametrize("name", ["with spaces ", "Übung=#!", "back\\slash", "line\nbreak", "a: b"])
def test_names_of_directories_are_read_as_they_were_written(tmp_path: Path, name: str):
    layout = lay_out(tmp_path / name, 1, 1)
    layout.write_configs()
    for node in layout.nodes:
        config = NodeConfig.load(str(node.config_path))
        assert config.log_directories == (str(node.data_directory),)


def test_a_comma_in_a_name_would_be_two_directories(tmp_path: Path):
    with pytest.raises(LayoutError, match="cannot have a comma"):
        lay_out(tmp_path / "a,b", 1, 1).write_configs()
    assert not (tmp_path / "a,b").exists()


@pytest.mark.real
def test_ports_that_cannot_be_held_say_why():
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        holder = PortHolder(HOST)
        with pytest.raises(NoFreePort, match=f"{HOST}:{port} is in use"):
            holder.hold(port)
        layout = ClusterLayout(HOST, (NodeSpec(7, Path("unused"), None, port),))
        with pytest.raises(NoFreePort, match="controller 7 has it in `listeners`"):
            layout.hold_ports(holder)
    holder.hold(port)
    holder.close()
    for call in (PortHolder("no.such.host.invalid").take, lambda: PortHolder("192.0.2.1").hold(80)):
        with pytest.raises(NoFreePort, match=r"^(no\.such\.host\.invalid|192\.0\.2\.1:80) ?.*: "):
            call()


@pytest.mark.parametrize(("controllers", "brokers"), [(0, 1), (1, 0), (101, 1), (1, 101)])
def test_sizes_that_cannot_be(tmp_path: Path, controllers: int, brokers: int):
    with pytest.raises(LayoutError, match="from 1 to 100 can be laid out"):
        lay_out(tmp_path, controllers, brokers)


def test_a_directory_without_nodes_or_with_damaged_ones(tmp_path: Path):
    with pytest.raises(LayoutError, match="holds no nodes"):
        ClusterLayout.found(tmp_path)
    lay_out(tmp_path, 1, 1).write_configs()
    assert len(ClusterLayout.found(tmp_path).nodes) == 2
    with pytest.raises(LayoutError, match="holds only controller 101 of a cluster"):
        ClusterLayout.found(tmp_path / "controller-101")
    (tmp_path / "broker-1" / "server.properties").write_text("node.id=one\n")
    with pytest.raises(LayoutError, match=r"broker-1/server\.properties: "):
        ClusterLayout.found(tmp_path)
