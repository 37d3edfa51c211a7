"""The chart's renderer answers as helm does, and refuses what it does not know.

`helm_3_22.json` holds pairs of template and output, taken from helm 3.22 (`helm template`) with the
values below.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.go_templates import Renderer, TemplateError
from tests.deploy.helm_chart import as_helm_reads

ANSWERS = json.loads((Path(__file__).parent / "go_templates" / "helm_3_22.json").read_text())
VALUES = """
num: 3
big: 1073741824
million: 1000000
half: 0.5
t: true
f: false
s: text
e: ""
l: [a, b]
none: []
m: {k: v, a: 1}
nothing: null
deep:
  list: [{x: 1, why: "2"}]
  map: {word: "yes", empty: {}, nil: null, multi: "a\\nb\\n"}
"""


def data() -> dict[str, Any]:
    return {
        "Values": as_helm_reads(yaml.safe_load(VALUES)),
        "Release": {"Name": "rel", "Namespace": "ns", "Service": "Helm", "IsInstall": True},
        "Chart": {"Name": "oracle", "Version": "0.1.0"},
    }


@pytest.mark.parametrize(("template", "output"), ANSWERS)
def test_as_helm_does_it(template: str, output: str):
    rendered = Renderer({"x": template}).render("x", data())
    if "toYaml" in template:  # the same document, written in another order or style
        rendered, output = yaml.safe_load(rendered), yaml.safe_load(output)
    assert rendered == output


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ .Values.s", "does not end"),
        ("{{ if .Values.s }}", "end is missing"),
        ("{{ nonsense 1 }}", "nonsense"),
        ("{{ .Values.s | }}", "empty command"),
        ("{{ (.Values.s }}", "parenthesis"),
        ("{{ $x }}", "never declared"),
        ("{{ $x = 1 }}", "never declared"),
        ('{{ include "nobody" . }}', "nobody"),
        ("{{ .Values.s.deeper }}", "has no field deeper"),
        ("{{ .Values.missing.deeper }}", "nil has no field deeper"),
        ('{{ fail "because" }}', "because"),
        ('{{ required "it is needed" .Values.e }}', "it is needed"),
        ("{{ .Values.s ! }}", "not understood"),
    ],
)
def test_what_is_wrong_is_said(template: str, words: str):
    with pytest.raises(TemplateError, match=words):
        Renderer({"x": template}).render("x", data())
