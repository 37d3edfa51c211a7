"""The one error of this package: bytes that are not a servable record batch.

Whatever bytes come in, functions of this package raise `InvalidBatch` and nothing else. A reason
names the error code that a broker answers with.
"""

from __future__ import annotations

from enum import Enum


class InvalidBatchReason(Enum):
    """Why a batch is refused."""

    TRUNCATED = "truncated"
    BAD_MAGIC = "bad magic"
    BAD_LENGTH = "bad length"
    BAD_CRC = "bad crc"
    BAD_COUNT = "bad count"
    BAD_ATTRIBUTES = "bad attributes"
    BAD_COMPRESSION = "bad compression"
    TOO_LARGE = "too large"
    BAD_RECORD = "bad record"
    BAD_OFFSET = "bad offset"
    BAD_TIMESTAMP = "bad timestamp"
    BAD_SEQUENCE = "bad sequence"
    BAD_PRODUCER = "bad producer"
    BAD_CONTROL = "bad control"
    MISSING_KEY = "missing key"

    @property
    def error_name(self) -> str:
        """Name of the `ErrorCode` member a broker answers a produce request with."""
        return _ERROR_NAMES.get(self, "INVALID_RECORD")


_ERROR_NAMES = {
    InvalidBatchReason.TRUNCATED: "CORRUPT_MESSAGE",
    InvalidBatchReason.BAD_LENGTH: "CORRUPT_MESSAGE",
    InvalidBatchReason.BAD_CRC: "CORRUPT_MESSAGE",
    InvalidBatchReason.BAD_COMPRESSION: "CORRUPT_MESSAGE",
    InvalidBatchReason.TOO_LARGE: "MESSAGE_TOO_LARGE",
    InvalidBatchReason.BAD_TIMESTAMP: "INVALID_TIMESTAMP",
}


class InvalidBatch(ValueError):
    """A record batch that cannot be read, verified or accepted.

    `position` is the byte position of the batch's first byte in the buffer that was given,
    `reason` says why, `record_index` which record of the batch is at fault (None: the batch).
    """

    def __init__(
        self,
        reason: InvalidBatchReason,
        message: str,
        *,
        position: int = 0,
        record_index: int | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.position: int = position
        self.record_index = record_index

    def __str__(self) -> str:
        where = f"batch at byte {self.position}"
        if self.record_index is not None:
            where += f", record {self.record_index}"
        return f"{self.message} ({where})"

    def at(self, position: int) -> InvalidBatch:
        """The same error with the batch's position filled in (raisers below do not know it)."""
        self.position = position
        return self
