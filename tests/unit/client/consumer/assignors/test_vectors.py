"""Our assignors against what Apache Kafka's own assigned to the same groups."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.unit.client.consumer.assignors.cases import ASSIGNORS, Case, assigned

VECTORS = Path(__file__).parent / "vectors.json.gz"


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    with gzip.open(VECTORS) as opened:
        read: list[Case] = json.loads(opened.read())["cases"]
        return read


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_the_same_as_kafkas(assignor: str, cases: list[Case]) -> None:
    mine = [case for case in cases if case["assignor"] == assignor]
    assert len(mine) > 100
    for case in mine:
        assert assigned(case) == case["expected"], json.dumps(case)
