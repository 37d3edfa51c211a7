"""What PromQL expressions ask for, by a real parser of that language.

Owns the walk over the parsed expression. Must not know any metric.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from typing import Any, Final, NamedTuple

import promql_parser as promql

from tests.deploy.files import DEPLOY, OPERATIONS, yaml_of

ALERTS: Final = DEPLOY / "prometheus" / "alerts.yml"
DASHBOARD: Final = DEPLOY / "grafana" / "dashboards" / "moldau.json"

#: What Prometheus adds to every series of a target, or as its own series.
TARGET_LABELS: Final = frozenset({"job", "instance", "cluster", "role"})
OF_PROMETHEUS: Final = frozenset({"up"})
#: Only nodes have them that speak TLS, or log in with what another program renews.
OF_SECURED: Final = frozenset(
    {
        "kafka_server_certificate_metrics_expiry_seconds",
        "kafka_server_login_metrics_expiry_seconds",
    }
)
_OF_HISTOGRAM: Final = re.compile(r"_(bucket|sum|count)$")
_VARIABLE: Final = re.compile(r"\$__rate_interval|\$(\w+)")
_QUERY: Final = re.compile(r"label_values\((.*), (\w+)\)")


class Selector(NamedTuple):
    """A metric, and the labels that are asked for: by matchers, groupings and legends."""

    metric: str
    labels: frozenset[str]

    def is_one_of(self, families: Collection[str]) -> bool:
        """Whether it is a metric of that name, or a series of a histogram of that name."""
        return is_series_of(self.metric, families)


def is_series_of(metric: str, families: Collection[str]) -> bool:
    """Whether a series is a family's own, or a part of a histogram."""
    return metric in families or _OF_HISTOGRAM.sub("", metric) in families


def parsed(text: str) -> Any:
    """The expression; ValueError when it is none."""
    return promql.parse(text)


def selectors(text: str) -> list[Selector]:
    """All selectors of an expression; labels that are grouped by count for each of them."""
    found: list[Any] = []
    grouped: set[str] = set()

    def visit(node: Any) -> None:
        if isinstance(node, promql.VectorSelector):
            found.append(node)
        if isinstance(node, promql.AggregateExpr) and node.modifier is not None:
            grouped.update(node.modifier.labels)

    promql.walk(parsed(text), visit)
    return [
        Selector(
            each.name,
            frozenset({matcher.name for matcher in each.matchers.matchers} | grouped),
        )
        for each in found
    ]


def result_labels(text: str) -> set[str] | None:
    """The labels that are left after an aggregation; None for an expression without one."""
    node = parsed(text)
    while True:
        if isinstance(node, promql.BinaryExpr):
            modifier = node.modifier
            is_many_on_the_right = (
                modifier is not None and modifier.card == promql.VectorMatchCardinality.OneToMany
            )
            node = node.rhs if is_many_on_the_right else node.lhs
        elif isinstance(node, promql.ParenExpr):
            node = node.expr
        elif isinstance(node, promql.AggregateExpr) and node.param is not None:
            node = node.expr  # topk and its like leave the labels as they are
        else:
            break
    if not isinstance(node, promql.AggregateExpr):
        return None
    return set() if node.modifier is None else set(node.modifier.labels)


def alerts() -> list[dict[str, Any]]:
    """Every alert of alerts.yml."""
    return [rule for group in yaml_of(ALERTS)["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    """The dashboard's model."""
    model: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return model


def dashboard_queries() -> Iterator[tuple[str, str, str]]:
    """For each query on the dashboard: the panel's title, the expression, the legend."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], filled_in(target["expr"]), target["legendFormat"]


def variable_queries() -> Iterator[tuple[str, str]]:
    """For each variable of the dashboard that is looked up: the selector, and the label."""
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            found = _QUERY.fullmatch(variable["query"]["query"])
            assert found is not None, variable["query"]
            yield filled_in(found[1]), found[2]


def filled_in(text: str) -> str:
    """An expression with its variables replaced, as Grafana sends it."""
    return _VARIABLE.sub(lambda match: "x" if match[1] else "5m", text)


def documented_metrics() -> set[str]:
    """The metrics in the table of docs/operations.md."""
    return set(
        re.findall(
            r"^\| `((?:kafka|process|python)_[a-z_]+)` \|", OPERATIONS.read_text(), re.MULTILINE
        )
    )
