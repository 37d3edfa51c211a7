"""The topics that a pipeline reads and writes, before it starts: are they there, and fit together?

Owns the asking and the making. Must not read or write records. Invariant: a topic that exists is
never changed; one that does not fit is refused with both numbers.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from moldau.client import (
    KafkaError,
    NewTopic,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
    UnsupportedByBroker,
    UnusedSetting,
)
from moldau.client.sync import Admin
from moldau.spark_connector.errors import PipelineFailed
from moldau.spark_connector.options import KAFKA_PREFIX
from moldau.spark_connector.pipelines.model import Pipeline, TopicSink, TopicSource


def prepare_topics(pipeline: Pipeline) -> None:
    """Make the topics that the sink says how to make; refuse those that do not fit. Raises:
    PipelineFailed: a topic is missing or has the wrong number of partitions, the pipeline would
    read what it writes, or no broker answers
    """
    sink, source = pipeline.sink, pipeline.source
    try:
        read: dict[str, int] = {}
        read_from: str | None = None
        if isinstance(source, TopicSource):
            with admin_for(source.options) as admin:
                read = _read_topics(admin, source, pipeline.name)
                read_from = _cluster_id(admin)
        if isinstance(sink, TopicSink):
            with admin_for(sink.options) as admin:
                wanted = _wanted(sink, read)
                # Only the cluster ids show that two addresses are of one cluster.
                if isinstance(source, TopicSource) and read_from == (_cluster_id(admin) or ""):
                    own = sorted(each for each in wanted if source.reads(each))
                    if own:
                        raise PipelineFailed(
                            f"{pipeline.name}: {own[0]} is read and written, in the same cluster: "
                            "the pipeline would feed itself"
                        )
                for topic, count in wanted.items():
                    _prepare(admin, sink, topic, count, pipeline)
    except KafkaError as error:
        raise PipelineFailed(f"{pipeline.name}: {error}") from error


def _cluster_id(admin: Admin) -> str | None:
    try:
        return admin.describe_cluster().cluster_id
    except UnsupportedByBroker:  # Kafka before 2.8
        return None


def admin_for(options: Mapping[str, str]) -> Admin:
    settings = {
        name.removeprefix(KAFKA_PREFIX): value
        for name, value in options.items()
        if name.startswith(KAFKA_PREFIX)
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnusedSetting)  # a producer's or consumer's
        return Admin(config=settings)


def settle_pipeline(pipeline: Pipeline) -> bool:
    """End the transactions that a pipeline which does not run has left open; whether it has any.
    Raises: SparkConnectorError: the cluster does not answer, or rows are lost
    """
    from moldau.spark_connector import settle_sink

    sink = pipeline.sink
    if not isinstance(sink, TopicSink) or sink.semantics != "exactly-once":
        return False
    settle_sink({**sink.options, "sinkId": sink.sink_id})
    return True


def _read_topics(admin: Admin, source: TopicSource, name: str) -> dict[str, int]:
    names = matching_topics(admin, source)
    counts = {each: partition_count(admin, each) for each in names}
    missing = sorted(each for each, count in counts.items() if count is None)
    if missing:
        raise PipelineFailed(
            f"{name}: there is no topic {', '.join(missing)} at {source.bootstrap_servers}"
        )
    return {each: count for each, count in counts.items() if count is not None}


def matching_topics(admin: Admin, source: TopicSource) -> list[str]:
    """The topics that the source names, there or not, or those that match its pattern now."""
    return list(source.topics) or [each for each in admin.list_topics() if source.reads(each)]


def _wanted(sink: TopicSink, read: Mapping[str, int]) -> dict[str, int | None]:
    """The topics to be written, and how many partitions each needs; None: any number."""
    if "{topic}" not in sink.topic:
        return {sink.topic: sink.partition_count}
    # A mirrored topic has the partitions of its original; a replay knows its topics only later.
    return {
        sink.target_of(topic): sink.partition_count or count
        for topic, count in read.items()
        if sink.target_of(topic) != sink.ledger_topic
    }


def _prepare(
    admin: Admin, sink: TopicSink, topic: str, count: int | None, pipeline: Pipeline
) -> None:
    found = partition_count(admin, topic)
    if found is None and count is None:
        raise PipelineFailed(
            f"{pipeline.name}: there is no topic {topic} at {sink.bootstrap_servers}: create it, "
            "or say in sink.partitions how many it shall have"
        )
    if found is None:
        assert count is not None, "just looked at"
        new = NewTopic(topic, count, sink.replication_factor, dict(sink.topic_config))
        try:
            admin.create_topics([new])
        except TopicAlreadyExists:  # created since the look; does it fit?
            found = partition_count(admin, topic)
    if found is not None and count is not None and found != count:
        raise PipelineFailed(
            f"{pipeline.name}: {topic} has {found} partitions at {sink.bootstrap_servers}, and "
            f"{count} are wanted"
        )


def partition_count(admin: Admin, topic: str) -> int | None:
    """How many partitions a topic has, None when it does not exist."""
    try:
        described = admin.describe_topics([topic])
    except UnknownTopicOrPartition:
        return None
    return len(described[topic].partitions)
