"""The quickstarts and recipes do what they say: their commands and programs run, in order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.client import NewTopic
from moldau.client.sync import Admin, Consumer, Producer
from moldau.testing import Cluster
from moldau.testing.node_process import NodeProcess
from tests.tidy.sources import ROOT
from tests.unit.schema_registry.registry_server import registry_server

QUICKSTARTS = ROOT / "docs" / "quickstart"
ADDRESS = "localhost:9092"
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DEADLINE_S = 120.0
#: What runs a cluster or installs: the test has both already.
LEFT_OUT = ("pip install", "moldau dev")


@pytest.fixture(scope="module")
def node() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


def blocks(name: str) -> list[tuple[str, str]]:
    """Language and text of each block of a quickstart."""
    return BLOCK.findall((QUICKSTARTS / name).read_text(encoding="utf-8"))


def environment(bootstrap: str, home: Path) -> dict[str, str]:
    """Where `moldau` is the one under test, and the cluster is the default."""
    command = home / "moldau"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m moldau "$@"\n')
    command.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{home}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "MOLDAU_CONFIG_HOME": str(home / "configuration"),
        "MOLDAU_BOOTSTRAP_SERVER": bootstrap,
    }


def run(node: Cluster | str, home: Path, command: list[str], given: str = "") -> str:
    """A command to its end, which must be good; what it wrote."""
    bootstrap = node if isinstance(node, str) else node.bootstrap_server
    done = subprocess.run(
        command,
        cwd=home,
        env=environment(bootstrap, home),
        input=given,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.system
@pytest.mark.timeout(300)
def test_a_cluster_on_your_machine(node: Cluster, tmp_path: Path):
    said = ""
    for language, text in blocks("local.md"):
        if language == "python":
            code = text.replace(ADDRESS, node.bootstrap_server)
            said += run(node, tmp_path, [sys.executable, "-c", code])
            continue
        lines = [line for line in text.splitlines() if not line.startswith(LEFT_OUT)]
        said += run(node, tmp_path, ["bash", "-euo", "pipefail", "-c", "\n".join(lines)])
    assert said.count("1545 on time") >= 2, "read with and without a group"
    assert "board" in said
    assert "b'" in said, "read by the program"


@pytest.mark.system
@pytest.mark.timeout(300)
def test_kafka_in_your_tests(node: Cluster, tmp_path: Path):
    first, second = (text for language, text in blocks("tests.md") if language == "python")
    (tmp_path / "test_it.py").write_text(first)
    arguments = ["-q", "-p", "no:cacheprovider"]
    said = run(node, tmp_path, [sys.executable, "-m", "pytest", *arguments, "test_it.py"])
    assert "1 passed" in said
    assert run(node, tmp_path, [sys.executable, "-c", second]).count(",") == 2


# -- three machines --------------------------------------------------------------------------------

MACHINES = {"a": "127.0.91.1", "b": "127.0.91.2", "c": "127.0.91.3"}
"""Each machine is a loopback address, so that the ports can be the documented ones."""


class Machines:
    """What docs/quickstart/machines.md has one do on three machines, done on their addresses."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.blocks = blocks("machines.md")
        text = (QUICKSTARTS / "machines.md").read_text(encoding="utf-8")
        self._controller, self._broker = re.findall(
            r"^```properties\n(.*?)^```$", text, re.MULTILINE | re.DOTALL
        )
        self.bootstrap = ",".join(f"{each}:9092" for each in MACHINES.values())
        self.nodes: dict[tuple[str, str], NodeProcess] = {}

    def here(self, text: str, machine: str) -> str:
        """A text of the page as it is on that machine."""
        number = [*MACHINES].index(machine)
        text = text.replace("0.0.0.0:", f"{MACHINES[machine]}:")
        text = re.sub(r"\b([abc]):(\d{4})", lambda m: f"{MACHINES[m[1]]}:{m[2]}", text)
        text = text.replace("node.id=101", f"node.id={101 + number}")
        text = text.replace("node.id=1\n", f"node.id={1 + number}\n")
        for key in ("controller", "broker"):
            text = text.replace(f"/etc/moldau/{key}", f"{self.home}/{machine}/{key}")
            text = text.replace(f"/var/lib/moldau/{key}", f"{self.home}/{machine}/{key}-data")
        own = f"advertised.listeners={{}}://{MACHINES['a']}:"
        for name in ("CONTROLLER", "PLAINTEXT"):
            text = text.replace(
                own.format(name), own.format(name).replace(MACHINES["a"], MACHINES[machine])
            )
        return text.replace("zone-a", f"zone-{machine}")

    def shell(self, text: str, machine: str = "a") -> str:
        command = ["bash", "-euo", "pipefail", "-c", self.here(text, machine)]
        return run(self.bootstrap, self.home, command)

    def start(self, machine: str) -> None:
        for role in ("controller", "broker"):
            config = self.home / machine / f"{role}.properties"
            node = NodeProcess(config, self.home / machine / f"{role}.log")
            node.start()
            self.nodes[machine, role] = node

    def prepare(self) -> None:
        """Steps 1 to 3: ids, files and directories."""
        uuids = next(text for _, text in self.blocks if "random-uuid" in text)
        cluster_id, *directories = self.shell(uuids).split()
        assert len({cluster_id, *directories}) == 4
        formatting = next(text for _, text in self.blocks if "storage format" in text)
        formatting = formatting.replace("CLUSTER_ID", cluster_id)
        for letter, directory in zip("ABC", directories, strict=True):
            formatting = formatting.replace(f"DIRECTORY_ID_{letter}", directory)
        formatting = re.sub(r"^chown.*$", "", formatting, flags=re.MULTILINE)
        for machine in MACHINES:
            (self.home / machine).mkdir()
            for role, text in (("controller", self._controller), ("broker", self._broker)):
                path = self.home / machine / f"{role}.properties"
                path.write_text(self.here(text, machine))
            self.shell(formatting, machine)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    made = Machines(tmp_path)
    try:
        yield made
    finally:
        for node in made.nodes.values():
            node.kill()


