"""The pair of clusters; tests skip visibly where there is no Java, or no Apache Kafka."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.differential.asking import Pair
from tests.interop.differential.clusters import both_clusters
from tests.interop.java.tools import JavaTools, missing


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Our cluster and Apache Kafka's, started once."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    home = tmp_path_factory.mktemp("differential")
    with (
        (home / "java.log").open("wb") as errors,
        JavaTools(errors) as java,
        both_clusters(java, home) as both,
    ):
        yield both
