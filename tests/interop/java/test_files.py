"""Files: Apache Kafka's tools on ours, our tools on Apache Kafka's."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from moldau.cli.metadata_files import read_metadata
from moldau.client.admin.security import ScramUpsertion
from moldau.client.sync import Admin
from moldau.metadata.scram_secret import scram_secret
from moldau.runtime.filesystem import OsFilesystem
from moldau.storage.checkpoints import CLEANER_CHECKPOINT
from moldau.testing import Cluster
from tests.interop.drivers import DRIVERS
from tests.interop.java.coordinator_logs import (
    EXPECTED,
    OPEN,
    after,
    fill_coordinators,
    go_on,
    snapshot,
    transactions,
)
from tests.interop.java.server import KafkaServer
from tests.interop.java.tools import JavaTools
from tests.interop.samples import CODECS, Rec, sample_records
from tests.interop.topics import TopicMaker, wait_decided
from tests.kit.waiting import until
from tests.system.processes import run_cli

pytestmark = pytest.mark.timeout(300)

GOLDEN = Path(__file__).parents[2] / "storage" / "golden" / "kafka-4.3.0-clean"
SMALL_SEGMENTS = {"segment.bytes": "1048576", "index.interval.bytes": "512"}
COMPACTED = {
    **SMALL_SEGMENTS,
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "file.delete.delay.ms": "0",
}
CONFIG = {
    "log.cleaner.backoff.ms": "100",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
}
WAIT_S = 20.0
#: What both dumps print alike: batches, records up to their header keys, entries of indexes …
ALIKE = re.compile(
    r"^(\| offset: .*? headerKeys: \[[^]]*\]|baseOffset: .*|offset: .*|timestamp: .*|version: .*"
    r"|producerId: .*? offsetDelta: \S+)"
)


def fill(bootstrap: str) -> None:
    """Every codec, several segments, deleted records, producers, transactions, groups."""
    maker = TopicMaker(bootstrap)
    maker.create("codecs")
    for codec in CODECS:
        DRIVERS[0].write(
            bootstrap, "codecs", sample_records(), codec=codec, **{"enable.idempotence": True}
        )
    maker.create("append-time", config={"message.timestamp.type": "LogAppendTime"})
    DRIVERS[1].write(bootstrap, "append-time", [Rec(b"k", b"v")] * 100, codec="lz4")
    maker.create("rolled", config=SMALL_SEGMENTS)
    for number in range(30):
        DRIVERS[0].write(
            bootstrap,
            "rolled",
            [Rec(b"%d" % number, bytes(range(250)) * 40)] * 12,
            **{"batch.size": 16_000, "linger.ms": 0},
        )
    admin = AdminClient({"bootstrap.servers": bootstrap})
    before = TopicPartition("rolled", 0, 150)
    admin.delete_records([before])[before].result(WAIT_S)
    maker.create("empty", partitions=2)
    maker.create("compacted", config=COMPACTED)
    for number in range(40):
        value = None if number % 13 == 5 else b"%d:" % number + bytes(range(250)) * 40
        DRIVERS[0].write(
            bootstrap,
            "compacted",
            [Rec(b"key-%d" % (each % 7), value) for each in range(number % 7, number % 7 + 6)],
            **{"enable.idempotence": True},
        )
    maker.create("transactions")
    for commit in (True, False, True, False):
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "t"})
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        for number in range(5):
            producer.produce("transactions", b"%d" % number, partition=0)
        if commit:
            producer.commit_transaction(WAIT_S)
        else:
            producer.flush(WAIT_S)
            producer.abort_transaction(WAIT_S)
    wait_decided(bootstrap, "transactions")
    fill_coordinators(bootstrap)


def alike(dump: str) -> list[str]:
    """The lines of a dump that both tools print, in the same words."""
    found = (ALIKE.match(line) for line in dump.splitlines())
    lines = [match.group(1) for match in found if match]
    return [
        re.sub(r"Optional\w*\[(.*?)\]", r"\1", re.sub(r"Optional\w*\.empty", "null", line))
        for line in lines
    ]


def data_files(directory: Path) -> list[Path]:
    """Every file of a log directory that the dump tools understand."""
    kinds = {".log", ".index", ".timeindex", ".txnindex", ".snapshot"}
    return sorted(
        path
        for path in directory.rglob("*")
        if path.suffix in kinds and path.stat().st_size and path.name != "bootstrap.checkpoint"
    )


@pytest.fixture(scope="module")
def our_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A data directory that our node wrote and closed cleanly."""
    home = tmp_path_factory.mktemp("ours")
    with Cluster(directory=home, config=CONFIG) as cluster:
        fill(cluster.bootstrap_server)
        checkpoint = cluster.data_directory() / CLEANER_CHECKPOINT
        until(
            lambda: checkpoint.exists() and "compacted 0" in checkpoint.read_text(),
            what="compaction",
        )
        assert len(values(cluster.bootstrap_server, "compacted")) < 200
        assert cluster.stop() == 0
        yield cluster.data_directory()


