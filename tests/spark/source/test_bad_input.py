"""What cannot be read is one clear error, soon, and with the words of the user's own options."""

from __future__ import annotations

import re
import socket

import pytest

from tests.spark.conftest import options_for


@pytest.fixture
def load(spark, cluster):
    def loaded(**given):
        return spark.read.format("moldau").options(**options_for(cluster, **given)).load()

    return loaded


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "InvalidOption: what to read is missing"),
        ({"subscribe": "a", "assign": '{"a":[0]}'}, "assign and subscribe are given"),
        ({"subscribe": "a", "startingOfset": "1"}, r"did you mean startingOffsets\?"),
        ({"subscribe": "a", "kafka__isolation__levle": "x"}, r"did you mean isolation\.level\?"),
        ({"subscribe": "a", "kafka__auto__offset__reset": "latest"}, "is not supported: Spark"),
        ({"subscribe": "a", "startingOffsets": "latest"}, "nothing to read"),
        ({"subscribe": "a", "minPartitions": "many"}, "minPartitions='many': a whole number"),
    ],
)
def test_options_are_checked_before_anything_is_read(load, given, words):
    with pytest.raises(Exception, match=words):
        load(**given).count()


def test_missing_topics_are_named(load, topic):
    with pytest.raises(Exception, match="TopicsNotFound: there is no never-made, nor-this"):
        load(subscribe=f"{topic},never-made,nor-this").count()
    with pytest.raises(Exception, match=f"TopicsNotFound: there is no {topic}-7:"):
        load(assign=f'{{"{topic}":[0,7]}}').count()


def test_offsets_out_of_range_say_what_there_is(load, topic):
    ends = f'{{"{topic}":{{"0":5,"1":-1}}}}'
    with pytest.raises(Exception, match=f"DataLoss: .*{topic}-0: offset 5 .*the log ends at 0"):
        load(subscribe=topic, endingOffsets=ends).count()
    assert load(subscribe=topic, endingOffsets=ends, failOnDataLoss="false").count() == 0


def test_a_stream_with_an_end_is_refused(spark, cluster, topic, tmp_path):
    options = options_for(cluster, subscribe=topic, endingOffsets="latest")
    frame = spark.readStream.format("moldau").options(**options).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    with pytest.raises(Exception, match="endingOffsets: a streaming query has no end"):
        writer.start().awaitTermination(60)


def test_columns_cannot_be_chosen_by_a_schema(spark, cluster, topic):
    options = options_for(cluster, subscribe=topic)
    with pytest.raises(Exception, match="SchemaNotAllowed: the source's columns are fixed"):
        spark.read.format("moldau").schema("value string").options(**options).load().count()


def test_brokers_that_cannot_be_reached_are_an_error_in_time(spark):
    with socket.socket() as silent:  # bound, but not listening
        silent.bind(("127.0.0.1", 0))
        options = {
            "kafka.bootstrap.servers": f"127.0.0.1:{silent.getsockname()[1]}",
            "kafka.default.api.timeout.ms": "500",
            "subscribe": "t",
        }
        frame = spark.read.format("moldau").options(**options).load()
        with pytest.raises(Exception, match="ClusterUnreachable: looking up the topics") as raised:
            frame.count()
    assert re.search(r"127\.0\.0\.1", str(raised.value))
