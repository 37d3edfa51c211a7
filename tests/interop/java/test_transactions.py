"""Apache Kafka's own transactional client, and its tool for transactions, on three brokers."""

from __future__ import annotations

import asyncio
import re

import pytest
from confluent_kafka import Producer

from tests.interop.confluent.clients import WAIT_S, write_numbers
from tests.interop.java.tools import JavaTools
from tests.interop.raw.hanging import PRODUCER_ID, VERIFICATION, begin_behind_the_coordinator
from tests.interop.topics import TopicMaker, fresh_name
from tests.kit.waiting import until

pytestmark = pytest.mark.timeout(600)

PARTITIONS = 3
COUNT = 300


def read(java: JavaTools, bootstrap: str, topic: str, count: int, isolation: str) -> list[str]:
    """What Kafka's console consumer reads of all partitions, sorted."""
    return sorted(
        java.check(
            "kafka-console-consumer",
            "--bootstrap-server", bootstrap,
            "--topic", topic,
            "--from-beginning",
            "--max-messages", count,
            "--timeout-ms", 60_000,
            "--isolation-level", isolation,
            "--command-property", f"group.id={fresh_name('reader')}",
        ).lines
    )  # fmt: skip


def end_offsets(java: JavaTools, bootstrap: str, topic: str) -> int:
    """The sum over all partitions, as kafka-get-offsets prints them."""
    told = java.check("kafka-get-offsets", "--bootstrap-server", bootstrap, "--topic", topic)
    return sum(int(line.rpartition(":")[2]) for line in told.lines if line.startswith(topic))


@pytest.mark.parametrize("mode", [(), ("--use-group-metadata", "--group-mode")])
def test_kafka_s_client_copies_each_record_once(
    java: JavaTools, trio: str, trio_topics: TopicMaker, mode: tuple[str, ...]
) -> None:
    """It aborts about a third of its transactions and goes on from what was committed."""
    source = trio_topics.create(partitions=1)
    target = trio_topics.create(partitions=PARTITIONS)
    write_numbers(trio, source, range(COUNT), 1)
    group = fresh_name("copier")
    java.check(
        "transactional-message-copier",
        "--broker-list", trio,
        "--input-topic", source,
        "--input-partition", 0,
        "--output-topic", target,
        "--max-messages", COUNT,
        "--consumer-group", group,
        "--transactional-id", fresh_name("copier"),
        "--transaction-size", 30,
        "--enable-random-aborts",
        *mode,
    )  # fmt: skip
    expected = [f"{number:06d}" for number in range(COUNT)]
    assert read(java, trio, target, COUNT, "read_committed") == expected
    # Records, and a marker for each transaction at least; an aborted one may have sent nothing yet.
    assert end_offsets(java, trio, target) >= COUNT + COUNT // 30

    def is_described() -> bool:
        """The tool does not wait for offsets whose transaction lacks a marker."""
        told = java.check(
            "kafka-consumer-groups", "--bootstrap-server", trio, "--group", group, "--describe"
        )
        return re.search(rf"{source}\s+0\s+{COUNT}\s+{COUNT}\s+0\b", told.output) is not None

    until(is_described, what="the offsets of the last transaction")


def test_the_transactions_tool(java: JavaTools, trio: str, trio_topics: TopicMaker) -> None:
    topic = trio_topics.create(partitions=PARTITIONS)
    transactional_id = fresh_name("java")
    server = ("--bootstrap-server", trio)
    where = ("--topic", topic, "--partition", 1)
    producer = Producer(
        {"bootstrap.servers": trio, "transactional.id": transactional_id, "log_level": 0}
    )
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=1)
    assert producer.flush(WAIT_S) == 0

    listed = java.check("kafka-transactions", *server, "list")
    [line] = [each for each in listed.lines if each.startswith(transactional_id)]
    _, coordinator_id, producer_id, state = line.split()
    assert state == "Ongoing"
    [line] = java.check(
        "kafka-transactions", *server, "describe", "--transactional-id", transactional_id
    ).lines[1:]
    assert line.split()[:2] == [coordinator_id, transactional_id]
    assert f"{topic}-1" in line
    [line] = java.check("kafka-transactions", *server, "describe-producers", *where).lines[1:]
    assert line.split()[0] == producer_id
    hanging = java.check(
        "kafka-transactions", *server, "find-hanging", "--topic", topic,
        "--max-transaction-timeout", 0,
    )  # fmt: skip
    assert transactional_id not in hanging.output, "its coordinator knows it"
    java.check(
        "kafka-transactions", *server, "forceTerminateTransaction",
        "--transactionalId", transactional_id,
    )  # fmt: skip
    write_numbers(trio, topic, range(PARTITIONS), PARTITIONS)
    expected = [f"{number:06d}" for number in range(PARTITIONS)]
    assert read(java, trio, topic, PARTITIONS, "read_committed") == expected
    assert len(read(java, trio, topic, PARTITIONS + 1, "read_uncommitted")) == PARTITIONS + 1


def test_a_hanging_transaction_is_found_and_aborted(
    java: JavaTools, trio: str, trio_topics: TopicMaker
) -> None:
    topic = trio_topics.create(partitions=PARTITIONS)
    server = ("--bootstrap-server", trio)
    config = (*server, "--entity-type", "brokers", "--entity-default", "--alter")
    java.check("kafka-configs", *config, "--add-config", f"{VERIFICATION}=false")
    try:
        until(lambda: _is_begun(trio, topic), what="an open transaction", deadline_s=WAIT_S)
    finally:
        java.check("kafka-configs", *config, "--delete-config", VERIFICATION)
    search = ("find-hanging", "--topic", topic, "--max-transaction-timeout", 0)
    [line] = java.check("kafka-transactions", *server, *search).lines[1:]
    assert line.split()[:3] == [topic, "1", str(PRODUCER_ID)]
    start_offset = line.split()[5]
    java.check(
        "kafka-transactions", *server, "abort",
        "--topic", topic,
        "--partition", 1,
        "--start-offset", start_offset,
    )  # fmt: skip
    assert java.check("kafka-transactions", *server, *search).lines[1:] == []
    write_numbers(trio, topic, range(PARTITIONS), PARTITIONS)
    assert len(read(java, trio, topic, PARTITIONS, "read_committed")) == PARTITIONS


def _is_begun(bootstrap: str, topic: str) -> bool:
    """Not before every broker has heard of its configuration."""
    try:
        asyncio.run(begin_behind_the_coordinator(bootstrap, topic))
    except AssertionError:
        return False
    return True


def test_the_transactional_perf_test(java: JavaTools, trio: str, trio_topics: TopicMaker) -> None:
    topic = trio_topics.create(partitions=PARTITIONS)
    java.check(
        "kafka-producer-perf-test",
        "--bootstrap-server", trio,
        "--topic", topic,
        "--num-records", COUNT,
        "--record-size", 20,
        "--throughput", -1,
        "--transactional-id", fresh_name("perf"),
        "--transaction-duration-ms", 20,
    )  # fmt: skip
    assert len(read(java, trio, topic, COUNT, "read_committed")) == COUNT
