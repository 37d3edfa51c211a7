"""A client that asks for more than its share, beside one that nothing is wrong with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moldau.client import (
    AclBinding,
    AclOperation,
    AclPatternType,
    AclResourceType,
    ElectionType,
    NewTopic,
)
from moldau.client.sync import Admin
from moldau.protocol.messages.p02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from moldau.protocol.messages.p03_metadata import MetadataRequest
from moldau.protocol.messages.p60_describe_cluster import DescribeClusterRequest
from tests.kit.waiting import until
from tests.system.security.greedy_requests import Login, attacked
from tests.system.security.mistakes import Peer, Watched, Witness
from tests.system.security.nodes import AUTHORIZER, PASSWORD, SecuredNode, keystore
from tests.system.security.secured_cluster import CERTIFICATES, USERS, SecuredCluster

CONTROLLER, BROKERS = 101, (1, 2)
USUAL_S = 15.0
"""Within which a node answers what needs no other node, whatever others ask it."""

GROWTH_BYTES = 100 * 2**20
"""What a node may take for requests of 8 MB that are refused; decoded they are 370 MB each."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SecuredCluster]:
    with SecuredCluster(
        tmp_path, CERTIFICATES, controllers=[CONTROLLER], brokers=BROKERS
    ) as running:
        yield running


@pytest.fixture(scope="module")
def own_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredNode]:
    changed = {
        "authorizer.class.name": AUTHORIZER,
        "super.users": "User:ANONYMOUS;User:alice",
    }
    with SecuredNode(tmp_path_factory.mktemp("greedy"), changed) as running:
        yield running


def questions(topic: str) -> list[tuple[Any, int]]:
    """What every client asks, all the time."""
    partition = ListOffsetsPartition(partition_index=0, timestamp=-1)
    return [
        (MetadataRequest(topics=None), 12),
        (ListOffsetsRequest(topics=[ListOffsetsTopic(name=topic, partitions=[partition])]), 7),
        (DescribeClusterRequest(), 1),
    ]


def is_served(peer: Peer, topic: str) -> None:
    peer.socket.settimeout(USUAL_S)
    for message, version in questions(topic):
        assert peer.ask(message, version) is not None


def test_a_client_that_fills_what_is_forwarded_delays_no_other_request(
    cluster: SecuredCluster,
) -> None:
    """While no controller answers, a user without rights asks for a hundred changes that may take
    for ever.
    """
    port = cluster.port(BROKERS[0], "CLIENT")
    with Admin(**cluster.client()) as admin:
        admin.create_topics([NewTopic("t", replica_assignment={0: [BROKERS[0]]})])
    controller = cluster.nodes[CONTROLLER]
    with Login(port, "admin", USERS["admin"]).peer() as before:
        is_served(before, "t")
        controller.pause()
        try:
            with attacked("changes", port, "app", USERS["app"]):
                is_served(before, "t")
                with Login(port, "admin", USERS["admin"]).peer() as during:
                    is_served(during, "t")
            with Login(port, "admin", USERS["admin"]).peer() as afterwards:
                is_served(afterwards, "t")
        finally:
            controller.resume()
    with Admin(**cluster.client()) as admin:
        admin.create_topics([NewTopic("u")])


def test_searches_with_costly_expressions_delay_no_other_request(own_node: SecuredNode) -> None:
    """A tenant searches its own transactional ids, which is all it may do."""
    port = own_node.port("SASL_PLAINTEXT")
    own = AclBinding(
        AclResourceType.TRANSACTIONAL_ID,
        "own-",
        "User:bob",
        AclOperation.ALL,
        pattern_type=AclPatternType.PREFIXED,
    )
    with Admin(own_node.address("PLAINTEXT")) as admin:
        admin.create_acls([own])
        admin.create_topics([NewTopic("t")])
    with Login(port, "plain", f"alice:{PASSWORD}").peer() as before, Witness(own_node) as witness:
        is_served(before, "t")
        with attacked("searches", port, "plain", "bob:b-secret"):
            for _ in range(3):
                is_served(before, "t")
                witness.goes_on()
            with Login(port, "plain", f"alice:{PASSWORD}").peer() as during:
                is_served(during, "t")
        is_served(before, "t")
        witness.goes_on()


def test_what_a_client_without_rights_sends_takes_little_memory(own_node: SecuredNode) -> None:
    """Requests of 8 MB that would be 370 MB decoded."""
    port = own_node.port("SASL_PLAINTEXT")
    with Witness(own_node) as witness, Watched(own_node, growth_bytes=GROWTH_BYTES) as memory:
        with attacked("decoding", port, "plain", "bob:b-secret"):
            for _ in range(10):
                witness.goes_on()
                memory.look()
        witness.goes_on()
    assert memory.peak_bytes < GROWTH_BYTES
    assert "of User:bob: it takes more than 1048576 bytes" in own_node.log()


def test_a_client_of_a_controller_without_rights_delays_no_node(cluster: SecuredCluster) -> None:
    """The cluster makes topics and has elections all the time."""
    certificate = cluster.home / "mallory.pem"
    keystore(cluster.authority, certificate, common_name="mallory")
    port = cluster.port(CONTROLLER, "CONTROLLER")
    controller: Any = SimpleNamespace(process=cluster.nodes[CONTROLLER])
    with (
        Watched(controller, growth_bytes=GROWTH_BYTES) as memory,
        attacked("descriptions", port, "certificate", str(certificate)),
    ):
        for number in range(5):
            with Admin(**cluster.client()) as admin:
                admin.create_topics([NewTopic(f"t{number}", 2, 2)])
                admin.elect_leaders(ElectionType.PREFERRED)
            memory.look()
        assert memory.peak_bytes < GROWTH_BYTES
        cluster.nodes[BROKERS[1]].stop()
        with Admin(**cluster.client()) as admin:
            until(
                lambda: all(
                    partition.leader == BROKERS[0]
                    for topic in admin.describe_topics(["t0"]).values()
                    for partition in topic.partitions
                ),
                what="the other broker leads",
            )
