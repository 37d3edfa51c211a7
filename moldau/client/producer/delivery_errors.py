"""The exceptions of records that were not delivered.

Owns their words. Invariant: each says what was wrong, for which partition, and what helps.
"""

from __future__ import annotations

from moldau.client.config import ProducerConfig
from moldau.client.errors import (
    DeliveryTimeout,
    InvalidRecord,
    KafkaError,
    UnknownTopicOrPartition,
    error_for,
)
from moldau.protocol.errors import ErrorCode


class ProducerErrors:
    """Makes what failed records carry."""

    def __init__(self, config: ProducerConfig) -> None:
        self._config = config

    def refused(
        self, code: ErrorCode, message: str | None, topic: str, partition: int
    ) -> KafkaError:
        """A broker refused the batch, or its answer was lost on the last attempt."""
        return error_for(code, message, f"a record for {topic}-{partition}")

    def expired(
        self, topic: str, partition: int, record_count: int, last: ErrorCode | None
    ) -> KafkaError:
        """Not acknowledged in time."""
        reason = (
            "no broker has answered about them"
            if last is None
            else f"the last attempt ended with {last.name}"
        )
        return DeliveryTimeout(
            f"{record_count} records for {topic}-{partition} were not acknowledged within "
            f"delivery.timeout.ms={self._config.delivery_timeout_ms}: {reason}"
        )

    def record_refused(self, error: Exception, is_named: bool, message: str | None) -> Exception:
        """The record was the reason that its batch failed, or others were (KIP-467)."""
        code = error.code if isinstance(error, KafkaError) else ErrorCode.INVALID_RECORD
        if not is_named:
            return InvalidRecord(
                f"not written, since other records of its batch are invalid: {error}", code=code
            )
        return InvalidRecord(f"the broker refuses the record: {message or error}", code=code)

    def unknown_topic(self, topic: str, partition: int | None) -> KafkaError:
        """Neither there nor made in time."""
        what = f"topic {topic}" if partition is None else f"partition {partition} of topic {topic}"
        return UnknownTopicOrPartition(
            f"{what} did not come up within max.block.ms={self._config.max_block_ms}: create it, "
            "or check the name",
            code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        )
