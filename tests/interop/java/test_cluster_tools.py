"""Apache Kafka's command line tools against a running node."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.interop.drivers import DRIVERS
from tests.interop.java.tools import JavaTools
from tests.interop.samples import BASE_TIMESTAMP_MS, CODECS, Rec
from tests.interop.topics import TopicMaker, fresh_name
from tests.kit.waiting import until


def test_kafka_topics(java: JavaTools, bootstrap: str) -> None:
    name = fresh_name("java")
    server = ("--bootstrap-server", bootstrap)
    named = (*server, "--topic", name)
    java.check(
        "kafka-topics", *named, "--create", "--partitions", 2, "--replication-factor", 1,
        "--config", "retention.ms=3600000",
    )  # fmt: skip
    assert name in java.check("kafka-topics", *server, "--list").lines
    again = java.run("kafka-topics", *named, "--create")
    assert again.status == 1
    assert "exist" in again.output + again.errors
    java.check("kafka-topics", *named, "--create", "--if-not-exists")
    java.check("kafka-topics", *named, "--alter", "--partitions", 4)

    def described() -> list[str]:
        return java.check("kafka-topics", *named, "--describe").lines

    until(lambda: len(described()) == 5, what="four partitions described")
    head, *partitions = described()
    assert re.search(r"PartitionCount: 4\s+ReplicationFactor: 1", head)
    assert "retention.ms=3600000" in head
    for number, line in enumerate(partitions):
        assert re.search(rf"Partition: {number}\s+Leader: 1\s+Replicas: 1\s+Isr: 1", line)
    shrunk = java.run("kafka-topics", *named, "--alter", "--partitions", 1)
    assert shrunk.status == 1
    assert re.search(r"4 partition.* 1 would not be", shrunk.output + shrunk.errors)
    java.check("kafka-topics", *named, "--delete")
    until(
        lambda: name not in java.check("kafka-topics", *server, "--list").lines,
        what=f"{name} gone",
    )
    for filter_option in (
        "--unavailable-partitions",
        "--under-replicated-partitions",
        "--at-min-isr-partitions",
    ):
        java.check("kafka-topics", *server, "--describe", filter_option)


def test_kafka_configs_of_topics(java: JavaTools, bootstrap: str, topic: str) -> None:
    entity = ("--bootstrap-server", bootstrap, "--entity-type", "topics", "--entity-name", topic)

    def described(*options: str) -> str:
        return java.check("kafka-configs", *entity, "--describe", *options).output

    java.check(
        "kafka-configs", *entity, "--alter", "--add-config", "retention.ms=123456,segment.ms=777777"
    )
    until(lambda: "retention.ms=123456" in described(), what="retention.ms")
    assert "segment.ms=777777" in described()
    assert "DYNAMIC_TOPIC_CONFIG:retention.ms=123456" in described()
    assert "max.message.bytes=1048588" in described("--all")
    java.check("kafka-configs", *entity, "--alter", "--delete-config", "retention.ms")
    until(lambda: "retention.ms=" not in described(), what="no retention.ms")
    bad = java.run("kafka-configs", *entity, "--alter", "--add-config", "retention.ms=soon")
    assert bad.status == 1
    assert "InvalidConfigurationException" in bad.output + bad.errors


def test_kafka_configs_of_brokers(java: JavaTools, bootstrap: str) -> None:
    server = ("--bootstrap-server", bootstrap, "--entity-type", "brokers")
    for entity in (("--entity-name", "1"), ("--entity-default",)):
        who = (*server, *entity)

        def described(who: tuple[str, ...] = who) -> str:
            return java.check("kafka-configs", *who, "--describe").output

        java.check("kafka-configs", *who, "--alter", "--add-config", "log.retention.ms=86400000")
        until(lambda: "log.retention.ms=86400000" in described(), what="a dynamic config")
        java.check("kafka-configs", *who, "--alter", "--delete-config", "log.retention.ms")
        until(lambda: "log.retention.ms=86400000" not in described(), what="none any more")
    everything = java.check("kafka-configs", *server, "--entity-name", "1", "--describe", "--all")
    assert "node.id=1" in everything.output


def test_console_producer_and_consumer(java: JavaTools, bootstrap: str, topic: str) -> None:
    lines = [f"k{number}:value {number}" for number in range(30)]
    for number, codec in enumerate(CODECS):
        java.check(
            "kafka-console-producer",
            "--bootstrap-server", bootstrap,
            "--topic", topic,
            "--compression-codec", codec,
            "--reader-property", "parse.key=true",
            "--reader-property", "key.separator=:",
            stdin="\n".join(lines[6 * number : 6 * number + 6]).encode() + b"\n",
        )  # fmt: skip
    read = java.check(
        "kafka-console-consumer",
        "--bootstrap-server", bootstrap,
        "--topic", topic,
        "--partition", 0,
        "--offset", 4,
        "--max-messages", 26,
        "--formatter-property", "print.key=true",
        "--formatter-property", "key.separator=:",
        "--formatter-property", "print.offset=true",
    )  # fmt: skip
    assert read.lines == [f"Offset:{number}:{lines[number]}" for number in range(4, 30)]
    for driver in DRIVERS:
        found = driver.read(bootstrap, topic, 30)
        assert [f"{rec.key!r}{rec.value!r}" for rec in found] == [
            f"b'k{number}'b'value {number}'" for number in range(30)
        ]


def test_java_reads_what_python_writes(java: JavaTools, bootstrap: str, topic: str) -> None:
    records = [Rec(b"k", b"v%d" % number, (("h", b"x"),)) for number in range(5)]
    for driver in DRIVERS:
        for codec in CODECS:
            driver.write(bootstrap, topic, records, codec=codec)
    count = 5 * len(CODECS) * len(DRIVERS)
    read = java.check(
        "kafka-console-consumer",
        "--bootstrap-server", bootstrap,
        "--topic", topic,
        "--partition", 0,
        "--offset", "earliest",
        "--max-messages", count,
        "--formatter-property", "print.headers=true",
        "--formatter-property", "print.timestamp=true",
    )  # fmt: skip
    assert read.lines == [
        f"CreateTime:{BASE_TIMESTAMP_MS}\th:x\tv{number % 5}" for number in range(count)
    ]


def test_producer_perf(java: JavaTools, bootstrap: str, topics: TopicMaker) -> None:
    topic = topics.create(partitions=3)
    done = java.check(
        "kafka-producer-perf-test",
        "--topic", topic,
        "--num-records", 20_000,
        "--record-size", 200,
        "--throughput", -1,
        "--bootstrap-server", bootstrap,
        "--command-property", "acks=all",
        "--command-property", "compression.type=lz4",
    )  # fmt: skip
    assert "20000 records sent" in done.output
    offsets = java.check(
        "kafka-get-offsets", "--bootstrap-server", bootstrap, "--topic", topic
    ).lines
    assert sum(int(line.rsplit(":", 1)[1]) for line in offsets) == 20_000
    assert len(offsets) == 3


def test_get_offsets(java: JavaTools, bootstrap: str, topic: str) -> None:
    DRIVERS[0].write(
        bootstrap,
        topic,
        [Rec(b"k", b"v", timestamp_ms=BASE_TIMESTAMP_MS + stamp) for stamp in (1, 9, 5)],
    )

    def offset(time: str) -> list[str]:
        return java.check(
            "kafka-get-offsets", "--bootstrap-server", bootstrap, "--topic", topic, "--time", time
        ).lines

    assert offset("earliest") == [f"{topic}:0:0"]
    assert offset("latest") == [f"{topic}:0:3"]
    assert offset("max-timestamp") == [f"{topic}:0:1"]
    assert offset(str(BASE_TIMESTAMP_MS + 2)) == [f"{topic}:0:1"]
    assert offset("earliest-local") == [f"{topic}:0:0"]


def test_delete_records(java: JavaTools, bootstrap: str, topic: str, tmp_path: Path) -> None:
    DRIVERS[0].write(bootstrap, topic, [Rec(b"k", b"v")] * 10)
    wanted = tmp_path / "offsets.json"
    wanted.write_text(
        json.dumps({"partitions": [{"topic": topic, "partition": 0, "offset": 6}], "version": 1})
    )
    done = java.check(
        "kafka-delete-records", "--bootstrap-server", bootstrap, "--offset-json-file", wanted
    )
    assert f"partition: {topic}-0\tlow_watermark: 6" in done.output
    earliest = java.check(
        "kafka-get-offsets", "--bootstrap-server", bootstrap, "--topic", topic, "--time", "earliest"
    )
    assert earliest.lines == [f"{topic}:0:6"]


def test_log_dirs(java: JavaTools, bootstrap: str, topic: str) -> None:
    DRIVERS[0].write(bootstrap, topic, [Rec(b"k", b"x" * 10_000)])
    done = java.check(
        "kafka-log-dirs", "--bootstrap-server", bootstrap, "--describe", "--topic-list", topic
    )
    described = json.loads(done.lines[-1])
    (broker,) = described["brokers"]
    (directory,) = broker["logDirs"]
    (partition,) = directory["partitions"]
    assert directory["error"] is None
    assert (partition["partition"], partition["offsetLag"]) == (f"{topic}-0", 0)
    assert 10_000 < partition["size"] < 10_200
    assert not partition["isFuture"]


def test_versions_features_and_cluster_id(java: JavaTools, bootstrap: str) -> None:
    versions = java.check("kafka-broker-api-versions", "--bootstrap-server", bootstrap).output
    assert f"{bootstrap} (id: 1 rack: null isFenced: false)" in versions
    for line in ("Produce(0)", "Fetch(1)", "CreateTopics(19)", "DescribeTopicPartitions(75)"):
        assert line in versions
    assert "Produce(0): UNSUPPORTED" not in versions
    features = java.check("kafka-features", "--bootstrap-server", bootstrap, "describe").output
    assert re.search(r"Feature: metadata.version\s.*FinalizedVersionLevel: \S", features)
    assert re.search(r"Feature: kraft.version\s", features)
    cluster = java.check("kafka-cluster", "cluster-id", "--bootstrap-server", bootstrap).output
    assert re.fullmatch(r"Cluster ID: \S{22}\s*", cluster)
