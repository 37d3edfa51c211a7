"""A real node whose certificate expires soon: its log, its metrics and its page, and a renewal."""

from __future__ import annotations

import datetime
import json
import re
import ssl
import urllib.request
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from moldau.client.sync import Admin
from moldau.x509 import end_of
from tests.deploy.promql import OF_SECURED, alerts, dashboard_queries, selectors
from tests.kit.waiting import until
from tests.system.processes import run_cli
from tests.system.security.nodes import SecuredNode, keystore

METRIC = "kafka_server_certificate_metrics_expiry_seconds"
DAY_S = 86_400


def in_days(days: float) -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)


class Pages:
    """Reads a node's HTTPS pages."""

    def __init__(self, node: SecuredNode) -> None:
        found = until(
            lambda: re.search(r"HTTPS listener on (\S+)", node.log()), what="the HTTPS listener"
        )
        assert found is not None
        self._base = f"https://{found[1]}"
        self._context = ssl.create_default_context(cafile=str(node.trust_path))

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self._base + path, context=self._context) as answer:
            text: str = answer.read().decode()
            return text

    def certificates(self) -> dict[tuple[str, str], dict[str, Any]]:
        found = json.loads(self.get("/api/v1/certificates"))["certificates"]
        return {(each["listener"], each["store"]): each for each in found}

    def metric(self) -> dict[tuple[str, str], tuple[float, dict[str, str]]]:
        families = {
            each.name: each for each in text_string_to_metric_families(self.get("/metrics"))
        }
        return {
            (each.labels["listener"], each.labels["store"]): (each.value / DAY_S, each.labels)
            for each in families[METRIC].samples
        }


def test_a_certificate_that_expires_in_ten_days_is_logged_shown_and_renewed(tmp_path: Path) -> None:
    http = tmp_path / "http.pem"
    changed = {
        "moldau.http.listener": "127.0.0.1:0",
        "moldau.http.ssl.keystore.location": str(http),
    }
    node = SecuredNode(tmp_path, changed)
    keystore(node.authority, node.keystore, not_after=in_days(10))
    keystore(node.authority, http, not_after=in_days(200))
    with node:
        pages = Pages(node)
        until(lambda: "node.expirations" in node.log(), what="the warning")
        [line] = [each for each in node.log().splitlines() if "node.expirations" in each]
        assert "WARNING" in line
        assert re.search(
            r"listeners SSL, MTLS, SASL_SSL: the certificate OU=\S+ .*expires in 10 days, on "
            rf"{in_days(10):%Y-%m-%d} ..:.. UTC \(ssl\.keystore\.location: {node.keystore}\): put",
            line,
        )
        with Admin(node.address("SSL"), security_protocol="SSL", **node.trust) as admin:
            [certificate] = admin.describe_certificates([1]).values()
        assert certificate is not None
        assert abs(end_of(certificate) - in_days(10)) < datetime.timedelta(minutes=10)
        with Admin(node.address("PLAINTEXT")) as admin:
            assert admin.describe_certificates([1]) == {1: None}
        properties = tmp_path / "admin.properties"
        properties.write_text(f"security.protocol=SSL\nssl.truststore.location={node.trust_path}\n")
        done = run_cli("health", "-q", "-b", node.address("SSL"), "--command-config", properties)
        assert (done.status, done.errors) == (0, "")
        assert done.output.startswith(
            f"soon: the certificate of broker 1 expires in 10 days, on {in_days(10):%Y-%m-%d}: "
        )
        before = pages.metric()
        for name in ("SSL", "MTLS", "SASL_SSL"):
            value, labels = before[name, "keystore"]
            assert 9.9 < value < 10
            assert labels["location"] == str(node.keystore)
        assert 199.9 < before["HTTP", "keystore"][0] < 200
        assert before["MTLS", "truststore"][0] > 1_000
        shown = pages.certificates()
        assert shown.keys() == before.keys()
        assert shown["SSL", "keystore"]["location"] == str(node.keystore)
        assert shown["SSL", "keystore"]["expires_at"].startswith(f"{in_days(10):%Y-%m-%d}T")

        keystore(node.authority, node.keystore, not_after=in_days(300))
        keystore(node.authority, http, not_after=in_days(400))
        after = pages.metric()
        assert 299.9 < after["SSL", "keystore"][0] < 300
        assert 399.9 < after["HTTP", "keystore"][0] < 400
        assert pages.certificates()["MTLS", "keystore"]["seconds_left"] > 299 * DAY_S
        assert node.log().count("node serves") == 1

        labels = set(before["SSL", "keystore"][1]) | {"job", "instance", "cluster", "role"}
        texts = [each["expr"] for each in alerts()] + [text for _, text, _ in dashboard_queries()]
        asked = [each for text in texts for each in selectors(text) if each.metric in OF_SECURED]
        assert {each.metric for each in asked} == OF_SECURED
        assert all(each.labels <= labels for each in asked)
