"""The settings of a coordinator's runtime; none of their keys can change while the broker runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from moldau.config import ConfigError
from moldau.protocol.records import Codec

DEFAULT_LOAD_BUFFER_BYTES: Final = 5 * 1024 * 1024
DEFAULT_WRITE_TIMEOUT_MS: Final = 5_000

MAX_WAITING_COUNT: Final = 10_000
"""Operations of one partition that may wait for their commit; further ones are refused."""

MAX_WAITING_BYTES: Final = 64 * 1024 * 1024
"""Bytes of uncommitted records of one partition, after which operations are refused."""


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """Limits and times of one coordinator.

    Attributes:
        load_buffer_bytes: read at a time while a partition is loaded.
        write_timeout_ms: how long an answer waits for its commit.
        codec: how batches are compressed.
    """

    load_buffer_bytes: int = DEFAULT_LOAD_BUFFER_BYTES
    write_timeout_ms: int = DEFAULT_WRITE_TIMEOUT_MS
    codec: Codec = Codec.NONE
    max_waiting_count: int = MAX_WAITING_COUNT
    max_waiting_bytes: int = MAX_WAITING_BYTES

    @classmethod
    def for_groups(cls, values: Mapping[str, Any]) -> RuntimeSettings:
        """From `offsets.*` of a node's configuration. Raises: ConfigError."""
        codec_id = values["offsets.topic.compression.codec"]
        if codec_id not in set(Codec):
            raise ConfigError(
                "offsets.topic.compression.codec", str(codec_id), f"must be 0 to {max(Codec)}"
            )
        return cls(
            load_buffer_bytes=values["offsets.load.buffer.size"],
            write_timeout_ms=values["offsets.commit.timeout.ms"],
            codec=Codec(codec_id),
        )

    @classmethod
    def for_transactions(cls, values: Mapping[str, Any]) -> RuntimeSettings:
        """From `transaction.state.log.*`; the log's writes are given `request.timeout.ms`, and are
        never compressed, as in Apache Kafka.
        """
        return cls(
            load_buffer_bytes=values["transaction.state.log.load.buffer.size"],
            write_timeout_ms=values["request.timeout.ms"],
        )
