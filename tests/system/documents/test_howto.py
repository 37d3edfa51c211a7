"""The recipes of docs/howto.md do what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from moldau.client import NewTopic
from moldau.client.sync import Admin, Consumer, Producer
from moldau.testing import Cluster
from tests.system.documents.commands import commands_to_run
from tests.system.documents.terminal import Terminal
from tests.unit.schema_registry.registry_server import registry_server

REGISTRY = "http://localhost:8081"


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
    (home / "cluster.yaml").write_text("topics: {archive: {partitions: 2, configs: {}}}\n")
    (home / "client.properties").write_text(f"bootstrap.servers={bootstrap}\n")


@pytest.mark.system
@pytest.mark.timeout(300)
def test_recipes(tmp_path: Path) -> None:
    said: dict[str, str] = {}
    with (
        Cluster(brokers=4, controllers=3) as cluster,
        registry_server() as registry,
        Terminal(tmp_path, cluster.bootstrap_server, {REGISTRY: registry.url}) as terminal,
    ):
        registry.schemas.append({"schema": '"int"'})
        for command in (each.text for each in commands_to_run("docs/howto.md")):
            if command.startswith("export "):
                name, _, value = command.removeprefix("export ").partition("=")
                terminal.environ[name] = value
                continue
            before(command, cluster, tmp_path)
            said[command] = terminal.run(command, "x\n")
        with Admin(cluster.bootstrap_server) as admin:
            assert admin.describe_topics(["load", "archive"])
            brokers = {each.node_id for each in admin.describe_cluster().brokers}
    assert brokers == {1, 2, 3}
    assert "5\n" in next(text for command, text in said.items() if "people" in command)
    assert "retention.ms" in next(
        text for command, text in said.items() if "configs desc" in command
    )
