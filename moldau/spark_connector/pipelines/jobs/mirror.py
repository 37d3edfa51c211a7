"""The job `mirror`: topics into another cluster, as they are.

Keys, values, headers, timestamps and partitions are kept, offsets are the other cluster's own.
Invariant: each record once, in the order of its partition. What would land in the sink's own ledger
(which a pattern may match, too) is left out: that book is written by the sink alone.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from moldau.client import KafkaError
from moldau.spark_connector.errors import PipelineFailed
from moldau.spark_connector.pipelines.jobs.streams import (
    record_time,
    records,
    run_into,
    topic_sink,
    topic_source,
)
from moldau.spark_connector.pipelines.topics import admin_for, matching_topics, prepare_topics

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from moldau.spark_connector.pipelines.model import Pipeline, TopicSink
    from moldau.spark_connector.pipelines.running import BatchProgress, Running, RunningQuery

LOOK_S: Final = 5.0
"""How often a mirror looks for further topics that match its pattern."""


def start(spark: SparkSession, pipeline: Pipeline) -> Running:
    """Start it. Raises: PipelineFailed."""
    source = topic_source(pipeline)
    if source.topics:
        return _query(spark, pipeline)

    def start_with(names: Collection[str]) -> RunningQuery:
        return _query(spark, _naming(pipeline, names))

    def find() -> list[str]:
        with admin_for(source.options) as admin:
            return matching_topics(admin, source)

    try:
        names = find()
    except KafkaError as error:
        raise PipelineFailed(f"{pipeline.name}: {error}") from error
    return MatchingMirror(
        pipeline.name,
        frozenset(names),
        start_with,
        find,
        lambda: prepare_topics(pipeline),
        is_endless=pipeline.every_ms is not None,
        look_s=LOOK_S,
    )


def _query(spark: SparkSession, pipeline: Pipeline) -> RunningQuery:
    frame = mirrored(records(spark, pipeline), topic_sink(pipeline))
    return run_into(frame, pipeline, per_record=True, extra={"includeTimestamp": "true"})


def _naming(pipeline: Pipeline, names: Collection[str]) -> Pipeline:
    source = topic_source(pipeline)
    options = dict(source.options)
    del options["subscribePattern"]
    options["subscribe"] = ",".join(sorted(names))
    return replace(pipeline, source=replace(source, options=options))


class MatchingMirror:
    """A mirror of whatever matches a pattern.

    The query itself reads topics by their names, since a topic that only the pattern found would be
    written to a topic that does not exist: brokers would create it, with their own number of
    partitions. When more topics match, the query ends after its batch, their targets are made, and
    it goes on with all of them from its checkpoint. Without any topic there is no query yet.

    Args:
        start: starts the query for these topics.
        find: the topics that match now; asked in a thread of its own.
        prepare: makes the targets.
        is_endless: goes on looking; otherwise what is there at the start is all.
    """

    def __init__(
        self,
        name: str,
        topics: frozenset[str],
        start: Callable[[Collection[str]], RunningQuery],
        find: Callable[[], Collection[str]],
        prepare: Callable[[], None],
        *,
        is_endless: bool,
        look_s: float,
    ) -> None:
        self.name = name
        self._topics = topics
        self._start = start
        self._find = find
        self._prepare = prepare
        self._is_endless = is_endless
        self._look_s = look_s
        self._found = topics
        self._failure: str | None = None
        self._progress: list[BatchProgress] = []
        self._end = threading.Event()
        self._query = start(topics) if topics else None
        if is_endless:
            threading.Thread(target=self._watch, name=f"mirror {name}", daemon=True).start()

    def is_over(self) -> bool:
        if self._failure is not None:
            return True
        if self._query is not None:
            has_more = not self._topics.issuperset(self._found)
            if has_more and not self._end.is_set():
                self._query.stop_after_batch()
            if not self._query.is_over():
                return False
            if self._query.failure() is not None or self._end.is_set() or not has_more:
                self._end.set()
                return True
        elif self._end.is_set() or not self._is_endless:
            return True
        if self._found:
            self._go_on()
        return self._failure is not None

    def new_progress(self) -> Sequence[BatchProgress]:
        found, self._progress = self._progress, []
        return found if self._query is None else [*found, *self._query.new_progress()]

    def stop_after_batch(self) -> None:
        self._end.set()
        if self._query is not None:
            self._query.stop_after_batch()

    def stop_now(self) -> None:
        self._end.set()
        if self._query is not None:
            self._query.stop_now()

    def failure(self) -> str | None:
        return self._failure if self._query is None else self._failure or self._query.failure()

    def _go_on(self) -> None:
        """Start (again) with all topics that were found."""
        from pyspark.errors import PySparkException

        from moldau.spark_connector.pipelines.running import failure_line

        if self._query is not None:
            self._progress += self._query.new_progress()
        self._topics = self._found
        try:
            self._prepare()
            self._query = self._start(self._topics)
        except PipelineFailed as error:
            self._failure = str(error)
        except PySparkException as error:
            self._failure = failure_line(str(error))
        if self._failure is not None:
            self._end.set()

    def _watch(self) -> None:
        while not self._end.wait(self._look_s):
            try:
                self._found = frozenset(self._find())
            except KafkaError:
                continue  # no broker answers: the query reports that


def mirrored(frame: DataFrame, sink: TopicSink) -> DataFrame:
    """The columns to write; `{topic}` in the sink's topic is the record's own topic."""
    from pyspark.sql import functions as f

    parts = sink.topic.split("{topic}")
    pieces = [piece for part in parts[:-1] for piece in (f.lit(part), f.col("topic"))]
    topic = f.concat(*pieces, f.lit(parts[-1])).alias("topic")
    found = frame.select(topic, "partition", "key", "value", "headers", record_time())
    return found.where(f.col("topic") != sink.ledger_topic)
