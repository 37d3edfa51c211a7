"""Short runs of `make soak-topics`: nothing is wrong, and each injected bug is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from moldau.spark_connector.errors import JavaNotFound
from moldau.spark_connector.pipelines.embedded_spark import java_home
from tests.kit import judging
from tests.system.topics.bugs import BUGS
from tests.system.topics.soak import soak

pytestmark = pytest.mark.long

MINUTES = 0.4
SEED = 5
CLIENTS = ["assigned", "blocking", "classic-group", "consumer-group"]
FINDERS = {
    "ignores-topic-ids": CLIENTS,
    "reports-nothing": CLIENTS,
    "reports-twice": CLIENTS,
    "keeps-old-offsets": ["stores"],
}


@pytest.fixture
def java() -> None:
    """Skips without it."""
    try:
        java_home()
    except JavaNotFound as error:
        pytest.skip(f"Spark needs Java: {error}")


def test_every_record_is_read_and_every_loss_reported_once(tmp_path: Path) -> None:
    _run_without_bugs(tmp_path, [*CLIENTS, "stores"])


@pytest.mark.usefixtures("java")
def test_every_record_is_read_and_every_loss_reported_once_under_spark(tmp_path: Path) -> None:
    _run_without_bugs(tmp_path, ["spark"])


def _run_without_bugs(directory: Path, kinds: list[str]) -> None:
    outcome = soak(MINUTES, SEED, directory, kinds=kinds)
    with judging():
        assert outcome.problems == []
    assert outcome.counts["create again"] > 0


@pytest.mark.parametrize("bug", BUGS)
def test_an_injected_bug_is_found(tmp_path: Path, bug: str) -> None:
    assert soak(MINUTES, SEED, tmp_path, kinds=FINDERS[bug], bug=bug).problem_count > 0


@pytest.mark.usefixtures("java")
@pytest.mark.parametrize("bug", ["ignores-topic-ids", "reports-nothing"])
def test_an_injected_bug_is_found_under_spark(tmp_path: Path, bug: str) -> None:
    assert soak(MINUTES, SEED, tmp_path, kinds=["spark"], bug=bug).problem_count > 0
