"""The command lines of docs/client.md and deploy/README.md do what they say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from moldau.client import NewTopic
from moldau.client.sync import Admin, Producer
from moldau.local.secure_files import properties_text
from moldau.testing import Cluster
from tests.kit.waiting import until
from tests.system.documents.commands import commands_to_run
from tests.system.documents.terminal import Serving, Terminal
from tests.tidy.sources import ROOT
from tests.unit.schema_registry.registry_server import registry_server

SKIPPED = 4711
PERSON = {"type": "record", "name": "Person", "fields": [{"name": "name", "type": "string"}]}

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


def prepare(home: Path, cluster: Cluster) -> None:
    """The files that the page names, and topics with something in them."""
    prices = [f"key-{number}:{number}" for number in range(SKIPPED + 3)]
    (home / "prices.txt").write_text("\n".join(prices) + "\n")
    (home / "person.avsc").write_text(json.dumps(PERSON))
    (home / "people.json").write_text('{"name": "Ada"}\n')
    (home / "client.properties").write_text(f"bootstrap.servers={cluster.bootstrap_server}\n")
    with Admin(cluster.bootstrap_server) as admin:
        names = ("prices", "trades", "copy", "prices-eu")
        admin.create_topics([NewTopic(name) for name in names])


#: What a command that reads on and on has written when it has done what the page says.
FOLLOWED: dict[str, str] = {
    "--group pricing": f'"value": ?"{SKIPPED + 2}"',
    "'^prices-'": r"prices-eu-0@\d+ tea 12\n",
    "--value-format schema": r"Ada",
    "--isolation read_committed": r"(?m)^1$",
}


def test_the_commands_of_the_client(tmp_path: Path) -> None:
    said: dict[str, str] = {}
    with (
        Cluster() as cluster,
        registry_server() as registry,
        Terminal(tmp_path, cluster.bootstrap_server) as terminal,
    ):
        prepare(tmp_path, cluster)
        terminal.environ["MOLDAU_SCHEMA_REGISTRY"] = registry.url
        for command in (each.text for each in commands_to_run("docs/client.md")):
            pattern = next((text for part, text in FOLLOWED.items() if part in command), None)
            if pattern is not None:
                following = terminal.serve(command)
                if "--from-beginning" not in command:
                    send_until(following, pattern, cluster)
                following.wait_said(pattern)
                following.interrupt(status=130)
            elif "| moldau produce copy" in command:
                said[command] = copied(terminal, command, cluster)
            else:
                said[command] = terminal.run(command)
    of = finder(said)
    assert of("| wc -l").strip() == "1000"
    assert len(of("--offset -10").splitlines()) == 10
    assert of("--end-timestamp 10m") == "", "what was written just now is younger"
    assert len(of("--where").splitlines()) == 13
    assert len(said) == 10


def send_until(following: Serving, pattern: str, cluster: Cluster) -> None:
    """What begins at the end reads only what comes after its start."""
    with Producer(cluster.bootstrap_server) as producer:

        def is_read() -> bool:
            producer.send("prices-eu", b"12", key=b"tea")
            producer.send("prices", b"1", key=b"key-1")
            return re.search(pattern, following.said) is not None

        until(is_read, what=following.command)


def copied(terminal: Terminal, command: str, cluster: Cluster) -> str:
    """Run what copies on and on, until there is a copy."""
    copying = terminal.serve(f"bash -c {json.dumps(command)}")
    read = "moldau consume copy --from-beginning"
    following = terminal.serve(f"{read} -b {cluster.bootstrap_server}")
    found = following.wait_said(r"\d+\n")[0]
    following.interrupt(status=130)
    copying.kill()
    return found


def finder(said: dict[str, str]) -> Callable[[str], str]:
    """What the one command wrote that has these words."""

    def of(words: str) -> str:
        [found] = (text for command, text in said.items() if words in command)
        return found

    return of


def test_topics_on_the_nodes_of_compose(tmp_path: Path) -> None:
    """tests/deploy starts the nodes themselves; here are as many, at other addresses."""
    one, three = (each.text for each in commands_to_run("deploy/README.md"))
    for brokers, command in ((1, one), (3, three)):
        with Cluster(brokers=brokers, controllers=brokers, secure=True) as cluster:
            settings = properties_text(cluster.client_properties)
            (tmp_path / "admin.properties").write_text(settings)
            with Terminal(tmp_path) as terminal:
                terminal.run(command)
            with Admin(config=cluster.client_properties) as admin:
                [described] = admin.describe_topics(["flights"]).values()
            assert {len(each.replicas) for each in described.partitions} == {brokers}


def test_the_commands_of_filters(tmp_path: Path) -> None:
    said: dict[str, str] = {}
    order = {"user": {"id": 7}, "total": 120, "status": "failed", "items": [{}]}
    with (
        Cluster() as cluster,
        Terminal(tmp_path, cluster.bootstrap_server) as terminal,
    ):
        with Producer(cluster.bootstrap_server) as producer:
            for number in range(5):
                value = json.dumps({**order, "total": 99 + number}).encode()
                source = b"test-1" if number == 0 else b"shop"
                headers = [("source", source)]
                producer.send("orders", value, key=b"o-%d" % (4_711 + number), headers=headers)
            producer.flush()
        for command in (each.text for each in commands_to_run("docs/filters.md")):
            said[command] = terminal.run(command)
    counts = [len(each.splitlines()) for each in said.values()]
    assert counts == [3, 1, 4, 5]


def test_the_example_of_a_cluster_file(tmp_path: Path) -> None:
    page = (ROOT / "docs/cluster-files.md").read_text(encoding="utf-8")
    example = re.search(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert example is not None
    (tmp_path / "cluster.yaml").write_text(example[1])
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    config = {"authorizer.class.name": authorizer, "super.users": "User:ANONYMOUS;User:root"}
    with (
        Cluster(brokers=3, config=config) as cluster,
        Terminal(tmp_path, cluster.bootstrap_server) as terminal,
    ):
        applied = terminal.run("moldau topics apply cluster.yaml --yes")
        assert "+ topic orders\n    + partitions: 6\n" in applied
        assert terminal.run("moldau topics diff cluster.yaml") == "nothing to change\n"
