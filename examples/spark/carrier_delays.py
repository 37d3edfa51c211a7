"""The mean delay of each carrier: read from a topic with Spark, written into another one.

python carrier_delays.py localhost:9092 flights carrier-delays
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import avg, col, from_json, round, struct, to_json

# Spark starts Python processes, by default with the first python3 of the PATH.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def write_delays(spark: SparkSession, servers: str, source: str, target: str) -> None:
    """One batch: all flights that are in the topic now."""
    flights = (
        spark.read.format("moldau")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", source)
        .load()
        .select(from_json(col("value").cast("string"), "carrier STRING, delay_min INT").alias("f"))
        .select("f.*")
    )
    delays = flights.groupBy("carrier").agg(round(avg("delay_min"), 1).alias("mean_delay_min"))
    (
        delays.select(col("carrier").alias("key"), to_json(struct("mean_delay_min")).alias("value"))
        .write.format("moldau")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", target)
        .mode("append")
        .save()
    )


def main() -> None:
    if len(sys.argv) != 4:
        sys.exit("usage: carrier_delays.py SERVERS SOURCE TARGET")
    spark = SparkSession.builder.appName("carrier-delays").getOrCreate()
    write_delays(spark, *sys.argv[1:])
    spark.stop()


if __name__ == "__main__":
    main()