@pytest.mark.system
@pytest.mark.timeout(300)
@pytest.mark.skipif(sys.platform != "linux", reason="every machine has a loopback address")
def test_three_machines(machines: Machines) -> None:
    machines.prepare()
    for machine in MACHINES:
        machines.start(machine)
    for node in machines.nodes.values():
        node.wait_ready()
    use = next(text for _, text in machines.blocks if "quorum status" in text)
    said = machines.shell(use)
    assert {"101", "102", "103"} <= {*re.findall(r'"id": (\d+)', said)}
    with Producer(machines.bootstrap, acks="all") as producer:
        for number in range(60):
            producer.send("flights", b"%d" % number)
    # "Stop one machine: producing and consuming go on."
    for role in ("broker", "controller"):
        assert machines.nodes["b", role].stop() == 0
    with Producer(machines.bootstrap, acks="all") as producer:
        for number in range(60, 120):
            producer.send("flights", b"%d" % number)
    with Consumer(machines.bootstrap, group_id="g", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["flights"])
        assert {consumer.getone().value for _ in range(120)} == {b"%d" % n for n in range(120)}
    with Admin(machines.bootstrap) as admin:
        described = admin.describe_topics(["flights"])["flights"]
        assert len(described.partitions) == 6
        assert all(len(each.replicas) == 3 for each in described.partitions)
        assert all(2 not in each.isr for each in described.partitions)


# -- recipes ---------------------------------------------------------------------------------------

RECIPE = re.compile(r"^ {4}((?:moldau|export) .*)$", re.MULTILINE)
NOT_RUN = {
    "moldau topics list --profile prod": "kafka-1 is a name of nobody's machine",
    "moldau bench produce load": "a long load; test_log_and_bench.py runs a short one",
    "moldau bench consume load": "a long load; test_log_and_bench.py runs a short one",
}


def before(command: str, cluster: Cluster, home: Path) -> None:
    """What has to be there for a recipe."""
    bootstrap = cluster.bootstrap_server
    if "--offset -10" in command:
        with Admin(bootstrap) as admin:
            admin.create_topics([NewTopic("flights", 2), NewTopic("copy")])
        with Producer(bootstrap) as producer:
            for number in range(30):
                producer.send("flights", b"%d" % number)
    elif "people" in command:
        with Producer(bootstrap) as producer:
            producer.send("people", b"\0\0\0\0\1\x0a")
    elif "describe board" in command:
        with Consumer(bootstrap, group_id="board", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["flights"])
            for _ in range(5):
                consumer.getone()
            consumer.commit()
    elif "unregister 4" in command:
        cluster.stop(4)
    (home / "flights.txt").write_text("x\ny\n")
    (home / "client.properties").write_text(f"bootstrap.servers={bootstrap}\n")


@pytest.mark.system
@pytest.mark.timeout(300)
def test_recipes(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "howto.md").read_text(encoding="utf-8")
    commands = RECIPE.findall(text)
    assert len(commands) >= 25
    assert {*NOT_RUN} <= {*commands}
    said: dict[str, str] = {}
    exports: list[str] = []
    with Cluster(brokers=4, controllers=3) as cluster, registry_server() as registry:
        registry.schemas.append({"schema": '"int"'})
        for command in commands:
            if command.startswith("export "):
                exports.append(command)
                continue
            if command in NOT_RUN:
                continue
            before(command, cluster, tmp_path)
            line = command.replace("http://localhost:8081", registry.url)
            script = "\n".join([*exports, line])
            said[command] = run(cluster, tmp_path, ["bash", "-eo", "pipefail", "-c", script], "x\n")
        with Admin(cluster.bootstrap_server) as admin:
            assert admin.describe_topics(["load"])
            brokers = {each.node_id for each in admin.describe_cluster().brokers}
    assert brokers == {1, 2, 3}
    assert "5\n" in next(text for command, text in said.items() if "people" in command)
    assert "retention.ms" in next(
        text for command, text in said.items() if "configs desc" in command
    )
