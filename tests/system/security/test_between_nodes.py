"""Nodes that authenticate to one another, by certificates and by passwords: real clusters."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import trustme

from moldau.client import NewTopic
from moldau.client.sync import Admin, Consumer, Producer
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p01_fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ReplicaState,
)
from moldau.protocol.messages.p52_vote import VoteRequest
from moldau.protocol.messages.p56_alter_partition import AlterPartitionRequest
from moldau.protocol.messages.p58_envelope import EnvelopeRequest
from moldau.protocol.messages.p62_broker_registration import BrokerRegistrationRequest
from moldau.protocol.messages.p63_broker_heartbeat import BrokerHeartbeatRequest
from moldau.protocol.messages.p67_allocate_producer_ids import AllocateProducerIdsRequest
from moldau.protocol.schema import Request, Response
from moldau.runtime.authentication.tls import Store, TlsSettings, client_context
from moldau.runtime.connection import Connection
from moldau.runtime.network import AsyncioNetwork
from tests.kit.kerberos import running_realm
from tests.kit.waiting import until
from tests.system.security.nodes import HOST, keystore
from tests.system.security.secured_cluster import (
    BROKER_IDS,
    CERTIFICATES,
    CONTROLLER_IDS,
    NODE_PASSWORD,
    USERS,
    SecuredCluster,
    kerberos_between,
    passwords,
)

FEW: Mapping[str, Any] = {"controllers": CONTROLLER_IDS[:1], "brokers": BROKER_IDS[:1]}
COMBINED: Mapping[str, Any] = {"controllers": BROKER_IDS, "brokers": BROKER_IDS}
SECRETS = (*USERS.values(), "wrong-secret")


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    """Three controllers and three brokers, by certificates."""
    with SecuredCluster(tmp_path_factory.mktemp("certified"), CERTIFICATES) as cluster:
        yield cluster


def use(cluster: SecuredCluster) -> None:
    """Produce, consume in a group, and commit a transaction."""
    topic = f"t-{uuid.uuid4().hex}"
    client = cluster.client()
    replicas = len(cluster.brokers)
    with Admin(**client) as admin:
        admin.create_topics([NewTopic(topic, 3, replicas)])
    with Producer(acks="all", **client) as producer:
        for number in range(30):
            producer.send(topic, str(number).encode())
    with Producer(transactional_id=topic, **client) as producer:
        producer.init_transactions()
        for ends_well in (True, False):
            producer.begin_transaction()
            producer.send(topic, b"kept" if ends_well else b"dropped")
            if ends_well:
                producer.commit_transaction()
            else:
                producer.flush()
                producer.abort_transaction()
    expected = {*(str(number).encode() for number in range(30)), b"kept"}
    with Consumer(
        group_id=topic,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        **client,
    ) as consumer:
        consumer.subscribe([topic])
        assert {consumer.getone().value for _ in expected} == expected


def no_secrets(cluster: SecuredCluster) -> None:
    for node_id in cluster.nodes:
        log = cluster.log(node_id)
        assert not [secret for secret in SECRETS if secret in log]


def test_by_certificates_with_kills_and_restarts(certified: SecuredCluster) -> None:
    cluster = certified
    use(cluster)
    for node_id in (CONTROLLER_IDS[0], BROKER_IDS[0]):
        cluster.nodes[node_id].kill()
    use_two_replicas(cluster)
    for node_id in (CONTROLLER_IDS[0], BROKER_IDS[0]):
        cluster.nodes[node_id].start()
    cluster.nodes[BROKER_IDS[0]].wait_ready()
    cluster.nodes[BROKER_IDS[1]].stop()
    cluster.nodes[BROKER_IDS[1]].start()
    cluster.nodes[BROKER_IDS[1]].wait_ready()
    use(cluster)
    no_secrets(cluster)


def use_two_replicas(cluster: SecuredCluster) -> None:
    """While one broker is away: a topic that the others have."""
    topic = f"t-{uuid.uuid4().hex}"
    with Admin(**cluster.client()) as admin:
        admin.create_topics([NewTopic(topic, 1, 2)])
    with Producer(acks="all", **cluster.client()) as producer:
        producer.send(topic, b"x")
        producer.flush()


def test_what_only_nodes_may_ask_is_refused_to_others(
    certified: SecuredCluster, tmp_path: Path
) -> None:
    own = keystore(certified.authority, tmp_path / "app.pem", common_name="app")
    to_controllers: list[Request[Any]] = [
        VoteRequest(),
        FetchRequest(replica_state=ReplicaState(replica_id=101)),
        AlterPartitionRequest(broker_id=1),
        BrokerRegistrationRequest(broker_id=9),
        BrokerHeartbeatRequest(broker_id=1),
        AllocateProducerIdsRequest(broker_id=1),
        EnvelopeRequest(client_host_address=bytes(4)),
    ]
    for controller_id in CONTROLLER_IDS:
        port = certified.port(controller_id, "CONTROLLER")
        for request in to_controllers:
            answer = asyncio.run(answer_of(port, certified.trust_path, own, request))
            assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED, type(request)
    topic = FetchTopic(topic_id=uuid.uuid4(), partitions=[FetchPartition(partition=7)])
    as_follower = FetchRequest(replica_state=ReplicaState(replica_id=2), topics=[topic])
    port = certified.port(BROKER_IDS[0], "INTERNAL")
    answer = asyncio.run(answer_of(port, certified.trust_path, own, as_follower))
    [[partition]] = [each.partitions for each in answer.responses]
    assert partition.partition_index == 7
    assert partition.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED, "as Apache Kafka's brokers"
    use(certified)


async def answer_of(port: int, trust: Path, own: Path, request: Request[Response]) -> Any:
    context = client_context(
        TlsSettings(trust=Store("ssl.truststore", str(trust)), own=Store("ssl.keystore", str(own)))
    )
    connection = await Connection.connect(AsyncioNetwork(), HOST, port, ssl_context=context)
    try:
        return await connection.send(request)
    finally:
        connection.close()


def test_certificates_are_renewed_under_load(certified: SecuredCluster) -> None:
    """New connections show the new ones; those that are open stay, and no record is lost."""
    cluster = certified
    topic = f"t-{uuid.uuid4().hex}"
    with Admin(**cluster.client()) as admin:
        admin.create_topics([NewTopic(topic, 3, 3)])
    stop = threading.Event()
    sent: list[bytes] = []

    def produce() -> None:
        client = {**cluster.client(), "retries": 0, "enable_idempotence": False}
        with Producer(acks="all", **client) as producer:
            while not stop.is_set():
                value = str(len(sent)).encode()
                producer.send(topic, value)
                sent.append(value)

    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(produce)
        try:
            until(lambda: len(sent) > 20 or load.done(), what="records")
            old = {node_id: shown_by(cluster, node_id) for node_id in cluster.nodes}
            for node_id in cluster.nodes:
                cluster.renew(node_id)
            count = len(sent)
            until(lambda: len(sent) > count + 50 or load.done(), what="more records")
        finally:
            stop.set()
        load.result()  # without a retry
    # All connections of this one are new, in both directions.
    cluster.nodes[BROKER_IDS[2]].stop()
    cluster.nodes[BROKER_IDS[2]].start()
    cluster.nodes[BROKER_IDS[2]].wait_ready()
    for node_id in cluster.nodes:
        assert shown_by(cluster, node_id) != old[node_id]
    use(cluster)


def shown_by(cluster: SecuredCluster, node_id: int) -> bytes:
    """The certificate that a node shows other nodes."""
    name = "CONTROLLER" if node_id in cluster.controllers else "INTERNAL"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection((HOST, cluster.port(node_id, name))) as plain,
        context.wrap_socket(plain) as secured,
    ):
        shown = secured.getpeercert(binary_form=True)
    assert shown is not None
    return shown


def test_a_broker_with_a_foreign_certificate_stays_outside(certified: SecuredCluster) -> None:
    cluster, broker_id = certified, BROKER_IDS[2]
    node = cluster.nodes[broker_id]
    node.stop()
    foreign = trustme.CA()
    cluster.renew(broker_id, foreign)
    both = cluster.home / "both.pem"  # it trusts its own, or it would refuse to start
    both.write_bytes(cluster.trust_path.read_bytes() + foreign.cert_pem.bytes())
    changed = {"ssl.truststore.location": str(both)}
    limit = {"initial.broker.registration.timeout.ms": "10000"}
    try:
        cluster.write_config(broker_id, {**changed, **limit})
        before = len(cluster.log(broker_id))
        node.start()
        until(lambda: not node.running, what="the end of the start", deadline_s=90)
        complaint = node.complaint()
        assert "no active controller of cluster" in complaint
        assert "refuses our certificate" in complaint
        refusals = [
            line for line in cluster.log(broker_id)[before:].splitlines() if " ERROR " in line
        ]
        ports = [cluster.port(each, "CONTROLLER") for each in CONTROLLER_IDS]
        for port in ports:  # the quorum's side says it once, and the broker's
            assert len([each for each in refusals if f":{port}" in each]) <= 2
        use_two_replicas(cluster)
    finally:
        node.kill()
        cluster.renew(broker_id)
        cluster.write_config(broker_id)
        node.start()
        node.wait_ready()
    use(cluster)


@pytest.mark.parametrize(
    ("internal", "controller", "shape"),
    [
        ("SCRAM-SHA-512", "SCRAM-SHA-256", COMBINED),
        pytest.param("PLAIN", "PLAIN", {}, marks=pytest.mark.long),
        pytest.param("SCRAM-SHA-256", "PLAIN", FEW, marks=pytest.mark.long),
    ],
)
def test_by_passwords(
    internal: str, controller: str, shape: Mapping[str, Any], tmp_path: Path
) -> None:
    """Controllers find one another by SCRAM although its users are in the log that they are about
    to elect a leader for: at the first start, and when all start again.
    """
    changed = {"connections.max.reauth.ms": "6000"}
    with SecuredCluster(
        tmp_path, passwords(internal, controller), changed=changed, **shape
    ) as cluster:
        use(cluster)
        for node in cluster.nodes.values():
            node.kill()
        for node in cluster.nodes.values():
            node.start()
        for broker_id in cluster.brokers:
            cluster.nodes[broker_id].wait_ready()
        use(cluster)
        no_secrets(cluster)
        for node_id in cluster.nodes:
            assert "it has not authenticated again" not in cluster.log(node_id)
            assert "did not renew the session" not in cluster.log(node_id)


def test_passwords_without_tls(tmp_path: Path) -> None:
    between = passwords("PLAIN", "SCRAM-SHA-512", "SASL_PLAINTEXT")
    with SecuredCluster(tmp_path, between, **FEW) as cluster:
        use(cluster)


def test_by_kerberos(tmp_path: Path) -> None:
    """A session is shorter than the test, and the KDC is away while tickets are good."""
    (tmp_path / "realm").mkdir()
    with running_realm(tmp_path / "realm") as realm:
        principal, keytab = f"kafka/{HOST}", tmp_path / "nodes.keytab"
        realm.add(principal, keytab)
        changed = {
            "sasl.kerberos.service.name": "kafka",
            "sasl.kerberos.principal.to.local.rules": "RULE:[2:$1](kafka)s/kafka/node/",
            "connections.max.reauth.ms": "6000",
        }
        between = kerberos_between(realm.jaas(principal, keytab))
        (tmp_path / "cluster").mkdir()
        with SecuredCluster(tmp_path / "cluster", between, changed=changed, **COMBINED) as cluster:
            use(cluster)
            realm.stop()
            cluster.nodes[BROKER_IDS[0]].kill()
            use_two_replicas(cluster)
            realm.start()
            cluster.nodes[BROKER_IDS[0]].start()
            cluster.nodes[BROKER_IDS[0]].wait_ready()
            use(cluster)
            for node_id in cluster.nodes:
                assert "it has not authenticated again" not in cluster.log(node_id)


def test_a_broker_with_a_wrong_password_ends_with_a_line_that_says_so(tmp_path: Path) -> None:
    between = passwords("PLAIN", "PLAIN")
    with SecuredCluster(tmp_path, between, **FEW) as cluster:
        [broker_id] = cluster.brokers
        node = cluster.nodes[broker_id]
        node.stop()
        wrong = passwords("PLAIN", "PLAIN", password="wrong-secret")
        limit = {"initial.broker.registration.timeout.ms": "10000"}
        cluster.write_config(broker_id, {**wrong, **limit})
        node.start()
        until(lambda: not node.running, what="the end of the start", deadline_s=90)
        assert "PLAIN: the user name or the password is wrong" in node.complaint()
        no_secrets(cluster)
        cluster.write_config(broker_id)
        node.start()
        node.wait_ready()
        assert NODE_PASSWORD not in cluster.log(broker_id)
        use(cluster)
