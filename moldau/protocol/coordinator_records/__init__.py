"""The keys and values that coordinators write, by family, and their frame in log records."""

from moldau.protocol.coordinator_records.frame import (
    CONSUMER_OFFSETS,
    INTERNAL_TOPICS,
    TRANSACTION_STATE,
    CoordinatorLog,
)

__all__ = ["CONSUMER_OFFSETS", "INTERNAL_TOPICS", "TRANSACTION_STATE", "CoordinatorLog"]
