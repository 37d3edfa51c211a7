"""What Spark is handed: the data source, its readers in both shapes, and the way it is found."""

from __future__ import annotations

import ast
import importlib
import pickle
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path
from uuid import UUID

import pytest
from setuptools import find_packages

from moldau.spark_connector.core.ranges import Condition, Operator
from moldau.spark_connector.errors import InvalidOption, SchemaNotAllowed

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # PySpark's own
    from pyspark.sql import datasource as spark_filters
    from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceReader, InputPartition
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from moldau.protocol.types import ZERO_UUID, TopicPartition
from moldau.spark_connector import MoldauDataSource
from moldau.spark_connector.core.ranges import OffsetRange
from moldau.spark_connector.source import readers
from moldau.spark_connector.source.readers import OffsetRangePartition

ROOT = Path(__file__).parents[3]


def data_source(**given):
    options = {"kafka.bootstrap.servers": "h:9092", "subscribe": "t"} | given
    return MoldauDataSource(CaseInsensitiveDict(options))


def test_the_arrow_batches_of_the_client_fit_the_schema():
    from pyspark.sql.pandas.types import to_arrow_schema

    from moldau.client.arrow.to_arrow import polled_schema

    polled = polled_schema()
    with_headers = data_source(includeHeaders="true").schema()
    assert to_arrow_schema(with_headers, timezone="UTC").equals(polled)
    without = to_arrow_schema(data_source().schema(), timezone="UTC")
    assert [field.name for field in without] == polled.names[:-1]
    assert [field.type for field in without] == polled.types[:-1]


def test_options_are_checked_when_the_schema_is_asked_for():
    with pytest.raises(InvalidOption, match="did you mean includeHeaders"):
        data_source(includeHeader="true").schema()


def test_another_schema_is_refused():
    source = data_source()
    for make in (source.reader, source.streamReader):
        assert make(source.schema()) is not None
        with pytest.raises(SchemaNotAllowed, match="leave out schema"):
            make(data_source(includeHeaders="true").schema())


def test_readers_travel_without_a_client():
    source = data_source(maxRecordsPerPartition="5")
    reader = source.streamReader(source.schema())
    assert reader.planner is not None
    copy = pickle.loads(pickle.dumps(reader))
    assert copy._planner is None
    assert copy._options == reader._options
    assert pickle.loads(pickle.dumps(source.reader(source.schema())))._options == reader._options


def test_ranges_travel_as_plain_values():
    wanted = OffsetRange(TopicPartition("t", 3), 5, 9)
    topic_id = UUID(int=7)
    partition = pickle.loads(pickle.dumps(OffsetRangePartition(wanted, {"t": topic_id})))
    assert (partition.offset_range, partition.topic_id) == (wanted, topic_id)
    assert partition.value == ("t", 3, 5, 9, topic_id.hex)
    assert OffsetRangePartition(wanted, {}).topic_id == ZERO_UUID


def test_the_partition_that_spark_makes_up_for_an_empty_read_is_empty():
    source = data_source()
    assert list(source.reader(source.schema()).read(InputPartition(None))) == []


def test_filters_are_offered_only_when_spark_wants_them(monkeypatch):
    source = data_source()
    plain = source.reader(source.schema())
    assert plain.pushFilters.__func__ is DataSourceReader.pushFilters
    monkeypatch.setitem(sys.modules, readers.PUSHDOWN_WORKER, sys)
    pushing = source.reader(source.schema())
    taken = spark_filters.EqualTo(("partition",), 1)
    partly = spark_filters.GreaterThan(("offset",), "x")
    assert list(pushing.pushFilters([taken, partly])) == [partly]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (spark_filters.EqualTo(("offset",), 1), Condition("offset", Operator.EQUAL, (1,))),
        (spark_filters.In(("offset",), (1, 2)), Condition("offset", Operator.IN, (1, 2))),
        (spark_filters.IsNotNull(("topic",)), Condition("topic", Operator.NOT_NULL)),
        (
            spark_filters.LessThanOrEqual(("offset",), 1),
            Condition("offset", Operator.LESS_OR_EQUAL, (1,)),
        ),
        (spark_filters.EqualTo(("headers", "key"), "x"), None),
        (spark_filters.IsNull(("offset",)), None),
        (spark_filters.Not(spark_filters.EqualTo(("offset",), 1)), None),
        (spark_filters.StringStartsWith(("topic",), "t"), None),
    ],
)
def test_filters_in_our_terms(given, expected):
    assert readers.condition_of(given) == expected


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ({}, ReadAllAvailable()),
        ({"maxOffsetsPerTrigger": "5"}, ReadMaxRows(5)),
        ({"minOffsetsPerTrigger": "3"}, ReadMinRows(3)),
        ({"minOffsetsPerTrigger": "3", "maxOffsetsPerTrigger": "5"}, ReadMaxRows(5)),
    ],
)
def test_spark_gets_the_limits_of_the_options(given, limit):
    source = data_source(**given)
    assert source.streamReader(source.schema()).getDefaultReadLimit() == limit


