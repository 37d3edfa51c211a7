"""docs/spark.md names every key of a pipeline's file, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from moldau.spark_connector.errors import PipelineFileError
from moldau.spark_connector.pipelines.model import JOBS
from moldau.spark_connector.pipelines.pipeline_file import parse_pipelines

PAGE = Path(__file__).parents[4] / "docs" / "spark.md"
SECTIONS = ("source", "sink", "transform", "aggregate", "trigger")
UNKNOWN = "zzz"
THERE_ARE = re.compile(rf"f:\d+: (?:(\w+)\.)?{UNKNOWN}: there is no such key.*; there are (.*)$")


def known_to(job: str, sink: str) -> set[str]:
    """The keys that the errors about an unknown one in each section tell of."""
    lines = [f"name: x\njob: {job}\ncheckpoint: c\n{UNKNOWN}: 1"]
    if sink == "path":
        lines.append("transform: {sql: x, zzz: 1}")
    for section in SECTIONS:
        if section == "transform" and sink == "path":
            continue
        extra = "path: p, " if (section, sink) == ("sink", "path") else ""
        lines.append(f"{section}: {{{extra}{UNKNOWN}: 1}}")
    with pytest.raises(PipelineFileError) as caught:
        parse_pipelines("\n".join(lines), "f", "/", {})
    found: set[str] = set()
    for problem in str(caught.value).splitlines():
        match = THERE_ARE.match(problem)
        if match is not None:
            prefix = f"{match[1]}." if match[1] else ""
            found |= {prefix + name for name in match[2].split(", ")}
    return found


def documented() -> set[str]:
    section = PAGE.read_text(encoding="utf-8").split("### Keys of the file")[1].split("\n## ")[0]
    table = section.split("\n\n")[1]
    found: set[str] = set()
    for row in table.splitlines()[2:]:
        prefix = ""
        for name in re.findall(r"`([^`]+)`", row.split("|")[1]):
            if "." in name and name.partition(".")[0] in SECTIONS:
                prefix = name.partition(".")[0] + "."
                found.add(name)
            else:
                found.add(prefix + name)
    return found


def test_every_key_is_documented_and_no_other():
    known = {each for job in JOBS for sink in ("topic", "path") for each in known_to(job, sink)}
    assert documented() - {"trigger"} == known - {"trigger.every", *SECTIONS}
