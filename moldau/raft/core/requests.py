"""Which requests are under way, and whom not to ask again yet.

Owns: one entry for each destination and kind of request. Must not: decide what to ask. Invariant:
at most one awaited request per destination and kind; after a failure none before the backoff, which
doubles up to a bound while failures follow one another.

A change of role forgets what is awaited: the next round must not wait for the answers of the last.
Those still come, and are judged by what they say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from moldau.raft.core.effects import Send
from moldau.raft.core.messages import PeerRequest
from moldau.raft.core.values import Destination

MAX_BACKOFF_FACTOR: Final = 10
"""The longest backoff, in multiples of `controller.quorum.retry.backoff.ms`."""

_Kind = tuple[Destination, type[PeerRequest]]


@dataclass(slots=True)
class _Awaited:
    send: Send
    sent_ms: float


class RequestLedger:
    """The requests of one role in one epoch."""

    def __init__(self, retry_backoff_ms: float) -> None:
        self._retry_backoff_ms = retry_backoff_ms
        self._awaited: dict[_Kind, _Awaited] = {}
        self._not_before_ms: dict[_Kind, float] = {}
        self._failures: dict[_Kind, int] = {}

    def reset(self) -> None:
        """Forget everything: a new role."""
        self._awaited.clear()
        self._not_before_ms.clear()
        self._failures.clear()

    def sent(self, send: Send, now_ms: float) -> None:
        """Await its answer."""
        kind = (send.destination, type(send.request))
        assert kind not in self._awaited, f"two requests at once: {kind}"
        self._awaited[kind] = _Awaited(send, now_ms)

    def answered(self, send: Send, now_ms: float, *, succeeded: bool) -> float | None:
        """It has been answered, or has failed.

        Returns:
            How long it took in milliseconds; None when it had been forgotten.
        """
        kind = (send.destination, type(send.request))
        awaited = self._awaited.get(kind)
        if awaited is None or awaited.send is not send:
            return None
        del self._awaited[kind]
        if succeeded:
            self._failures.pop(kind, None)
            self._not_before_ms.pop(kind, None)
        else:
            self.back_off(send, now_ms)
        return now_ms - awaited.sent_ms

    def back_off(self, send: Send, now_ms: float) -> None:
        """What came was of no use: not the same again at once."""
        kind = (send.destination, type(send.request))
        failures = self._failures.get(kind, 0)
        factor = min(2**failures, MAX_BACKOFF_FACTOR)
        self._failures[kind] = min(failures + 1, 30)
        self._not_before_ms[kind] = now_ms + factor * self._retry_backoff_ms

    def pause(self, send: Send, now_ms: float) -> None:
        """It was answered well, but there is nothing to gain by asking again at once."""
        self._not_before_ms[send.destination, type(send.request)] = now_ms + self._retry_backoff_ms

    def is_awaited(self, destination: Destination, request: type[PeerRequest]) -> bool:
        """Whether such a request is under way."""
        return (destination, request) in self._awaited

    def last_awaited_ms(
        self, request: type[PeerRequest], but: Destination | None = None
    ) -> float | None:
        """When the youngest that is under way to any destination other than `but` was sent."""
        sent = (
            awaited.sent_ms
            for (to, kind), awaited in self._awaited.items()
            if kind is request and to != but
        )
        return max(sent, default=None)

    def ready_ms(self, destination: Destination, request: type[PeerRequest]) -> float:
        """From when on it may be sent; -inf for any time. Not for one that is under way."""
        return self._not_before_ms.get((destination, request), float("-inf"))

    def has_failed(self, destination: Destination, request: type[PeerRequest]) -> bool:
        """Whether the last one failed."""
        return (destination, request) in self._failures
