"""Prometheus and Grafana: expressions that parse, metrics that exist, targets that are nodes.

That a running cluster serves these metrics with these labels is in test_running.py.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.deploy.files import DEPLOY, OPERATIONS, ROOT, compose, problems_of, yaml_of
from tests.deploy.headings import anchors
from tests.deploy.helm_chart import rendered
from tests.deploy.promql import (
    ALERTS,
    OF_PROMETHEUS,
    alerts,
    dashboard,
    dashboard_queries,
    documented_metrics,
    parsed,
    result_labels,
    selectors,
    variable_queries,
)
from tests.deploy.test_compose import BROKERS, CONTROLLERS, config_of

CONFIGURATIONS = ("prometheus.yml", "kubernetes.yml")
_LABEL_IN_TEXT = re.compile(r"\$labels\.(\w+)")
_LABEL_IN_LEGEND = re.compile(r"\{\{(\w+)\}\}")


def test_files_are_what_prometheus_takes():
    assert problems_of(yaml_of(ALERTS), "prometheus.json", "rules") == []
    for name in CONFIGURATIONS:
        document = yaml_of(DEPLOY / "prometheus" / name)
        assert problems_of(document, "prometheus.json", "configuration") == []
        for rule_file in document["rule_files"]:
            assert (DEPLOY / "prometheus" / rule_file) == ALERTS


def test_the_schemas_find_mistakes():
    scrape = {"scrape_configs": [{"job_name": "x", "static_config": []}]}
    assert "static_config" in problems_of(scrape, "prometheus.json", "configuration")[0]
    rules = {"groups": [{"name": "x", "rules": [{"alert": "MoldauX", "expr": "up"}]}]}
    assert len(problems_of(rules, "prometheus.json", "rules")) == 2


def test_alerts_have_names_of_their_own():
    names = [each["alert"] for each in alerts()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_an_alert_asks_for_metrics_that_exist_of_our_job(rule: dict[str, Any]):
    found = selectors(rule["expr"])
    assert found
    for selector in found:
        assert selector.is_one_of(documented_metrics() | OF_PROMETHEUS), selector.metric
        assert "job" in selector.labels, selector.metric
    assert 'job="moldau"' in rule["expr"]


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_an_alert_says_what_it_knows_and_what_to_do(rule: dict[str, Any]):
    left = result_labels(rule["expr"])
    named = set(_LABEL_IN_TEXT.findall(rule["annotations"]["summary"]))
    assert left is None or named <= left
    document, _, anchor = rule["annotations"]["runbook"].partition("#")
    assert ROOT / document == OPERATIONS
    assert anchor in anchors(OPERATIONS)


def test_targets_are_the_nodes_of_compose():
    services = compose()["services"]
    [job] = yaml_of(DEPLOY / "prometheus" / "prometheus.yml")["scrape_configs"]
    assert job["metrics_path"] == "/metrics"
    assert job["job_name"] == "moldau"
    expected = {
        f"{name}:{config_of(services, name)['moldau.http.listener'].rpartition(':')[2]}"
        for name in CONTROLLERS + BROKERS
    }
    assert {target for part in job["static_configs"] for target in part["targets"]} == expected
    for part in job["static_configs"]:
        for target in part["targets"]:
            assert target.startswith(part["labels"]["role"])


def test_targets_are_the_pods_of_the_chart():
    [job] = yaml_of(DEPLOY / "prometheus" / "kubernetes.yml")["scrape_configs"]
    keep = job["relabel_configs"][0]
    assert keep["action"] == "keep"
    pods = [each for each in rendered({}) if each["kind"] == "StatefulSet"]
    assert len(pods) == 2
    for pod in (each["spec"]["template"] for each in pods):
        labels = {
            "__meta_kubernetes_pod_label_" + re.sub(r"\W", "_", key): value
            for key, value in pod["metadata"]["labels"].items()
        }
        named = {source for rule in job["relabel_configs"] for source in rule["source_labels"]}
        assert {each for each in named if "_label_" in each} <= set(labels)
        joined = [
            ";".join(
                {**labels, "__meta_kubernetes_pod_container_port_name": port["name"]}[source]
                for source in keep["source_labels"]
            )
            for port in pod["spec"]["containers"][0]["ports"]
        ]
        kept = [text for text in joined if re.fullmatch(keep["regex"], text)]
        assert kept == ["moldau;http"]


# -- Grafana ---------------------------------------------------------------------------------------


def test_the_dashboard_is_what_grafana_takes():
    model = dashboard()
    assert problems_of(model, "dashboard.json") == []
    ids = [panel["id"] for panel in model["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in model["panels"]:
        letters = [target["refId"] for target in panel.get("targets", [])]
        assert len(set(letters)) == len(letters)


def test_no_panel_lies_on_another():
    taken: dict[tuple[int, int], str] = {}
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]


@pytest.mark.parametrize(("title", "text", "legend"), list(dashboard_queries()))
def test_a_panel_asks_for_metrics_that_exist(title: str, text: str, legend: str):
    found = selectors(text)
    assert found, title
    for selector in found:
        assert selector.is_one_of(documented_metrics()), selector.metric
        assert {"job", "cluster"} <= selector.labels, selector.metric
    left = result_labels(text)
    assert left is None or set(_LABEL_IN_LEGEND.findall(legend)) <= left


def test_variables_are_declared_before_they_are_used():
    declared = ["__rate_interval"]
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            used = set(re.findall(r"\$(\w+)", variable["query"]["query"]))
            assert used <= set(declared), variable["name"]
        declared.append(variable["name"])
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard()["panels"])))
    assert used == set(declared)


def test_variables_look_up_metrics_that_exist():
    looked_up = list(variable_queries())
    assert len(looked_up) == 3
    for text, _ in looked_up:
        [selector] = selectors(text)
        assert selector.is_one_of(documented_metrics() | OF_PROMETHEUS)


def test_grafana_finds_dashboard_and_prometheus():
    provisioning = DEPLOY / "grafana" / "provisioning"
    [provider] = yaml_of(provisioning / "dashboards" / "moldau.yml")["providers"]
    volumes = dict(text.split(":")[:2] for text in compose()["services"]["grafana"]["volumes"])
    [folder] = [
        source for source, target in volumes.items() if target == provider["options"]["path"]
    ]
    assert list((DEPLOY / "compose" / folder).glob("*.json"))
    assert volumes["../grafana/provisioning"] == "/etc/grafana/provisioning"
    [source] = yaml_of(provisioning / "datasources" / "moldau.yml")["datasources"]
    host, _, port = source["url"].removeprefix("http://").partition(":")
    [published] = compose()["services"][host]["ports"]
    assert published.endswith(f":{port}")
    assert source["type"] == dashboard()["templating"]["list"][0]["query"]


def test_expressions_are_really_parsed():
    with pytest.raises(ValueError, match="left parenthesis"):
        parsed("sum by (cluster (up)")
