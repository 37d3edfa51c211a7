"""What replica fetchers are told by the node's configuration, and the port that throttles them.

Owns the values alone. Invariant: immutable; what may change while the node runs (how many fetchers
there are) is told to the FetcherManager.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from moldau.protocol.types import TopicPartition


@dataclass(frozen=True, slots=True)
class FetcherSettings:
    """Kafka's `replica.*` settings; the defaults are Kafka's. Times in milliseconds."""

    num_fetchers: int = 1
    """`num.replica.fetchers`: connections per leader."""
    wait_max_ms: int = 500
    """`replica.fetch.wait.max.ms`"""
    min_bytes: int = 1
    """`replica.fetch.min.bytes`"""
    partition_max_bytes: int = 1_048_576
    """`replica.fetch.max.bytes`"""
    response_max_bytes: int = 10_485_760
    """`replica.fetch.response.max.bytes`"""
    backoff_ms: int = 1_000
    """`replica.fetch.backoff.ms`"""
    socket_timeout_ms: int = 30_000
    """`replica.socket.timeout.ms`"""

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> FetcherSettings:
        """From the node's typed configuration under Kafka's keys."""
        return cls(
            num_fetchers=values["num.replica.fetchers"],
            wait_max_ms=values["replica.fetch.wait.max.ms"],
            min_bytes=values["replica.fetch.min.bytes"],
            partition_max_bytes=values["replica.fetch.max.bytes"],
            response_max_bytes=values["replica.fetch.response.max.bytes"],
            backoff_ms=values["replica.fetch.backoff.ms"],
            socket_timeout_ms=values["replica.socket.timeout.ms"],
        )


class FollowerThrottle(Protocol):
    """`follower.replication.throttled.*`: what followers may fetch (KIP-73)."""

    def allows(self, topic_partition: TopicPartition, in_sync: bool) -> bool:
        """Whether the partition may be in the next fetch. One that is level never waits."""

    def record(self, topic_partition: TopicPartition, size_bytes: int) -> None:
        """So much of it was fetched."""

    def retry_ms(self) -> float:
        """After how long it makes sense to ask again."""
