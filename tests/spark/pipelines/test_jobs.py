"""Every job that ships, on a real node and a real Spark: what goes in comes out, once, in order."""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from moldau.client import NewTopic
from moldau.client.sync import Admin, Producer
from moldau.spark_connector.errors import PipelineFailed
from moldau.spark_connector.pipelines.jobs import streams
from moldau.spark_connector.pipelines.jobs.streams import repartitioned
from moldau.spark_connector.pipelines.model import TopicSink
from moldau.spark_connector.pipelines.pipeline_file import parse_pipelines
from moldau.spark_connector.pipelines.runner import RunOptions, StopRequest, run_pipelines
from moldau.spark_connector.pipelines.running import BatchProgress
from moldau.testing import Cluster
from tests.kit.waiting import until
from tests.spark.conftest import SEVERAL_BATCHES, make_topic
from tests.spark.pipelines.steps import Record, fill, read, run, send, values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = pytest.mark.usefixtures("spark")

BEGAN_MS = round(time.time() * 1_000) - 3_600_000
"""Lately: old records are deleted by the brokers' own retention, if the tests are slow."""


def odd_records(partition: int, count: int) -> list[Record]:
    """Records with everything a record may have: no key, no value, headers, times of their own."""
    return [
        Record(
            None if number % 7 == 3 else b"k%d-%d" % (partition, number % 5),
            None if number % 11 == 5 else b"\x00v%d" % number,
            (("h", b"%d" % number), ("h", None)) if number % 2 else (),
            BEGAN_MS + partition * 1_000_000 + number,
        )
        for number in range(count)
    ]


@SEVERAL_BATCHES
@pytest.mark.promise("pipeline-order", "replay-plan")
def test_an_archive_is_replayed_as_it_was_and_only_once(
    cluster: Cluster, admin: Admin, tmp_path: Path
):
    server = cluster.bootstrap_server
    topic, back = make_topic(admin, partitions=2), make_topic(admin, partitions=2)
    sent = {0: odd_records(0, 200), 1: odd_records(1, 120)}
    fill(server, topic, sent)
    with Producer(server, transactional_id="aborted") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"never", partition=0)
        producer.abort_transaction()
    source = f"{{bootstrap.servers: '{server}', topic: {topic}, records.per.batch: 150}}"
    archive = f"""
name: archive
job: archive
source: {source}
sink: {{path: files}}
checkpoint: archive
trigger: available-now
"""
    told = run(archive, tmp_path)
    assert sum(each.row_count for each in told) == 320
    assert len(told) > 1
    assert told[-1].lag == 0
    replay = f"""
name: replay
job: replay
source: {{path: files, topics: [{topic}], records.per.batch: 100}}
sink: {{bootstrap.servers: '{server}', topic: {back}}}
checkpoint: '{(tmp_path / "replay").as_uri()}'
"""
    told = run(replay, tmp_path)
    assert [each.row_count for each in told] == [100, 100, 70, 50]
    assert read(server, back) == sent
    assert run(replay, tmp_path) == []  # the book says that all of it is done
    (tmp_path / "replay" / "replay-done.json").unlink()
    run(replay, tmp_path)  # a crash before the book: the transactions know
    assert read(server, back) == sent
    (tmp_path / "replay" / "replay-done.json").unlink()
    files = tmp_path / "files"
    shutil.rmtree(files / "_spark_metadata")
    next(files.glob("topic=*/*.parquet")).unlink()
    with pytest.raises(PipelineFailed, match=r"is not what it was .* and now there are"):
        run(replay, tmp_path)


