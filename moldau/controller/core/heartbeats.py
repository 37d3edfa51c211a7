"""Which brokers are alive: their last heartbeats, and how far each has read the metadata log.

Owns: the soft state of broker sessions; it is not in the log, and a new active controller starts
with a fresh session for everybody. Must not: fence anybody by itself.
Invariant: only registered brokers are tracked, each under its current broker epoch.
"""

from __future__ import annotations

from dataclasses import dataclass

from moldau.metadata.image import MetadataImage


@dataclass(slots=True)
class _Session:
    broker_epoch: int
    last_contact_ms: float
    metadata_offset: int = -1
    controlled_shutdown_offset: int = -1


class BrokerHeartbeats:
    """Sessions by broker id. Times are monotonic milliseconds."""

    __slots__ = ("_session_timeout_ms", "_sessions")

    def __init__(self, session_timeout_ms: int) -> None:
        self._session_timeout_ms = session_timeout_ms
        self._sessions: dict[int, _Session] = {}

    def reset(self, image: MetadataImage, now_ms: float) -> None:
        """Begin to lead: every broker that is not fenced gets a whole session to report in."""
        self._sessions = {
            broker_id: _Session(broker.broker_epoch, now_ms)
            for broker_id, broker in image.cluster.brokers.items()
            if not broker.fenced
        }

    def touch(
        self, broker_id: int, broker_epoch: int, now_ms: float, metadata_offset: int = -1
    ) -> None:
        """A broker was heard of."""
        session = self._sessions.get(broker_id)
        if session is None or session.broker_epoch != broker_epoch:
            session = self._sessions[broker_id] = _Session(broker_epoch, now_ms)
        session.last_contact_ms = now_ms
        session.metadata_offset = max(session.metadata_offset, metadata_offset)

    def forget(self, broker_id: int) -> None:
        """A broker was unregistered, or its incarnation replaced."""
        self._sessions.pop(broker_id, None)

    def has_valid_session(self, broker_id: int, now_ms: float) -> bool:
        """Whether a broker was heard of within its session timeout."""
        session = self._sessions.get(broker_id)
        return session is not None and now_ms < session.last_contact_ms + self._session_timeout_ms

    def expired(self, image: MetadataImage, now_ms: float) -> list[int]:
        """Brokers to fence: not fenced yet and silent for longer than their session."""
        return [
            broker_id
            for broker_id in sorted(self._sessions)
            if not self.has_valid_session(broker_id, now_ms)
            and (broker := image.cluster.brokers.get(broker_id)) is not None
            and not broker.fenced
        ]

    def next_expiry_ms(self, image: MetadataImage) -> float | None:
        """When the next session may run out."""
        times = [
            session.last_contact_ms + self._session_timeout_ms
            for broker_id, session in self._sessions.items()
            if (broker := image.cluster.brokers.get(broker_id)) is not None and not broker.fenced
        ]
        return min(times, default=None)

    def begin_controlled_shutdown(self, broker_id: int, log_end_offset: int) -> None:
        """Remember by which offset the others must have heard that a broker leaves."""
        session = self._sessions.get(broker_id)
        if session is not None:
            session.controlled_shutdown_offset = log_end_offset

    def may_shut_down(self, broker_id: int, image: MetadataImage) -> bool:
        """Whether every live broker has read that this one leads nothing any more."""
        session = self._sessions.get(broker_id)
        if session is None:
            return True
        return all(
            other.metadata_offset >= session.controlled_shutdown_offset
            for other_id, other in self._sessions.items()
            if (broker := image.cluster.brokers.get(other_id)) is not None
            and not broker.fenced
            and not broker.in_controlled_shutdown
        )
