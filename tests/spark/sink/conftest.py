"""Whose brokers the sink's tests run against: ours, or Apache Kafka's, or the fake ones.

`MOLDAU_TEST_CLUSTER=apache pytest tests/spark/sink` takes a Kafka 4.3 node, where its jars are
(`tests/interop/java`); `fake` takes the fake cluster, which begins at once (`tests/mutation`). Owns
that choice and nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from moldau.testing import Cluster
from tests.fake_broker import LATEST, FakeCluster, ThreadedCluster
from tests.interop.java.server import KafkaServer
from tests.interop.java.tools import JavaTools, missing
from tests.spark.conftest import TRANSACTIONS

CHOICE = "MOLDAU_TEST_CLUSTER"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One node; whatever it is, it has `bootstrap_server`."""
    choice = os.environ.get(CHOICE, "moldau")
    if choice == "moldau":
        with Cluster(config=TRANSACTIONS) as running:
            yield running
        return
    if choice == "fake":
        with ThreadedCluster(lambda: FakeCluster(1, versions=LATEST)) as fake:
            yield fake
        return
    assert choice == "apache", f"{CHOICE}={choice}"
    reason = missing()
    if reason:
        pytest.skip(reason)
    home = tmp_path_factory.mktemp("kafka")
    with (home / "jvm.log").open("wb") as errors, JavaTools(errors) as java:
        server = KafkaServer(java, home / "node")
    with server:
        yield server
