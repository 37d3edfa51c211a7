"""docs/quickstart/machines.md does what it says, on three machines that are loopback addresses."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.client.sync import Admin, Consumer, Producer
from tests.system.documents.commands import Command, commands_to_run
from tests.system.documents.terminal import Serving, Terminal
from tests.tidy.sources import ROOT

DOCUMENT = "docs/quickstart/machines.md"
MACHINES = {"a": "127.0.91.1", "b": "127.0.91.2", "c": "127.0.91.3"}
"""Each machine is a loopback address, so that the ports can be the documented ones."""
ROLES = ("controller", "broker")


class Machines:
    """What the page has its reader do on three machines, done on their addresses."""

    def __init__(self, home: Path) -> None:
        self.home = home
        text = (ROOT / DOCUMENT).read_text(encoding="utf-8")
        configurations = re.findall(r"^```properties\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        self._configurations = dict(zip(ROLES, configurations, strict=True))
        self.commands = commands_to_run(DOCUMENT)
        self.bootstrap = ",".join(f"{each}:9092" for each in MACHINES.values())
        self.terminal = Terminal(home, self.bootstrap)
        self.nodes: dict[tuple[str, str], Serving] = {}
        self.ids: dict[str, str] = {}

    def of(self, words: str) -> list[Command]:
        """The page's commands that contain these words."""
        return [each for each in self.commands if words in each.text]

    def here(self, text: str, machine: str) -> str:
        """A text of the page as it is on that machine."""
        number = [*MACHINES].index(machine)
        text = text.removeprefix("runuser -u moldau -- ")  # the test has no such user
        text = text.replace("0.0.0.0:", f"{MACHINES[machine]}:")
        text = re.sub(r"\b([abc]):(\d{4})", lambda m: f"{MACHINES[m[1]]}:{m[2]}", text)
        text = text.replace("node.id=101", f"node.id={101 + number}")
        text = text.replace("node.id=1\n", f"node.id={1 + number}\n")
        for role in ROLES:
            text = text.replace(f"/etc/moldau/{role}", f"{self.home}/{machine}/{role}")
            text = text.replace(f"/var/lib/moldau/{role}", f"{self.home}/{machine}/{role}-data")
        own = f"advertised.listeners={{}}://{MACHINES['a']}:"
        for name in ("CONTROLLER", "PLAINTEXT"):
            text = text.replace(
                own.format(name), own.format(name).replace(MACHINES["a"], MACHINES[machine])
            )
        for documented, drawn in self.ids.items():
            text = text.replace(documented, drawn)
        return text.replace("zone-a", f"zone-{machine}")

    def run(self, command: Command, machine: str = "a") -> str:
        return self.terminal.run(self.here(command.text, machine))

    def start(self, machine: str) -> None:
        for role, command in zip(ROLES, self.of("server start"), strict=True):
            self.nodes[machine, role] = self.terminal.serve(self.here(command.text, machine))

    def prepare(self) -> None:
        """Steps 1 to 3: ids, files and directories."""
        drawn = [self.run(each).strip() for each in self.of("random-uuid")]
        assert len({*drawn}) == 4
        names = ("CLUSTER_ID", "DIRECTORY_ID_A", "DIRECTORY_ID_B", "DIRECTORY_ID_C")
        self.ids = dict(zip(names, drawn, strict=True))
        for machine in MACHINES:
            (self.home / machine).mkdir()
            for role, text in self._configurations.items():
                path = self.home / machine / f"{role}.properties"
                path.write_text(self.here(text, machine))
            for command in self.of("storage format"):
                self.run(command, machine)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    made = Machines(tmp_path)
    with made.terminal:
        yield made


@pytest.mark.system
@pytest.mark.timeout(300)
@pytest.mark.skipif(sys.platform != "linux", reason="every machine has a loopback address")
def test_three_machines(machines: Machines) -> None:
    machines.prepare()
    for machine in MACHINES:
        machines.start(machine)
    for (_, role), node in machines.nodes.items():
        node.wait_said("node serves" if role == "broker" else "leads")
    uses = machines.of("-b a:9092")
    said = "".join(machines.run(each) for each in uses)
    assert {"101", "102", "103"} <= {*re.findall(r'"id": (\d+)', said)}
    assert {each.text for each in machines.commands} == {
        each.text
        for each in (
            *machines.of("random-uuid"),
            *machines.of("storage format"),
            *machines.of("server start"),
            *uses,
        )
    }
    with Producer(machines.bootstrap, acks="all") as producer:
        for number in range(60):
            producer.send("flights", b"%d" % number)
    # "Stop one machine: producing and consuming go on."
    for role in ("broker", "controller"):
        assert "stopped" in machines.nodes["b", role].interrupt()
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
