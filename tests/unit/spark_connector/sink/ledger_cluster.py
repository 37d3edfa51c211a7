"""A fake cluster with a ledger topic, for what the sink does to its ledger alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from moldau.protocol.records import Record
from moldau.spark_connector.sink.options import SinkOptions
from tests.fake_broker import FakeCluster, ThreadedCluster

LEDGER = "ledger"


def options_of(cluster: FakeCluster, sink_id: str, **given: str) -> SinkOptions:
    """The options of a sink with that id."""
    return SinkOptions.parse(properties_of(cluster, sink_id) | given)


def properties_of(cluster: FakeCluster, sink_id: str) -> dict[str, str]:
    """The same, as a user gives them."""
    return {
        "kafka.bootstrap.servers": cluster.bootstrap_servers,
        "topic": "t",
        "ledgerTopic": LEDGER,
        "sinkId": sink_id,
    }


@contextmanager
def ledger_of(values: Mapping[str, bytes]) -> Iterator[ThreadedCluster]:
    """A cluster whose ledger has these values by their keys, each in its own batch."""

    def make() -> FakeCluster:
        cluster = FakeCluster(1, topics={"t": 1, LEDGER: 1})
        cluster.topics[LEDGER].configs["cleanup.policy"] = "compact"
        for key, value in values.items():
            record = Record(0, cluster.now_ms(), key.encode(), value)
            cluster.log(LEDGER).append_records([record])
        return cluster

    with ThreadedCluster(make) as threaded:
        yield threaded


def newest(threaded: ThreadedCluster) -> dict[str, bytes]:
    """What the ledger holds, by key."""
    records = threaded.call(lambda cluster: cluster.records(LEDGER, committed_only=True))
    values = {(each.key or b"").decode(): each.value for each in records}
    return {key: value for key, value in values.items() if value is not None}
