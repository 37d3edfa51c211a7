"""docs/spark.md names every option of the source, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from moldau.spark_connector.source.options import OPTIONS

PAGE = Path(__file__).parents[4] / "docs" / "spark.md"


def test_every_option_of_the_source_is_documented():
    reading = PAGE.read_text(encoding="utf-8").split("## Reading")[1].split("\n## ")[0]
    table = reading.split("### Options")[1].split("\n\n")[1]
    documented = {
        name
        for row in table.splitlines()[2:]
        for name in re.findall(r"`([^`]+)`", row.split("|")[1])
    }
    assert documented - {"kafka.bootstrap.servers", "kafka.*"} == set(OPTIONS)
