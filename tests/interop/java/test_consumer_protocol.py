"""Apache Kafka's consumer with the new group protocol (KIP-848), and its tools for such groups."""

from __future__ import annotations

import re

from tests.interop.java.tools import JavaTools
from tests.interop.topics import TopicMaker
from tests.kit.waiting import until


def test_console_consumer_and_the_tools_for_its_group(
    java: JavaTools, bootstrap: str, topics: TopicMaker
) -> None:
    topic = topics.create(partitions=3)
    group = f"group-of-{topic}"
    server = ("--bootstrap-server", bootstrap)
    java.check(
        "kafka-producer-perf-test", "--topic", topic, "--num-records", 30, "--record-size", 10,
        "--throughput", -1, "--producer-props", f"bootstrap.servers={bootstrap}",
    )  # fmt: skip
    read = java.check(
        "kafka-console-consumer", *server, "--topic", topic, "--from-beginning",
        "--group", group, "--command-property", "group.protocol=consumer",
        "--max-messages", 30, "--timeout-ms", 60_000,
    )  # fmt: skip
    assert len(read.lines) == 30
    listed = java.check("kafka-consumer-groups", *server, "--list", "--type", "consumer").output
    assert re.search(rf"{group}\s+Consumer", listed)
    described = java.check("kafka-consumer-groups", *server, "--describe", "--group", group)
    rows = re.findall(rf"{group}\s+{topic}\s+(\d+)\s+(\d+)\s+(\d+)\s+0\s", described.output)
    assert sorted(row[0] for row in rows) == ["0", "1", "2"]
    assert sum(int(row[1]) for row in rows) == 30
    state = java.check(
        "kafka-consumer-groups", *server, "--describe", "--group", group, "--state"
    ).output
    assert re.search(r"uniform\s+Empty\s+0", state)
    java.check("kafka-consumer-groups", *server, "--delete", "--group", group)
    until(
        lambda: group not in java.check("kafka-consumer-groups", *server, "--list").lines,
        what=f"{group} is gone",
    )


def test_kafka_configs_of_groups(java: JavaTools, bootstrap: str) -> None:
    entity = (
        "--bootstrap-server", bootstrap, "--entity-type", "groups", "--entity-name", "configured",
    )  # fmt: skip

    def described() -> str:
        return java.check("kafka-configs", *entity, "--describe").output

    key = "consumer.session.timeout.ms"
    java.check("kafka-configs", *entity, "--alter", "--add-config", f"{key}=50000")
    until(lambda: f"{key}=50000" in described(), what=key)
    assert f"DYNAMIC_GROUP_CONFIG:{key}=50000" in described()
    bad = java.run("kafka-configs", *entity, "--alter", "--add-config", f"{key}=1")
    assert bad.status == 1
    assert "InvalidConfigurationException" in bad.output + bad.errors
    java.check("kafka-configs", *entity, "--alter", "--delete-config", key)
    until(lambda: f"{key}=" not in described(), what=f"no {key}")
