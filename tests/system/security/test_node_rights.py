"""Nodes have names of their own and a node's rights: what a stolen certificate is good for, and how
a cluster whose nodes were one super user goes over.
"""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

import pytest

from moldau.client import (
    ConfigChange,
    ConfigResource,
    ConfigResourceType,
    ElectionType,
    KafkaError,
    NewPartitions,
    NewTopic,
    TopicPartition,
)
from moldau.client.admin.security import (
    AclBinding,
    AclFilter,
    AclOperation,
    AclResourceType,
    ScramUpsertion,
)
from moldau.client.sync import Admin, Consumer, Producer
from moldau.config import read_properties_file
from moldau.local.layout import ClusterLayout, PortHolder
from moldau.local.node_process import NodeProcess, wait_ready_together
from moldau.testing import Cluster
from tests.kit.waiting import until
from tests.system.processes import run_cli
from tests.tidy.sources import ROOT

TOPIC: Final = "flights"
CONTROLLER_ID: Final = 101


def certificate_of(directory: Path, node: str, listeners: str, key: str) -> dict[str, str]:
    """The settings of a client that shows a node's certificate."""
    return {
        key: listeners,
        "security.protocol": "SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(directory / node / "certificate.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(directory / "authority" / "ca.pem"),
        "request.timeout.ms": "10000",
        "default.api.timeout.ms": "10000",
    }


def address_of(directory: Path, node: str, listener: str) -> str:
    text = (directory / node / "server.properties").read_text()
    [found] = re.findall(rf"\b{listener}://([^,\n]+)", text)
    return str(found)


def outcome(ask: Callable[[], Any]) -> str:
    """The code that refuses it; "" when it is done."""
    try:
        found = ask()
    except KafkaError as error:
        return error.code.name
    results = found.values() if isinstance(found, dict) else [found]
    refused = [each.code.name for each in results if isinstance(each, KafkaError)]
    return refused[0] if refused else ""


def changes(admin: Admin) -> dict[str, Callable[[], Any]]:
    """What only an administrator may do."""
    topic = ConfigResource(ConfigResourceType.TOPIC, TOPIC)
    brokers = ConfigResource(ConfigResourceType.BROKER, "")
    everything = AclBinding(AclResourceType.TOPIC, "*", "User:m", AclOperation.ALL)
    return {
        "alter a topic": lambda: admin.alter_configs({topic: [ConfigChange("retention.ms", "9")]}),
        "alter brokers": lambda: admin.alter_configs(
            {brokers: [ConfigChange("log.retention.ms", "9")]}
        ),
        "create a user": lambda: admin.alter_user_scram_credentials([ScramUpsertion("m", "m")]),
        "create an ACL": lambda: admin.create_acls([everything]),
        "delete ACLs": lambda: admin.delete_acls([AclFilter()]),
        "create a topic": lambda: admin.create_topics([NewTopic("mine")]),
        "delete a topic": lambda: admin.delete_topics([TOPIC]),
        "more partitions": lambda: admin.create_partitions({TOPIC: NewPartitions(9)}),
        "elect leaders": lambda: admin.elect_leaders(
            ElectionType.PREFERRED, [TopicPartition(TOPIC, 0)]
        ),
    }


def uses(properties: dict[str, str]) -> dict[str, Callable[[], Any]]:
    """What producers and consumers do."""

    def write() -> None:
        with Producer(config={**properties, "delivery.timeout.ms": "20000"}) as producer:
            producer.send(TOPIC, b"forged")

    def read() -> None:
        settings = {"group.id": "g", "auto.offset.reset": "earliest"}
        with Consumer(config={**properties, **settings}) as consumer:
            consumer.assign([TopicPartition(TOPIC, 0)])
            consumer.getone()

    def commit() -> None:
        with Consumer(config={**properties, "group.id": "g"}) as consumer:
            consumer.assign([TopicPartition(TOPIC, 0)])
            consumer.commit({TopicPartition(TOPIC, 0): 1})

    return {"write": write, "read": read, "commit": commit}


