"""Greedy clients in their own process, and a client beside them that is served throughout.

The good client never sends a record twice and has shorter time limits than clients have by
themselves: a refusal, a lost connection or a request that takes too long fails the test.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from moldau.client import ElectionType, NewTopic, TopicPartition
from moldau.client.admin.security import ScramMechanism, ScramUpsertion
from moldau.client.sync import Admin, Producer
from moldau.local.certificate_authority import CertificateAuthority
from moldau.local.secure_files import CLIENTS, SecureFiles
from moldau.testing import Cluster
from tests.kit.waiting import until
from tests.system.security.greedy import Greed, GreedyClients, Target, ports_of
from tests.system.security.mistakes import Witness

pytestmark = [pytest.mark.system, pytest.mark.real, pytest.mark.timeout(300)]

HOST = "127.0.0.1"
USER, PASSWORD = "mallory", "m-secret"
MIB = 1024 * 1024
#: So little that a few clients fill it with what they really send.
SMALL = {"queued.max.request.bytes": str(64 * MIB), "socket.request.max.bytes": str(8 * MIB)}
ROUNDS = 5
#: A third of what clients have by themselves.
REQUEST_TIMEOUT_MS = "10000"

SLOW = Greed("slow", 12, frame_bytes=100 * MIB, pause_s=2.0)
HUGE = Greed("huge", 24, frame_bytes=8 * MIB, pause_s=2.0)


def settings_of(cluster: Cluster) -> dict[str, Any]:
    return {"config": {**cluster.client_properties, "request.timeout.ms": REQUEST_TIMEOUT_MS}}


def certificate_of_a_client(cluster: Cluster) -> str:
    """One that the cluster's authority has signed, for a user without any right."""
    path = cluster.directory / "mallory.pem"
    files = SecureFiles(cluster.directory)
    CertificateAuthority.load(files.authority).issue(path, USER, CLIENTS, ())
    return str(path)


def port_of(cluster: Cluster, node_id: int, listener: str) -> int:
    [port] = (
        ports[listener]
        for path in cluster.directory.glob("*/server.properties")
        if f"node.id={node_id}\n" in path.read_text() and listener in (ports := ports_of(path))
    )
    return port


def client_listener(cluster: Cluster, *, logs_in: bool) -> Target:
    port = port_of(cluster, 1, "CLIENT")
    if not logs_in:
        return Target(HOST, port, is_tls=True)
    with Admin(**settings_of(cluster)) as admin:
        made = admin.alter_user_scram_credentials(
            [ScramUpsertion(USER, PASSWORD, ScramMechanism.SCRAM_SHA_512, 4096)]
        )
    assert made == {USER: None}
    return Target(HOST, port, is_tls=True, user=USER, password=PASSWORD)


@contextmanager
def attacked(target: Target, greed: Greed) -> Iterator[GreedyClients]:
    with GreedyClients(target, greed) as greedy:
        greedy.opened(greed.count)
        yield greedy
        print(greedy.look())


def descriptors(cluster: Cluster) -> int:
    """How many files and connections the first node has open."""
    return len(list(Path(f"/proc/{cluster.node().pid}/fd").iterdir()))


def new_clients_are_served(cluster: Cluster) -> None:
    """Each of them opens a connection, logs in and asks."""
    for _ in range(ROUNDS):
        with Admin(**settings_of(cluster)) as admin:
            admin.list_topics()


@pytest.mark.parametrize("greed", [SLOW, HUGE], ids=lambda greed: greed.kind)
def test_clients_with_a_login_stop_neither_others_nor_their_logins(
    tmp_path: Path, greed: Greed
) -> None:
    with Cluster(secure=True, directory=tmp_path, config={} if greed is SLOW else SMALL) as cluster:
        target = client_listener(cluster, logs_in=True)
        with Witness(settings_of(cluster)) as witness:
            with attacked(target, greed):
                witness.goes_on()
                new_clients_are_served(cluster)
                witness.goes_on()
                if greed is HUGE:
                    log = cluster.node().log_path
                    until(lambda: "User:mallory holds" in log.read_text(), what="the log")
                during = descriptors(cluster)
            until(
                lambda: descriptors(cluster) < during - greed.count // 2,
                what="those whose clients have gone are ended, also where they wait for memory",
            )


def test_strangers_stop_neither_clients_nor_their_logins(tmp_path: Path) -> None:
    greed = Greed("slow", 2_500, frame_bytes=512 * 1024, pause_s=4.0)
    with Cluster(secure=True, directory=tmp_path) as cluster:
        target = client_listener(cluster, logs_in=False)
        with Witness(settings_of(cluster)) as witness, attacked(target, greed):
            witness.goes_on()
            new_clients_are_served(cluster)
            witness.goes_on()


@pytest.mark.parametrize("listener", ["CONTROLLER", "INTERNAL"])
@pytest.mark.parametrize("greed", [SLOW, HUGE], ids=lambda greed: greed.kind)
def test_a_client_at_a_listener_of_nodes_stops_no_node(
    tmp_path: Path, listener: str, greed: Greed
) -> None:
    """The cluster makes topics and elects leaders, and no broker is fenced."""
    config = {} if greed is SLOW else SMALL
    with Cluster(2, secure=True, directory=tmp_path, config=config) as cluster:
        node_id = cluster.controller_ids[0] if listener == "CONTROLLER" else 1
        target = Target(
            HOST,
            port_of(cluster, node_id, listener),
            is_tls=True,
            certificate=certificate_of_a_client(cluster),
        )
        settings = settings_of(cluster)
        with Witness(settings) as witness, attacked(target, greed), Admin(**settings) as admin:
            for number in range(ROUNDS):
                partition = TopicPartition(f"made-{number}", 0)
                admin.create_topics([NewTopic(partition.topic, replica_assignment={0: [1, 2]})])
                with Producer(**settings, retries=0) as producer:
                    producer.send(partition.topic, b"x")
                admin.alter_partition_reassignments({partition: [2, 1]})
                elected = admin.elect_leaders(ElectionType.PREFERRED, [partition])
                assert elected == {partition: None}
                witness.goes_on()
        assert witness.failure is None, witness.failure
        for each in cluster.broker_ids:
            assert "has been fenced" not in cluster.node(each).log_path.read_text()
