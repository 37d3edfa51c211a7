"""Every configuration in the documents is one that nodes or clients take, and those that are whole
are started and used.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import trustme

from moldau.client import ClientConfig, Consumer, Producer
from moldau.config import BROKER_KEYS, NodeConfig
from moldau.config.properties import parse_properties
from moldau.config.table import PER_LISTENER_KEYS
from moldau.local.layout import PortHolder
from moldau.local.node_process import NodeProcess
from tests.system.processes import run_cli
from tests.system.security.nodes import keystore
from tests.tidy.sources import ROOT

BLOCK = re.compile(r"^```properties\n(.*?)^```$", re.DOTALL | re.MULTILINE)
BLOCKS = [
    pytest.param(block, id=f"{path.relative_to(ROOT)}-{number}")
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for number, block in enumerate(BLOCK.findall(path.read_text(encoding="utf-8")))
]
OF_LISTENER = re.compile(r"listener\.name\.[^.]+\.(.+)")
HTTP_STORE = "/etc/moldau/http.pem"
#: A node by itself; the others are of one machine among several.
WHOLE = [each for each in BLOCKS if "process.roles=broker,controller" in each.values[0]]


def test_there_are_configurations():
    assert len(BLOCKS) >= 4
    assert WHOLE


@pytest.mark.parametrize("block", BLOCKS)
def test_every_key_is_known(block: str):
    values = parse_properties(block)
    if "process.roles" in values:
        assert NodeConfig(values).warnings == ()
    elif not all(map(is_key_of_a_node, values)):
        assert ClientConfig.from_properties({**values, "bootstrap.servers": "localhost:9092"})


def is_of_a_node(block: str) -> bool:
    values = parse_properties(block)
    return "process.roles" not in values and values.keys() <= BROKER_KEYS.keys()


def is_key_of_a_node(name: str) -> bool:
    """Whether it is a key, perhaps of one listener, and of one mechanism there."""
    of_listener = OF_LISTENER.match(name)
    if of_listener is None:
        return name in BROKER_KEYS
    return any(
        part in PER_LISTENER_KEYS for part in (of_listener[1], of_listener[1].partition(".")[2])
    )


@pytest.mark.parametrize(
    "more", ["", *(block.values[0] for block in BLOCKS if is_of_a_node(block.values[0]))]
)
@pytest.mark.parametrize("block", WHOLE)
async def test_a_whole_configuration_serves_groups(block: str, more: str, tmp_path: Path):
    ports = PortHolder("127.0.0.1")
    broker, controller = ports.take(2)
    for pattern, here in (
        (r"[\w.]+:9092", f"127.0.0.1:{broker}"),
        (r"[\w.]+:9093", f"127.0.0.1:{controller}"),
        (r"[\w.]+:8080", "127.0.0.1:0"),
        (r"(?m)^log.dirs=.*$", f"log.dirs={tmp_path / 'data'}"),
    ):
        block, count = re.subn(pattern, here, block)
        assert count, pattern
    store = keystore(trustme.CA(), tmp_path / "http.pem")
    more = more.replace(HTTP_STORE, str(store)).replace(":8443", ":0")
    config = tmp_path / "server.properties"
    config.write_text(f"{block}\n{more}")
    formatted = run_cli("storage", "format", "-c", config, "--standalone")
    assert formatted.status == 0, formatted.errors
    node = NodeProcess(config, tmp_path / "node.log")
    node.start()
    try:
        address = node.wait_ready()
        async with Producer(address) as producer:
            await producer.send("t", b"a record")
        async with Consumer(
            address, group_id="g", auto_offset_reset="earliest", group_protocol="consumer"
        ) as consumer:
            consumer.subscribe(["t"])
            assert (await consumer.getone()).value == b"a record"
        assert node.stop() == 0
    finally:
        node.kill()
        ports.close()
