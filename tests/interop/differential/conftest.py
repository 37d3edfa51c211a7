"""The pair of clusters; tests skip visibly where there is no Java, or no Apache Kafka."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from tests.interop.differential.asking import Pair
from tests.interop.differential.clusters import CONFIG, both_clusters
from tests.interop.java.tools import JavaTools, missing

AUTHORIZED = {
    **CONFIG,
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Our cluster and Apache Kafka's, started once."""
    with running_pair(tmp_path_factory, CONFIG) as both:
        yield both


@pytest.fixture(scope="session")
def authorized_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Both with their authorizer, and every user a super user."""
    with running_pair(tmp_path_factory, AUTHORIZED) as both:
        yield both


@contextmanager
def running_pair(
    tmp_path_factory: pytest.TempPathFactory, config: Mapping[str, str]
) -> Iterator[Pair]:
    reason = missing()
    if reason:
        pytest.skip(reason)
    home = tmp_path_factory.mktemp("differential")
    with (
        (home / "java.log").open("wb") as errors,
        JavaTools(errors) as java,
        both_clusters(java, home, config) as both,
    ):
        yield both
