"""`moldau.testing.Cluster`: what a test may do to it, and what it leaves behind (nothing)."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from moldau.client import Admin, ConfigResource, ConfigResourceType, KafkaError, NewTopic, sync
from moldau.local.layout import ephemeral_range
from moldau.testing import Cluster, NodeFailed
from tests.kit.waiting import until

EMBEDDING = """
import os, signal, sys
from moldau.testing import Cluster
cluster = Cluster().start()
print(cluster.node().pid, cluster.directory, flush=True)
sys.stdin.readline()
if sys.argv[1] == "paused":
    cluster.pause()
if sys.argv[1] == "exit":
    sys.exit(0)
os.kill(os.getpid(), signal.SIGKILL)
"""


def runs(process_id: int) -> bool:
    """Whether a process exists that is not merely waiting to be collected."""
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def cluster_id_of(bootstrap_server: str) -> str:
    async def ask() -> str:
        async with Admin(bootstrap_server) as admin:
            return (await admin.describe_cluster()).cluster_id

    return asyncio.run(ask())


def test_a_node_keeps_its_address_and_identity_through_kill_stop_and_pause():
    with Cluster() as cluster:
        address, cluster_id = cluster.bootstrap_server, cluster_id_of(cluster.bootstrap_server)
        node, directory = cluster.node(), cluster.directory
        assert repr(cluster) == (
            f"<Cluster brokers=1 controllers=1 on {address}, logs {directory}/node-1/node.log>"
        )
        cluster.kill()
        assert node.exit_code == -signal.SIGKILL
        with pytest.raises(NodeFailed, match="does not run"):
            cluster.pause()
        cluster.restart()
        assert cluster.stop() == 0
        cluster.restart()
        with pytest.raises(NodeFailed, match="already runs"):
            cluster.restart()
        cluster.pause()
        cluster.resume()
        assert (cluster.bootstrap_server, cluster_id_of(address)) == (address, cluster_id)
        with pytest.raises(RuntimeError, match="runs already"):
            cluster.start()
        with pytest.raises(ValueError, match=r"there is no node 7; there are 1$"):
            cluster.kill(7)
        process_id = node.pid
    assert not runs(process_id)
    assert f"on {address}, closed, logs" in repr(cluster)
    for ask in (cluster.restart, cluster.active_controller_id):
        with pytest.raises(RuntimeError, match=re.escape("closed; start() starts it again")):
            ask()
    assert not directory.exists()


def test_a_paused_node_answers_nothing_and_can_still_be_stopped():
    async def ask(address: str) -> None:
        async with Admin(address, request_timeout_ms=200, default_api_timeout_ms=400) as admin:
            await admin.describe_cluster()

    with Cluster() as cluster:
        cluster.pause()
        with pytest.raises(KafkaError):
            asyncio.run(ask(cluster.bootstrap_server))
        assert cluster.stop() == 0


async def test_async_context():
    async with Cluster(config={"num.partitions": "3"}) as cluster:
        async with Admin(cluster.bootstrap_server) as admin:
            assert (await admin.describe_cluster()).cluster_id
        process_id = cluster.node().pid
    assert not runs(process_id)


@pytest.mark.parametrize(
    ("config", "replica_count", "least_in_sync"),
    [({}, 3, "2"), ({"default.replication.factor": "2", "min.insync.replicas": "1"}, 2, "1")],
)
def test_topics_of_three_brokers_outlive_one_unless_configured_otherwise(
    config: dict[str, str], replica_count: int, least_in_sync: str
):
    resource = ConfigResource(ConfigResourceType.TOPIC, "t")
    with (
        Cluster(brokers=3, config=config) as cluster,
        sync.Admin(cluster.bootstrap_server) as admin,
    ):
        admin.create_topics([NewTopic("t", 1)])
        [topic] = admin.describe_topics(["t"]).values()
        assert [len(each.replicas) for each in topic.partitions] == [replica_count]
        [entries] = admin.describe_configs([resource]).values()
        assert entries["min.insync.replicas"].value == least_in_sync


def test_a_given_directory_is_kept_and_takes_new_configuration(tmp_path: Path):
    with Cluster(directory=tmp_path) as cluster:
        cluster_id = cluster_id_of(cluster.bootstrap_server)
    assert (cluster.data_directory() / "meta.properties").exists()
    with Cluster(directory=tmp_path, config={"num.partitions": "7"}) as cluster:
        assert cluster_id_of(cluster.bootstrap_server) == cluster_id
        lines = cluster.node().config_path.read_text().splitlines()
        assert {"num.partitions=7", "group.initial.rebalance.delay.ms=0"} <= set(lines)


@pytest.mark.parametrize(
    "counts", [{"brokers": 0}, {"brokers": 101}, {"controllers": 0}, {"controllers": 101}]
)
def test_clusters_that_cannot_be_laid_out(counts: dict[str, int]):
    [(what, count)] = counts.items()
    with pytest.raises(ValueError, match=f"{what}={count}: from 1 to"):
        Cluster(**counts)


def test_the_addresses_are_kept_for_the_node_while_it_is_down():
    with Cluster() as cluster:
        addresses = (cluster.bootstrap_server, cluster.bootstrap_controllers)
        ports = [int(address.rpartition(":")[2]) for address in addresses]
        assert len(set(ports)) == 2
        assert (cluster.node_ids, cluster.broker_ids, cluster.controller_ids) == ([1], [1], [1])
        low, high = ephemeral_range()
        assert not any(low <= port <= high for port in ports)
        cluster.kill()
        for port in ports:
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", port))
        cluster.restart()
        assert (cluster.bootstrap_server, cluster.bootstrap_controllers) == addresses
        assert cluster_id_of(cluster.bootstrap_server)


def test_a_kept_cluster_of_another_size_is_refused(tmp_path: Path):
    with Cluster(directory=tmp_path):
        pass
    with pytest.raises(ValueError, match="1 controllers and 1 brokers, not 3 and 1"):
        Cluster(controllers=3, directory=tmp_path).start()


def test_a_node_that_does_not_start_raises_with_its_log_and_leaves_nothing():
    cluster = Cluster(config={"group.min.session.timeout.ms": 9_000_000})
    with pytest.raises(NodeFailed, match=r"status 2(.|\n)*group\.max\.session") as failed:
        cluster.start()
    assert failed.value.__suppress_context__ or failed.value.__context__ is None
    assert not cluster.node().running
    assert not cluster.directory.exists()


def test_a_node_that_does_not_come_back_is_not_left_running():
    with Cluster() as cluster:
        cluster.stop()
        (cluster.data_directory() / "meta.properties").write_text("version=7\n")
        with pytest.raises(NodeFailed, match=r"meta\.properties"):
            cluster.restart()
        assert not cluster.node().running


@pytest.mark.parametrize("death", ["killed", "paused", "exit"])
def test_nothing_is_left_when_the_test_process_dies(death: str):
    with subprocess.Popen(
        [sys.executable, "-c", EMBEDDING, death],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process_id, directory = process.stdout.readline().split()
        assert runs(int(process_id))
        process.stdin.write("\n")
        process.stdin.close()
        process.wait()
    assert process.returncode == (0 if death == "exit" else -signal.SIGKILL)
    until(lambda: not runs(int(process_id)), what="the node is gone")
    until(lambda: not Path(directory).exists(), what="its directory is gone")
