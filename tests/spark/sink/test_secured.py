"""The sink on a secured cluster, by the super user's settings, without a JVM."""

from __future__ import annotations

import pytest

from moldau.client import NewTopic, sync
from moldau.client.sync import Admin
from moldau.spark_connector.errors import AccessDenied
from moldau.spark_connector.sink import driver
from moldau.testing import Cluster
from tests.spark.conftest import TRANSACTIONS
from tests.spark.sink.plain_sink import Sink, everything

TOPIC = "secured"


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is remembered from the test before."""
    monkeypatch.setattr(driver, "_process", driver._Process())


def test_a_sink_logs_in() -> None:
    with Cluster(secure=True, config=TRANSACTIONS) as cluster:
        properties = cluster.client_properties
        with Admin(config=properties) as admin:
            admin.create_topics([NewTopic(TOPIC)])
        options = {f"kafka.{key}": value for key, value in properties.items()}
        Sink(cluster, TOPIC, **options).batch(0)
        read_committed = {**properties, "isolation.level": "read_committed"}
        with sync.Consumer(config={**read_committed, "auto.offset.reset": "earliest"}) as consumer:
            partitions = consumer.partitions_for(TOPIC)
            consumer.assign([(TOPIC, each) for each in partitions])
            found: list[bytes | None] = []
            while len(found) < len(everything(0)):
                for records in consumer.getmany(timeout_ms=5_000).values():
                    found += [each.value for each in records]
        assert sorted(filter(None, found)) == everything(0)
        wrong = options["kafka.sasl.jaas.config"].replace('password="', 'password="not-')
        with pytest.raises(AccessDenied):
            Sink(cluster, TOPIC, **{**options, "kafka.sasl.jaas.config": wrong}).plan()
