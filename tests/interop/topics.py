"""Fresh topics for interop tests, made by librdkafka's admin client, and the end of transactions in
them.

Owns an admin client for each maker of topics.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from types import TracebackType

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tests.kit.waiting import until

ADMIN_TIMEOUT_S = 20


def fresh_name(prefix: str = "interop") -> str:
    """A topic name that nothing else uses."""
    return f"{prefix}-{uuid.uuid4().hex}"


def wait_decided(bootstrap: str, topic: str) -> None:
    """Wait until no transaction is open in the topic. EndTxn is answered before the markers are
    written, and until then a reader of what is committed finds its end before the transaction.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    partitions = admin.list_topics(topic, timeout=ADMIN_TIMEOUT_S).topics[topic].partitions
    asked = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in partitions}

    def ends(isolation: IsolationLevel) -> dict[int, int]:
        futures = admin.list_offsets(asked, isolation_level=isolation)
        return {
            where.partition: future.result(ADMIN_TIMEOUT_S).offset
            for where, future in futures.items()
        }

    until(
        lambda: ends(IsolationLevel.READ_COMMITTED) == ends(IsolationLevel.READ_UNCOMMITTED),
        what=f"the markers of all transactions in {topic}",
    )


class TopicMaker:
    """Creates topics and deletes them all at the end, so that a foreign cluster is left clean."""

    def __init__(self, bootstrap: str, replication_factor: int = 1) -> None:
        self._replication_factor = replication_factor
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        self._names: list[str] = []

    def __enter__(self) -> TopicMaker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._names:
            for future in self._admin.delete_topics(self._names).values():
                future.exception(ADMIN_TIMEOUT_S)

    def create(
        self,
        name: str | None = None,
        *,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
    ) -> str:
        """Create a topic, wait until the broker knows it, and return its name."""
        name = name or fresh_name()
        new = NewTopic(name, partitions, self._replication_factor, config=dict(config or {}))
        self._admin.create_topics([new])[name].result(ADMIN_TIMEOUT_S)
        if name not in self._names:
            self._names.append(name)
        until(lambda: self._has_leaders(name, partitions), what=f"leaders of {name}")
        return name

    def _has_leaders(self, name: str, partition_count: int) -> bool:
        # Asked first, because list_offsets looks for leaders in what librdkafka remembers.
        found = self._admin.list_topics(name, timeout=ADMIN_TIMEOUT_S).topics[name]
        if found.error is not None or len(found.partitions) != partition_count:
            return False
        wanted = {TopicPartition(name, part): OffsetSpec.latest() for part in found.partitions}
        futures = self._admin.list_offsets(wanted)
        return all(future.exception(ADMIN_TIMEOUT_S) is None for future in futures.values())