@pytest.mark.system
@pytest.mark.timeout(240)
def test_a_stolen_certificate_is_no_administrator_and_no_client(tmp_path: Path) -> None:
    """At every listener. What a broker itself does with it is in docs/security.md."""
    with Cluster(2, secure=True, directory=tmp_path) as cluster:
        with Admin(config=cluster.client_properties) as admin:
            admin.create_topics([NewTopic(TOPIC, 1, 2)])
        with Producer(config=cluster.client_properties) as producer:
            producer.send(TOPIC, b"secret")
        refused = {}
        for node in ("broker-1", f"controller-{CONTROLLER_ID}"):
            internal = address_of(tmp_path, "broker-1", "INTERNAL")
            client = certificate_of(tmp_path, node, internal, "bootstrap.servers")
            with Admin(config=client) as admin:
                asked = changes(admin) | uses(client)
                refused |= {(node, "INTERNAL", what): outcome(asked[what]) for what in asked}
            where = address_of(tmp_path, f"controller-{CONTROLLER_ID}", "CONTROLLER")
            client = certificate_of(tmp_path, node, where, "bootstrap.controllers")
            with Admin(config=client) as admin:
                asked = changes(admin)
                for what in ("alter a topic", "alter brokers", "create a user", "create an ACL"):
                    refused[node, "CONTROLLER", what] = outcome(asked[what])
            where = address_of(tmp_path, "broker-1", "CLIENT")
            client = certificate_of(tmp_path, node, where, "bootstrap.servers")
            with Admin(config=client) as admin:
                refused[node, "CLIENT", "anything"] = outcome(admin.list_topics)
        allowed = [what for what, code in refused.items() if not code]
        assert allowed == []
        unclear = {
            what: code
            for what, code in refused.items()
            if not code.endswith("_AUTHORIZATION_FAILED") and what[1] != "CLIENT"
        }
        assert unclear == {}
        with Admin(config=cluster.client_properties) as admin:
            assert admin.list_topics() == [TOPIC]
            assert set(admin.describe_user_scram_credentials()) == {"admin"}


@pytest.mark.system
def test_names_of_nodes_are_no_users(tmp_path: Path) -> None:
    with Cluster(secure=True, directory=tmp_path):
        password = tmp_path / "password"
        password.write_text("a long secret")
        how = ("--command-config", tmp_path / "admin.properties")
        for name in ("nodes", "ANONYMOUS", "CN=node-1,OU=nodes"):
            made = run_cli("users", "create", name, "--password-file", password, *how)
            assert made.status == 1
            assert f"'{name}' is a reserved name, which no client may have" in made.complaint
        assert run_cli("users", "create", "alice", "--password-file", password, *how).status == 0


# -- clusters of earlier versions ----------------------------------------------------------------

OLD_LINES: Final = (
    "ssl.principal.mapping.rules="
    "RULE:^CN=[^,]+,OU=nodes$/nodes/,RULE:^CN=([^,]+),OU=clients$/$1/,DEFAULT",
    "super.users=User:nodes;User:admin",
)
"""What `--secure` wrote while all nodes were one user."""


def as_earlier(path: Path) -> None:
    """Make of a node's configuration what it was then."""
    changed = ("ssl.principal.mapping.rules", "super.users", "moldau.node.principals")
    lines = [line for line in path.read_text().splitlines() if not line.startswith(changed)]
    path.write_text("\n".join([*lines, *OLD_LINES]) + "\n")


def documented_change() -> str:
    """The command that docs/security.md gives for it."""
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    [found] = re.findall(r"^sed -i .*$", text, re.MULTILINE)
    return found


