"""What a coordinator's runtime needs of the broker around it.

Owns the settings, whose keys cannot change while the broker runs, and the ports: a partition of the
coordinator's topic as its leader sees it, and the loop. `coordinators` implements the ports over
the replica manager; tests have their own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from moldau.broker.coordinator.core.kept_memory import MemoryLimit
from moldau.config import ConfigError
from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import Codec
from moldau.text import quoted

if TYPE_CHECKING:
    from moldau.broker.coordinator.core.result import TransactionEnd
    from moldau.config import NodeConfig
    from moldau.runtime.clock import Clock
    from moldau.runtime.slices import Work
    from moldau.runtime.telemetry.metrics import Registry
    from moldau.runtime.timers import TimerWheel


logger = logging.getLogger(__name__)


def memory_limit(max_bytes: int, kept: str) -> MemoryLimit:
    """The limit of a coordinator; who is refused is named in the log. `kept` is what it keeps."""

    def refused(principal: str) -> None:
        logger.warning(
            "%s in memory take %d of %d bytes: no more for %s, which has %d of them",
            kept,
            limit.used_bytes,
            max_bytes,
            quoted(principal),
            limit.of(principal),
        )

    limit = MemoryLimit(max_bytes, refused)
    return limit


class Appended(NamedTuple):
    """The outcome of an append: where the log ends behind it. An end of -1 without an error: the
    log held the batch already.
    """

    error: ErrorCode
    next_offset: int = -1


class Piece(NamedTuple):
    """Whole batches from a log; none, with the `next_offset` that was asked for, is its end."""

    error: ErrorCode
    records: bytes = b""
    next_offset: int = -1


class CoordinatorPartition(Protocol):
    """One partition of a coordinator's topic on this broker."""

    @property
    def leader_epoch(self) -> int:
        """The epoch in which this broker leads it with a usable log, otherwise -1."""

    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def max_batch_bytes(self) -> int: ...

    def append(self, batch: bytearray, leader_epoch: int) -> Appended:
        """Append a batch with the demands of acks=all, if this broker leads in that epoch."""

    def append_marker(self, end: TransactionEnd, leader_epoch: int) -> Appended:
        """Append the marker that ends a transaction, if this broker leads in that epoch."""

    async def read(self, start_offset: int, max_bytes: int) -> Piece:
        """Batches from the one that holds `start_offset` on, committed or not."""

    def wake_at(self, required_offset: int, wake: Callable[[], None]) -> None:
        """Call `wake` once when everything before `required_offset` is committed, or never will be
        here. A later call replaces an earlier one. `wake` may be called within any other call.
        """

    def forget_wake(self) -> None: ...


class RuntimePorts(NamedTuple):
    """The broker around a runtime.

    Attributes:
        soon: calls a function at the loop's next turn.
        start: runs a coroutine of that name, whose failure is reported to the node.
    """

    broker_id: int
    clock: Clock
    timers: TimerWheel
    registry: Registry
    partition: Callable[[str, int], CoordinatorPartition | None]
    soon: Callable[[Callable[[], None]], object]
    start: Callable[[Work, str], object]


class RuntimeSettings(NamedTuple):
    """Limits and times of one coordinator.

    Attributes:
        load_buffer_bytes: read at a time while a partition is loaded.
        write_timeout_ms: how long an answer waits for its commit.
        max_waiting_count: operations of one partition that may wait for their commit; further ones
            are refused.
        max_waiting_bytes: of uncommitted records of one partition, likewise.
    """

    load_buffer_bytes: int = 5 * 1024 * 1024
    write_timeout_ms: int = 5_000
    codec: Codec = Codec.NONE
    max_waiting_count: int = 10_000
    max_waiting_bytes: int = 64 * 1024 * 1024

    @classmethod
    def for_groups(cls, values: NodeConfig) -> RuntimeSettings:
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
    def for_transactions(cls, values: NodeConfig) -> RuntimeSettings:
        """From `transaction.state.log.*`; the log's writes are given `request.timeout.ms`, and are
        never compressed, as in Apache Kafka.
        """
        return cls(
            load_buffer_bytes=values["transaction.state.log.load.buffer.size"],
            write_timeout_ms=values["request.timeout.ms"],
        )
