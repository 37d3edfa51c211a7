"""The voters are exchanged under load, and a wiped disk comes back as another voter (KIP-853)."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.wire import Wire
from moldau.local.layout import PortHolder
from moldau.local.node_process import NodeProcess
from moldau.protocol.types import uuid_to_base64
from moldau.testing import Cluster
from tests.kit.waiting import until
from tests.system.processes import run_cli
from tests.system.quorum.conftest import described, quorum, wait_for_topics, wait_until_caught_up
from tests.system.quorum.topic_load import TopicLoad

pytestmark = pytest.mark.timeout(300)


class Joiner:
    """A controller that was not there when the cluster was formed."""

    def __init__(self, cluster: Cluster, home: Path, node_id: int, port: int) -> None:
        self.node_id = node_id
        self._cluster = cluster
        self._home = home / f"controller-{node_id}"
        self._home.mkdir()
        self.config = self._home / "server.properties"
        self.config.write_text(
            "process.roles=controller\n"
            f"node.id={node_id}\n"
            "controller.listener.names=CONTROLLER\n"
            f"listeners=CONTROLLER://127.0.0.1:{port}\n"
            f"log.dirs={self._home / 'data'}\n"
            f"controller.quorum.bootstrap.servers={cluster.bootstrap_controllers}\n"
        )
        self.process = NodeProcess(self.config, self._home / "node.log")
        self._cluster_id = described(cluster).cluster_id

    def start_empty(self) -> None:
        """Start on a disk with nothing on it, and wait until it has read everything."""
        shutil.rmtree(self._home / "data", ignore_errors=True)
        done = run_cli("storage", "format", "-c", self.config, "-t", self._cluster_id, "-N")
        assert done.status == 0, done.errors
        self.process.start()
        self.process.wait_ready()
        target = quorum(self._cluster).high_watermark

        def has_caught_up() -> bool:
            found = [
                each for each in quorum(self._cluster).observers if each.replica_id == self.node_id
            ]
            return bool(found) and found[0].log_end_offset >= target

        until(has_caught_up, what=f"{self.node_id} has caught up", deadline_s=60)

    def add(self) -> None:
        """Make it a voter."""
        done = run_cli(
            *("quorum", "add-controller", "-c", self.config, "-b", self._cluster.bootstrap_server)
        )
        assert done.status == 0, done.errors


def remove(cluster: Cluster, node_id: int, directory_id: str = "") -> None:
    """Make a voter none."""
    which = ("-i", node_id, *(("-d", directory_id) if directory_id else ()))
    done = run_cli("quorum", "remove-controller", *which, "-b", cluster.bootstrap_server)
    assert done.status == 0, done.errors


def voters(cluster: Cluster) -> dict[int, str]:
    """Directory ids of the voters by node id."""
    return {each.replica_id: uuid_to_base64(each.directory_id) for each in quorum(cluster).voters}


def connect(cluster: Cluster, broker_id: int) -> Wire:
    """A connection to one broker."""
    address = cluster.bootstrap_server.split(",")[broker_id - 1]
    host, _, port = address.rpartition(":")
    return Wire(host, int(port))


@contextlib.contextmanager
def load_on(cluster: Cluster) -> Iterator[TopicLoad]:
    """Topics are created all the time; in the end, all that were acknowledged exist."""
    load = TopicLoad(
        lambda broker_id: connect(cluster, broker_id), cluster.broker_ids, random.Random(5)
    )
    with load:
        yield load
    wait_for_topics(cluster, *load.acknowledged)


def test_controllers_are_exchanged_one_by_one_under_load(many: Cluster, tmp_path: Path):
    ports = PortHolder("127.0.0.1")
    joiners = [
        Joiner(many, tmp_path, node_id, port)
        for node_id, port in zip((104, 105), ports.take(2), strict=True)
    ]
    try:
        with load_on(many) as load:

            def progress(what: str) -> None:
                count = len(load.acknowledged)
                until(lambda: len(load.acknowledged) > count + 3, what=what)

            for joiner in joiners:
                joiner.start_empty()
                joiner.add()
                progress(f"topics created with {joiner.node_id}")
            assert sorted(voters(many)) == [101, 102, 103, 104, 105]
            for node_id in (101, 102):
                remove(many, node_id)
                until(lambda gone=node_id: gone not in voters(many), what=f"{node_id} out")
                assert many.stop(node_id) == 0
                progress(f"topics created without {node_id}")
            assert sorted(voters(many)) == [103, 104, 105]
            joiners[0].process.kill()
            progress("topics created by two of three")
            joiners[0].process.start()
            joiners[0].process.wait_ready()
            wait_until_caught_up(many, 104)
            many.kill(103)
            progress("topics created by the two that joined")
    finally:
        for joiner in joiners:
            joiner.process.kill()
        ports.close()


def test_a_wiped_disk_is_another_voter(many: Cluster, tmp_path: Path):
    ports = PortHolder("127.0.0.1")
    joiner = Joiner(many, tmp_path, 104, ports.take()[0])
    try:
        with load_on(many):
            joiner.start_empty()
            joiner.add()
            before = voters(many)[104]
            joiner.process.kill()
            joiner.start_empty()
            now = next(each for each in quorum(many).observers if each.replica_id == 104)
            new = uuid_to_base64(now.directory_id)
            assert new != before
            # What was promised by the disk that is gone is not promised by any other voter.
            assert voters(many)[104] == before
            remove(many, 104, before)
            until(lambda: 104 not in voters(many), what="the lost disk is no voter any more")
            joiner.add()
            until(
                lambda: voters(many).get(104) == new,
                what="the new disk votes",
            )
    finally:
        joiner.process.kill()
        ports.close()
