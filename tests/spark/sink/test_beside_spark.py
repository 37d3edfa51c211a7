"""Comparison with Spark's own Kafka sink: the same frame makes the same records on the same
partitions, and what one refuses the other refuses.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from moldau.client.sync import Admin
from moldau.testing import Cluster
from tests.spark.conftest import SPARK_KAFKA_JARS, make_topic, options_for
from tests.spark.sink.test_writing import records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.skipif(
    not SPARK_KAFKA_JARS,
    reason="Spark's own Kafka sink is not in .cache (make setup-all fetches it with Maven)",
)
FORMATS = ("kafka", "moldau")


def test_the_same_records(spark: SparkSession, cluster: Cluster, admin: Admin) -> None:
    """Keys choose the partition as in Java; rows without a key say it here."""
    frame = spark.range(200).selectExpr(
        "IF(id % 5 = 0, NULL, concat('key-', id)) AS key",
        "IF(id % 7 = 0, NULL, CAST(concat('välue-', id) AS binary)) AS value",
        "IF(id % 5 = 0, CAST(id % 3 AS int), NULL) AS partition",
        "IF(id % 2 = 0, array("
        "named_struct('key', 'h', 'value', CAST(CAST(id AS string) AS binary)), "
        "named_struct('key', 'h', 'value', CAST(NULL AS binary))), NULL) AS headers",
        "id AS of_no_use",
    )
    written = []
    for sink in FORMATS:
        topic = make_topic(admin, partitions=3)
        options = options_for(cluster, topic=topic, includeHeaders="true")
        frame.write.format(sink).mode("append").options(**options).save()
        written.append(
            Counter(
                (each.key, each.value, each.partition, tuple(map(tuple, each.headers)))
                for each in records(cluster, topic)
            )
        )
    theirs, ours = written
    assert ours == theirs
    assert ours.total() == 200


@pytest.mark.parametrize(
    ("columns", "options", "theirs", "ours"),
    [
        ("'k' AS key", {"topic": "t"}, "attribute 'value' not found", "no column 'value'"),
        ("'v' AS value", {}, "topic option required", "no topic: set the option `topic`"),
        ("1 AS value", {"topic": "t"}, "value attribute unsupported type", "'value' is int"),
        (
            "'v' AS value, 1 AS key",
            {"topic": "t"},
            "key attribute unsupported type",
            "'key' is int",
        ),
        (
            "'v' AS value, 'p' AS partition",
            {"topic": "t"},
            "partition attribute unsupported type",
            "'partition' is string",
        ),
        ("'v' AS value, CAST(NULL AS string) AS topic", {}, "null topic", "a null in column 'top"),
        *(
            (
                "'v' AS value",
                {"topic": "t", f"kafka.{key}": "x"},
                f"'{key}' is not supported",
                f"{key} is not supported",
            )
            for key in ("key.serializer", "value.serializer")
        ),
    ],
)
def test_what_one_refuses_the_other_refuses(
    spark: SparkSession,
    cluster: Cluster,
    columns: str,
    options: dict[str, str],
    theirs: str,
    ours: str,
) -> None:
    frame = spark.sql(f"SELECT {columns}")
    for sink, words in zip(FORMATS, (theirs, ours), strict=True):
        writer = frame.write.format(sink).mode("append").options(**options_for(cluster))
        with pytest.raises(Exception, match=f"(?i){words}"):
            writer.options(**options).save()
