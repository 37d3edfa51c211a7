"""The secured cluster of docs/security.md starts as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import trustme

from moldau.client import NewTopic
from moldau.client.sync import Admin, Producer
from moldau.local.layout import PortHolder
from moldau.local.node_process import NodeProcess
from tests.system.documents.test_configurations import BLOCK
from tests.system.processes import run_cli
from tests.system.security.nodes import HOST, keystore
from tests.tidy.sources import ROOT

NODES = {"broker": "kafka-1", "controller": "controller-1"}
CLUSTER_ID = "3Db5QLSqSZieL3rJBUUegA"


def test_it_serves_clients(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    section = text.partition("\n## TLS\n")[0]
    blocks = dict(zip(NODES, BLOCK.findall(section), strict=True))
    ports = PortHolder(HOST)
    internal, clients, controller = ports.take(3)
    authority = trustme.CA()
    trust = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(trust)
    nodes = []
    for role, name in NODES.items():
        home = tmp_path / name
        home.mkdir()
        keystore(authority, home / "node.pem", common_name=name)
        block = blocks[role]
        for pattern, here in (
            (r"[\w.-]*:9091", f"{HOST}:{internal}"),
            (r"//[\w.-]*:9092", f"//{HOST}:{clients}"),
            (r"[\w.-]+:9093", f"{HOST}:{controller}"),
            (r"/var/lib/moldau", str(home / "data")),
            (r"/etc/moldau/node.pem", str(home / "node.pem")),
            (r"/etc/moldau/ca.pem", str(trust)),
        ):
            block = re.sub(pattern, here, block)
        config = home / "server.properties"
        config.write_text(block)
        user = "SCRAM-SHA-512=[name=admin,password=a-secret]"
        how = ["--standalone", "--add-scram", user] if role == "controller" else []
        done = run_cli("storage", "format", "-c", config, "--cluster-id", CLUSTER_ID, *how)
        assert done.status == 0, done.errors
        nodes.append(NodeProcess(config, home / "node.log"))
    try:
        for node in nodes:
            node.start()
        for node in nodes:
            node.wait_ready()
        client = {
            "bootstrap_servers": f"{HOST}:{clients}",
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_username": "admin",
            "sasl_password": "a-secret",
            "ssl_truststore_location": str(trust),
        }
        with Admin(**client) as admin:
            admin.create_topics([NewTopic("t")])
        with Producer(**client) as producer:
            producer.send("t", b"x")
    finally:
        for node in nodes:
            node.kill()
        ports.close()
