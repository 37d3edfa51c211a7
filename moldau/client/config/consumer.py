"""Settings of the consumer. Owns what excludes what (`group.protocol`, `group.id`)."""

from __future__ import annotations

from typing import ClassVar, Final

from moldau.client.config.client import ClientConfig
from moldau.client.config.keywords import ConsumerValues
from moldau.client.errors import ConfigurationError

_ONLY_CLASSIC: Final = (
    "heartbeat_interval_ms",
    "partition_assignment_strategy",
    "session_timeout_ms",
)


class ConsumerConfig(ConsumerValues, ClientConfig):
    """What a consumer needs. Defaults are those of Kafka 4.3's Java consumer.

    Two keys are ours: `fetch.buffer.bytes` bounds what is fetched ahead (twice `fetch.max.bytes`
    unless set), and `metadata.max.idle.ms` is the producer's.
    `partition.assignment.strategy` takes names (range, roundrobin, sticky, cooperative-sticky, or
    Java's class names), classes and objects. Without a `group.id` nothing is committed.
    """

    KIND: ClassVar[str] = "consumer"

    def _check(self) -> None:
        super()._check()
        if self.fetch_buffer_bytes is None:
            self._settle(fetch_buffer_bytes=max(1, 2 * self.fetch_max_bytes))
        if self.group_id is None:
            if self.enable_auto_commit and "enable_auto_commit" in self.given:
                raise ConfigurationError(
                    "enable.auto.commit=true needs a group.id: there is nowhere to commit to"
                )
            self._settle(enable_auto_commit=False)
        elif not self.group_id:
            raise ConfigurationError("group.id='': leave it away to consume without a group")
        if self.group_protocol == "consumer":
            for name in _ONLY_CLASSIC:
                if name in self.given:
                    raise ConfigurationError(
                        f"{name.replace('_', '.')} cannot be set with group.protocol=consumer: "
                        "the brokers decide it"
                    )
            return
        if self.group_remote_assignor is not None:
            raise ConfigurationError(
                "group.remote.assignor cannot be set with group.protocol=classic; "
                "partition.assignment.strategy is what you want"
            )
        if not self.partition_assignment_strategy:
            raise ConfigurationError("partition.assignment.strategy: at least one is needed")
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ConfigurationError(
                f"heartbeat.interval.ms={self.heartbeat_interval_ms}: less than session.timeout.ms"
                f", which is {self.session_timeout_ms}"
            )
