"""The sample records outlive every test: a node's retention does not take them."""

from __future__ import annotations

from moldau.testing import Cluster
from tests.interop.drivers import DRIVERS
from tests.interop.samples import BASE_TIMESTAMP_MS, Rec, sample_records
from tests.interop.topics import TopicMaker
from tests.kit.waiting import until

DAY_MS = 86_400_000


def test_retention_takes_old_records_and_leaves_the_samples() -> None:
    """A reader of records that retention took waits for ever: Kafka deletes by the records' own
    timestamps, for the first time 30 s after the start of a node, here at once.
    """
    writer = reader = DRIVERS[0]
    config = {"log.initial.task.delay.ms": "0", "log.retention.check.interval.ms": "50"}
    with Cluster(config=config) as cluster, TopicMaker(cluster.bootstrap_server) as topics:
        bootstrap = cluster.bootstrap_server
        samples, old = topics.create(), topics.create()
        records = sample_records()
        writer.write(bootstrap, samples, records)
        writer.write(bootstrap, old, [Rec(None, b"", timestamp_ms=BASE_TIMESTAMP_MS - 8 * DAY_MS)])
        log = cluster.node().log_path
        until(lambda: f"{old}-0: deleted 1 segments" in log.read_text(), what="retention")
        assert reader.read(bootstrap, samples, len(records)) == records