def test_sql_makes_records_of_json_and_joins_a_table(
    cluster: Cluster, admin: Admin, tmp_path: Path
):
    server, topic = cluster.bootstrap_server, make_topic(admin, partitions=2)
    out = make_topic(admin)
    send(
        server,
        topic,
        [
            (b"%d" % n, json.dumps({"n": n, "carrier": "UA" if n % 2 else "AA"}).encode())
            for n in range(40)
        ]
        + [(b"x", b"no JSON"), (b"y", b'{"n": "many", "carrier": "UA"}')],
    )
    (tmp_path / "names.csv").write_text("carrier,name\nUA,United\nAA,American\n")
    run(
        f"""
name: named
job: transform
source:
  bootstrap.servers: {server}
  topic: {topic}
  schema: n INT, carrier STRING
  malformed: drop
transform:
  sql: |
    SELECT value.n, names.name, value.carrier
    FROM source JOIN names ON names.carrier = value.carrier WHERE value.n < 4
  tables:
    names: {{format: csv, path: names.csv, options: {{header: true}}}}
sink: {{topic: {out}, key: carrier}}
checkpoint: state
trigger: available-now
""",
        tmp_path,
    )
    [records] = read(server, out).values()
    found = sorted((record.key, json.loads(record.value or b"null")["n"]) for record in records)
    assert found == [(b"AA", 0), (b"AA", 2), (b"UA", 1), (b"UA", 3)]
    assert {record.value for record in records if record.key == b"UA"} == {
        b'{"n":1,"name":"United","carrier":"UA"}',
        b'{"n":3,"name":"United","carrier":"UA"}',
    }


def test_malformed_json_fails_the_pipeline_unless_configured_otherwise(
    cluster: Cluster, admin: Admin, tmp_path: Path
):
    server, topic, out = cluster.bootstrap_server, make_topic(admin), make_topic(admin)
    send(server, topic, [(b"a", b'{"n": 1}'), (b"b", b"no JSON")])
    text = f"""
name: strict
job: transform
source: {{bootstrap.servers: '{server}', topic: {topic}, schema: n INT, malformed: fail}}
transform: {{sql: SELECT value.n FROM source}}
sink: {{topic: {out}}}
checkpoint: strict
trigger: available-now
"""
    with pytest.raises(PipelineFailed, match=r"strict: .*(?i:malformed|corrupt)"):
        run(text, tmp_path)
    assert values(server, out) == []
    run(text.replace("malformed: fail", "malformed: 'null'").replace("strict", "lax"), tmp_path)
    assert values(server, out) == [b'{"n":1}', b'{"n":null}']


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
def test_a_python_function_beside_the_file_transforms(
    cluster: Cluster, admin: Admin, tmp_path: Path
):
    server, topic, out = cluster.bootstrap_server, make_topic(admin), make_topic(admin)
    send(server, topic, [(b"k", b"one"), (None, b"two")])
    (tmp_path / "own_transform.py").write_text(
        "from pyspark.sql import functions as f\n"
        "@f.udf('string')\n"
        "def louder(text):\n"
        "    return text.upper() + helper()\n"
        "def helper():\n"
        "    return '!'\n"
        "def step(frame):\n"
        "    return frame.select('key', louder('value').alias('value'))\n"
    )
    run(
        f"""
name: louder
job: transform
source: {{bootstrap.servers: '{server}', topic: {topic}}}
transform: {{python: "own_transform:step"}}
sink: {{topic: {out}}}
checkpoint: state
trigger: available-now
""",
        tmp_path,
    )
    [records] = read(server, out).values()
    assert [(each.key, each.value) for each in records] == [(b"k", b"ONE!"), (None, b"TWO!")]