class Load(threading.Thread):
    """A producer and a consumer of what it has sent, until `finish`."""

    def __init__(self, properties: dict[str, str]) -> None:
        super().__init__(daemon=True)
        self.sent = self.read = 0
        self.error: Exception | None = None
        self._properties = properties
        self._ends = threading.Event()

    def run(self) -> None:
        settings = {"group.id": "board", "auto.offset.reset": "earliest"}
        try:
            with (
                Producer(config={**self._properties, "linger.ms": "0"}) as producer,
                Consumer(config={**self._properties, **settings}) as consumer,
            ):
                consumer.subscribe([TOPIC])
                while not self._ends.is_set():
                    producer.send(TOPIC, b"%d" % self.sent)
                    self.sent += 1
                    assert consumer.getone().value == b"%d" % self.read
                    self.read += 1
        except (KafkaError, AssertionError) as error:
            self.error = error

    def goes_on(self) -> None:
        goal = self.read + 20
        until(lambda: self.read >= goal or self.error, what="records under way", deadline_s=90)
        assert self.error is None

    def finish(self) -> None:
        self._ends.set()
        self.join(90)
        assert not self.is_alive()


@pytest.mark.system
@pytest.mark.timeout(400)
def test_a_cluster_whose_nodes_were_one_super_user_goes_over_node_by_node(tmp_path: Path) -> None:
    """Clients go on throughout, while some nodes have the old configuration and others the new."""
    with closing(PortHolder("127.0.0.1")) as ports:
        layout = planned(tmp_path, ports)
        layout.write_configs()
        for spec in layout.nodes:
            as_earlier(spec.config_path)
        layout.format()
        nodes = {
            spec.node_id: NodeProcess(spec.config_path, spec.log_path) for spec in layout.nodes
        }
        with ExitStack() as running:
            for node in nodes.values():
                running.callback(node.kill)
                node.start()
            wait_ready_together(nodes.values())
            admin_settings = layout.client_properties()
            with Admin(config=admin_settings) as admin:
                admin.create_topics([NewTopic(TOPIC, 1, 3)])
            load = Load(admin_settings)
            load.start()
            running.callback(load.finish)
            load.goes_on()
            thief = certificate_of(
                tmp_path,
                "broker-1",
                address_of(tmp_path, "broker-1", "INTERNAL"),
                "bootstrap.servers",
            )
            assert "super.users names User:nodes" in layout.brokers[0].log_path.read_text()
            with Admin(config=thief) as admin:
                assert outcome(changes(admin)["alter a topic"]) == "", "as it was"
            for spec in (*layout.controllers, *layout.brokers):
                nodes[spec.node_id].stop()
                change = documented_change().replace("secured/*", str(spec.home))
                subprocess.run(change, shell=True, check=True)
                nodes[spec.node_id].start()
                nodes[spec.node_id].wait_ready()
                load.goes_on()
            load.finish()
            assert load.error is None
            assert load.sent == load.read
            for spec in layout.nodes:
                values = read_properties_file(str(spec.config_path))
                expected = {key: layout.properties(spec)[key] for key in values}
                assert values == expected, "what a new cluster has"
            with Admin(config=thief) as admin:
                assert outcome(changes(admin)["alter a topic"]) == "TOPIC_AUTHORIZATION_FAILED"
            with Admin(config=admin_settings) as admin:
                until(
                    lambda: (
                        set(admin.describe_topics([TOPIC])[TOPIC].partitions[0].isr) == {1, 2, 3}
                    ),
                    what="all brokers follow the leader",
                )


def planned(directory: Path, ports: PortHolder) -> ClusterLayout:
    """Three controllers and three brokers, as `quorum bootstrap --secure` lays them out."""
    broker, controller, internal = (iter(ports.take(3)) for _ in range(3))
    return ClusterLayout.plan(
        directory,
        controllers=3,
        brokers=3,
        host="127.0.0.1",
        broker_port=lambda: next(broker),
        controller_port=lambda: next(controller),
        internal_port=lambda: next(internal),
        config={"group.initial.rebalance.delay.ms": "0"},
    )