@pytest.fixture(scope="module")
def kafka_directory(java: JavaTools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A data directory that Apache Kafka wrote and closed cleanly."""
    home = tmp_path_factory.mktemp("kafka")
    with KafkaServer(java, home) as server:
        fill(server.bootstrap_server)
        server.stop()
        yield server.data_directory


def assert_dumps_agree(java: JavaTools, directory: Path) -> None:
    """Both tools tell the same of every file; one call of each for all files."""
    files = data_files(directory)
    assert len(files) > 10
    theirs = java.check(
        "kafka-dump-log", "--deep-iteration", "--files", ",".join(str(path) for path in files)
    )
    ours = run_cli("log", "dump", "--deep", *files)
    assert ours.status == 0, ours.errors
    their_parts, our_parts = (split_by_file(text) for text in (theirs.output, ours.output))
    assert their_parts.keys() == our_parts.keys() == {str(path) for path in files}
    for path in their_parts:
        assert alike(our_parts[path]) == alike(their_parts[path]), path
    assert sum(len(alike(part)) for part in our_parts.values()) > 100


def split_by_file(dump: str) -> dict[str, str]:
    """The parts of a dump of several files."""
    parts = re.split(r"^Dumping (\S+).*$", dump, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_kafka_dump_log_finds_our_files_sound(java: JavaTools, our_directory: Path) -> None:
    files = data_files(our_directory)
    assert {path.suffix for path in files} >= {".log", ".index", ".timeindex", ".snapshot"}
    assert len(list((our_directory / "rolled-0").glob("*.log"))) >= 2
    names = ",".join(str(path) for path in files)
    deep = java.check("kafka-dump-log", "--deep-iteration", "--files", names)
    batches = [line for line in deep.lines if line.startswith("baseOffset")]
    assert batches
    assert all(line.endswith("isvalid: true") for line in batches)
    indexes = ",".join(str(path) for path in files if path.suffix == ".index")
    sanity = java.check("kafka-dump-log", "--index-sanity-check", "--files", indexes)
    assert sanity.output.count("passed sanity check") == len(indexes.split(","))
    both = ",".join(str(path) for path in files if path.suffix in (".index", ".timeindex"))
    verified = java.check("kafka-dump-log", "--verify-index-only", "--files", both)
    for complaint in ("Mismatches", "out of order", "not found", "not consecutive"):
        assert complaint.lower() not in (verified.output + deep.output).lower()


def test_kafka_dump_log_reads_our_metadata_log(java: JavaTools, our_directory: Path) -> None:
    files = sorted((our_directory / "__cluster_metadata-0").glob("*.log"))
    decoded = java.check(
        "kafka-dump-log",
        "--cluster-metadata-decoder",
        "--files",
        ",".join(str(path) for path in files),
    )
    for record in (
        "REGISTER_BROKER_RECORD",
        "TOPIC_RECORD",
        "PARTITION_RECORD",
        "CONFIG_RECORD",
        "PRODUCER_IDS_RECORD",
        "FEATURE_LEVEL_RECORD",
    ):
        assert record in decoded.output or any(
            (our_directory / "__cluster_metadata-0").glob("*.checkpoint")
        ), record
    assert '"name":"rolled"' in decoded.output
    assert "LeaderChange" in decoded.output


def test_kafka_dump_log_decodes_our_coordinators_logs(java: JavaTools, our_directory: Path) -> None:
    """Each record of ours is one that Kafka's decoders know, whole."""

    def decoded(option: str, topic: str) -> str:
        files = [path for path in data_files(our_directory) if path.parent.name.startswith(topic)]
        logs = ",".join(str(path) for path in files if path.suffix == ".log")
        told = java.check("kafka-dump-log", option, "--files", logs).output
        assert "payload" in told
        for complaint in ("could not", "error", "unknown", "isvalid: false"):
            assert complaint not in told.lower()
        return told

    groups = decoded("--offsets-decoder", "__consumer_offsets")
    for wanted in (
        '"group":"left-classic"',
        '"metadata":"by left-consumer',
        '"protocolType":"consumer"',
        '"groupId":"left-consumer"',
        '"assignmentEpoch"',
        '"subscribedTopicNames":["grouped"]',
        "endTxnMarker: ABORT",
    ):
        assert wanted in groups, wanted
    found = decoded("--transaction-log-decoder", "__transaction_state")
    for wanted in ('"transactionalId":"left-open"', '"topic":"__consumer_offsets"'):
        assert wanted in found, wanted


def test_both_dumps_say_the_same_of_our_files(java: JavaTools, our_directory: Path) -> None:
    assert_dumps_agree(java, our_directory)


def test_both_dumps_say_the_same_of_kafkas_files(java: JavaTools, kafka_directory: Path) -> None:
    assert_dumps_agree(java, kafka_directory)


def test_both_dumps_say_the_same_of_golden_files(java: JavaTools) -> None:
    assert_dumps_agree(java, GOLDEN)


def test_moldau_log_verify_finds_kafkas_files_sound(kafka_directory: Path) -> None:
    done = run_cli("log", "verify", "--deep", kafka_directory)
    assert done.status == 0, done.output + done.errors
    assert "0 damage" in done.output


def test_moldau_log_verify_finds_our_files_sound(our_directory: Path) -> None:
    done = run_cli("log", "verify", "--deep", our_directory)
    assert done.status == 0, done.output + done.errors
    assert "0 warning, 0 damage" in done.output


def values(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[bytes | None]:
    """Every value that a consumer of partition 0 gets."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "isolation.level": isolation,
         "enable.auto.commit": False, "enable.partition.eof": True, "check.crcs": True}
    )  # fmt: skip
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        found: list[bytes | None] = []
        while True:
            message = consumer.poll(WAIT_S)
            assert message is not None, "neither a record nor the end"
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return found
            found.append(message.value())
    finally:
        consumer.close()


def newest(bootstrap: str, topic: str) -> dict[bytes | None, bytes | None]:
    """What a consumer of partition 0 knows of each key in the end."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False,
         "enable.partition.eof": True, "check.crcs": True}
    )  # fmt: skip
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        found: dict[bytes | None, bytes | None] = {}
        while True:
            message = consumer.poll(WAIT_S)
            assert message is not None, "neither a record nor the end"
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                return {key: value for key, value in found.items() if value is not None}
            found[message.key()] = message.value()
    finally:
        consumer.close()


