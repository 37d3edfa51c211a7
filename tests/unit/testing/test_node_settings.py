"""What a test's `config` may say, before any node is started."""

from __future__ import annotations

import re
from typing import Any

import pytest

from moldau.testing import Cluster, MoldauContainer
from moldau.testing.node_settings import node_settings


def test_values_of_python_are_written_as_kafka_writes_them():
    given = {"num.partitions": 3, "auto.create.topics.enable": False, "log.retention.ms": "-1"}
    given |= {"log.cleaner.min.cleanable.ratio": 0.5, "moldau.http.authentication": ["BASIC"]}
    assert node_settings(given) == {
        "num.partitions": "3",
        "auto.create.topics.enable": "false",
        "log.retention.ms": "-1",
        "log.cleaner.min.cleanable.ratio": "0.5",
        "moldau.http.authentication": "BASIC",
    }


def test_keys_of_listeners_providers_and_plug_ins_are_let_through():
    given = {
        "listener.name.client.sasl.enabled.mechanisms": "PLAIN",
        "config.providers": "env",
        "config.providers.env.class": "org.example.Provider",
        "rsm.config.own": "x",
    }
    assert node_settings(given) == given


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"num.partition": 3}, "num.partition: is not a known key and .*; did you mean num.parti"),
        ({"num_partitions": 3}, "num_partitions: is not .*; did you mean num.partitions?"),
        ({"num.partitions": "many"}, "num.partitions=many: must be a 32-bit whole number"),
        ({"num.partitions": True}, "num.partitions=true: must be a 32-bit whole number"),
        ({"num.partitions": None}, "num.partitions=None: a text, a number, True, False or a list"),
        ({"retention.ms": 1}, "is a topic configuration .*node's default is log.retention.ms"),
        ({"zookeeper.connect": "x"}, "was removed from Kafka: ZooKeeper is gone"),
        ({"node.id": 5}, "node.id: a cluster numbers its nodes and gives them roles by itself"),
        ({"process.roles": "broker"}, "process.roles: a cluster numbers its nodes"),
        ("num.partitions=3", "config='num.partitions=3': {KEY: VALUE} is needed"),
    ],
)
def test_a_typo_is_not_swallowed(config: Any, said: str):
    with pytest.raises(ValueError, match=said) as raised:
        Cluster(config=config)
    assert raised.value.__context__ is None or raised.value.__suppress_context__


def test_a_variable_of_a_container_that_no_node_knows_is_refused():
    said = re.escape("num.partition: is not a known key and has no effect; did you mean num.parti")
    with pytest.raises(ValueError, match=said):
        MoldauContainer().with_env("KAFKA_NUM_PARTITION", "4")


def test_a_cluster_that_has_not_been_started_says_so():
    cluster = Cluster(brokers=3)
    assert repr(cluster) == "<Cluster brokers=3 controllers=1, not started>"
    for ask in (lambda: cluster.bootstrap_server, lambda: cluster.kill(), lambda: cluster.node(2)):
        with pytest.raises(RuntimeError, match="not started: use `with Cluster"):
            ask()


@pytest.mark.parametrize("given", ["localhost:9092", "3", 3.0, True, 0])
def test_a_count_that_is_no_number_is_refused(given: Any):
    with pytest.raises(ValueError, match=re.escape(f"brokers={given!r}: from 1 to 100")):
        Cluster(given)
