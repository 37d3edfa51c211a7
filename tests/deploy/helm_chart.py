"""Our Helm chart, rendered: by this project's own renderer always, by helm too where it is.

Owns what helm adds to templates: values over defaults, their schema, release and chart. Invariant:
a chart that helm would refuse for its values is refused here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, Final

import jsonschema
import yaml

from tests.deploy.files import DEPLOY, ROOT
from tests.deploy.go_templates import Renderer, TemplateError

CHART: Final = DEPLOY / "helm" / "moldau"
RELEASE: Final = "demo"
NAMESPACE: Final = "streams"
KUBERNETES: Final = "1.31.0"
CLUSTER_ID: Final = "hB3PQ0WSTseDqA36pXN8rw"
HELM: Final = shutil.which("helm", path=f"{os.environ.get('PATH', '')}:{ROOT}/.cache/helm")
"""The command on this machine, or as `make helm` has built it."""

Document = dict[str, Any]

__all__ = ["ChartRefused", "helm_documents", "notes", "rendered"]


class ChartRefused(Exception):
    """The chart does not take these values."""


def as_helm_reads(value: Any) -> Any:
    """Numbers of YAML reach helm's templates as floats."""
    if isinstance(value, dict):
        return {key: as_helm_reads(each) for key, each in value.items()}
    if isinstance(value, list):
        return [as_helm_reads(each) for each in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def rendered(
    values: Mapping[str, Any], *, is_upgrade: bool = False, brokers_before: int | None = None
) -> list[Document]:
    """The chart's documents. Raises: ChartRefused.

    Args:
        brokers_before: the replicas of the brokers' StatefulSet in the cluster; None: there is no
            cluster to look at.
    """
    return deepcopy(_documents(json.dumps(values), is_upgrade, brokers_before))


@cache
def _documents(values: str, is_upgrade: bool, brokers_before: int | None) -> list[Document]:
    """Kept, for the same values are rendered by many tests. Raises: ChartRefused."""
    documents: list[Document] = []
    for name, text in _outputs(json.loads(values), is_upgrade, brokers_before).items():
        if name.endswith(".yaml"):
            documents += [each for each in yaml.safe_load_all(text) if each is not None]
    return documents


def notes(values: Mapping[str, Any], *, is_upgrade: bool = False) -> str:
    """What helm says after an installation. Raises: ChartRefused."""
    return _outputs(values, is_upgrade)["NOTES.txt"]


def helm_documents(values: Mapping[str, Any], *, is_upgrade: bool = False) -> list[Document]:
    """The chart's documents as helm itself renders them. Raises: ChartRefused."""
    assert HELM is not None, "looked for by the caller"
    command = [HELM, "template", RELEASE, str(CHART), "--namespace", NAMESPACE]
    command += ["--kube-version", KUBERNETES, "--values", "-"]
    done = subprocess.run(
        [*command, *(["--is-upgrade"] if is_upgrade else [])],
        input=json.dumps({"clusterId": CLUSTER_ID, **values}),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ChartRefused(done.stderr)
    return [each for each in yaml.safe_load_all(done.stdout) if each is not None]


def _outputs(
    values: Mapping[str, Any], is_upgrade: bool, brokers_before: int | None = None
) -> dict[str, str]:
    """The text of every template that is no collection of helpers."""
    metadata = yaml.safe_load((CHART / "Chart.yaml").read_text())
    merged = _over(
        yaml.safe_load((CHART / "values.yaml").read_text()), {"clusterId": CLUSTER_ID, **values}
    )
    schema = json.loads((CHART / "values.schema.json").read_text())
    try:
        jsonschema.validate(merged, schema)
    except jsonschema.ValidationError as error:
        raise ChartRefused(f"{error.json_path}: {error.message}") from None
    data = {
        "Values": as_helm_reads(merged),
        "Release": {
            "Name": RELEASE,
            "Namespace": NAMESPACE,
            "Service": "Helm",
            "IsInstall": not is_upgrade,
            "IsUpgrade": is_upgrade,
        },
        "Chart": {re.sub("^.", lambda m: m[0].upper(), key): metadata[key] for key in metadata},
    }
    sources = {path.name: path.read_text() for path in sorted((CHART / "templates").iterdir())}

    def lookup(_version: str, kind: str, namespace: str, name: str) -> Any:
        if brokers_before is None or (kind, namespace) != ("StatefulSet", NAMESPACE):
            return {}
        return {"metadata": {"name": name}, "spec": {"replicas": brokers_before}}

    renderer = Renderer(sources, lookup)
    try:
        return {name: renderer.render(name, data) for name in sources if not name.startswith("_")}
    except TemplateError as error:
        raise ChartRefused(str(error)) from error


def _over(defaults: Any, values: Any) -> Any:
    """Values over defaults, mapping by mapping, as helm merges them."""
    if not isinstance(defaults, dict) or not isinstance(values, dict):
        return values
    merged = dict(defaults)
    for key, value in values.items():
        merged[key] = _over(defaults[key], value) if key in defaults else value
    return merged


def named(documents: list[Document], kind: str, name: str) -> Document:
    """The one document of a kind with a name."""
    [found] = (
        each for each in documents if (each["kind"], each["metadata"]["name"]) == (kind, name)
    )
    return found


def path_of(name: str) -> Path:
    """A file of the chart."""
    return CHART / name
