"""Three brokers and three controllers as processes, and what tests of replication ask of them.

Owns no process: the cluster is the caller's. Must not reach into a node.
"""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families

from moldau.protocol.records import Record, encode_batch
from moldau.testing import Cluster
from tests.interop.raw.probe import connected, produce_raw
from tests.interop.samples import BASE_TIMESTAMP_MS
from tests.kit.waiting import until
from tests.system.replication.replica_logs import differences

ADMIN_TIMEOUT_S = 20
LOOK_TIMEOUT_S = 3
NO_ANSWER = (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)

QUICK = {
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    # Faults are noticed after seconds: the tests wait for what follows from them.
    "replica.lag.time.max.ms": "3000",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}


class Trio:
    """A running cluster of three brokers, seen from outside."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.addresses = dict(
            zip(cluster.broker_ids, cluster.bootstrap_server.split(","), strict=True)
        )
        self.admin = AdminClient(
            {
                "socket.timeout.ms": 2_000,
                "bootstrap.servers": cluster.bootstrap_server,
                "log_level": 0,
            }
        )

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap_server

    def create(
        self,
        name: str,
        *,
        replicas: Sequence[int] = (1, 2, 3),
        config: Mapping[str, str] | None = None,
    ) -> str:
        """A topic with one partition on these brokers; the first leads."""
        new = NewTopic(name, 1, replica_assignment=[list(replicas)], config=dict(config or {}))
        self.admin.create_topics([new])[name].result(ADMIN_TIMEOUT_S)
        self.wait_isr(name, set(replicas))
        return name

    def partition(self, topic: str) -> Any:
        def look() -> Any:
            try:
                return self.admin.list_topics(topic, timeout=LOOK_TIMEOUT_S).topics[topic]
            except KafkaException as error:
                if error.args[0].code() not in NO_ANSWER:
                    raise
                return None  # it had asked a broker that is paused: it asks another one now

        return until(look, what=f"metadata of {topic}").partitions.get(0)

    def leader(self, topic: str) -> int:
        return int(self.partition(topic).leader)

    def isr(self, topic: str) -> set[int]:
        partition = self.partition(topic)
        return set() if partition is None else set(partition.isrs)

    def wait_isr(self, topic: str, wanted: set[int]) -> None:
        until(
            lambda: self.isr(topic) == wanted,
            what=f"an ISR of {sorted(wanted)} of {topic}",
            deadline_s=60,
        )

    def wait_leader(self, topic: str, *, other_than: int) -> int:
        def found() -> int:
            leader = self.leader(topic)
            return leader if leader not in (other_than, -1) else 0

        return until(found, what=f"a new leader of {topic}", deadline_s=60)

    def put(self, topic: str, *, acks: int, broker_id: int | None = None) -> Any:
        """One record straight to a broker, the leader if none is named; the raw answer."""
        address = self.addresses[self.leader(topic) if broker_id is None else broker_id]
        batch = encode_batch([Record(0, BASE_TIMESTAMP_MS, None, b"v")])

        async def ask() -> Any:
            async with connected(address) as connection:
                return await produce_raw(connection, topic, batch, acks=acks)

        return asyncio.run(ask())

    def log_directory(self, topic: str, broker_id: int) -> Path:
        return self.cluster.data_directory(broker_id) / f"{topic}-0"

    def wait_equal(self, topic: str, directories: Sequence[Path] | None = None) -> None:
        """Return when all replicas hold the same batches, byte for byte."""
        found = directories or [
            self.log_directory(topic, broker_id) for broker_id in self.cluster.broker_ids
        ]
        until(lambda: not differences(found), what=f"equal replicas of {topic}", deadline_s=60)

    def _http(self, broker_id: int, path: str) -> str:
        """What the broker's HTTP listener answers (`moldau.http.listener` is set)."""
        found = until(
            lambda: re.findall(
                r"HTTP listener on (\S+)", self.cluster.node(broker_id).log_path.read_text()
            ),
            what="the HTTP listener",
        )
        with urllib.request.urlopen(f"http://{found[-1]}{path}", timeout=10) as answer:
            text: str = answer.read().decode()
        return text

    def document(self, broker_id: int, path: str) -> Any:
        """A JSON document of the broker."""
        return json.loads(self._http(broker_id, path))

    def metrics(self, broker_id: int) -> dict[str, float]:
        """Every sample without labels, or with empty ones."""
        return {
            sample.name: sample.value
            for family in text_string_to_metric_families(self._http(broker_id, "/metrics"))
            for sample in family.samples
            if not any(sample.labels.values())
        }

    def said(self, broker_id: int, *words: str) -> bool:
        """Whether a line of the broker's log has all these words."""
        lines = self.cluster.node(broker_id).log_path.read_text().splitlines()
        return any(all(word in line for word in words) for line in lines)