class RecordingPlanner:
    """What Spark 4.1's reader asks of the planner."""

    def __init__(self):
        self.asked = []

    def initial_offset(self):
        return {"t": {"0": 1}}

    def latest_offset(self, start, *, everything):
        self.asked.append((start, everything))
        return {"t": {"0": 9}}

    def unlimited_latest(self):
        return {"t": {"0": 99}}

    def tasks(self, start, end):
        return []


def test_spark_4_1_is_served_without_the_start_of_batches(monkeypatch):
    monkeypatch.setattr(readers, "HAS_ADMISSION_CONTROL", False)
    source = data_source()
    reader = source.streamReader(source.schema())
    planner = reader._planner = RecordingPlanner()
    # After a restart that is unknown, until the first batch is planned.
    assert reader.latestOffset() == {"t": {"0": 99}}
    assert reader.partitions({"t": {"0": 1}}, {"t": {"0": 5}}) == []
    assert reader.latestOffset() == {"t": {"0": 9}}
    assert reader.initialOffset() == {"t": {"0": 1}}
    assert reader.latestOffset() == {"t": {"0": 9}}
    assert planner.asked == [({"t": {"0": 5}}, False), ({"t": {"0": 1}}, False)]


def test_the_first_batch_of_a_run_has_no_limit_in_spark_4_1(monkeypatch):
    """It ends a query with AvailableNow after that one, and may plan a batch before it."""
    monkeypatch.setattr(readers, "HAS_ADMISSION_CONTROL", False)
    source = data_source()
    reader = source.streamReader(source.schema())
    planner = reader._planner = RecordingPlanner()
    reader.partitions({"t": {"0": 1}}, {"t": {"0": 5}})
    reader.latestOffset()
    reader.latestOffset()
    assert planner.asked == [({"t": {"0": 5}}, True), ({"t": {"0": 5}}, False)]


def test_the_module_that_spark_looks_for_is_small_and_never_raises(monkeypatch):
    import pyspark_moldau

    assert pyspark_moldau.DefaultSource is MoldauDataSource
    monkeypatch.setitem(sys.modules, "moldau.spark_connector.data_source", None)
    monkeypatch.delattr(pyspark_moldau, "DefaultSource")
    with pytest.warns(RuntimeWarning, match=r"format\('moldau'\) is not available"):
        importlib.reload(pyspark_moldau)
    assert not hasattr(pyspark_moldau, "DefaultSource")
    monkeypatch.undo()
    importlib.reload(pyspark_moldau)


def test_the_module_that_spark_looks_for_is_shipped():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    include = settings["tool"]["setuptools"]["packages"]["find"]["include"]
    packages = set(find_packages(str(ROOT), include=include))
    assert "pyspark_moldau" in packages
    assert {f"moldau.spark_connector.{room}" for room in ("core", "sink", "source")} <= packages


@pytest.mark.real
def test_spark_finds_the_format_without_loading_a_client():
    """Every first use of any Python data source imports this: it must be cheap."""
    program = (
        "import sys, pyspark_moldau; "
        "print([name for name in sys.modules if name.startswith('moldau.')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = {"moldau.first_use", "moldau.spark_connector", "moldau.spark_connector.data_source"}
    assert set(ast.literal_eval(done.stdout)) == loaded
