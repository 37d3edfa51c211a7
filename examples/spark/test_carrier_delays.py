"""The batch on a local Spark and a real node."""

from __future__ import annotations

import json

import pytest
from carrier_delays import write_delays
from pyspark.sql import SparkSession

from moldau.client.sync import Consumer, Producer


@pytest.fixture(scope="module")
def spark():
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    yield session
    session.stop()


def test_each_carrier_has_its_mean_delay(spark, moldau_cluster, moldau_topics):
    servers, source, target = moldau_cluster.bootstrap_server, moldau_topics(2), moldau_topics()
    with Producer(servers) as producer:
        for carrier, delay_min in (("UA", 2), ("AA", 33), ("UA", 4)):
            producer.send(source, json.dumps({"carrier": carrier, "delay_min": delay_min}).encode())
    write_delays(spark, servers, source, target)
    with Consumer(servers, group_id="test", auto_offset_reset="earliest") as consumer:
        consumer.subscribe([target])
        records = [consumer.getone() for _ in range(2)]
    found = {each.key.decode(): json.loads(each.value)["mean_delay_min"] for each in records}
    assert found == {"UA": 3.0, "AA": 33.0}
