"""The commands of docs/operations.md and docs/security.md do what they say, section by section, on
real nodes.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.client import NewTopic, ProducerFenced
from moldau.client.sync import Admin, Consumer, Producer
from moldau.local.layout import PortHolder
from moldau.testing import Cluster
from tests.kit.waiting import until
from tests.system.documents.commands import commands_to_run
from tests.system.documents.terminal import Serving, Terminal
from tests.system.processes import properties

DOCUMENT = "docs/operations.md"
SECURITY = "docs/security.md"
RACKS = {1: "a", 2: "b", 3: "c"}
DOCUMENTED_DIRECTORY_ID = "zZz-JoN7RQCi9DP675992w"
READ = 5

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


def section(title: str, document: str = DOCUMENT) -> list[str]:
    """The commands below a heading of the second level."""
    return [each.text for each in commands_to_run(document) if each.section == title]


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    with Terminal(tmp_path) as opened:
        yield opened


def test_each_section_is_here():
    assert {each.section for each in commands_to_run(DOCUMENT)} == {
        "Start and stop",
        "Clusters of several nodes",
        "Replicas",
        "Groups",
        "Transactions",
        "The quorum",
        "Logs",
        "Machines",
        "Quotas",
        "Rolling restart and upgrade",
        "Replacing a broker",
        "Monitoring",
    }
    assert {each.section for each in commands_to_run(SECURITY)} == {"SASL", "Permissions"}


def test_start_and_stop(terminal: Terminal) -> None:
    formatting, starting = section("Start and stop")
    properties(terminal.home)
    terminal.run(formatting)
    node = terminal.serve(starting)
    node.wait_said("node serves")
    assert node.interrupt().splitlines()[-1].endswith("stopped")


def test_clusters_of_several_nodes(terminal: Terminal, base_port: int) -> None:
    dev, laid_out, started, draw, formatting = section("Clusters of several nodes")
    node = terminal.serve(dev, "--port 0")
    assert node.wait_said(r"ready: (\S+)")[1].count(",") == 2
    node.interrupt()
    terminal.run(f"{laid_out} --base-port {base_port}")
    configurations = {path.parent.name for path in terminal.home.glob("DIR/*/server.properties")}
    assert len(configurations) == 6
    terminal.instead["DIR"] = "OTHER"
    supervisor = terminal.serve(started, f"--base-port {base_port}")
    supervisor.wait_said("ready: ")
    supervisor.interrupt()
    del terminal.instead["DIR"]
    cluster_id, *directory_ids = (terminal.run(draw).strip() for _ in range(4))
    for directory_id in directory_ids:
        formatting = formatting.replace(":DIRECTORY_ID", f":{directory_id}", 1)
    controller_only = {"process_roles": "controller", "node_id": "101"}
    properties(
        terminal.home,
        **controller_only,
        listeners="CONTROLLER://127.0.0.1:9093",
        controller_quorum_bootstrap_servers="a:9093,b:9093,c:9093",
    )
    terminal.run(formatting.replace("CLUSTER_ID", cluster_id))
    assert cluster_id in (terminal.home / "data" / "meta.properties").read_text()


def test_security(terminal: Terminal) -> None:
    [formatting] = section("SASL", SECURITY)
    acls = section("Permissions", SECURITY)
    draw = section("Clusters of several nodes")[3]
    terminal.environ["ID"] = terminal.run(draw).strip()
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    properties(
        terminal.home,
        listeners="PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
        "CLIENTS:SASL_PLAINTEXT",
        sasl_enabled_mechanisms="SCRAM-SHA-512",
        authorizer_class_name=authorizer,
        super_users="User:ANONYMOUS;User:admin",
    )
    terminal.run(formatting)
    node = terminal.serve(section("Start and stop")[1])
    address = node.wait_said(r"node serves.* address=(\S+)")[1]
    terminal.environ["MOLDAU_BOOTSTRAP_SERVER"] = address
    assert "admin" in terminal.run("moldau users list")
    said = {command: terminal.run(command) for command in acls}
    assert len(said) == 6
    told = {part: text for command, text in said.items() for part in [command.split()[2]]}
    assert told["check"].startswith("allowed: an entry allows it")
    assert "User:mallory" in told["list"]
    assert "User:alice" in told["delete"]
    node.interrupt()


# -- a cluster in operation ------------------------------------------------------------------------


class Operated:
    """Three brokers in three racks, three controllers, and the operator's terminal."""

    def __init__(self, home: Path) -> None:
        self.terminal = Terminal(home)
        self.cluster = Cluster(3, 3)
        self.ports = PortHolder("127.0.0.1")

    def enter(self) -> None:
        """The brokers go into their racks; the text's words for this cluster get their meaning."""
        for number, rack in RACKS.items():
            self.cluster.stop(number)
            with self.cluster.node(number).config_path.open("a") as configuration:
                configuration.write(f"broker.rack={rack}\n")
            self.cluster.restart(number)
        self.bootstrap = self.cluster.bootstrap_server
        self.terminal.environ["MOLDAU_BOOTSTRAP_SERVER"] = self.bootstrap
        data = self.cluster.data_directory()
        meta = (data / "meta.properties").read_text()
        [cluster_id] = re.findall(r"^cluster\.id=(\S+)$", meta, re.MULTILINE)
        self.terminal.instead["CLUSTER_ID"] = cluster_id
        self.terminal.instead["DIR"] = str(data)

    def node(self, number: int, role: str) -> Path:
        """The configuration of a new node, in server.properties; returns its log directory."""
        name = "CONTROLLER" if role == "controller" else "PLAINTEXT"
        [port] = self.ports.take()
        data = self.terminal.home / f"data-{number}"
        properties(
            self.terminal.home,
            process_roles=role,
            node_id=str(number),
            listeners=f"{name}://127.0.0.1:{port}",
            controller_quorum_bootstrap_servers=self.cluster.bootstrap_controllers,
            log_dirs=str(data),
            broker_rack="c" if role == "broker" else None,
        )
        return data

    def serve(self, command: str, says: str) -> Serving:
        self.ports.close()
        node = self.terminal.serve(command)
        node.wait_said(says)
        return node

    def read_orders(self) -> None:
        """A group's member reads some, commits, and leaves."""
        with Consumer(
            self.bootstrap, group_id="orders-app", auto_offset_reset="earliest"
        ) as consumer:
            consumer.subscribe(["orders", "old"])
            for _ in range(READ):
                consumer.getone()
            consumer.commit()