@SEVERAL_BATCHES
@pytest.mark.promise("late-append")
def test_windows_come_out_once_when_the_watermark_has_passed(
    cluster: Cluster, admin: Admin, tmp_path: Path
):
    server, topic, out = (
        cluster.bootstrap_server,
        make_topic(admin, partitions=2),
        make_topic(admin),
    )
    text = f"""
name: hours
job: aggregate
source:
  bootstrap.servers: {server}
  topic: {topic}
  schema: carrier STRING, delay INT, at TIMESTAMP
aggregate:
  time: value.at
  window: 1 hour
  watermark: 10 minutes
  by: [value.carrier]
  measures: {{flights: count(*), delay: sum(value.delay)}}
sink: {{topic: {out}, key: carrier}}
checkpoint: state
trigger: available-now
"""

    def flight(carrier: str, hour: int, delay: int | None) -> tuple[bytes, bytes]:
        value = {"carrier": carrier, "delay": delay, "at": f"2026-07-01T{hour:02}:30:00Z"}
        return carrier.encode(), json.dumps(value).encode()

    send(server, topic, [flight("UA", 1, 5), flight("UA", 1, None), flight("AA", 1, 7)])
    run(text, tmp_path)
    assert values(server, out) == []
    send(server, topic, [flight("UA", 2, 1), flight("AA", 9, 0)])
    run(text, tmp_path)
    send(server, topic, [flight("UA", 1, 99)])  # too late: its hour has come out
    run(text, tmp_path)
    hour = '"window_start":"2026-07-01T{:02}:00:00.000Z","window_end":"2026-07-01T{:02}:00:00.000Z"'
    assert values(server, out) == [
        f'{{{hour.format(1, 2)},"carrier":"AA","flights":1,"delay":7}}'.encode(),
        f'{{{hour.format(1, 2)},"carrier":"UA","flights":2,"delay":5}}'.encode(),
        f'{{{hour.format(2, 3)},"carrier":"UA","flights":1,"delay":1}}'.encode(),
    ]


@pytest.mark.promise("pipeline-order", "mirror-ledger")
def test_a_mirror_in_another_cluster_is_the_same_record_for_record(
    cluster: Cluster, admin: Admin, tmp_path: Path
):
    topic = make_topic(admin, partitions=3)
    sent = {0: odd_records(0, 60), 1: odd_records(1, 40), 2: []}
    here, ledger = cluster.bootstrap_server, f"{topic}-ledger"
    fill(here, topic, sent)
    # What matches the pattern and is a ledger there: its records are no business of this sink.
    admin.create_topics([NewTopic(ledger, partition_count=1)])
    send(here, ledger, [(b"sink", b"decided")])
    config = {"transaction.state.log.num.partitions": "1"}
    with Cluster(config=config) as other:
        text = f"""
name: mirror
job: mirror
source: {{bootstrap.servers: '{here}', pattern: '{topic}.*', records.per.batch: 50}}
sink: {{bootstrap.servers: '{other.bootstrap_server}', options: {{ledgerTopic: {ledger}}}}}
checkpoint: state
trigger: available-now
"""
        run(text, tmp_path)
        assert read(other.bootstrap_server, topic) == sent
        run(text, tmp_path)
        assert read(other.bootstrap_server, topic) == sent
        [decisions] = read(other.bootstrap_server, ledger).values()
        assert b"sink" not in {each.key for each in decisions}
        with Admin(other.bootstrap_server) as there:
            there.create_topics([NewTopic(f"narrow.{topic}", partition_count=2)])
        shutil.rmtree(tmp_path / "state")
        narrow = text.replace("options:", "topic: 'narrow.{topic}', options:")
        with pytest.raises(PipelineFailed, match=r"has 2 partitions .*, and 3 are wanted"):
            run(narrow, tmp_path)


