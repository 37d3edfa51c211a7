"""The source's options: Spark's defaults, what excludes what, what is refused and why."""

from __future__ import annotations

import pickle

import pytest

from moldau.protocol.types import TopicPartition
from moldau.spark_connector.core.offsets import AtOffsets, AtTime, AtTimes, Place
from moldau.spark_connector.core.ranges import AdmissionLimits
from moldau.spark_connector.errors import InvalidOption
from moldau.spark_connector.source.options import SourceOptions, Subscription

P0 = TopicPartition("t", 0)


def parse(**given):
    """Options with what is needed; `__` stands for a dot."""
    options = {"kafka.bootstrap.servers": "h:9092"}
    if not given.keys() & {"assign", "subscribe", "subscribePattern"}:
        options["subscribe"] = "t"
    return SourceOptions.parse(
        options | {name.replace("__", "."): value for name, value in given.items()}
    )


def test_defaults_are_sparks():
    options = parse()
    assert options.subscription == Subscription(names=("t",))
    assert options.limits == AdmissionLimits(None, None, 900_000)
    assert (options.min_partitions, options.max_records_per_partition) == (None, None)
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert not options.read_committed
    assert (options.poll_timeout_ms, options.retry_count) == (120_000, 3)
    assert options.check_stream().selection is Place.LATEST
    starting, ending = options.check_batch()
    assert (starting.selection, ending.selection) == (Place.EARLIEST, Place.LATEST)


def test_options_travel_to_the_workers():
    options = parse(startingOffsets='{"t":{"0":1}}', subscribe="a, b,,a ")
    assert options.subscription == Subscription(names=("a", "b"))
    assert pickle.loads(pickle.dumps(options)) == options


def test_what_is_read():
    assert parse(assign='{"t":[0]}').subscription == Subscription(partitions=(P0,))
    assert parse(subscribePattern=" fl.* ").subscription == Subscription(pattern="fl.*")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"subscribe": "t", "assign": '{"t":[0]}'}, "assign and subscribe are given"),
        ({"subscribe": " , "}, "topics, with commas"),
        ({"assign": "t"}, "topicA"),
        ({"subscribePattern": "a("}, "no regular expression"),
        ({"subscribePattern": " "}, "match"),
    ],
)
def test_exactly_one_way_to_say_what_is_read(given, words):
    with pytest.raises(InvalidOption, match=words):
        parse(**given)
    with pytest.raises(InvalidOption, match="exactly one of assign, subscribe, subscribePattern"):
        SourceOptions.parse({"kafka.bootstrap.servers": "h:9092"})


def test_a_time_counts_before_times_before_offsets():
    given = {
        "startingTimestamp": "5",
        "startingOffsetsByTimestamp": '{"t":{"0":7}}',
        "startingOffsets": "earliest",
        "endingTimestamp": "9",
    }
    assert parse(**given).check_batch()[0].selection == AtTime(5)
    del given["startingTimestamp"]
    assert parse(**given).check_batch()[0].selection == AtTimes({P0: 7})
    del given["startingOffsetsByTimestamp"]
    assert parse(**given).check_batch()[0].selection is Place.EARLIEST


def test_the_strategy_is_for_starts_only():
    options = parse(startingTimestamp="5", endingTimestamp="9")
    starting, ending = options.check_batch()
    assert (starting.latest_when_not_found, ending.latest_when_not_found) == (False, True)
    options = parse(startingTimestamp="5", startingOffsetsByTimestampStrategy="LATEST")
    assert options.check_stream().latest_when_not_found


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"startingOffsets": "middle"}, "earliest, latest or"),
        ({"startingOffsets": '{"t":{"0":-3}}'}, "from -2 on"),
        ({"startingTimestamp": "-1"}, "milliseconds since 1970"),
        ({"startingTimestamp": "yesterday"}, "milliseconds since 1970"),
        ({"startingOffsetsByTimestampStrategy": "none"}, "one of error, latest"),
        ({"minPartitions": "0"}, "from 1 to"),
        ({"maxRecordsPerPartition": "0"}, "from 1 to"),
        ({"maxOffsetsPerTrigger": "0"}, "from 1 to"),
        ({"maxOffsetsPerTrigger": "2", "minOffsetsPerTrigger": "3"}, "is more than"),
        ({"maxTriggerDelay": "soon"}, "15m"),
        ({"failOnDataLoss": "no"}, "true or false"),
        ({"kafkaConsumer__pollTimeoutMs": "0"}, "from 1 to"),
        ({"kafka__bootstrap__servers": ""}, "is missing"),
        ({"kafka__bootstrap__servers": "h:99999"}, "kafka.bootstrap.servers"),
        ({"kafka__isolation__level": "serializable"}, r"kafka\.isolation\.level"),
        ({"kafka__isolation__levle": "x"}, r"did you mean isolation\.level"),
        ({"startingOfsets": "latest"}, "did you mean startingOffsets"),
        ({"topic": "t"}, "subscribe"),
        ({"checkpointLocation": "/c"}, "writeStream"),
    ],
)
def test_values_that_cannot_be(given, words):
    with pytest.raises(InvalidOption, match=words):
        parse(**given)


@pytest.mark.parametrize(
    "key",
    [
        "auto.offset.reset",
        "key.deserializer",
        "value.deserializer",
        "enable.auto.commit",
        "interceptor.classes",
    ],
)
def test_what_spark_refuses_is_refused(key):
    with pytest.raises(InvalidOption, match=f"kafka.{key} is not supported: ."):
        parse(**{f"kafka.{key}": "x"})


def test_what_spark_allows_is_allowed():
    options = parse(
        kafka__group__id="mine", groupIdPrefix="p", kafka__isolation__level="read_committed"
    )
    assert options.kafka["group.id"] == "mine"
    assert options.read_committed


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_streams_have_no_end(name):
    value = {"endingOffsets": "latest", "endingTimestamp": "1"}.get(name, '{"t":{"0":1}}')
    with pytest.raises(InvalidOption, match=f"{name}: a streaming query has no end"):
        parse(**{name: value}).check_stream()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"startingOffsets": "latest"}, "nothing to read"),
        ({"startingOffsets": '{"t":{"0":-1}}'}, "t-0: -1"),
        ({"endingOffsets": "earliest"}, "reads nothing"),
        ({"endingOffsets": '{"t":{"0":-2}}'}, "t-0: -2"),
        (
            {"startingOffsets": '{"t":{"0":9}}', "endingOffsets": '{"t":{"0":3}}'},
            "t-0: startingOffsets says 9, which is behind the 3",
        ),
        (
            {"startingOffsets": '{"t":{"0":9}}', "endingOffsets": '{"t":{"1":30}}'},
            "must name the same partitions: t-0, t-1",
        ),
        (
            {
                "startingOffsetsByTimestamp": '{"t":{"0":9}}',
                "endingOffsetsByTimestamp": '{"t":{"0":3}}',
            },
            "behind the 3 of endingOffsetsByTimestamp",
        ),
    ],
)
def test_batches_that_cannot_be_read(given, words):
    with pytest.raises(InvalidOption, match=words):
        parse(**given).check_batch()


def test_an_end_of_latest_is_behind_every_start():
    given = {"startingOffsets": '{"t":{"0":9}}', "endingOffsets": '{"t":{"0":-1}}'}
    assert parse(**given).check_batch()[1].selection == AtOffsets({P0: -1})


def test_limits_of_streams_do_nothing_in_batches_and_say_so(caplog):
    parse(maxOffsetsPerTrigger="5").check_batch()
    assert "maxOffsetsPerTrigger has no effect in batch queries" in caplog.text