def replicas(at: Operated) -> None:
    watch, spread, empty, racks, execute, listing, verify, cancel, *limits = section("Replicas")
    watching = at.terminal.serve(watch)
    watching.wait_said(r"orders-0 leader \d epoch \d+ replicas")
    watching.interrupt()
    for command in (spread, empty):
        at.terminal.run(command)
    at.terminal.run(racks)
    assert "back.json" in {path.name for path in at.terminal.home.iterdir()}
    moved = at.terminal.run(execute)
    assert re.search(r"orders-\d is on", moved)
    assert "throttles are taken" in moved
    at.terminal.run(listing)
    at.terminal.run(verify)
    # What moves to a broker that stands still goes on moving until it is cancelled.
    at.cluster.pause(3)
    at.terminal.run("moldau topics reassign execute orders --replicas 3,1")
    cancelling = at.terminal.serve(cancel)
    cancelling.wait_said("orders-3 stays on")
    at.cluster.resume(3)
    cancelling.wait_end()
    assert len(limits) == 3
    for command in limits:
        at.terminal.run(command)
    with Admin(at.bootstrap) as admin:
        described = admin.describe_topics(["orders"])["orders"]
        assert all(3 not in each.replicas for each in described.partitions)


def groups(at: Operated) -> None:
    listing, describe, delete_offsets, delete, *reset = section("Groups")
    export, by_time, by_duration, from_file = reset
    at.read_orders()
    assert "orders-app" in at.terminal.run(listing)
    assert "orders" in at.terminal.run(describe)
    at.terminal.run(delete_offsets)
    at.terminal.run(delete)
    assert "orders-app" not in at.terminal.run(listing)
    at.read_orders()
    for command in (export, by_time, by_duration, from_file):
        at.terminal.run(command)
    exported = (at.terminal.home / "before.csv").read_text()
    assert re.search(r"^orders,\d,\d+$", exported, re.MULTILINE)
    with Admin(at.bootstrap) as admin:
        stored = admin.list_group_offsets(["orders-app"])["orders-app"]
    assert sum(each.offset for each in stored.values()) == READ