@pytest.mark.promise("mirror-new-topics")
def test_a_mirror_takes_in_topics_that_are_made_later(
    cluster: Cluster, admin: Admin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(streams, "LOOK_S", 0.1)
    server, first = cluster.bootstrap_server, make_topic(admin)
    later = f"{first}-later"
    send(server, first, [(b"a", b"1")])
    text = f"""
name: growing
job: mirror
source: {{bootstrap.servers: '{server}', pattern: '{first}.*'}}
sink: {{bootstrap.servers: '{server}', topic: 'to-{{topic}}'}}
checkpoint: state
trigger: {{every: 0 s}}
"""
    request, seen = StopRequest(), 0

    def look(progress: BatchProgress) -> None:
        nonlocal seen
        seen += progress.row_count
        if later not in admin.list_topics():
            admin.create_topics([NewTopic(later, partition_count=3)])
            fill(server, later, {2: [Record(b"b", b"2")]})
        if seen == 2:
            request.handle()

    run_pipelines(
        parse_pipelines(text, "t.yaml", str(tmp_path), {}), RunOptions(observer=look), request
    )
    assert values(server, f"to-{first}") == [b"1"]
    found = read(server, f"to-{later}")
    assert [[each.value for each in found[number]] for number in range(3)] == [[], [], [b"2"]]


@pytest.mark.promise("pipeline-no-time")
def test_records_without_a_time_get_that_of_the_writing(spark: SparkSession):
    row = "CAST('k' AS BINARY) AS key, CAST('v' AS BINARY) AS value, 'in' AS topic, 0 AS partition"
    times = ", ".join(f"timestamp_millis({each}L)" for each in (-1, 0, BEGAN_MS))
    frame = spark.sql(f"SELECT {row}, null AS headers, explode(array({times})) AS timestamp")
    copied = streams.mirrored(frame, TopicSink({}, "{topic}", "copy"))
    found = [None if each is None else each.timestamp() * 1_000 for (each,) in times_of(copied)]
    assert found == [None, 0, BEGAN_MS]
    assert [each for (each,) in times_of(repartitioned(frame, 1))] == [
        each for (each,) in times_of(copied)
    ]


def times_of(frame: DataFrame) -> list[Row]:
    return frame.select("timestamp").collect()


@pytest.mark.promise("pipeline-no-loop")
def test_a_pipeline_that_would_feed_itself_by_another_address_is_refused(
    cluster: Cluster, admin: Admin, tmp_path: Path
):
    topic = make_topic(admin)
    port = cluster.bootstrap_server.rpartition(":")[2]
    text = f"""
name: loop
job: mirror
source: {{bootstrap.servers: '127.0.0.1:{port}', pattern: '.*{topic}'}}
sink: {{bootstrap.servers: 'localhost:{port}', topic: 'copy.{{topic}}'}}
checkpoint: state
"""
    with pytest.raises(PipelineFailed, match=rf"copy\.{topic} is read and written"):
        run(text, tmp_path)
    assert f"copy.{topic}" not in admin.list_topics()


@pytest.mark.promise("pipeline-order-of-keys")
def test_repartitioning_keeps_the_order_of_each_key(cluster: Cluster, admin: Admin, tmp_path: Path):
    server, topic = cluster.bootstrap_server, make_topic(admin, partitions=6)
    keys = [b"key-%d" % number for number in range(20)]
    send(server, topic, [(keys[n % 20], b"%04d" % n) for n in range(400)])
    fill(server, topic, {5: [Record(None, b"none-%d" % n) for n in range(10)]})
    out = f"{topic}-narrow"
    run(
        f"""
name: narrow
job: repartition
source: {{bootstrap.servers: '{server}', topic: {topic}, records.per.batch: 120}}
sink: {{topic: {out}, partitions: 2}}
checkpoint: state
trigger: available-now
""",
        tmp_path,
    )
    found = read(server, out)
    assert len(found) == 2
    for key in keys:
        places = [number for number, each in found.items() if any(r.key == key for r in each)]
        assert len(places) == 1
        of_key = [each.value for each in found[places[0]] if each.key == key]
        assert of_key == sorted(of_key, key=lambda value: value or b"")
        assert len(of_key) == 20
    keyless = [each.value for each in found[1] if each.key is None]
    assert keyless == [b"none-%d" % n for n in range(10)]
    # New records of a producer that hashes land where the old ones are.
    send(server, out, [(key, b"new") for key in keys])
    assert all(
        {r.key for r in each if r.value == b"new"} <= {r.key for r in each if r.value != b"new"}
        for each in read(server, out).values()
    )


REFUSALS = {
    "no sink topic": ("", "", r"never: there is no topic absent at .* say in sink\.partitions"),
    "no source topic": ("topic: IN", "topic: nothing", "never: there is no topic nothing at"),
    "partitions": ("topic: absent", "topic: OUT, partitions: 3", "OUT has 1 partitions at"),
    "no column": ("SELECT value FROM source", "SELECT x FROM source", "never: transform: .*`x`"),
    "no stream": ("SELECT value FROM source", "SELECT '1' AS value", "does not read from source"),
    "no key": ("topic: absent", "topic: OUT, key: nothing", "never: .*nothing"),
}


@pytest.mark.parametrize(("old", "new", "said"), REFUSALS.values(), ids=REFUSALS)
def test_what_cannot_start_says_why(
    cluster: Cluster,
    admin: Admin,
    tmp_path: Path,
    spark: SparkSession,
    old: str,
    new: str,
    said: str,
):
    out = make_topic(admin)
    text = f"""
name: never
job: transform
source: {{bootstrap.servers: '{cluster.bootstrap_server}', topic: IN}}
transform: {{sql: "SELECT value FROM source"}}
sink: {{topic: absent}}
checkpoint: state
trigger: available-now
"""
    text = text.replace(old, new, 1) if old else text
    if "SELECT value FROM source" not in text:
        text = text.replace("topic: absent", "topic: OUT")
    text = text.replace("OUT", out).replace("topic: IN", f"topic: {make_topic(admin)}")
    with pytest.raises(PipelineFailed, match=said.replace("OUT", out)):
        run(text, tmp_path)
    assert not spark.streams.active


HELD = """
import time
from pathlib import Path

from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType

HERE = Path(__file__).parent


@f.udf(returnType=BinaryType())
def held(value):
    # In the second batch: until the test says so.
    deadline = time.monotonic() + 60
    while value == b"030" and not (HERE / "go").exists() and time.monotonic() < deadline:
        (HERE / "at-work").touch()
        time.sleep(0.02)
    return value


def step(frame):
    return frame.select(held(f.col("value").cast("binary")).alias("value"))
"""


@SEVERAL_BATCHES
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
def test_a_query_stops_after_its_batch_and_goes_on_from_there(
    cluster: Cluster, admin: Admin, spark: SparkSession, tmp_path: Path
):
    server, topic, out = cluster.bootstrap_server, make_topic(admin), make_topic(admin)
    send(server, topic, [(None, b"%03d" % n) for n in range(200)])
    (tmp_path / "held.py").write_text(HELD)
    text = f"""
name: slow
job: transform
source: {{bootstrap.servers: '{server}', topic: {topic}, records.per.batch: 20}}
transform: {{python: "held:step"}}
sink: {{topic: {out}}}
checkpoint: state
trigger: {{every: 0 s}}
"""
    request = StopRequest()

    def stop_while_at_work() -> None:
        until((tmp_path / "at-work").exists, what="a task at work", deadline_s=60)
        [query] = spark.streams.active
        request.handle()
        until(lambda: not query.isActive, what="the query told to end", deadline_s=60)
        (tmp_path / "go").touch()

    said: list[str] = []
    asking = threading.Thread(target=stop_while_at_work)
    asking.start()
    file = parse_pipelines(text, "test.yaml", str(tmp_path), {})
    told: list[BatchProgress] = []
    run_pipelines(file, RunOptions(observer=told.append, say=said.append), request)
    asking.join()
    assert said == ["stopping after the batch at work"]
    assert [(each.batch_id, each.row_count) for each in told] == [(0, 20), (1, 20)]
    commits = {each.name for each in (tmp_path / "state" / "commits").glob("[0-9]*")}
    assert commits == {"0", "1"}, "the batch at work is finished, and no other one"
    assert values(server, out) == [b"%03d" % n for n in range(40)]
    run(text.replace("{every: 0 s}", "available-now"), tmp_path)
    assert values(server, out) == [b"%03d" % n for n in range(200)]
