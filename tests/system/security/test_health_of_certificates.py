"""`moldau health` and the certificates that brokers show."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

from tests.system.processes import run_cli
from tests.system.security.nodes import SecuredNode, keystore


def test_a_certificate_that_expires_in_ten_days_is_a_fault(tmp_path: Path) -> None:
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=10)
    node = SecuredNode(tmp_path)
    keystore(node.authority, node.keystore, not_after=soon)
    settings = tmp_path / "client.properties"
    settings.write_text(f"security.protocol=SSL\nssl.truststore.location={node.trust_path}\n")
    asked = ("health", "-b", node.address("SSL"), "--command-config", settings)
    with node:
        shown = run_cli(*asked)
        assert (shown.status, shown.errors) == (1, "")
        first, advice = shown.output.splitlines()
        assert first == (
            f"degraded: the certificate of broker 1 expires in 9 days, on {soon:%Y-%m-%d}"
        )
        assert advice.startswith("next: put a new one in its place")
        [finding] = json.loads(run_cli(*asked, "--json").output)["findings"]
        assert finding["items"][0]["expires_at"].startswith(f"{soon:%Y-%m-%d}T")
        keystore(node.authority, node.keystore)
        assert run_cli("health", "-b", node.address("PLAINTEXT")).status == 0
        assert run_cli(*asked).output == "healthy: 1 broker, 1 controller, 0 topics, 0 partitions\n"