def secret_in(directory: Path) -> str | None:
    """What the metadata log has for answers about users that do not exist."""
    found = read_metadata(OsFilesystem(), str(directory))
    return scram_secret(found.image.configs)


def test_a_directory_goes_to_kafka_and_comes_back(
    java: JavaTools, our_directory: Path, tmp_path: Path
) -> None:
    """The same log directory, metadata log included, served by us, by Kafka, and by us again."""
    home = tmp_path / "moldau"
    data = home / "node-1" / "data"
    shutil.copytree(our_directory, data)
    expected: dict[str, list[bytes | None]] = {}
    with Cluster(directory=home) as cluster:
        for topic in ("codecs", "append-time", "rolled"):
            expected[topic] = values(cluster.bootstrap_server, topic)
            assert len(expected[topic]) >= 100
        compacted = newest(cluster.bootstrap_server, "compacted")
        assert compacted
        assert snapshot(cluster.bootstrap_server) == EXPECTED
        with Admin(cluster.bootstrap_server) as admin:  # with it comes the secret about others
            assert admin.alter_user_scram_credentials([ScramUpsertion("u", "u")]) == {"u": None}
        secret = secret_in(cluster.data_directory())
        assert secret is not None
        assert cluster.stop() == 0
        with KafkaServer(java, tmp_path / "kafka", data) as kafka:
            for topic, found in expected.items():
                assert values(kafka.bootstrap_server, topic) == found
                DRIVERS[0].write(kafka.bootstrap_server, topic, [Rec(None, b"from Kafka")])
            assert newest(kafka.bootstrap_server, "compacted") == compacted
            DRIVERS[0].write(kafka.bootstrap_server, "compacted", [Rec(b"key-1", b"from Kafka")])
            TopicMaker(kafka.bootstrap_server).create("made-by-kafka", partitions=2)
            assert snapshot(kafka.bootstrap_server) == EXPECTED
            assert transactions(kafka.bootstrap_server)[OPEN] == "Ongoing"
            go_on(kafka.bootstrap_server, 6)
            assert snapshot(kafka.bootstrap_server) == after(6)
            kafka.stop()
        cluster.restart()
        assert secret_in(cluster.data_directory()) == secret
        for topic, found in expected.items():
            found.append(b"from Kafka")
            assert values(cluster.bootstrap_server, topic) == found
        compacted[b"key-1"] = b"from Kafka"
        assert newest(cluster.bootstrap_server, "compacted") == compacted
        assert snapshot(cluster.bootstrap_server) == after(6)
        go_on(cluster.bootstrap_server, 8)
        assert snapshot(cluster.bootstrap_server) == after(8)
        assert values(cluster.bootstrap_server, OPEN) == [b"6", b"8"]
        TopicMaker(cluster.bootstrap_server).create("made-by-us-again")
        DRIVERS[0].write(cluster.bootstrap_server, "made-by-kafka", [Rec(None, b"ours")])
        assert values(cluster.bootstrap_server, "made-by-kafka") == [b"ours"]


def test_a_directory_of_kafkas_is_served_by_us(kafka_directory: Path, tmp_path: Path) -> None:
    home = tmp_path / "moldau"
    shutil.copytree(kafka_directory, home / "node-1" / "data")
    with Cluster(directory=home) as cluster:
        bootstrap = cluster.bootstrap_server
        assert len(values(bootstrap, "codecs")) == len(CODECS) * len(sample_records())
        committed = values(bootstrap, "transactions")
        assert committed == [b"%d" % number for number in range(5)] * 2
        assert values(bootstrap, "transactions", "read_uncommitted") == committed * 2
        assert snapshot(bootstrap) == EXPECTED
        assert transactions(bootstrap)[OPEN] == "Ongoing"
        go_on(bootstrap, 7)
        assert snapshot(bootstrap) == after(7)
        assert values(bootstrap, OPEN) == [b"7"]
        DRIVERS[0].write(bootstrap, "rolled", [Rec(None, b"ours")])
        assert values(bootstrap, "rolled")[-1] == b"ours"
        assert cluster.stop() == 0
