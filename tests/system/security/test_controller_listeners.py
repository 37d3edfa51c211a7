"""The listeners of controllers: when they open, and stores that change while they run."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from moldau.client import ConfigChange, ConfigOperation, ConfigResource, ConfigResourceType
from moldau.client.errors import BrokerError
from moldau.client.sync import Admin
from tests.kit.waiting import until
from tests.system.security.nodes import AUTHORIZER, HOST, SecuredNode, keystore
from tests.system.security.secured_cluster import CERTIFICATES, SecuredCluster

CONTROLLER, BROKER = 101, 1
OWN = ConfigResource(ConfigResourceType.BROKER, str(CONTROLLER))
LOCATION = "listener.name.controller.ssl.keystore.location"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SecuredCluster]:
    """A controller and a broker, which show certificates to one another."""
    made = SecuredCluster(tmp_path, CERTIFICATES, controllers=[CONTROLLER], brokers=[BROKER])
    store(made, "keystore")
    with made as running:
        yield running


def store(cluster: SecuredCluster, name: str, common_name: str = f"node-{CONTROLLER}") -> Path:
    """A key store of the controller; those with its name have the same subject."""
    path = cluster.home / f"node-{CONTROLLER}" / f"{name}.pem"
    return keystore(
        cluster.authority,
        path,
        common_name=common_name,
        organization_name="moldau",
        organization_unit_name="controller",
    )


def by_certificate(cluster: SecuredCluster) -> dict[str, Any]:
    """A client of the controller's listener, under the broker's name."""
    return {
        "bootstrap_controllers": cluster.address(CONTROLLER, "CONTROLLER"),
        "security_protocol": "SSL",
        "ssl_truststore_location": str(cluster.trust_path),
        "ssl_keystore_location": str(cluster.home / f"node-{BROKER}" / "keystore.pem"),
    }


def shown(cluster: SecuredCluster) -> str:
    """The certificate that new connections to the controller see."""
    context = ssl.create_default_context(cafile=str(cluster.trust_path))
    own = cluster.home / f"node-{BROKER}" / "keystore.pem"
    context.load_cert_chain(own)
    address = (HOST, cluster.port(CONTROLLER, "CONTROLLER"))
    with (
        socket.create_connection(address) as opened,
        context.wrap_socket(opened, server_hostname=HOST) as secured,
    ):
        seen = secured.getpeercert(binary_form=True)
    assert seen is not None
    return ssl.DER_cert_to_PEM_cert(seen).strip()


def says(cluster: SecuredCluster, words: str) -> bool:
    return words in cluster.log(CONTROLLER)


def alter(cluster: SecuredCluster, value: str | None) -> None:
    """`--bootstrap-controller … --entity-type brokers --entity-name 101`."""
    operation = ConfigOperation.SET if value else ConfigOperation.DELETE
    with Admin(**by_certificate(cluster)) as admin:
        admin.alter_configs({OWN: [ConfigChange(LOCATION, value, operation)]})


def test_stores_of_a_controller_change_while_it_runs(cluster: SecuredCluster) -> None:
    """KIP-919: its dynamic configuration is that of a broker with its id (KIP-226)."""
    directory = cluster.home / f"node-{CONTROLLER}"
    first = directory / "keystore.pem"
    second, other = store(cluster, "second"), store(cluster, "other", "another")
    assert shown(cluster) in first.read_text()
    alter(cluster, str(second))
    until(lambda: shown(cluster) in second.read_text(), what="the new certificate")
    with Admin(**by_certificate(cluster)) as admin:
        assert admin.describe_configs([OWN])[OWN][LOCATION].value == str(second)
    # As in Apache Kafka, a controller stores what it cannot use, says so, and keeps what it has.
    for path, reason in ((directory / "none.pem", "No such file"), (other, "allow.dn.changes")):
        alter(cluster, str(path))
        until(partial(says, cluster, reason), what="why it has no effect")
        assert shown(cluster) in second.read_text()
    assert cluster.log(CONTROLLER).count("keeps its certificate, the new settings") == 2
    alter(cluster, str(second))
    controller = cluster.nodes[CONTROLLER]
    controller.stop()
    controller.start()
    controller.wait_ready()
    until(lambda: shown(cluster) in second.read_text(), what="it is back after a restart")
    alter(cluster, None)
    until(lambda: shown(cluster) in first.read_text(), what="the controller's own")
    with Admin(**cluster.client()) as admin:
        assert admin.describe_cluster().brokers
    assert "Traceback" not in cluster.log(CONTROLLER)


def test_a_node_that_is_neither_broker_nor_controller_has_no_configuration(
    cluster: SecuredCluster,
) -> None:
    nowhere = ConfigResource(ConfigResourceType.BROKER, "77")
    with (
        Admin(**by_certificate(cluster)) as admin,
        pytest.raises(BrokerError, match="BROKER_ID_NOT_REGISTERED"),
    ):
        admin.alter_configs({nowhere: [ConfigChange(LOCATION, "/x.pem")]})


OPENS, IS_OPEN = "listener CONTROLLER opens when the ACLs", "listener CONTROLLER is open"
SUPER_USER = {"authorizer.class.name": AUTHORIZER, "super.users": "User:ANONYMOUS"}


def test_a_listener_that_is_not_early_opens_behind_the_acls(tmp_path: Path) -> None:
    changed = {**SUPER_USER, "early.start.listeners": "PLAINTEXT"}
    with SecuredNode(tmp_path, changed) as node:
        until(lambda: IS_OPEN in node.log(), what="the listener opens")
        log = node.log()
        assert log.index(OPENS) < log.index("active controller in epoch") < log.index(IS_OPEN)
        with Admin(bootstrap_controllers=node.address("CONTROLLER")) as admin:
            assert [each.node_id for each in admin.describe_cluster().brokers] == [1]


@pytest.mark.parametrize(
    "changed",
    [
        {"early.start.listeners": "PLAINTEXT"},
        {**SUPER_USER, "early.start.listeners": "Controller,SSL"},
        SUPER_USER,
    ],
    ids=["no authorizer", "named", "default"],
)
def test_listeners_of_controllers_are_early(tmp_path: Path, changed: dict[str, str]) -> None:
    """They are early by default; without an authorizer there is nothing to wait for."""
    with SecuredNode(tmp_path, changed) as node:
        assert OPENS not in node.log()
        with Admin(bootstrap_controllers=node.address("CONTROLLER")) as admin:
            assert admin.describe_cluster().controller_id == 1


def test_controllers_that_wait_for_one_another_say_so(tmp_path: Path) -> None:
    """As in Apache Kafka, no leader is elected: each is closed until another has led."""
    changed = {"early.start.listeners": ""}
    made = SecuredCluster(
        tmp_path, CERTIFICATES, controllers=[101, 102], brokers=[BROKER], changed=changed
    )
    controllers = [made.nodes[node_id] for node_id in made.controllers]
    try:
        for node in controllers:
            node.start()
        for node_id, node in zip(made.controllers, controllers, strict=True):
            node.wait_ready()
            assert "cannot elect a leader" in made.log(node_id)
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((HOST, made.port(node_id, "CONTROLLER")))
    finally:
        for node in controllers:
            node.stop()
        made.close()