def transactions(at: Operated) -> None:
    listing, describe, producers, terminate, hanging = section("Transactions")
    with Producer(at.bootstrap, transactional_id="orders-1") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"never", partition=0)
        assert "orders-1" in at.terminal.run(listing)
        assert "orders" in at.terminal.run(describe)
        assert at.terminal.run(producers)
        at.terminal.run(terminate)
        assert "no transaction hangs" in at.terminal.run(hanging)
        with pytest.raises(ProducerFenced):
            producer.commit_transaction()


def the_quorum(at: Operated) -> None:
    commands = section("The quorum")
    formatting, starting, replication, adding = commands[:4]
    format_again, start_again, removing, add_again = commands[4:8]
    data = at.node(104, "controller")
    at.terminal.run(formatting)
    controller = at.serve(starting, "follows|leads")
    until(lambda: "104" in at.terminal.run(replication), what="the new one is an observer")
    added = at.terminal.run(adding)
    [directory_id] = re.findall(r"added controller 104 with directory id (\S+)", added)
    controller.kill()
    shutil.rmtree(data)
    at.terminal.run(format_again)
    at.serve(start_again, "follows|leads")
    at.terminal.run(removing.replace(DOCUMENTED_DIRECTORY_ID, directory_id))
    assert "added controller 104" in at.terminal.run(add_again)
    listing, leader, dump, digest = map(at.terminal.run, commands[8:])
    assert "orders" in listing
    assert re.search(r"10\d", leader)
    assert dump.count("\n") > 20
    assert digest.strip()


def settings(at: Operated) -> None:
    """What the sections about logs and machines have set."""
    for title, count in (("Logs", 3), ("Machines", 1)):
        commands = section(title)
        assert len(commands) == count
        for command in commands:
            at.terminal.run(command)


def quotas(at: Operated) -> None:
    *altering, describe, removing = section("Quotas")
    assert len(altering) == 4
    for command in altering:
        assert at.terminal.run(command) == "altered\n"
    told = at.terminal.run(describe)
    for key in ("consumer_byte_rate", "request_percentage", "connection_creation_rate"):
        assert key in told
    at.terminal.run(removing)
    assert "consumer_byte_rate" not in at.terminal.run(describe)


def all_in_sync(at: Operated, command: str) -> None:
    """The command prints nothing, in the end."""
    until(lambda: at.terminal.run(command) == "", what="all replicas are in sync", deadline_s=60)


def rolling_restart(at: Operated) -> None:
    in_sync, restart, again, lags, restart_controller, *features = section(
        "Rolling restart and upgrade"
    )
    for command, check in ((restart, in_sync), (restart_controller, lags)):
        all_in_sync(at, again)
        at.terminal.run(check)
        [number] = re.findall(r"systemctl restart moldau@\w+-(\d+)$", command)
        at.cluster.stop(int(number))
        at.cluster.restart(int(number))
    all_in_sync(at, again)
    describe, dry, upgrade = map(at.terminal.run, features)
    assert "metadata.version" in describe
    assert dry
    assert upgrade


def replacing_a_broker(at: Operated) -> None:
    formatting, starting, emptying, verify, *same = section("Replacing a broker")
    data = at.node(4, "broker")
    at.terminal.run(formatting)
    broker = at.serve(starting, "node serves")
    at.terminal.run(emptying)
    at.terminal.run(verify)
    with Admin(at.bootstrap) as admin:
        every = admin.describe_topics(admin.list_topics()).values()
        assert all(3 not in each.replicas for topic in every for each in topic.partitions)
    broker.kill()
    shutil.rmtree(data)
    format_again, start_again, watch = same
    at.terminal.run(format_again)
    at.serve(start_again, "node serves")
    watching = at.terminal.serve(watch)
    all_in_sync(at, watch.removesuffix(" --watch"))
    watching.interrupt()


def monitoring(at: Operated) -> None:
    commands = section("Monitoring")
    assert len(commands) == 3
    for command in commands:
        assert at.terminal.run(command) == ""


def test_a_cluster_in_operation(tmp_path: Path) -> None:
    at = Operated(tmp_path)
    with at.terminal, at.cluster:
        at.enter()
        with Admin(at.bootstrap) as admin:
            admin.create_topics(
                [NewTopic(name, 4, replication_factor=2) for name in ("orders", "old")]
            )
        with Producer(at.bootstrap) as producer:
            for number in range(100):
                producer.send(("orders", "old")[number % 2], b"%d" % number)
        replicas(at)
        groups(at)
        transactions(at)
        settings(at)
        quotas(at)
        the_quorum(at)
        rolling_restart(at)
        replacing_a_broker(at)
        monitoring(at)
