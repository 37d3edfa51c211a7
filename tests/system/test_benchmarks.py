"""Every benchmark runs against a real node, with little data, and has figures. Not how good."""

from __future__ import annotations

import re
import sys

import pytest

from benchmarks.figures import Effort
from benchmarks.run import BENCHMARKS, load

pytestmark = [
    pytest.mark.system,
    # How long they take says something about the machine.
    pytest.mark.timeout(600),
    # kafka-python reads its resources the old way.
    pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning"),
    pytest.mark.skipif(sys.platform != "linux", reason="the benchmarks read /proc"),
]

#: Their targets, if any, are ratios to Apache Kafka.
AGAINST_KAFKA_ALONE = (
    *("clients", "replication", "produce-latency", "leader-killed", "transactions", "groups"),
)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_has_positive_figures(name: str):
    report = load(name)(Effort(rounds=1, scale=0.001, with_kafka=False))
    text = report.markdown()
    assert report.tables
    assert all(table.rows for table in report.tables)
    measured = [value for target in report.targets for value in target.measured.values]
    if name not in AGAINST_KAFKA_ALONE:
        assert measured, text
    if name != "idle-partitions":
        # What ten partitions cost is less than what else changes from second to second.
        assert all(value >= 0 for value in measured)
    if name not in ("produce-small", "metadata", "idle-partitions", "compaction", "visibility"):
        # CPU time is counted in hundredths of a second: a short load may take none. A change may
        # have reached every broker when it is answered. What is wrong after a compaction, or stale
        # after a change, is 0.
        assert all(value > 0 for value in measured), text
    assert not re.search(r"\b(nan|inf)\b", text), text
