"""What the controller needs of the replicated log, whoever provides it.

Owns: the port, its listener and the shapes of what is delivered. Must not: know files, voters or
networks. The quorum log of `moldau.raft` implements it.
Invariant: a listener is told of every committed batch once, in order, possibly after a snapshot
that stands for all batches before it; and of leadership only after everything before the leader's
epoch.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Protocol

from moldau.protocol.errors import ErrorCode
from moldau.protocol.schema import Message


class CommittedBatch(Protocol):
    """One committed batch. Control batches are delivered too, without records: offsets stay
    gapless.
    """

    @property
    def base_offset(self) -> int:
        """The first offset."""

    @property
    def last_offset(self) -> int:
        """The last offset."""

    @property
    def leader_epoch(self) -> int:
        """The epoch of the leader that wrote it."""

    @property
    def append_timestamp_ms(self) -> int:
        """When its leader appended it."""

    @property
    def size_bytes(self) -> int:
        """Its size in the log."""

    @property
    def records(self) -> Sequence[Message]:
        """The metadata records, in order."""


class LoadedSnapshot(Protocol):
    """The content of a snapshot, which stands for everything below `end_offset`."""

    @property
    def end_offset(self) -> int:
        """It stands for everything below this offset."""

    @property
    def leader_epoch(self) -> int:
        """The epoch of the leader that wrote it."""

    @property
    def last_contained_log_time_ms(self) -> int:
        """When the last record it stands for was appended."""

    @property
    def records(self) -> Sequence[Message]:
        """The metadata records, in order."""


class MetadataLogListener(Protocol):
    """Told of what happens in the log, on the log's own event loop."""

    def handle_snapshot(self, snapshot: LoadedSnapshot) -> None:
        """Replace everything by the snapshot's content."""

    def handle_commit(self, batch: CommittedBatch) -> None:
        """Apply one batch."""

    def handle_leader_change(self, leader_id: int, leader_epoch: int) -> None:
        """`leader_id` leads from here on, -1 when nobody is known to."""


class MetadataLog(Protocol):
    """A log of metadata records, written by one leader at a time."""

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record will get."""

    @property
    def voter_ids(self) -> Sequence[int]:
        """Who may become the leader of the log: they all have to support what is finalized."""

    def append(
        self,
        records: Sequence[tuple[Message, int]],
        *,
        leader_epoch: int,
        values: Sequence[bytes] | None = None,
    ) -> tuple[ErrorCode, int]:
        """Append records as one batch, to be committed later or never. `values` are the records
        encoded, if that was done before.

        Returns NONE and the offset of the last record; NOT_CONTROLLER when this node does not lead
        in `leader_epoch`; KAFKA_STORAGE_ERROR when the disk refuses it. The log is then as before.
        """

    def step_down(self) -> None:
        """Lead no longer, in favour of whoever can; for a leader that cannot do its work."""

    def add_listener(self, listener: MetadataLogListener) -> object:
        """Deliver everything there is, then everything that comes."""

    def write_snapshot(
        self,
        *,
        end_offset: int,
        leader_epoch: int,
        last_contained_log_time_ms: int,
        records: Iterator[tuple[Message, int]],
    ) -> Awaitable[None]:
        """Write a snapshot that stands for everything below `end_offset`, then trim the log.

        Raises:
            OSError: it could not be written; nothing changed.
        """


class TimerHandle(Protocol):
    """A timer that may be called off."""

    def cancel(self) -> None:
        """Call it off; harmless when it has run."""


class Clock(Protocol):
    """The part of the runtime's clock that the driver needs."""

    def now_ms(self) -> int:
        """Wall-clock milliseconds since 1970."""

    def monotonic_ms(self) -> float:
        """Milliseconds that never go back."""

    def call_later(
        self, delay_ms: float, callback: Callable[..., object], *args: Any
    ) -> TimerHandle:
        """Run `callback(*args)` after `delay_ms` milliseconds."""
