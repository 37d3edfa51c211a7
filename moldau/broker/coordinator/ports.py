"""What a coordinator's runtime needs of the broker around it.

Owns the ports: a partition of the coordinator's topic as its leader sees it, and the loop.
`replica_partitions` implements them over the replica manager; tests have their own.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from moldau.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from moldau.broker.coordinator.core.result import TransactionEnd
    from moldau.runtime.clock import Clock
    from moldau.runtime.telemetry.metrics import Registry
    from moldau.runtime.timers import TimerWheel


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
    def log_start_offset(self) -> int:
        """Where the log begins."""

    @property
    def log_end_offset(self) -> int:
        """Where the log ends (exclusive)."""

    @property
    def high_watermark(self) -> int:
        """Everything below is committed."""

    @property
    def max_batch_bytes(self) -> int:
        """The largest batch that may be appended."""

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

    def forget_wake(self) -> None:
        """Do not call `wake` any more."""


@dataclass(frozen=True, slots=True)
class RuntimePorts:
    """The broker around a runtime.

    Attributes:
        partition: the partition of that topic and index, if it is on this broker.
        soon: calls a function at the loop's next turn.
        start: runs a coroutine whose failure is told to the node.
    """

    broker_id: int
    clock: Clock
    timers: TimerWheel
    registry: Registry
    partition: Callable[[str, int], CoordinatorPartition | None]
    soon: Callable[[Callable[[], None]], object]
    start: Callable[[Coroutine[Any, Any, None]], object]
